"""Draws where the bytes of each node went: on the fabric and elsewhere, by its byte counters."""

from __future__ import annotations

from typing import Any

from reports.charts.bar_rows import Row, draw_groups
from reports.charts.figure import Figure, Number, percent, read_columns
from reports.sanitize import one_line

TITLE = "Where the bytes of each node went"
MAX_NODES = 8  # drawn, and in the table: the worst; the evidence has all of them
Sent = tuple[str, Number, Number]  # node, share on the fabric, share elsewhere


def draw_bytes(series: dict[str, Any]) -> Figure:
    """Draw the bytes that each node sent, as shares of those that it had to send.

    Keys: fabric (its name), nodes (names), on_fabric, elsewhere (one share per node, 1 is all that
    it had to send; null: not counted).
    """
    fabric = one_line(series["fabric"])
    on_fabric, elsewhere = read_columns(series, "on_fabric", "elsewhere")
    names = [one_line(name) for name in series["nodes"]]
    nodes = sorted(zip(names, on_fabric, elsewhere, strict=True), key=_by_need)
    shown, sentence = nodes[:MAX_NODES], _make_sentence(nodes, fabric)
    groups = [
        (name, [_row(f"on {fabric}", here), _row("on other networks", there)])
        for name, here, there in shown
    ]
    header = ["node", f"on {fabric}, of what it had to send", "on other networks"]
    rows = [[name, percent(here), percent(there, 2)] for name, here, there in shown]
    return Figure(TITLE, sentence, draw_groups(TITLE, sentence, groups), header, rows)


def _by_need(sent: Sent) -> tuple[bool, float, float]:
    """Order nodes: those that were not counted first, then those with least on the fabric."""
    _, here, there = sent
    return here is not None, here or 0.0, -(there or 0.0)


def _row(name: str, share: Number) -> Row:
    return Row(name, 0.0, share, "not counted" if share is None else percent(share, 2))


def _make_sentence(nodes: list[Sent], fabric: str) -> str:
    parts, others = [], [(there, name) for name, _, there in nodes if there is not None]
    if missing := sum(here is None for _, here, _ in nodes):
        parts.append(f"{missing} of {len(nodes)} nodes were not counted")
    if counted := [(here, name) for name, here, _ in nodes if here is not None]:
        least, name = min(counted)
        parts.append(f"least on {fabric}: {name}, {percent(least)} of what it had to send")
    if others:
        most, name = max(others, key=lambda sent: sent[0])
        parts.append(f"most on other networks: {name}, {percent(most, 2)}")
    sentence = "; ".join(parts) or "no node was counted"
    return f"{sentence[0].upper()}{sentence[1:]}."
