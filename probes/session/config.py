"""What the suite has in pytest's config: keys of what a run keeps, options from the environment."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

RUN: pytest.StashKey[Any] = pytest.StashKey()  # config: the RunSession
ENDING: pytest.StashKey[Any] = pytest.StashKey()  # config: the run's Ending
RECORDER: pytest.StashKey[Any] = pytest.StashKey()  # item: its probe's recorder
JUNIT: pytest.StashKey[str] = pytest.StashKey()  # config: the path of --junitxml
VERDICT: pytest.StashKey[Any] = pytest.StashKey()  # item: its verdict
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
        meant = difflib.get_close_matches(asked, twins, 1, MIN_LIKENESS)
        if asked in twins and getattr(config.option, asked.lower()) is None:
            setattr(config.option, asked.lower(), os.environ[name] or None)
        elif asked not in twins and meant:
            raise pytest.UsageError(
                f"unknown environment variable {name!r}, did you mean {PREFIX}{meant[0]}? Rename "
                "it or unset it"
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
