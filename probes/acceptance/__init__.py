"""Criteria, contract, limits, and the recorder of what a probe measures."""
