"""Faults that probes inject: killed processes and lost nodes."""
