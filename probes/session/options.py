"""Defines the suite's options, their environment twins, and what a run makes of them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probes.check.registry import CRITERIA
from probes.cluster.address import check_spec
from probes.contract.contract import Contract, ContractError, load
from probes.session.session import DEFAULT_CONTRACT, RunSettings
from reports.record import TIERS
from reports.sanitize import closest_name, one_line

RUN: pytest.StashKey[Any] = pytest.StashKey()  # config: the RunSession
RECORDER: pytest.StashKey[Any] = pytest.StashKey()  # item: its probe's recorder
JUNIT: pytest.StashKey[str] = pytest.StashKey()  # config: the path of --junitxml
VERDICT: pytest.StashKey[Any] = pytest.StashKey()  # item: its verdict; config: the run's summary


@dataclass(frozen=True)
class RunOption:
    """Option of a run; its environment twin is SEATRIAL_<NAME>."""

    name: str
    metavar: str
    help: str

    @property
    def key(self) -> str:
        """Name as an attribute: run_dir for --run-dir."""
        return self.name.strip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """Name of its environment twin."""
        return f"SEATRIAL_{self.key.upper()}"


OPTIONS = (
    RunOption(
        "--cluster",
        "WHERE",
        "where to run: auto (the Ray cluster of this machine), local[:N], ray://host:port",
    ),
    RunOption(
        "--contract",
        "NAME|FILE",
        "the agreed criteria and limits (default: seatrial.toml of this folder); with none, limits "
        "are derived and nothing is accepted",
    ),
    RunOption("--tier", "TIER", "how long to test: quick, standard or soak (default: as agreed)"),
    RunOption("--only", "CRITERION", "run one criterion, or several with commas: a PARTIAL run"),
    RunOption("--nodes", "N", "how many nodes were ordered, when the contract does not say"),
    RunOption(
        "--wait-for-nodes",
        "SECONDS",
        "how long to wait, as 600 or 10m, for nodes that are ordered and have not joined yet "
        "(default: 0)",
    ),
    RunOption(
        "--wait-for-room",
        "SECONDS",
        "how long to wait, as 1800 or 30m, until no other job holds accelerators (default: 0)",
    ),
    RunOption("--run-dir", "DIR", "where to write this run (default: runs/<utc>-<cluster>)"),
    RunOption(
        "--baseline",
        "RUN|FOLDER",
        "run to compare with, or a folder of runs: its newest sound run of this cluster",
    ),
    RunOption("--operator", "NAME", "who runs the test; the report names them"),
    RunOption("--nonce", "TEXT", "a text of the customer's, kept in the first event of the run"),
)
BY_KEY = {option.key: option for option in OPTIONS}


PREFIX = "SEATRIAL_"
PROBES = Path(__file__).resolve().parents[1]
# Ratio of difflib.  TEIR has 0.75 to TIER: a misspelling.  PORT has at most 0.5: not one, for
# Kubernetes sets SEATRIAL_PORT for a service that is called seatrial.
MIN_LIKENESS = 0.75


def read_twins(config: pytest.Config, options: Iterable[str]) -> None:
    """Set options that were not given from the environment, if this run is one of the suite.

    A run is one of the suite when --cluster is given or an argument points to the suite's own
    probes.  Raises UsageError for a misspelt twin, which would otherwise be ignored without a
    message.
    """
    if not (config.getoption("--cluster") or _leads_to_probes(config)):
        return
    twins = {name.strip("-").replace("-", "_").upper() for name in options}
    for name in sorted(name for name in os.environ if name.startswith(PREFIX)):
        asked = name.removeprefix(PREFIX)
        if asked in twins and getattr(config.option, asked.lower()) is None:
            setattr(config.option, asked.lower(), os.environ[name] or None)
        elif asked not in twins and (
            meant := difflib.get_close_matches(asked, twins, 1, MIN_LIKENESS)
        ):
            raise pytest.UsageError(
                f"nothing reads the variable {name!r}, did you mean {PREFIX}{meant[0]}? "
                "Rename it or unset it"
            )


def _leads_to_probes(config: pytest.Config) -> bool:
    """Return whether an argument of this run is in the suite's folder or names its package."""
    for argument in config.args:
        path = argument.split("::")[0]
        # `probes` is this package: --pyargs finds modules that are already imported first.
        if config.option.pyargs and path.split(".")[0] == "probes":
            return True
        if Path(os.path.realpath(config.invocation_params.dir / path)).is_relative_to(PROBES):
            return True
    return False


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
    )


def _check_nodes(agreed: Contract | None, nodes: int | None, wait_s: int) -> None:
    """Check that options and contract order one number of nodes, and that waiting has one."""
    if agreed and nodes and agreed.cluster.nodes not in (None, nodes):
        raise ContractError(
            f"{nodes} nodes were requested (--nodes or SEATRIAL_NODES), but contract "
            f"{agreed.name} orders {agreed.cluster.nodes}: drop one of the two"
        )
    if wait_s and not (nodes or (agreed and agreed.cluster.nodes)):
        raise ContractError(
            "--wait-for-nodes expects a number of nodes, found none: add --nodes, or `nodes` "
            "to the contract"
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
        raise OptionError(
            f"--only is {', '.join(unknown)}, expected some of {_choices(unknown[0], CRITERIA)}"
        )
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
        raise OptionError(
            f"--nodes (or SEATRIAL_NODES) is {text!r}, expected a whole number of nodes, as 8"
        )
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
            f"{name} is {text!r}, expected whole seconds, or "
            f"30m or 2h, at most {MAX_WAIT_S // 3600}h"
        )
    return seconds
