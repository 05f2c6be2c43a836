"""Mutation testing: one small change at a time to the judging code must turn a fast test red."""
