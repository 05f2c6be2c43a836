"""Orders of findings: what to do in this case, with its names."""

from __future__ import annotations

from reports.orders.filled import FilledFinding, break_command, fill, node_suspects
from reports.orders.kinds import KINDS, LIST_KIND, PLACEHOLDER, in_capitals

__all__ = [
    "KINDS",
    "LIST_KIND",
    "PLACEHOLDER",
    "FilledFinding",
    "break_command",
    "fill",
    "in_capitals",
    "node_suspects",
]
