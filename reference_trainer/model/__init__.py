"""Provides the model, its FLOPs and memory, and its emulated compute time."""
