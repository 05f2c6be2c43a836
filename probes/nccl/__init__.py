"""The analyser of NCCL logs; it needs no cluster."""
