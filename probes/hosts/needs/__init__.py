"""Judges that each node has what jobs load: one image, models, ways out, RDMA devices."""
