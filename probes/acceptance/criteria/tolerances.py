"""Reads [baseline] of a contract: how much worse than an earlier run a measure may be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from probes.acceptance.criteria import CRITERIA
from probes.acceptance.validation import ContractError
from probes.toml_tables import show, spelling_hint

PERCENT = re.compile(r"(\d{1,2}(?:\.\d+)?) ?%", re.ASCII)  # below 100: more would pass anything


def read_tolerances(table: Any, file: str) -> dict[str, float]:
    """Read [baseline]: percent by measure, as `FABRIC.busbw`.  Raises ContractError.

    A measure that only one criterion has needs no criterion before it.
    """
    where = f"{file}: [baseline]"
    if not isinstance(table, dict):
        raise ContractError(f"{where}: expected a table, found {show(table)}")
    found: dict[str, float] = {}
    for key, value in _flat(table):
        name = _find_measure(key, where)
        if name in found:
            raise ContractError(f"{where}: found {name} twice: keep one")
        percent = PERCENT.fullmatch(value) if isinstance(value, str) else None
        if percent is None:
            raise ContractError(f'{where} {key}: expected a share as "2 %", found {show(value)}')
        found[name] = float(percent[1])
    return found


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and key in CRITERIA:
            yield from ((f"{key}.{name}", one) for name, one in value.items())
        else:
            yield key, value


def _find_measure(key: str, where: str) -> str:
    """Return the measure with its criterion; refuse one that has no better side."""
    criterion, _, measure = key.rpartition(".")
    homes = [id for id in CRITERIA if measure in CRITERIA[id].measures]
    if criterion:
        homes = [id for id in homes if id == criterion]
    if not homes:
        names = [f"{id}.{name}" for id in CRITERIA for name in CRITERIA[id].measures]
        hint = spelling_hint(key, [*names, *(name.partition(".")[2] for name in names)])
        raise ContractError(f"{where}: unknown measure {show(key)}{hint}")
    if len(homes) > 1:
        which = " or ".join(f"{id}.{measure}" for id in homes)
        raise ContractError(f"{where}: {key} is a measure of several criteria: write {which}")
    if CRITERIA[homes[0]].measures[measure].better not in ("higher", "lower"):
        raise ContractError(f"{where} {key}: expected a measure whose better side is known")
    return f"{homes[0]}.{measure}"
