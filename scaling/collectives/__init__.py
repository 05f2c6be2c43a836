"""Collectives: timed, checked, and searched for slow nodes and links."""
