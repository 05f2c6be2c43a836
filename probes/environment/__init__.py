"""Reads the environment of jobs on each node, and checks its NCCL settings."""
