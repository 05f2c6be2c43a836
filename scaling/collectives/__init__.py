"""Times and checks collectives, and searches for slow nodes and links."""
