"""Proof that the suite tells the truth, without a GPU."""
