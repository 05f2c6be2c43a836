"""Writes, verifies, selects and loads checkpoints."""
