"""The environment that jobs find on each node, and the lint of its NCCL settings."""
