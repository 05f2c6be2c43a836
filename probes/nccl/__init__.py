"""Analyses NCCL logs; needs no cluster."""
