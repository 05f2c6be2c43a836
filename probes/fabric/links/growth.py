"""Computes what links did between two readings of their counters: loss, bytes, errors."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from probes.cluster.byte_counters import RDMA, UNKNOWN, counter_growth, main_device

WAYS = ("sends", "receives")


def counter_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Subtract an earlier reading from a later one, count by count, also in nested mappings.

    A count that is unknown in one of them, or that decreased, is None.  Names that only one of them
    has are left out.
    """
    grown: dict[str, Any] = {}
    for name in before.keys() & after.keys():
        first, last = before[name], after[name]
        if isinstance(first, Mapping) and isinstance(last, Mapping):
            grown[name] = counter_difference(first, last)
        else:
            numbers = isinstance(first, int) and isinstance(last, int)
            grown[name] = last - first if numbers and last >= first else None
    return grown


def lost_packets(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[int, int] | None:
    """Count (packets sent, packets lost) between two readings of a `LinkReader`.

    The transport that carried the bytes decides: RDMA's counters for RDMA, TCP's otherwise.  None
    if it does not count, or nothing was sent.
    """
    device = main_device(counter_growth(before["bytes"], after["bytes"]))
    if device == UNKNOWN:
        return None
    key = "rdma" if device == RDMA else "tcp"
    grown = counter_difference(before[key] or {}, after[key] or {})
    sent, resent = grown.get("sent"), grown.get("resent")
    if not sent or resent is None:
        return None
    return sent, max(0, resent - (grown.get("twice") or 0))


def lost_share(readings: Sequence[Mapping[str, Any]]) -> float | None:
    """Compute the share of packets lost in the median try; `readings` are before and after each.

    The median is used because one queue that overflowed in one try is no bad link.  None if a try
    has no count.
    """
    tries = [lost_packets(before, after) for before, after in pairwise(readings)]
    shares = [lost / sent for sent, lost in filter(None, tries)]
    return statistics.median(shares) if shares and len(shares) == len(tries) else None


def bytes_sent(readings: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Count the bytes sent by device, from the first to the last reading."""
    return counter_growth(readings[0]["bytes"], readings[-1]["bytes"]) if readings else {}
