"""Ways in which other suites pass without proof; here none of them may."""

from __future__ import annotations

from typing import Any

import pytest

from reports.acceptance import load_summary
from reports.formats.junit import ctrf
from reports.formats.prometheus import prometheus
from reports.measurement import Limit, Measurement, Verdict
from reports.record import Control, ProbeResult
from reports.run_folder.integrity import load
from tests.support.paths import RECORDINGS

CAUGHT = Control(name="c", fault="cable pulled", caught=True)


def judged(*measurements: Measurement, state: str = "finished") -> Verdict:
    return ProbeResult(
        probe="p",
        criterion="FABRIC",
        state=state,
        measurements=list(measurements),
        controls=[CAUGHT],
    ).verdict


def value(name: str, seen: float | str | None, **limit: Any) -> Measurement:
    return Measurement(name=name, value=seen, limit=Limit(because="agreed here", **limit))


def test_a_warning_is_not_overwritten_by_a_later_pass() -> None:
    """Below the threshold: warn, then write PASS over it; 11 GB/s passed."""
    record = load(RECORDINGS / "retried")
    assert record.verdict("GANG") is Verdict.FAIL
    assert judged(value("busbw", 11, low=340), value("busbw", 376, low=340)) is Verdict.FAIL


def test_an_unconfirmed_transport_is_not_a_remark() -> None:
    """'Provider not confirmed' only warned, then passed."""
    assert judged(value("busbw", 376, low=340), value("transport", None, one_of=["NET/IB"])) is (
        Verdict.UNPROVEN
    )


def test_a_field_that_is_missing_does_not_compare_as_fine() -> None:
    """A branch read a field that was not there, and went on."""
    assert judged(value("row remaps", None, high=512)) is Verdict.UNPROVEN


@pytest.mark.parametrize("state", ["skipped", "error", "interrupted"])
def test_skipped_is_not_passed(state: str) -> None:
    """No GPU nodes, nothing configured: set_passed('Skipped')."""
    assert judged(state=state) is Verdict.UNPROVEN
    assert load_summary(RECORDINGS / "skipped").exit_code == 20


def test_no_threshold_is_not_any_threshold() -> None:
    """No thresholds were shipped, so that any bandwidth succeeded."""
    assert judged(Measurement(name="busbw", value=0.001)) is Verdict.UNPROVEN
    assert load(RECORDINGS / "missing-limit").verdict("FABRIC") is Verdict.UNPROVEN


def test_a_zero_baseline_does_not_switch_a_limit_off() -> None:
    """verify_bus_bw False, baseline 0: the comparison was left out."""
    assert Limit(low=0, because="agreed here").judge(None) is Verdict.UNPROVEN
    assert Limit(because="agreed here").judge(0.5) is Verdict.UNPROVEN


def test_a_process_that_died_is_not_a_warning() -> None:
    """The collective's process failed: WARN; no GPUs or a kill switch: OK."""
    assert load_summary(RECORDINGS / "timeout").exit_code == 20
    assert judged(state="error") is Verdict.UNPROVEN


def test_words_on_the_output_are_no_measurement() -> None:
    """'completed step: 29' passed at any speed."""
    told = Measurement(name="output", value="completed step: 29", judged=False)
    assert judged(told) is Verdict.UNPROVEN


def test_an_unsupported_platform_does_not_exit_with_0() -> None:
    """Unsupported platform, ERROR: exit 0."""
    assert load_summary(RECORDINGS / "empty").exit_code == 20
    assert load_summary(RECORDINGS / "not-run").exit_code == 20


def test_a_hard_failure_is_wired_to_the_exit_code() -> None:
    """A 'hard fail' was computed and read by nobody."""
    assert load_summary(RECORDINGS / "outside-contract").exit_code == 1


def test_a_skipped_gate_does_not_pass_its_phase() -> None:
    """Declared gates were skipped, yet the phase passed: also in what other tools read."""
    for name in ("skipped", "not-run", "empty", "control-missed", "killed-run"):
        summary = load_summary(RECORDINGS / name)
        assert ctrf(summary)["results"]["summary"]["failed"] >= 1, name
        lines = prometheus(summary).splitlines()
        (sample,) = [line for line in lines if line.startswith("seatrial_exit_code{")]
        assert summary.exit_code, name
        assert sample.endswith(f" {summary.exit_code}")


def test_a_diagnosis_of_failure_is_not_reported_healthy() -> None:
    """Failures of the diagnostics were reported healthy."""
    rows = load_summary(RECORDINGS / "tcp-fallback").rows
    healthy = [row.criterion.id for row in rows if row.verdict.accepted]
    assert healthy == ["GANG", "LAUNCH", "HOSTS"]


def test_a_probe_that_sees_no_difference_proves_nothing() -> None:
    record = load(RECORDINGS / "control-missed")
    assert record.verdict("FABRIC") is Verdict.UNPROVEN
    assert any(
        "the test proves nothing" in line for line in record.results_of("FABRIC")[0].problems()
    )


def test_a_waiver_never_turns_a_failure_green() -> None:
    summary = load_summary(RECORDINGS / "waived-fail")
    notes = dict(summary.waiver_notes)
    assert summary.exit_code == 1
    assert summary.record.verdict("FABRIC") is Verdict.FAIL
    assert "the verdict stays FAIL" in notes["FABRIC"]
    assert "EXPIRED" in notes["GANG"]
    assert "NO LONGER NEEDED" in notes["LAUNCH"]


def test_what_this_cluster_cannot_prove_is_not_shown_as_passed() -> None:
    summary = load_summary(RECORDINGS / "healthy-lab")
    fabric = next(row for row in summary.rows if row.criterion.id == "FABRIC")
    assert summary.record.verdict("FABRIC") is Verdict.PASS
    assert fabric.verdict is Verdict.UNPROVEN
    assert fabric.label.startswith("not provable here")
