"""Phrases with which NCCL, RCCL and plugins report a problem, by subject."""
