"""Lists the largest value that can occur, by unit: a limit above it judges nothing."""

from __future__ import annotations

# By unit: the value, and why there is none above it.
REACH = {
    "ratio": (1.0, "1 is the whole"),
    "s": (86_400.0, "no probe waits for more than a day"),
    "GB/s": (1e5, "no node has a hundred times the network of today's largest"),
    "1/min": (1e6, "no link repeats a million packets in a minute and works"),
    "differences": (1e3, "no node has a thousand parts that are compared"),
    "names": (1.0, "a node has one own name"),
    "connections": (1e6, "20,000 nodes try fewer, for each connects to some 30 others"),
    "tokens/s per rank": (1e9, "no accelerator trains a billion tokens in a second"),
    "entrances": (1e5, "20,000 nodes have a raylet and an agent each, and the head three more"),
    "files": (2**30, "the kernel allows no process more open files"),
    "GiB": (1e6, "no node has a million GiB of memory"),
    "MiB": (2.0**30, "no node has so much memory"),
    "threads a rank": (2**22, "the kernel numbers no more threads on a machine"),
    "nodes": (20_000.0, "no cluster has more nodes"),
    "interfaces": (1.0, "NCCL starts over one interface of a node"),
    "TFLOP/s": (1e6, "no GPU computes a thousand times as fast as an H100"),
    "raylets": (1e3, "no node holds a thousand clusters"),
    "reads": (1e6, "no probe reads a million times"),
    "lines": (1e6, "no probe appends a million lines"),
    "updates": (1e6, "no probe changes a number a million times"),
    "saves": (1e6, "no folder holds a million saves"),
}
