"""Tests each rail of the nodes: which ranks use it, its speed, its cables, its share."""
