"""The run folder: written as a run goes, read and verified afterwards."""
