"""Checkpoints: written, verified, selected and loaded."""
