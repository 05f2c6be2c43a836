"""Explains a ladder's loss by its causes, and predicts the efficiency on more nodes."""
