"""Reads what a launched job says and does: ranks, training, bytes, processes."""
