"""Judges a run again without its cluster: by another contract, or by its own."""
