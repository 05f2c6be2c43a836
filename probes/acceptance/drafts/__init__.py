"""Writes drafts of contracts: from what a run found, and from a user's answers."""
