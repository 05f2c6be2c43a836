"""Runs the suite on a remote cluster through Ray's Jobs API, and brings the run back.

The client side (all but `entry` and `parts`) needs click and the standard library alone.
"""
