"""Follows a guide: its commands, in a shell of a user."""
