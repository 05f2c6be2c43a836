"""How checks of other suites passed, played at ours as whole runs; one test for each.

Each pattern was found in a suite that is used to accept clusters.  None may be ACCEPTED here, and
each must say what is wrong.
"""

from __future__ import annotations

from typing import Any

import pytest

from probes.contract.contract import load, shipped_contracts
from reports.acceptance import load_summary
from reports.measurement import Verdict
from reports.run_folder.event_log import UnreadableRun
from tests.support.stand_in import GOOD, PROBE, STAND_IN, agreed_for, owes

pytest_plugins = ["pytester", "tests.support.stand_in_suite"]

BUSBW = "[FABRIC.busbw]\nat_least = 40\nunit = 'GB/s'\nbecause = 'agreed for this test'"
TOKENS = (
    "[SCALING.tokens_per_s]\nat_least = 1000\nunit = 'tokens/s per rank'\nbecause = 'agreed here'"
)


@pytest.fixture
def suite_of(suite: Any, pytester: pytest.Pytester) -> Any:
    """`suite_of(criterion, measure, more)`: the suite, owed for and agreed for this measure."""

    def of(criterion: str, measure: str, more: str = "") -> Any:
        pytester.makeconftest(STAND_IN + owes(criterion, measure))
        (pytester.path / "agreed.toml").write_text(agreed_for(criterion, more))
        good = f'measure("{measure}", 0)'
        return lambda *options, sound=good, **more: suite(
            *options, sound=sound, criterion=criterion, **more
        )

    return of


def test_1_a_pass_after_a_fail_does_not_overwrite_it(suite_of: Any) -> None:
    """11 GB/s was a warning, and the next line wrote PASS over it."""
    run = suite_of("FABRIC", "busbw", BUSBW)
    fast = 'measure("busbw", 48)'
    assert run(sound=fast, broken=fast)[0].ret == 0
    result, summary = run(sound=fast, broken=f'measure("busbw", 11); {fast}')
    assert (result.ret, summary.exit_code) == (1, 1)
    assert summary.record.verdict("FABRIC") is Verdict.FAIL
    result.stdout.fnmatch_lines(["*all-reduce runs at 11 GB/s. Expected: >= 40*"])


def test_2_what_nobody_confirmed_is_no_pass_nor_is_a_dry_run(
    suite_of: Any, pytester: pytest.Pytester
) -> None:
    """The provider was "not confirmed" in a warning above the PASS; a dry run wrote PASS too."""
    run = suite_of("FABRIC", "agreeing_sources")
    both = 'measure("agreeing_sources", 2)'
    assert run(sound=both, broken=both)[0].ret == 0
    alone = 'measure("agreeing_sources", None, note="the log names no network")'
    result, summary = run(sound=both, broken=alone)
    assert (result.ret, summary.exit_code) == (20, 20)
    assert summary.record.verdict("FABRIC") is Verdict.UNPROVEN
    result.stdout.fnmatch_lines(["*the log names no network*"])

    dry = pytester.runpytest_subprocess(
        "--cluster", "auto", "--collect-only", "--run-dir", "dry", "--contract", "agreed.toml"
    )
    dry.stdout.fnmatch_lines(["nothing was run: --collect-only proves nothing"])
    assert not (pytester.path / "dry").exists()


def test_3_a_field_that_is_missing_is_no_pass(suite: Any) -> None:
    """The branch for too many remapped rows read a field that the tool never wrote."""
    result, summary = suite(broken='measure("partially_held", {}["remapped_rows"])')
    assert (result.ret, summary.exit_code) == (20, 20)
    assert summary.record.verdict("GANG") is Verdict.UNPROVEN
    result.stdout.fnmatch_lines(["*KeyError: 'remapped_rows'*"])


def test_4_what_is_only_logged_is_no_pass(suite: Any) -> None:
    """Throttling was logged, and nothing was ever judged; the missing log skipped the rest."""
    result, summary = suite(broken='measure.note("partially_held", 3, "samples")')
    assert (result.ret, summary.exit_code) == (20, 20)
    assert summary.record.verdict("GANG") is Verdict.UNPROVEN
    result.stdout.fnmatch_lines(["*partially held*the test ended before this*"])


@pytest.mark.parametrize("how", ["skip", "nothing configured", "no contract"])
def test_5_nothing_configured_is_no_pass(suite: Any, how: str) -> None:
    """`set_passed("Skipped: no GPU nodes")`, thirty times over."""
    skips = '__import__("pytest").skip("no GPU nodes")'
    broken = {"skip": skips, "nothing configured": "return"}.get(how, GOOD)
    more = {"contract": ()} if how == "no contract" else {}
    result, summary = suite(broken=broken, **more)
    assert (result.ret, summary.exit_code) == (20, 20)
    assert summary.word.startswith("NOT ACCEPTED")
    assert "no GPU nodes" in result.stdout.str() or how != "skip"


def test_6_no_limit_is_no_pass(suite_of: Any) -> None:
    """No thresholds were shipped, so that any bandwidth "Succeeded"."""
    fast = 'measure("busbw", 48)'
    result, summary = suite_of("FABRIC", "busbw")(sound=fast, broken=fast)
    assert (result.ret, summary.exit_code) == (20, 20)
    assert summary.record.verdict("FABRIC") is Verdict.UNPROVEN
    result.stdout.fnmatch_lines(["*all-reduce runs at * without a limit*"])


@pytest.mark.parametrize(
    ("limit", "instead"),
    [
        (BUSBW.replace("40", "0"), "0"),
        (BUSBW.replace("at_least = 40", "verify = false"), "verify"),
        (BUSBW.replace("at_least = 40", "at_least = 'nan'"), "nan"),
    ],
)
def test_7_a_limit_cannot_be_switched_off(
    suite_of: Any, pytester: pytest.Pytester, limit: str, instead: str
) -> None:
    """`verify_bus_bw: "False"`, and a scaling baseline of 0 that judged nothing."""
    suite_of("FABRIC", "busbw", limit)
    pytester.makepyfile(test_sound=PROBE.format(criterion="FABRIC", body='measure("busbw", 1)'))
    result = pytester.runpytest_subprocess("--cluster", "auto", "--contract", "agreed.toml")
    assert result.ret == 4
    assert "agreed.toml" in result.stderr.str()
    assert instead in result.stderr.str()


@pytest.mark.parametrize("how", ["the probe's process dies", "switched off"])
def test_8_a_probe_that_died_or_was_switched_off_is_no_pass(
    suite: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """NCCL's process failed: a warning.  A switch in the environment: OK."""
    if how == "switched off":
        monkeypatch.setenv("PYTEST_ADDOPTS", "-k sound")
        result, summary = suite()
        assert (result.ret, summary.exit_code) == (20, 20)
    else:
        result, summary = suite(broken='__import__("os").kill(__import__("os").getpid(), 9)')
        assert result.ret == -9
        assert summary.exit_code == 2
        assert not summary.word.startswith(("ACCEPTED", "REHEARSAL"))


def test_9_a_line_that_a_run_ended_is_no_pass_at_any_speed(suite_of: Any) -> None:
    """Training passed on the words "completed step: 29", however slow."""
    run = suite_of("SCALING", "tokens_per_s", TOKENS)
    fast, slow = 'measure("tokens_per_s", 4000)', 'measure("tokens_per_s", 100)'
    assert run(sound=fast, broken=fast)[0].ret == 0
    result, summary = run(sound=fast, broken=f'print("completed step: 29"); {slow}')
    assert (result.ret, summary.exit_code) == (1, 1)
    assert summary.record.verdict("SCALING") is Verdict.FAIL


def test_10_words_on_stdout_are_no_pass(suite: Any) -> None:
    """The test succeeded where the right words stood in its output."""
    result, summary = suite("-s", broken='print("PASS", "# Avg bus bandwidth : 390", "1 passed")')
    assert (result.ret, summary.exit_code) == (20, 20)
    assert summary.record.verdict("GANG") is Verdict.UNPROVEN


def test_11_an_error_does_not_end_in_0(suite: Any, pytester: pytest.Pytester) -> None:
    """A platform that was not supported, and every ERROR, left with exit code 0.

    Here a file of probes leaves while it is read: no run begins, so nothing can be signed.
    """
    with pytest.raises(UnreadableRun):
        suite("--continue-on-collection-errors", broken=GOOD, head="raise SystemExit(0)\n")
    options = ("--cluster", "auto", "--run-dir", "run", "--contract", "agreed.toml")
    assert pytester.runpytest_subprocess(*options, "--continue-on-collection-errors").ret == 3
    assert not (pytester.path / "run").exists()


def test_12_a_check_that_only_reports_is_wired_to_the_end(
    suite_of: Any, pytester: pytest.Pytester
) -> None:
    """The clocks' "hard fail" was computed, and nothing asked for it.

    Here a FAIL counts also where this cluster was not to prove the criterion.
    """
    run = suite_of("FABRIC", "wrong_elements")
    (pytester.path / "agreed.toml").write_text(
        agreed_for("GANG").replace("[cluster]", "[cluster]\n")  # FABRIC is not provable here
    )
    result, summary = run(broken='measure("wrong_elements", 1)')
    assert (result.ret, summary.exit_code) == (1, 1)
    assert summary.record.verdict("FABRIC") is Verdict.FAIL


def test_13_what_is_shipped_can_be_read() -> None:
    """The configuration for one kind of GPU did not parse."""
    assert len(shipped_contracts()) >= 5
    for name in shipped_contracts():
        contract = load(name)
        assert contract.limits, name


def test_14_a_gate_that_was_declared_and_skipped_is_no_pass(
    suite: Any, pytester: pytest.Pytester
) -> None:
    """The gates of NCCL were declared and skipped, and the phase passed."""
    result, summary = suite("--deselect", "test_broken.py::test_it")
    assert (result.ret, summary.exit_code) == (20, 20)
    for page in ("report.html", "junit.xml", "ctrf.json"):
        assert "test_broken.py::test_it" in (pytester.path / "run" / page).read_text(), page


def test_15_a_diagnosis_that_broke_is_not_healthy(suite: Any, pytester: pytest.Pytester) -> None:
    """The diagnosis failed, and the node was reported healthy, also by who read it later."""
    result, summary = suite(broken=f'{GOOD}; raise OSError("dcgmi: cannot connect")')
    assert (result.ret, summary.exit_code) == (20, 20)
    assert summary.record.verdict("GANG") is Verdict.UNPROVEN
    again = load_summary(pytester.path / "run")
    assert (again.exit_code, again.word) == (20, summary.word)
    assert "dcgmi: cannot connect" in (pytester.path / "run" / "report.html").read_text()
