"""What was found and how it is shown.  Imports neither ray nor torch."""
