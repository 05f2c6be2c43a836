"""Lets NCCL take each process for a host of its own: else it refuses two ranks on one GPU."""

import os
import socket

# Not only where it is unset: a process inherits its parent's.
os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{os.getpid()}"
