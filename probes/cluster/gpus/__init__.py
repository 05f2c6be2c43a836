"""Asks the drivers and tools of GPUs, on a node, beyond the facts that each run reads."""
