"""No false alarm: the healthy lab is accepted, again and again."""

from __future__ import annotations

import pytest

from probes.check.registry import CRITERIA
from probes.cli.scaling import load_scaling_run
from probes.contract.contract import load
from probes.fabric import criterion as check
from probes.scaling.run_ladder import required_efficiency
from scaling.loss.baseline_difference import HEALTHY_NOISE
from scaling.loss.causes import LossCause
from tests.lab.lab import Lab
from tests.support.trial import acceptance

TIMES = [
    1,
    *(pytest.param(time, marks=pytest.mark.soak(criterion="suite")) for time in range(2, 9)),
]


def of_the_host(cause: LossCause) -> bool:
    """Whether other work on a shared host explains `cause`: it did interrupt single steps."""
    return (cause.code, cause.where) == ("SCALE-JITTER", "changing nodes") and (
        cause.share < HEALTHY_NOISE
    )


@pytest.mark.parametrize("time", TIMES)
def test_healthy_lab_is_accepted(lab: Lab, time: int) -> None:
    record, trial = acceptance(lab, f"healthy-{time}", "probes", seconds=600)
    said = {id: record.verdict(id).value for id in CRITERIA}
    complaints = [line for result in record.results for line in result.problems()]
    named = [finding for result in record.results for finding in result.findings]
    assert trial.summary.exit_code == 0, f"{said} {complaints} {named} {trial.summary.reasons}"
    assert trial.process.returncode == 0
    assert not named
    # A cause is a finding only where efficiency misses its limit: here it would not show.
    limit = required_efficiency(load("lab").limit("SCALING", "efficiency"))
    ladder = load_scaling_run(trial.folder)[1]
    causes = [(one.nodes, cause) for one in ladder.explanations(limit) for cause in one.causes]
    assert not [(nodes, one.code, one.statement) for nodes, one in causes if not of_the_host(one)]
    assert all(control.caught for result in record.results for control in result.controls)
    # The wrong network, planted in FABRIC, reaches no later probe of the same ranks.
    by_id = {result.criterion: result for result in record.results}
    assert check.WRONG_NETWORK in {control.name for control in by_id["FABRIC"].controls}
    assert "ranks: those of an earlier test" in by_id["SCALING"].coverage
    assert [rung.off_fabric for rung in ladder.rungs] == [{}] * len(ladder.rungs)
    assert record.rehearsal, "a lab run must say that it is a rehearsal"
    assert (trial.folder / "report.html").is_file()
    assert (trial.folder / "junit.xml").is_file()
