"""One file per row of the acceptance table."""
