"""Room on the cluster: nodes that join late, accelerators that other jobs hold."""
