"""Criteria, contract, limits, and the recording of what a probe measures."""
