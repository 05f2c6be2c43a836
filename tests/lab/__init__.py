"""A real multi-node Ray cluster on one Linux machine, with faults that can be injected.

Every node is a set of namespaces (network, mount, PID, UTS, IPC) and a CPU control group, and runs
a real raylet. `python -m tests.lab up --nodes 4` starts one; see `--help`.
"""
