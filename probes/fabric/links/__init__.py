"""Links between nodes: their counters, their loss, and the network they use."""
