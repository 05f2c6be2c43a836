"""Measures how speed changes with size: collectives, the ladder, and the causes of lost time."""
