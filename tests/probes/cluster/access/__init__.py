"""Facts of one node."""
