"""Writes a case of a pasted piece: its lines in the form of NCCL's, and what is expected."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A text, what must be found in it (`only` these codes), and why."""

    text: str
    only: set[str]
    why: str
    says: str = ""  # a part of the report
    transport: str = ""


def info(*texts: str, host: str = "gpu01", pid: int = 4001, device: int = 0) -> str:
    return "".join(f"{host}:{pid}:{pid + 60} [{device}] NCCL INFO {text}\n" for text in texts)


def warn(text: str, host: str = "gpu01", pid: int = 4001, device: int = 0) -> str:
    source, _, words = text.partition(" ")
    return f"{host}:{pid}:{pid + 60} [{device}] {source} NCCL WARN {words}\n"


BEGIN = (
    "Bootstrap : Using eth0:10.1.0.1<0>",
    "NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.1.0.1<0>",
    "Using network IB",
)


def start(rank: int, size: int) -> str:
    return f"ncclCommInitRank comm 0x55 rank {rank} nranks {size} cudaDev 0 busId 1000 commId 0xab - Init START"


def size_line(rank: int, size: int, nodes: int) -> str:
    return f"comm 0x55 rank {rank} nRanks {size} nNodes {nodes} localRanks {size // nodes} localRank 0 MNNVL 0"


PIECE = "cannot show whether the job hangs"
