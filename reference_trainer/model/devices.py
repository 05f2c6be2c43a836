"""Reads what is known of GPU models: figures of the data sheet, and what sound ones reach."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

TABLE = Path(__file__).with_name("devices.toml")  # explains the figures, and names the sources
SLICES = re.compile(r"mig|grid|\d+[abcq]")  # words in the name of a slice of a GPU (MIG, vGPU)


@dataclass(frozen=True)
class Device:
    """A GPU model; None: no source has the figure.

    `pcie` is generation and lanes.  `reached` has figures of sound GPUs and where they come from,
    by operation.
    """

    tflops: float | None = None
    memory_gbs: float | None = None
    pcie: tuple[int, int] | None = None
    watts: float | None = None
    sm_mhz: int | None = None
    reached: Mapping[str, tuple[float, str]] = field(default_factory=dict)


@cache
def read_devices() -> dict[str, Device]:
    """Read the table; a row that is `like` another has its figures too."""
    if not (name := next(filter(find_spec, ("tomllib", "tomli")), "")):
        return {}  # Python 3.10 without tomli, as a node may be
    rows = import_module(name).loads(TABLE.read_text(encoding="utf-8"))
    found = {}
    for name, row in rows.items():
        base = rows.get(row.pop("like", ""), {})
        reached = {**base.get("reached", {}), **row.get("reached", {})}
        found[name] = Device(**{**base, **row, "reached": reached})
    return found


def find_device(name: str) -> Device | None:
    """Find a GPU by its name; None for an unknown one, a slice of one, or several names."""
    words = _split_name(name)
    known = [one for one in read_devices() if _split_name(one) <= words]
    if not known or "," in name or any(SLICES.fullmatch(word) for word in words):
        return None
    return read_devices()[max(known, key=lambda one: len(_split_name(one)))]


def _split_name(name: str) -> set[str]:
    return {*re.findall("[a-z0-9]+", name.lower())}
