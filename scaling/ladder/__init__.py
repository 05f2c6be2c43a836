"""Runs the ladder of node counts, and splits a step into its parts."""
