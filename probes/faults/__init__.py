"""Injects faults for probes: killed processes and lost nodes."""
