"""FABRIC: RDMA is in use."""
