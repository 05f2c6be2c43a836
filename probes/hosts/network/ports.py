"""Judges which of Ray's ports, and of a job's, the nodes cannot reach on each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from probes.acceptance.measure import Recorder
from probes.findings import finding, join_names
from probes.hosts.network.port_round import GCS, JOB, RAY_PORTS, WORKER, Connection
from reports.record import Finding

Link = tuple[str, str]  # (source, target)
SOURCE, TARGET = 0, 1  # positions in a Link
LEAST_TRIED = 2  # of one failing connection, neither end is more likely to be the cause
SUBJECTS = {kind: f"{kind} ports" for kind in RAY_PORTS} | {GCS: "GCS port", JOB: "job ports"}
KIND_TEXTS = {kind: f"{kind} port" for kind in RAY_PORTS} | {
    WORKER: "port of a Ray worker",
    JOB: "port that the kernel picked for a job",
}


@dataclass(frozen=True)
class Blame:
    """What explains failing links: nodes that none reaches, nodes that reach none, and pairs."""

    unreached: list[str]
    unreaching: list[str]
    pairs: list[Link]


def blame_nodes(tried: Collection[Link], failed: Collection[Link]) -> Blame:
    """Explain the failing links by few nodes, and by pairs where no node is the cause.

    A node is blamed if all its tried links of one direction fail, and at least two of them have no
    other explanation.  The node that explains most comes first.
    """
    total = Counter(end for link in tried for end in _ends_of(link))
    failing = Counter(end for link in failed for end in _ends_of(link))
    whole = [end for end, count in failing.items() if count == total[end]]
    links: dict[tuple[int, str], list[Link]] = defaultdict(list)
    for link in failed:
        for end in _ends_of(link):
            links[end].append(link)
    left, blamed = dict.fromkeys(failed), list[tuple[int, str]]()
    while whole:
        worst = max(whole, key=lambda end: (failing[end], end))
        if failing[worst] < LEAST_TRIED:
            break
        blamed.append(worst)
        for link in links[worst]:
            if link in left:
                del left[link]
                failing.subtract(_ends_of(link))
    unreaching, unreached = (
        sorted(node for way, node in blamed if way == end) for end in (SOURCE, TARGET)
    )
    return Blame(unreached, unreaching, list(left))


def _ends_of(link: Link) -> list[tuple[int, str]]:
    return [(SOURCE, link[SOURCE]), (TARGET, link[TARGET])]


def judge_ports(
    connections: Sequence[Connection], names: Mapping[str, str], measure: Recorder
) -> None:
    """Judge every tried connection, and explain those that failed.  `names` are by node id."""
    for kind in RAY_PORTS:
        value, note = count_closed(one for one in connections if one.kind == kind)
        measure("closed_ports", value, on=SUBJECTS[kind], note=note)
    value, note = count_closed(one for one in connections if one.kind == JOB)
    measure("closed_job_ports", value, on=SUBJECTS[JOB], note=note)
    measure.explain(find_closed(connections, names))


def count_closed(connections: Iterable[Connection]) -> tuple[int | None, str]:
    """Count the connections that failed; return (None, reason) if none did and one is unknown."""
    rows = list(connections)
    failed = sum(bool(one.problem) for one in rows)
    unknown = list(dict.fromkeys(one.unknown for one in rows if one.problem is None))
    if not rows:
        return None, "no connection was tried"
    return (None if unknown and not failed else failed), join_names(unknown, 3)


def find_closed(connections: Sequence[Connection], names: Mapping[str, str]) -> list[Finding]:
    """Explain the connections that failed: one finding for the nodes with the same ports."""
    nodes: dict[tuple[str, str], list[str]] = defaultdict(list)  # (node, way) -> kinds
    pairs: dict[Link, list[str]] = defaultdict(list)
    for kind in (*RAY_PORTS, JOB):
        rows = [one for one in connections if one.kind == kind and one.problem is not None]
        tried = [(one.source, one.target) for one in rows]
        blame = blame_nodes(tried, [(one.source, one.target) for one in rows if one.problem])
        for node in blame.unreached:
            nodes[node, "unreached"].append(kind)
        for node in blame.unreaching:
            nodes[node, "unreaching"].append(kind)
        for link in blame.pairs:
            pairs[link].append(kind)
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (node, way), kinds in nodes.items():
        groups[way, tuple(kinds)].append(node)
    texts = _PortTexts(connections, names)
    found = [texts.explain_nodes(way, kinds, ids) for (way, kinds), ids in groups.items()]
    return found + [texts.explain_pair(link, kinds) for link, kinds in pairs.items()]


@dataclass(frozen=True)
class _PortTexts:
    """Words for findings: node names, port numbers and what happened."""

    connections: Sequence[Connection]
    names: Mapping[str, str]

    def explain_nodes(self, way: str, kinds: Sequence[str], ids: Sequence[str]) -> Finding:
        """Explain nodes that no other node reaches, or that reach no other node."""
        end = "target" if way == "unreached" else "source"
        rows = [
            one
            for one in self.connections
            if one.kind in kinds and one.problem and getattr(one, end) in ids
        ]
        who = [self.names.get(id, "Ray's head") for id in ids]
        if way == "unreached":
            ports = self._port_text(kinds, rows)
            text = f"No other node connects to {join_names(who)}: {ports}"
        else:
            text = f"{join_names(who)} cannot connect to other nodes: {self._kind_text(kinds)}"
        names = self._find_names(rows, ids[0])
        return finding("HOST-PORT-CLOSED", f"{text} ({_usual_problem(rows)})", who, names=names)

    def explain_pair(self, link: Link, kinds: Sequence[str]) -> Finding:
        """Explain a node that does not reach another, when neither is the cause alone."""
        rows = [
            one
            for one in self.connections
            if one.kind in kinds and one.problem and (one.source, one.target) == link
        ]
        source, target = (self.names.get(id, "Ray's head") for id in link)
        text = f"{source} does not connect to {target}: {self._port_text(kinds, rows)}"
        suspects, names = [source, target], self._find_names(rows, link[1])
        text += f" ({_usual_problem(rows)})"
        return finding("HOST-PORT-CLOSED", text, suspects, names=names)

    def _find_names(self, rows: Sequence[Connection], id: str) -> dict[str, object]:
        """Name the first port of these rows at one of the node's ends, and its two nodes."""
        one = next((row for row in rows if id in (row.source, row.target)), rows[0])
        target, source = (self.names.get(end) for end in (one.target, one.source))
        return {"node": target, "peer": source, "port": one.port}

    def _port_text(self, kinds: Sequence[str], rows: Sequence[Connection]) -> str:
        numbers = {
            kind: {one.port for one in rows if one.kind == kind and one.port} for kind in kinds
        }
        parts = []
        for kind in kinds:
            port = f" {min(numbers[kind])}" if len(numbers[kind]) == 1 else ""
            parts.append(f"{KIND_TEXTS[kind]}{port}")
        return ", ".join(parts)

    def _kind_text(self, kinds: Sequence[str]) -> str:
        return ", ".join(KIND_TEXTS[kind] for kind in kinds)


def _usual_problem(rows: Sequence[Connection]) -> str:
    problems = Counter(one.problem for one in rows)
    return str(problems.most_common(1)[0][0])
