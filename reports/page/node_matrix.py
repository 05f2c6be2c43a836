"""Builds the matrix of nodes and criteria: the worst verdict of what was measured on each node."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from reports.measurement import Measurement, Verdict
from reports.record import RunRecord

MAX_NAMES = 3  # measures named in a cell; the criterion's section has all


@dataclass(frozen=True)
class NodeCell:
    """Verdict of one criterion on one node; None where nothing was measured on the node alone.

    `failed` names the measures that are not accepted there.  `suspected` is true if a finding
    names the node.
    """

    verdict: Verdict | None
    failed: str
    suspected: bool


@dataclass(frozen=True)
class NodeMatrix:
    """Criteria as columns, and (node, cells) as rows.  Nodes without a problem come last."""

    header: list[str]
    rows: list[tuple[str, list[NodeCell]]]


def build_node_matrix(record: RunRecord) -> NodeMatrix:
    """Sort what the probes measured by node and criterion.  Without node facts it has no rows."""
    names = dict.fromkeys(record.node_names)
    known, criteria = set(names), list(dict.fromkeys(r.criterion for r in record.results))
    measured = defaultdict[tuple[str, str], list[Measurement]](list)
    suspects = set[tuple[str, str]]()
    for result in record.results:
        for m in result.measurements:
            for node in _nodes_of(m.subject, known) if m.judged else ():
                measured[node, result.criterion].append(m)
        suspects |= {(one, result.criterion) for f in result.findings for one in f.suspects}
    rows = [
        (name, [_cell(measured[name, id], (name, id) in suspects) for id in criteria])
        for name in names
    ]
    return NodeMatrix(criteria, sorted(rows, key=lambda row: -_severity(row[1])))


def _nodes_of(subject: str, known: set[str]) -> set[str]:
    """Return the nodes that a subject names: a node, a pair, or a part of a node."""
    return known & {subject, *re.split(r" - | to | -> |, | ", subject)}


def _cell(measurements: list[Measurement], suspected: bool) -> NodeCell:
    verdicts = [m.verdict for m in measurements if m.verdict is not None]
    failed = list(dict.fromkeys(m.title for m in measurements if m.severity))
    more = f" and {len(failed) - MAX_NAMES} more" if len(failed) > MAX_NAMES else ""
    names = ", ".join(failed[:MAX_NAMES]) + more
    return NodeCell(Verdict.worst(verdicts) if verdicts else None, names, suspected)


def _severity(cells: list[NodeCell]) -> int:
    return max((cell.verdict.rank if cell.verdict else 0) + cell.suspected for cell in cells)
