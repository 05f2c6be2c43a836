"""Links between nodes: what they count, lose, and which network they use."""
