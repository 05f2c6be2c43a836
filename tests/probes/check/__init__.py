"""Tests of the engine: declarations, and how they are found."""
