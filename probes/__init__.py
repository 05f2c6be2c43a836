"""Probes and their pytest plugin; each row of the acceptance table has a folder."""
