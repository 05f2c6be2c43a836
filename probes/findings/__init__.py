"""Findings: faults by their code in the catalogue, with the suspects of this case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from probes.findings.catalogue import CATALOGUE
from reports.orders import node_suspects
from reports.record import Finding, Severity

MAX_NAMES = 8  # names listed in one finding


def join_names(names: Iterable[str], max_names: int = MAX_NAMES) -> str:
    """Join names as `a, b, c and 5 more`: the first `max_names` of them; "" for none."""
    all_names = list(names)
    suffix = f" and {len(all_names) - max_names} more" if len(all_names) > max_names else ""
    return ", ".join(all_names[:max_names]) + suffix


def name_port(port: str) -> dict[str, str]:
    """Name an interface, or the device of an RDMA port, as `mlx5_0/1`."""
    device, slash, _ = port.partition("/")
    return {"device": device} if slash else {"interface": port}


def name_gpu(uuid: object, number: object, slot: object = "") -> dict[str, object]:
    """Name a GPU by its UUID, else by its number, and its slot."""
    return {"gpu": uuid or number, "slot": slot}


def finding(
    code: str,
    statement: str,
    suspects: list[str] | None = None,
    *,
    evidence: list[str] | None = None,
    remedy: str = "",
    severity: Severity | None = None,
    names: Mapping[str, object] | None = None,
) -> Finding:
    """Build a finding of a catalogued code, with its cause and remedy.  Raises KeyError for others.

    A `remedy` or `severity` that fits this case better replaces the catalogue's.  `names` are those
    of the placeholders; empty ones are left out.  The first node of the suspects is its `node`.
    """
    entry = CATALOGUE[code]
    known = {kind: str(name) for kind, name in (names or {}).items() if name not in (None, "")}
    nodes = node_suspects(suspects or [])
    return Finding(
        code=code,
        statement=statement,
        suspects=suspects or [],
        cause=entry.cause,
        severity=severity or entry.severity,
        order=entry.order,
        steps=entry.list_steps(),
        mended=entry.mended,
        names={**({"node": nodes[0]} if nodes else {}), **known},
        remedy=remedy or entry.remedy,
        evidence=evidence or [],
    )
