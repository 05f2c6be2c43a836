"""One run of the suite under pytest."""
