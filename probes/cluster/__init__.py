"""The Ray cluster under test: joining it, its nodes, and cleaning up on it."""
