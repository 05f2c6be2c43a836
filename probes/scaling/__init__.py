"""SCALING: scaling is close to linear."""
