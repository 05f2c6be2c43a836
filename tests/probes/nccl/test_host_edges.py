"""Which edges cross hosts: the names that ranks write under, per communicator, and NCCL's nNodes.

SYNTHETIC: lines written to the documented formats.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from probes.nccl.report import NcclReport, analyse_files

IB, SOCKET, SHM = "NET/IB/0/GDRDMA", "NET/Socket/0", "SHM/direct"


class Process:
    """What one process writes: host, pid, and then line after line."""

    def __init__(self, host: str, pid: int, network: str = "IB") -> None:
        self.prefix = f"{host}:{pid}:1 [0] NCCL INFO "
        self.lines = ["NCCL version 2.28.9+cuda12.9", f"Using network {network}"]

    def init(
        self, rank: int, ranks: int, nodes: int, local: int, group: str = "0xa", at: str = "0x55"
    ) -> Process:
        """One communicator of its own, from START to COMPLETE; no nNodes line where nodes is 0."""
        head = f"ncclCommInitRankConfig comm {at} rank {rank} nranks {ranks} cudaDev 0"
        shape = (
            f"comm {at} rank {rank} nRanks {ranks} nNodes {nodes} localRanks {local} localRank 0"
        )
        self.lines.append(f"{head} commId {group} - Init START")
        self.lines += [shape] if nodes else []
        self.lines.append(f"{head} commId {group} - Init COMPLETE")
        return self

    def split(
        self,
        rank: int,
        ranks: int,
        nodes: int,
        local: int,
        color: int,
        at: str,
        parent: str = "0x55",
    ) -> Process:
        """A communicator split off another: no commId, the parent's address instead."""
        head = f"ncclCommSplit comm {at} rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1"
        tail = f"parent {parent} childCount 1 color {color} key 0"
        self.lines.append(f"{head} {tail} - Init START")
        self.lines.append(
            f"comm {at} rank {rank} nRanks {ranks} nNodes {nodes} localRanks {local} localRank 0"
        )
        self.lines.append(f"{head} {tail} - Init COMPLETE")
        return self

    def ring(self, rank: int, ranks: int, via: str) -> Process:
        """Its part of a ring: from the rank before, to the rank after."""
        before, after = (rank - 1) % ranks, (rank + 1) % ranks
        if via.startswith("NET"):
            self.lines.append(f"Channel 00/0 : {before}[0] -> {rank}[0] [receive] via {via}")
        self.lines.append(f"Channel 00/0 : {rank}[0] -> {after}[0] [send] via {via}")
        return self

    def connected(self) -> Process:
        self.lines.append("Connected all rings, use ring PXN 0 GDR 1")
        return self

    def text(self) -> str:
        return "".join(f"{self.prefix}{line}\n" for line in self.lines)


def told(folder: Path, *processes: Process) -> NcclReport:
    paths = [folder / f"{number}.log" for number in range(len(processes))]
    for path, process in zip(paths, processes, strict=True):
        path.write_text(process.text())
    return analyse_files(paths)


def codes(found: NcclReport) -> set[str]:
    return {finding.code for finding in found.findings}


def job(via: str, hosts: int = 2, gpus: int = 2, nodes: int | None = None) -> list[Process]:
    """All ranks in one ring that goes over the network everywhere: P2P and SHM are off."""
    ranks = hosts * gpus
    nodes = hosts if nodes is None else nodes
    network = via.split("/")[1]
    return [
        Process(f"node{rank // gpus}", 10 + rank, network)
        .init(rank, ranks, nodes, gpus)
        .ring(rank, ranks, via)
        .connected()
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("nodes", [2, 0], ids=["2.20 and later", "without nNodes"])
@pytest.mark.parametrize(("via", "kind"), [(IB, "rdma"), (SOCKET, "tcp")])
def test_the_network_within_a_host_is_no_edge_between_hosts(
    tmp_path: Path, via: str, kind: str, nodes: int
) -> None:
    found = told(tmp_path, *job(via, hosts=2, gpus=4, nodes=nodes))
    assert found.edges == {"rdma": 0, "tcp": 0, "intra": 6, "other": 0, kind: 2}
    assert found.exit_code == (0 if kind == "rdma" else 1)


def test_it_does_not_matter_whose_lines_come_first(tmp_path: Path) -> None:
    processes = job(IB, hosts=2, gpus=4)
    for seed in range(5):
        random.Random(seed).shuffle(processes)
        assert told(tmp_path, *processes).edges == {"rdma": 2, "tcp": 0, "intra": 6, "other": 0}


@pytest.mark.parametrize("via", [IB, SOCKET])
def test_a_network_that_only_joins_ranks_of_one_host_proves_no_road(
    tmp_path: Path, via: str
) -> None:
    """The job spans two hosts; only a group within each ran a collective, over the network."""
    network = via.split("/")[1]
    processes = [
        Process(f"node{rank // 2}", 10 + rank, network)
        .init(rank, 4, 2, 2)
        .init(rank % 2, 2, 1, 2, group=f"0xb{rank // 2}", at="0x66")
        .ring(rank % 2, 2, via)
        .connected()
        for rank in range(4)
    ]
    found = told(tmp_path, *processes)
    assert found.edges == {"rdma": 0, "tcp": 0, "intra": 4, "other": 0}
    assert (found.transport, found.exit_code) == (
        "none",
        20,
    )  # two hosts write: what connects them is not here
    assert "no connection between hosts" in found.unproven[0]


@pytest.mark.parametrize("via", [IB, SOCKET])
def test_the_same_where_the_group_was_split_off(tmp_path: Path, via: str) -> None:
    processes = [
        Process(f"node{rank // 2}", 10 + rank, via.split("/")[1])
        .init(rank, 4, 2, 2)
        .split(rank % 2, 2, 1, 2, color=rank // 2, at="0x66")
        .ring(rank % 2, 2, via)
        .connected()
        for rank in range(4)
    ]
    found = told(tmp_path, *processes)
    assert found.edges == {"rdma": 0, "tcp": 0, "intra": 4, "other": 0}
    assert found.exit_code == 20


def test_ranks_are_those_of_a_communicator(tmp_path: Path) -> None:
    """Ranks 0 and 1 of the whole job share a host; those of the second group do not."""
    processes = []
    for rank in range(4):
        process = Process(f"node{rank // 2}", 10 + rank).init(rank, 4, 2, 2)
        process.init(rank // 2, 2, 2, 1, group=f"0xc{rank % 2}", at="0x77")
        processes.append(process.ring(rank // 2, 2, IB).connected())
    found = told(tmp_path, *processes)
    assert found.edges["rdma"] == 4  # there and back, twice
    assert (found.transport, found.exit_code) == ("rdma", 0)


@pytest.mark.parametrize("via", [IB, SOCKET])
def test_two_nodes_of_one_name_are_two_hosts(tmp_path: Path, via: str) -> None:
    """NCCL_HOSTID differs per process of one machine: one name in all lines, and nNodes 2."""
    network = via.split("/")[1]
    processes = [
        Process("box", 10 + rank, network).init(rank, 2, 2, 1).ring(rank, 2, via).connected()
        for rank in range(2)
    ]
    found = told(tmp_path, *processes)
    kind = "rdma" if via == IB else "tcp"
    assert found.edges == {"rdma": 0, "tcp": 0, "intra": 0, "other": 0, kind: 2}
    assert (found.transport, found.hosts) == (kind, 2)
    assert codes(found) == (set() if via == IB else {"FAB-TCP"})
    assert found.exit_code == (20 if via == IB else 1)  # the names do not tell the hosts apart


def test_one_host_that_nccl_counts_as_one_node_has_no_edge_between_hosts(tmp_path: Path) -> None:
    found = told(tmp_path, *job(SOCKET, hosts=1, gpus=4))
    assert found.edges == {"rdma": 0, "tcp": 0, "intra": 4, "other": 0}
    assert (found.transport, found.exit_code) == ("intra-node", 0)


def test_a_rank_whose_host_is_not_known_may_be_anywhere(tmp_path: Path) -> None:
    found = told(tmp_path, *job(SOCKET, hosts=2, gpus=2)[:1])
    assert found.edges["tcp"] == 2
    assert codes(found) == {"FAB-TCP"}


def test_the_evidence_is_a_line_about_an_edge_between_hosts(tmp_path: Path) -> None:
    processes = job(SOCKET, hosts=2, gpus=4)
    found = told(tmp_path, *processes)
    named = next(finding for finding in found.findings if finding.code == "FAB-TCP")
    for at in named.evidence:
        name, _, number = at.partition(":")
        line = (tmp_path / name).read_text().splitlines()[int(number) - 1]
        assert any(pair in line for pair in ("3[0] -> 4[0]", "7[0] -> 0[0]"))
