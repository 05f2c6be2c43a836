"""HOSTS: the arithmetic and the copies of each GPU, all at once; on emulated ones, on the CPU."""
