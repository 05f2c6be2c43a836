"""Starts the training job on a Ray cluster: all ranks or none."""
