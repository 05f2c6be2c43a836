"""Probes of seatrial and their pytest plugin; each row of the acceptance table has a folder."""
