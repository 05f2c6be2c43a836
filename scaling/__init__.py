"""Measures how speed changes with size, for seatrial: collectives, the ladder, lost time."""
