"""Runs two probes on a stand-in cluster: `suite(*options, ...)` returns the result."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from reports.acceptance import AcceptanceSummary, load_summary
from tests.support.stand_in import BROKEN, CAUGHT, CONTRACT, GOOD, OWES, PROBE, STAND_IN


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make `suite(*options, broken=...)`: it runs both probes.

    It returns pytest's result and the run's summary.
    """
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeconftest(STAND_IN + OWES)
    (pytester.path / "agreed.toml").write_text(CONTRACT)

    def run(
        *options: str,
        sound: str = GOOD,
        broken: str = BROKEN,
        head: str = "",
        criterion: str = "GANG",
        contract: tuple[str, ...] = ("--contract", "agreed.toml"),
    ) -> tuple[pytest.RunResult, AcceptanceSummary]:
        for name, body in (("sound", sound), ("broken", broken)):
            text = PROBE.format(criterion=criterion, body=f"{body}\n    {CAUGHT}")
            path = pytester.path / f"test_{name}.py"
            path.write_text((head if name == "broken" else "") + text)
        shutil.rmtree(pytester.path / "run", ignore_errors=True)
        where = ["--cluster", "auto", "--run-dir", "run", *contract]
        result = pytester.runpytest_subprocess(*where, "-p", "no:cacheprovider", *options)
        return result, load_summary(pytester.path / "run")

    return run
