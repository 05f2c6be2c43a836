"""Judging a run without its cluster: by another contract, and by its own once more."""
