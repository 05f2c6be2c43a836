"""What a cluster cannot prove informs, and is neither an alarm nor a proof."""

from __future__ import annotations

from typing import Any

import pytest

from probes.check.owed import Circumstances, owed_by
from probes.contract.contract import parse
from reports.acceptance import load_summary
from reports.measurement import Verdict
from reports.text import acceptance_table
from tests.support.stand_in import CAUGHT, PROBE, STAND_IN

pytest_plugins = ["pytester"]

OWES = """
import probes.check.owed

probes.check.owed.owed_by = lambda here: []
"""
REASON = "all ranks of it share one host's cores"
CONTRACT = f"""
schema = 1
[cluster]
accelerators = "emulated"
[SCALING]
not_provable = "{REASON}"
"""
SLOW = 'measure("straggler", 0.9, on="rank 3")'
UNKNOWN = 'measure("efficiency", None, note="scaling needs at least 2 nodes")'
MISSED = 'measure.control("slow base", "one node is slow", None, saw="no limit")'
SOUND_DATA = 'measure("disagreements", 0)'


@pytest.fixture
def ran(pytester: pytest.Pytester) -> Any:
    """`ran(body)`: run one probe of SCALING; what was printed, and the run's summary."""

    def run(*body: str) -> Any:
        pytester.makeconftest(STAND_IN + OWES)
        (pytester.path / "agreed.toml").write_text(CONTRACT)
        text = PROBE.format(criterion="SCALING", body="\n    ".join(body))
        pytester.makepyfile(test_probe=text)
        options = ("--contract", "./agreed.toml", "--run-dir", "run", "-p", "no:cacheprovider")
        result = pytester.runpytest_subprocess("--cluster", "auto", *options)
        return result.stdout.str(), load_summary(pytester.path / "run")

    return run


@pytest.mark.parametrize(
    "body",
    [(SLOW, CAUGHT), (UNKNOWN, MISSED), (SOUND_DATA, SLOW, MISSED), (SOUND_DATA, CAUGHT)],
    ids=["slow", "unknown and no control", "sound data", "nothing wrong"],
)
def test_it_is_no_error_and_no_pass(ran: Any, body: tuple[str, ...]) -> None:
    output, summary = ran(*body)
    row = next(row for row in summary.rows if row.criterion.id == "SCALING")
    assert row.verdict is Verdict.UNPROVEN
    table = acceptance_table(summary)
    assert [line for line in table.splitlines() if line.startswith("  SCALING ")] == [
        f"  SCALING  not provable here: {REASON}"
    ]
    for word in ("ERRORS", "ERROR at", "not find the planted fault", "FAIL", "1 passed", "1 error"):
        assert word not in output
    assert "1 not provable here" in output


def test_wrong_data_is_wrong_on_every_machine(ran: Any) -> None:
    output, summary = ran('measure("disagreements", 2)', CAUGHT)
    assert summary.exit_code == 1
    sentence = "FAIL ranks differ in loss or gradient, or used the same samples, in 2 steps."
    assert f"{sentence} Expected: 0 steps" in " ".join(output.split())


def test_a_probe_that_breaks_there_is_an_error(ran: Any) -> None:
    output, _ = ran(SOUND_DATA, 'raise RuntimeError("broken probe")')
    assert "RuntimeError: broken probe" in output
    assert "1 error" in output


def test_only_the_data_is_owed_of_it() -> None:
    contract = parse(CONTRACT.encode(), "agreed.toml")
    here = Circumstances(
        "quick", contract.cluster, 4, False, not_provable=frozenset(contract.optional)
    )
    owed = {
        name for probe in owed_by(here) if probe.criterion == "SCALING" for name in probe.measures
    }
    assert owed == {"non_finite", "disagreements"}
    assert any(probe.measures for probe in owed_by(here) if probe.criterion == "FABRIC")
