"""RESTART: restart from checkpoint works."""
