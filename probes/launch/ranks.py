"""Judges the ranks that a job announced: right nodes, right devices, right variables."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from reports.groups import group_pairs
from reports.numbers import quantity

REQUIRED_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("LOCAL_WORLD_SIZE", "NODE_RANK"),
)
NODE_NUMBERS = ("NODE_RANK", "GROUP_RANK")  # torchrun sets the second
Row = Mapping[str, str]  # what one rank announced: its variables, node, host, device and gpu


@dataclass(frozen=True)
class NodeIdentity:
    """A node of the cluster under test: its address in Ray, and every name that reaches it."""

    name: str
    address: str
    aliases: frozenset[str]


@dataclass(frozen=True)
class Problem:
    """Problem of a rank: the value found, the value expected, and the finding's code."""

    found: str
    expected: str
    code: str = "LAUNCH-ENV"


@dataclass(frozen=True)
class WrongRank:
    """A rank with a problem, and the host where it ran ("" for none)."""

    rank: str
    host: str
    problem: Problem


def identify_nodes(
    nodes: Iterable[Mapping[str, Any]], facts: Iterable[Mapping[str, Any]]
) -> dict[str, NodeIdentity]:
    """Collect the names and addresses of each node of the cluster under test, by node id."""
    by_id = {fact["node"]: fact for fact in facts}
    identities = {}
    for node in nodes:
        fact = by_id.get(node["id"], {})
        # Raylets that share a host are named host/id (cluster.py).
        host = fact.get("host") or node["name"].partition("/")[0]
        addresses = {each["address"] for each in fact.get("interfaces", {}).values()}
        aliases = {node["address"], host, *addresses} - {None}
        identities[node["id"]] = NodeIdentity(node["name"], node["address"], frozenset(aliases))
    return identities


@dataclass(frozen=True)
class AnnouncedJob:
    """All ranks that one job announced, and the cluster that they should be on.

    `variables` are those that the job was given, which each rank must have.  `ended` is whether the
    job came to its end, so that each rank has reported.
    """

    rows: Sequence[Row]
    size: int
    nodes: Mapping[str, NodeIdentity]
    on_gpu: bool
    variables: Mapping[str, str] = field(default_factory=dict)
    ended: bool = False

    @cached_property
    def rank_counts(self) -> Counter[str]:
        """Count how often each RANK was announced."""
        return Counter(row.get("RANK", "") for row in self.rows)

    @cached_property
    def missing(self) -> list[str]:
        """List the ranks that no process announced."""
        return [str(rank) for rank in range(self.size) if not self.rank_counts[str(rank)]]

    @cached_property
    def complete(self) -> bool:
        """Return whether each rank was announced once, on a known node.

        Otherwise the number of ranks that a node should have is not known.
        """
        here = all(id in self.nodes for id in self.node_ranks)
        return here and len(self.rows) == self.size and not self.missing

    @cached_property
    def rank0(self) -> Row | None:
        """Find the row that rank 0 announced; None without one."""
        return next((row for row in self.rows if row.get("RANK") == "0"), None)

    @cached_property
    def node_ranks(self) -> dict[str, list[Row]]:
        """Group the ranks by node id."""
        return group_pairs((row.get("node", ""), row) for row in self.rows)

    @cached_property
    def node_numbers(self) -> dict[tuple[str, str], set[str]]:
        """Group the node ids by each node number that was announced on them, and its variable."""
        named = ((name, row) for row in self.rows for name in NODE_NUMBERS if name in row)
        groups = group_pairs(((name, row[name]), row.get("node", "")) for name, row in named)
        return {number: set(nodes) for number, nodes in groups.items()}

    @cached_property
    def gpu_ranks(self) -> dict[tuple[str, str], list[str]]:
        """Group the ranks by the GPU that they announced."""
        return group_pairs((_gpu_key(row), row.get("RANK", "?")) for row in self.rows)

    @cached_property
    def several_hosts(self) -> bool:
        """Return whether the ranks need a network: raylets of one host have one address."""
        return len({self.nodes[id].address for id in self.node_ranks if id in self.nodes}) > 1

    def host_of(self, row: Row, unknown: str) -> str:
        """Name the node where a rank ran, or the host that it announced; else `unknown`."""
        node = self.nodes.get(row.get("node", ""))
        return node.name if node else row.get("host", unknown)


def wrong_ranks(job: AnnouncedJob) -> list[WrongRank]:
    """Find the wrong ranks, each with its first problem, and the missing ranks."""
    wrong = [
        WrongRank(row.get("RANK", "?"), job.host_of(row, "an unknown host"), problem)
        for row in job.rows
        if (problem := next((found for check in CHECKS if (found := check(job, row))), None))
    ]
    absent = Problem("no process reported this rank", "each rank runs once")
    return wrong + [WrongRank(rank, "", absent) for rank in job.missing]


def group_by_problem(wrong: Iterable[WrongRank]) -> dict[Problem, list[WrongRank]]:
    """Group the wrong ranks by their problem."""
    return group_pairs((rank.problem, rank) for rank in wrong)


def all_lack(wrong: Sequence[WrongRank], variable: str, size: int) -> bool:
    """Return whether every rank has this one problem: `variable` is not set."""
    return len(wrong) == size and {rank.problem.found for rank in wrong} == {f"{variable} not set"}


def check_set(job: AnnouncedJob, row: Row) -> Problem | None:
    """Check that the variables are set, and that all but MASTER_ADDR are decimal numbers."""
    if missing := [name for name in REQUIRED_VARIABLES if not row.get(name)]:
        count = len(REQUIRED_VARIABLES)
        return Problem(f"{', '.join(missing)} not set", f"all {count} rendezvous variables set")
    for name in REQUIRED_VARIABLES:
        if name != "MASTER_ADDR" and not row[name].isdecimal():
            return Problem(f"{name} is {row[name]!r}", "a whole number")
    return None


def _up_to(last: int) -> str:
    return f"0 to {last}" if last else "0"


def check_rank(job: AnnouncedJob, row: Row) -> Problem | None:
    """Check that WORLD_SIZE is right, and that each RANK is below it and occurs once."""
    if int(row["WORLD_SIZE"]) != job.size:
        return Problem(f"WORLD_SIZE is {row['WORLD_SIZE']}", f"{job.size}, the number of ranks")
    if int(row["RANK"]) >= job.size:
        return Problem(f"RANK is {row['RANK']}", _up_to(job.size - 1))
    if (count := job.rank_counts[row["RANK"]]) > 1:
        return Problem(f"{count} processes have RANK {row['RANK']}", "each rank once")
    return None


def check_node(job: AnnouncedJob, row: Row) -> Problem | None:
    """Check that the rank ran on a node of the cluster under test."""
    if row.get("node") in job.nodes:
        return None
    node, host = row.get("node", "unknown")[:8], row.get("host", "unknown")
    found = f"the rank ran on node {node} of host {host}"
    return Problem(found, "a node of the cluster under test", "LAUNCH-ELSEWHERE")


def check_local_rank(job: AnnouncedJob, row: Row) -> Problem | None:
    """Check that the ranks of a node count from 0, and that LOCAL_WORLD_SIZE is their number."""
    neighbours = job.node_ranks[row["node"]]
    numbers = Counter(other.get("LOCAL_RANK") for other in neighbours)
    if numbers[row["LOCAL_RANK"]] > 1:
        found = f"{numbers[row['LOCAL_RANK']]} ranks of a node have LOCAL_RANK {row['LOCAL_RANK']}"
        return Problem(found, "each LOCAL_RANK once on a node")
    if not job.complete:  # a missing rank is not the fault of its node's other ranks
        return None
    size = len(neighbours)
    if int(row["LOCAL_RANK"]) >= size:
        expected = f"{_up_to(size - 1)} (the node has {quantity(size, 'ranks')})"
        return Problem(f"LOCAL_RANK is {row['LOCAL_RANK']}", expected)
    if row.get("LOCAL_WORLD_SIZE", str(size)) != str(size):
        found = f"LOCAL_WORLD_SIZE is {row['LOCAL_WORLD_SIZE']}"
        return Problem(found, f"{size}, the number of ranks on this node")
    return None


def check_node_rank(job: AnnouncedJob, row: Row) -> Problem | None:
    """Check NODE_RANK and GROUP_RANK: nodes count from 0, each with a number of its own."""
    if not job.complete:
        return None
    problems = (_node_number_problem(job, row, name) for name in NODE_NUMBERS)
    return next((problem for problem in problems if problem), None)


def _node_number_problem(job: AnnouncedJob, row: Row, name: str) -> Problem | None:
    number = row.get(name)
    if number is None:
        if any(name in other for other in job.rows):
            return Problem(f"{name} not set", "set, as on other ranks of the job")
        return None
    last = len(job.node_ranks) - 1
    if not number.isdecimal() or int(number) > last:
        return Problem(f"{name} is {number}", _up_to(last))
    on_nodes = job.node_numbers[name, number]
    if len(on_nodes) > 1:
        found = f"{name} is {number} on {len(on_nodes)} nodes"
        return Problem(found, "a different number for each node")
    others = {other.get(name, number) for other in job.node_ranks[row["node"]]} - {number}
    if others:
        found = f"{name} is {number}, but {min(others)} on another rank of the same node"
        return Problem(found, "the same number on all ranks of a node")
    return None


def check_contiguous(job: AnnouncedJob, row: Row) -> Problem | None:
    """Check that a node's ranks follow each other: collectives build their rings by rank."""
    if not job.complete:
        return None
    numbers = sorted(int(other["RANK"]) for other in job.node_ranks[row["node"]])
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return None
    found = f"the node has ranks {', '.join(map(str, numbers))}"
    return Problem(found, "consecutive ranks on each node")


def check_connected(job: AnnouncedJob, row: Row) -> Problem | None:
    """Check that the rank reached rank 0's store, from another host not by the loopback."""
    first = job.rank0
    if not job.ended or first is None:
        return None
    address = row.get("master")
    if address is None:
        found = f"trained without a connection to {row['MASTER_ADDR']}:{row['MASTER_PORT']}"
        return Problem(found, "a connection, because rank 0's TCPStore listens there")
    if job.several_hosts and row.get("node") != first.get("node") and is_loopback(address):
        found = f"{row['MASTER_ADDR']} resolves to {address}"
        return Problem(found, "an address of rank 0's node")
    return None


def check_variables(job: AnnouncedJob, row: Row) -> Problem | None:
    """Check that the rank has the variables that the job was given."""
    for name, value in job.variables.items():
        if (found := row.get(name)) != value:
            what = f"{name} not set" if found is None else f"{name} is {found!r}"
            return Problem(what, f"{value!r}, as set when the job was submitted")
    return None


def check_master(job: AnnouncedJob, row: Row) -> Problem | None:
    """Check that all ranks use one MASTER address, on the node of rank 0, that all can reach."""
    first = job.rank0
    if first is None:
        return None
    address, port = row["MASTER_ADDR"], row["MASTER_PORT"]
    if (address, port) != (first.get("MASTER_ADDR"), first.get("MASTER_PORT")):
        expected = f"{first.get('MASTER_ADDR')}:{first.get('MASTER_PORT')}, as on rank 0"
        return Problem(f"MASTER_ADDR:MASTER_PORT is {address}:{port}", expected)
    node = job.nodes.get(first.get("node", ""))
    # Of an unknown node, check_node reports that for rank 0.
    if node is None or (is_loopback(address) and not job.several_hosts):
        return None
    if is_loopback(address) or _short_name(address) not in map(_short_name, node.aliases):
        expected = f"an address of {node.name} (the node of rank 0) that other nodes can reach"
        return Problem(f"MASTER_ADDR is {address}", expected)
    return None


def is_loopback(address: str) -> bool:
    """Return whether an address or name leads a process to its own host."""
    name = _short_name(address)
    if isinstance(name, str):
        return name == "localhost"
    return name.is_loopback or name.is_unspecified


def _short_name(text: str) -> str | ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an IP address; return any other name in lower case, without its domain."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return text.partition(".")[0].lower()


def check_device(job: AnnouncedJob, row: Row) -> Problem | None:
    """Check that the rank has an accelerator of its own, and computes there if it is a GPU."""
    visible = row.get("CUDA_VISIBLE_DEVICES", "")
    neighbours = job.node_ranks.get(row.get("node", ""), [])
    seen = [other.get("CUDA_VISIBLE_DEVICES", "") for other in neighbours]
    # Ranks may also see all GPUs of their node, and choose by LOCAL_RANK.
    if visible and all(one and "," not in one for one in seen) and seen.count(visible) > 1:
        found = f"CUDA_VISIBLE_DEVICES is {visible} on {seen.count(visible)} ranks of the node"
        return Problem(found, "a different accelerator for each rank", "LAUNCH-DEVICE")
    if not job.on_gpu:
        return None
    device = row.get("device")
    if device is None or not device.startswith("cuda"):
        found = f"computing on {device}" if device else "no computing device reported"
        return Problem(found, "a GPU", "LAUNCH-DEVICE")
    if not row.get("gpu"):
        return Problem("no GPU reported", "one GPU for each rank", "LAUNCH-DEVICE")
    sharing = job.gpu_ranks[_gpu_key(row)]
    if len(sharing) > 1:
        found = f"ranks {', '.join(sharing)} share GPU {row['gpu']}"
        return Problem(found, "one rank on each GPU", "LAUNCH-DEVICE")
    return None


def _gpu_key(row: Row) -> tuple[str, str]:
    """Make a key of a GPU: an index is unique on its node only, a UUID everywhere."""
    gpu = row.get("gpu", "")
    return (row.get("node", "") if gpu.isdecimal() else "", gpu)


# The order matters: a later check may rely on values that an earlier one has accepted.  A rank on
# another cluster comes first: what else is wrong with it follows from that cluster's size.
CHECKS = (
    *(check_node, check_set, check_rank, check_local_rank, check_node_rank, check_contiguous),
    *(check_master, check_connected, check_variables, check_device),
)
