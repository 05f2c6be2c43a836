"""Calls that failed: which error is the cause, and what mends it."""
