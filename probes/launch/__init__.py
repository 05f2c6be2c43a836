"""LAUNCH: a user can launch without help."""
