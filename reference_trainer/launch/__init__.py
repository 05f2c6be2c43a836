"""Starts the training job on a Ray cluster, whole or not at all."""
