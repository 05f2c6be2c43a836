"""A probe that is owed and does not run is missed, by whatever means it went."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from probes.check.registry import CRITERIA
from reports.measurement import Verdict
from reports.run_folder.integrity import load
from tests.support.stand_in import CAUGHT, CONTRACT, GOOD, OWES, PROBE, STAND_IN

pytest_plugins = ["pytester", "tests.support.stand_in_suite"]

REMOVES = """
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if 'broken' not in item.nodeid]
"""
SWALLOWS = "def pytest_runtest_protocol(item): return True if 'broken' in item.nodeid else None"
STOPS = """
import pytest
def pytest_runtest_logstart(nodeid): pytest.exit('enough', returncode=0)
"""


def test_all_that_is_owed_ran_and_passed(suite: Any) -> None:
    result, summary = suite(broken=GOOD)
    assert (result.ret, summary.word) == (0, "REHEARSAL PASSED")
    assert "Tier quick: all 2 tests ran" in summary.headline
    assert "Not required: FABRIC, SCALING, LAUNCH, RESTART, HOSTS" in summary.headline


def test_the_failure_is_seen_where_nothing_is_taken_away(suite: Any) -> None:
    assert suite()[0].ret == 1


@pytest.mark.parametrize(
    ("options", "head", "environment", "conftest"),
    [
        (["-k", "sound"], "", "", ""),
        (["--deselect", "test_broken.py::test_it"], "", "", ""),
        (["--ignore", "test_broken.py"], "", "", ""),
        (["test_sound.py"], "", "", ""),
        (["-p", "removes"], "", "", ""),
        ([], "", "-k sound", ""),
        ([], "", "", REMOVES),
        ([], "", "", "collect_ignore = ['test_broken.py']"),
        ([], "", "", SWALLOWS),
        ([], "", "", STOPS),
        ([], 'import pytest\npytest.importorskip("no_such_module")\n', "", ""),
        (["--continue-on-collection-errors"], "import no_such_module\n", "", ""),
        ([], "import no_such_module\n", "", ""),
        ([], 'import pytest\npytestmark = pytest.mark.uses("no_such_module")\n', "", ""),
        ([], "import pytest\npytestmark = pytest.mark.skip\n", "", ""),
        ([], "import pytest\npytestmark = pytest.mark.xfail(run=False)\n", "", ""),
        ([], "import pytest\npytestmark = pytest.mark.tier('soak')\n", "", ""),
        (["--setup-only"], "", "", ""),
    ],
    ids=["-k", "--deselect", "--ignore", "one file named", "plugin", "PYTEST_ADDOPTS",
         "conftest removes", "conftest ignores", "protocol swallowed", "pytest.exit(0)",
         "importorskip", "collection error, going on", "collection error", "uses", "skip",
         "xfail without running", "a longer tier by mistake", "--setup-only"],
)  # fmt: skip
def test_a_failing_probe_that_is_taken_away_is_missed(
    suite: Any,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    head: str,
    environment: str,
    conftest: str,
) -> None:
    pytester.makepyfile(removes=REMOVES)
    if environment:
        monkeypatch.setenv("PYTEST_ADDOPTS", environment)
    if conftest:
        pytester.makeconftest(f"{STAND_IN}{OWES}\n{conftest}")
    result, summary = suite(*options, head=head)
    assert result.ret not in (0, 1)
    assert result.ret == summary.exit_code
    assert summary.record.verdict("GANG") is Verdict.UNPROVEN
    assert not summary.word.startswith(("ACCEPTED", "REHEARSAL"))
    for page in ("report.html", "junit.xml", "ctrf.json"):
        assert "test_broken.py::test_it" in (pytester.path / "run" / page).read_text(), page


def test_a_conftest_of_a_folder_above_is_named(suite: Any, pytester: pytest.Pytester) -> None:
    inner = pytester.mkdir("inner")
    _, summary = suite(broken=GOOD)
    assert summary.record.loaded[0] == str(pytester.path / "conftest.py")
    assert not list(inner.iterdir())
    assert str(pytester.path / "conftest.py") in (pytester.path / "run/report.html").read_text()


def test_what_else_was_loaded_is_said_in_one_line(
    suite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--color=no")
    result, _ = suite(broken=GOOD)
    result.stdout.fnmatch_lines(["loaded *conftest.py, PYTEST_ADDOPTS=--color=no*"])


def test_the_first_of_many_failures_leaves_the_others_owed(suite: Any) -> None:
    result, summary = suite("-x", "test_broken.py", "test_sound.py")
    assert result.ret == 1
    assert "1 of 2 tests ran" in summary.headline


def test_only_makes_a_partial_run(suite: Any, pytester: pytest.Pytester) -> None:
    result, summary = suite("--only", "gang", broken=GOOD)
    assert result.ret == summary.exit_code == 20
    assert summary.word == "NOT ACCEPTED (PARTIAL, rehearsal)"
    assert summary.record.partial == "only GANG was asked for (--only)"
    result.stdout.fnmatch_lines(["PARTIAL *only GANG*", "*PARTIAL run: only GANG was asked for*"])
    for page in ("report.html", "junit.xml", "ctrf.json", "metrics.prom"):
        text = (pytester.path / "run" / page).read_text()
        assert "only GANG was asked for" in text or 'partial="yes"' in text, page


def test_a_shorter_tier_than_agreed_is_a_partial_run(suite: Any, pytester: pytest.Pytester) -> None:
    (pytester.path / "agreed.toml").write_text(
        CONTRACT.replace("schema = 1", "schema = 1\ntier = 'standard'")
    )
    told = f'{GOOD}; assert tier == "standard"'
    assert suite(broken=told)[0].ret == 0, "the contract's tier is the default"
    (pytester.path / "run").rename(pytester.path / "standard")
    result, summary = suite("--tier", "quick", broken=GOOD)
    assert result.ret == 20
    assert summary.reasons == [
        "PARTIAL run: tier quick was run, and the contract asks for tier standard. An acceptance "
        "needs a complete run (2 tests of the tier standard)"
    ]
    assert (load(pytester.path / "standard").tier, summary.record.tier) == ("standard", "quick")


def test_without_a_contract_nothing_is_accepted(suite: Any, pytester: pytest.Pytester) -> None:
    result, summary = suite(broken=GOOD, contract=())
    assert result.ret == 20
    assert summary.headline.startswith(
        f"NOT ACCEPTED (rehearsal): No contract was agreed. 1 of {len(CRITERIA)}"
    )
    result.stdout.fnmatch_lines(["fingerprint  *", "next    seatrial contract new --from run"])


def test_the_contract_of_this_folder_is_taken_and_said(
    suite: Any, pytester: pytest.Pytester
) -> None:
    (pytester.path / "agreed.toml").rename(pytester.path / "seatrial.toml")
    result, summary = suite(broken=GOOD, contract=())
    assert (result.ret, summary.record.contract.agreed) == (0, True)
    result.stdout.fnmatch_lines(["contract *(seatrial.toml of this folder)"])


@pytest.mark.parametrize("text", ["eight", "8 ", "+8", "8.0", "0", "-1", "٨"])
def test_a_number_of_nodes_that_is_none_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SEATRIAL_NODES", text)
    pytester.makeconftest(STAND_IN)
    result = pytester.runpytest_subprocess(
        "-p", "probes.plugin", "--cluster", "auto", "--contract", "lab"
    )
    assert result.ret == 4
    assert "expected a whole number of nodes, such as 8" in result.stderr.str()


TEARDOWN = """
@__import__('pytest').fixture(autouse=True)
def room():
    yield
    raise RuntimeError('3 GPUs were not given back')
"""
INTERNAL = "def pytest_runtest_logfinish(nodeid, location): raise RuntimeError('a plugin broke')"


@pytest.mark.parametrize(
    ("conftest", "head", "kind"),
    [
        (TEARDOWN, "", "teardown"),
        (INTERNAL, "", "internal"),
        ("", "import no_such_module\n", "collection"),
    ],
    ids=["teardown", "internal error", "collection"],
)  # fmt: skip
def test_what_breaks_beside_the_probes_reaches_the_record(
    suite: Any, pytester: pytest.Pytester, conftest: str, head: str, kind: str
) -> None:
    """pytest, record, page, exports and a later look say and exit the same."""
    pytester.makeconftest(f"{STAND_IN}{OWES}\n{conftest}")
    result, summary = suite("--continue-on-collection-errors", broken=GOOD, head=head)
    assert result.ret == summary.exit_code == 3
    assert kind in [problem.kind for problem in summary.record.problems]
    assert summary.word == "NOT ACCEPTED (rehearsal)"
    decision = ET.parse(pytester.path / "run" / "junit.xml").find(".//testcase[@name='decision']")
    assert decision is not None
    assert decision.find("error") is not None
    said = "clean-up failed in" if kind == "teardown" else f"{kind} error in"
    assert said in (pytester.path / "run" / "report.html").read_text()
    assert " 3" in (pytester.path / "run" / "metrics.prom").read_text()


def test_another_test_that_fails_is_no_acceptance(suite: Any, pytester: pytest.Pytester) -> None:
    (pytester.path / "test_other.py").write_text("def test_other(): assert False")
    result, summary = suite(broken=GOOD)
    assert result.ret == summary.exit_code == 3
    assert summary.record.problems[0].kind == "other test"


@pytest.mark.parametrize("broken", ["write_all", "write_checksums", "finish"])
def test_an_end_that_cannot_be_written_is_no_acceptance(
    suite: Any, pytester: pytest.Pytester, broken: str
) -> None:
    """The disk is full: what can be read later says the same as pytest did.

    Where not even the end of the run can be written, the folder reads as that of a killed driver.
    """
    where = {
        "write_all": "probes.session.ending",
        "write_checksums": "reports.run_folder.event_log",
    }
    plant = f"""
import errno, reports.run_folder.store, probes.session.ending
def full(*a, **k): raise OSError(errno.ENOSPC, "No space left on device")
if {broken!r} == "finish":
    old = reports.run_folder.store.Store.event
    reports.run_folder.store.Store.event = lambda self, kind, /, *a, **k: (
        full() if kind in ("run_finished", "run_problem") else old(self, kind, *a, **k))
else:
    {where.get(broken, "reports.run_folder.store")}.{broken} = full
"""
    pytester.makeconftest(STAND_IN + OWES + plant)
    result, summary = suite(broken=GOOD)
    assert result.ret == 3
    assert summary.exit_code == (2 if broken == "finish" else 3)
    assert not summary.word.startswith(("ACCEPTED", "REHEARSAL"))


def test_a_file_of_somebody_else_does_not_stand_for_a_probe(
    suite: Any, pytester: pytest.Pytester
) -> None:
    """An old checkout, or a file made to pass, may have the suite's names."""
    folder = pytester.path / "suite" / "gang"
    folder.mkdir(parents=True)
    text = PROBE.format(criterion="GANG", body=f"{GOOD}\n    {CAUGHT}")
    (folder / "test_broken.py").write_text(text)
    names = OWES.replace("{pathlib.Path.cwd()}/test_", "suite/gang/test_")
    pytester.makeconftest(STAND_IN + names)
    result, summary = suite("suite", broken=GOOD)
    assert result.ret == summary.exit_code == 20
    assert "0 of 2 tests ran" in summary.headline


def test_a_plugin_that_fails_a_probe_is_no_acceptance(
    suite: Any, pytester: pytest.Pytester
) -> None:
    plugin = """
import pytest
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        report.outcome, report.longrepr = "failed", "Xid 79 in dmesg"
    return report
"""
    pytester.makeconftest(STAND_IN + OWES + plugin)
    result, summary = suite(broken=GOOD)
    assert result.ret == summary.exit_code == 3
    assert "Xid 79 in dmesg" in summary.reasons[0]


def test_junit_elsewhere_says_that_the_end_could_not_be_written(
    suite: Any, pytester: pytest.Pytester
) -> None:
    plant = """
import errno, reports.run_folder.store
def full(*a, **k): raise OSError(errno.ENOSPC, "No space left on device")
reports.run_folder.event_log.write_checksums = full
"""
    pytester.makeconftest(STAND_IN + OWES + plant)
    result, _ = suite("--junitxml", "ci/junit.xml", broken=GOOD)
    assert result.ret == 3
    tree = ET.parse(pytester.path / "ci" / "junit.xml")
    assert tree.find(".//testcase[@name='decision']/error") is not None


def test_an_error_of_ours_at_the_end_is_3(suite: Any, pytester: pytest.Pytester) -> None:
    plant = """
import probes.session.ending
def broken(*a, **k): raise TypeError("a renderer broke")
probes.session.ending.write_all = broken
"""
    pytester.makeconftest(STAND_IN + OWES + plant)
    result, summary = suite(broken=GOOD)
    assert result.ret == summary.exit_code == 3
    assert "a renderer broke" in summary.reasons[0]


def test_an_embedded_cluster_does_not_order_itself_where_a_contract_does(
    suite: Any, pytester: pytest.Pytester
) -> None:
    embedded = "\nStandIn.kind, StandIn.embedded_nodes = 'local', 4\n"
    pytester.makeconftest(STAND_IN + OWES + embedded)
    ordered = CONTRACT.replace("[cluster]", "[cluster]\nnodes = 8")
    (pytester.path / "agreed.toml").write_text(ordered)
    _, summary = suite(broken=GOOD)
    assert summary.record.cluster["terms"]["nodes"] == 8


def test_junit_asked_for_elsewhere_is_the_record_too(suite: Any, pytester: pytest.Pytester) -> None:
    suite("--junitxml", "ci/junit.xml", "-k", "sound")
    text = (pytester.path / "ci" / "junit.xml").read_text()
    assert text == (pytester.path / "run" / "junit.xml").read_text()
    assert ET.fromstring(text).get("errors") != "0"


def test_collecting_only_says_that_nothing_was_run(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(STAND_IN)
    pytester.makepyfile(test_probe=PROBE.format(criterion="GANG", body="pass"))
    result = pytester.runpytest_subprocess(
        "-p", "probes.plugin", "--cluster", "auto", "--collect-only"
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(["nothing was run: --collect-only proves nothing"])
    assert not list(Path(pytester.path).glob("runs/*"))
