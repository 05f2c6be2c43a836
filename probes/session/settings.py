"""Reads what was asked of a run: options, checked and put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from probes.check.registry import CRITERIA
from probes.cluster.address import check_spec
from probes.contract.contract import Contract, ContractError, load
from probes.session.options import BY_KEY, check_nonce
from probes.session.rejudge import read_paths
from probes.session.session import DEFAULT_CONTRACT, RunSettings
from reports.record import TIERS
from reports.sanitize import closest_name, one_line

MAX_WAIT_S = 24 * 3600  # a later node counts as not delivered
UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600}


class OptionError(ValueError):
    """Raised for a value that an option does not take.  One sentence: expected, found."""


def read_settings(values: Mapping[str, str | None]) -> RunSettings:
    """Check the values of the options, by key, and load the contract.

    Raises OptionError, ContractError, or ClusterUnreachable for a --cluster that is none.
    """
    check_spec(values["cluster"] or "")
    name = values["contract"]
    if name is None and Path(DEFAULT_CONTRACT).is_file():
        name = DEFAULT_CONTRACT
    tier, nodes = read_tier(values["tier"]), _read_nodes(values["nodes"])
    only, wait_s = read_only(values["only"]), _read_wait("wait_for_nodes", values)
    agreed = load(name) if name else None
    _check_nodes(agreed, nodes, wait_s)
    if why := check_nonce(values["nonce"] or ""):
        raise OptionError(why)
    return RunSettings(
        spec=values["cluster"] or "",
        contract_arg=name or "",
        agreed=agreed,
        tier=tier or (agreed.tier if agreed else TIERS[0]),
        run_dir=values["run_dir"],
        nodes=nodes,
        only=only,
        nonce=values["nonce"] or "",
        operator=one_line(values["operator"] or ""),
        wait_for_nodes_s=wait_s,
        wait_for_room_s=_read_wait("wait_for_room", values),
        paths=read_paths(Path(before), agreed) if (before := values["paths_from"]) else None,
    )


def _check_nodes(agreed: Contract | None, nodes: int | None, wait_s: int) -> None:
    """Check that options and contract order one number of nodes, and that waiting has one."""
    if agreed and nodes and not agreed.cluster.allows(nodes):
        raise ContractError(
            f"{nodes} nodes were requested (--nodes or SEATRIAL_NODES), but contract "
            f"{agreed.name} orders {agreed.cluster.nodes_text}: drop one of the two numbers"
        )
    if wait_s and not (nodes or (agreed and agreed.cluster.nodes)):
        raise ContractError(
            "--wait-for-nodes is a time, not the number of nodes to wait for: "
            "add --nodes N, or `nodes` in [cluster] of the contract"
        )


def read_tier(tier: str | None) -> str | None:
    """Check the tier; None where it is not given."""
    if tier not in (None, *TIERS):
        raise OptionError(f"--tier is {tier!r}, expected {_choices(tier, TIERS)}")
    return tier


def read_only(text: str | None) -> list[str]:
    """Return the criteria of --only, in table order."""
    asked = {word.strip().upper() for word in (text or "").split(",")} - {""}
    if unknown := sorted(asked - CRITERIA.keys()):
        expected = f"expected some of {_choices(unknown[0], CRITERIA)}"
        raise OptionError(f"--only is {', '.join(unknown)}, {expected}")
    return [id for id in CRITERIA if id in asked]


def _choices(found: str, expected: Iterable[str]) -> str:
    """List what is expected, and what was probably meant."""
    names = list(expected)
    close = closest_name(found, names)
    return ", ".join(names) + (f"; did you mean {close}?" if close else "")


def _read_nodes(text: str | None) -> int | None:
    """Read a node count; None where it is not given.

    Anything but a number from 1 is refused: ignored, it would order nothing.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        expected = "a whole number of nodes, such as 8"
        raise OptionError(f"--nodes (or SEATRIAL_NODES) is {text!r}, expected {expected}")
    return int(text)


def _read_wait(key: str, values: Mapping[str, str | None]) -> int:
    """Read how many seconds to wait, at most a day: 90, 90s, 30m or 2h."""
    option, text = BY_KEY[key], values[key]
    return 0 if text is None else read_time(f"{option.name} (or {option.variable})", text)


def read_time(name: str, text: str) -> int:
    """Read seconds, at most a day: 90, 90s, 30m or 2h.  Raises OptionError, which has the name."""
    found = re.fullmatch(r"([0-9]{1,6})([smh]?)", text)
    seconds = int(found[1]) * UNIT_S[found[2]] if found else -1
    if not 0 <= seconds <= MAX_WAIT_S:
        raise OptionError(
            f"{name} is {text!r}, expected whole seconds, minutes or hours, "
            f"such as 90, 30m or 2h, at most {MAX_WAIT_S // 3600}h"
        )
    return seconds
