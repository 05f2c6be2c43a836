"""The model, its FLOPs, and its emulated compute time."""
