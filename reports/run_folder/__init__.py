"""The run folder: written during a run, read and verified afterwards."""
