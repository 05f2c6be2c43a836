"""The plugin judges: every way a probe can end, seen in exit code, terminal, record and JUnit."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from probes.check.registry import CRITERIA
from reports.measurement import Verdict
from reports.record import ProbeResult
from reports.run_folder.integrity import load
from tests.support.stand_in import CAUGHT, CONTROL, GOOD, PROBE, STAND_IN

pytest_plugins = ["pytester"]

LOSES = """
def nodes(self):
    self.asked = getattr(self, "asked", 0) + 1
    return [{"id": str(i), "name": f"n{i}"} for i in range(2 if self.asked == 1 else 1)]
StandIn.nodes = property(nodes)
StandIn.facts = [{"name": "n0"}]
"""


@pytest.fixture
def judged(pytester: pytest.Pytester) -> Any:
    """`judged(body)`: run one probe with this body; (result, record)."""

    def run(
        *body: str, criterion: str = "GANG", options: tuple[str, ...] = (), stand_in: str = STAND_IN
    ) -> Any:
        pytester.makeconftest(stand_in)
        text = PROBE.format(criterion=criterion, body="\n    ".join(body))
        pytester.makepyfile(test_probe=text)
        result = pytester.runpytest_subprocess(
            "-p",
            "probes.plugin",
            "--cluster",
            "auto",
            "--contract",
            "lab",
            "--run-dir",
            "run",
            "-p",
            "no:cacheprovider",
            *options,
        )
        folder = pytester.path / "run"
        return result, load(folder) if (folder / "events.jsonl").exists() else None

    return run


def verdict(record: Any, criterion: str = "GANG") -> Verdict:
    return only(record, criterion).verdict


def only(record: Any, criterion: str = "GANG") -> ProbeResult:
    """The one result of a probe that ran: those that were owed and did not run are left out."""
    (result,) = [one for one in record.results_of(criterion) if one.state != "not run"]
    found: ProbeResult = result
    return found


@pytest.mark.parametrize("id", ["", "seatrial-submit-0123456789ab"])
def test_a_run_keeps_the_id_of_its_submission(
    id: str, judged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEATRIAL_SUBMISSION", id)
    _, record = judged(GOOD, CAUGHT, options=("--nonce", "customer-42"))
    assert (record.nonce, record.submission) == ("customer-42", id)


def test_pass_needs_a_measurement_and_a_caught_control(judged: Any) -> None:
    result, record = judged(GOOD, CAUGHT)
    assert verdict(record) is Verdict.PASS
    result.assert_outcomes(passed=1)
    assert result.ret == 20, "the other criteria were not proven"
    assert record.results[0].claim == "It holds."


@pytest.mark.parametrize(
    "body",
    [
        [CAUGHT],
        [GOOD],
        [GOOD, CONTROL.format(caught=False, saw="nothing")],
        [GOOD, CONTROL.format(caught=None, saw="it could not be run")],
        ['measure("partially_held", None, note="no samples")', CAUGHT],
        ['measure("partially_held", float("nan"))', CAUGHT],
        [GOOD, CAUGHT, 'pytest.skip("not today")'],
        [GOOD, CAUGHT, 'raise RuntimeError("broken probe")'],
        [GOOD, CAUGHT, 'pytest.fail("no room", pytrace=False)'],
        ["pass"],
    ],
    ids=["no measurement", "no control", "control missed", "control not run", "None", "NaN", "skip",
         "exception", "gave up", "empty"],
)  # fmt: skip
def test_no_proof_is_unproven(judged: Any, body: list[str]) -> None:
    result, record = judged(*body)
    assert verdict(record) is Verdict.UNPROVEN
    assert result.ret == 20
    result.stdout.fnmatch_lines(["*UNPROVEN*test_it*"])


def test_a_measure_without_any_limit_is_unproven(judged: Any) -> None:
    _, record = judged('measure("ranks", 4)', CAUGHT, criterion="LAUNCH")
    assert verdict(record, "LAUNCH") is Verdict.UNPROVEN
    assert "It is UNPROVEN without a limit" in record.results[0].problems()[0]


def test_every_broken_limit_is_shown_and_fails(judged: Any) -> None:
    result, record = judged(
        'measure("partially_held", 3)', 'measure("placement_delay", 99.0)', CAUGHT
    )
    assert verdict(record) is Verdict.FAIL
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*a waiting job held only a part of its GPUs in 3 samples. Expected: 0 samples*",
            "*a job starts 99 s after GPUs are free. Expected*",
        ]
    )
    text = result.stdout.str()
    assert "Traceback" not in text


def test_a_failed_limit_beats_the_exception_after_it(judged: Any) -> None:
    result, record = judged('measure("partially_held", 3)', 'raise RuntimeError("and then")')
    assert verdict(record) is Verdict.FAIL
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*and then*"])


def test_nodes_lost_since_the_run_began_prove_nothing(judged: Any) -> None:
    _, record = judged("pass", stand_in=STAND_IN + LOSES)
    assert verdict(record) is Verdict.UNPROVEN
    assert "nodes were lost after the run began: n1" in record.results[0].problems()[-1]


def test_a_failing_teardown_does_not_end_in_0(judged: Any, pytester: pytest.Pytester) -> None:
    (pytester.path / "test_other.py").write_text("def test_other(): assert False")
    result, record = judged(GOOD, CAUGHT)
    assert verdict(record) is Verdict.PASS
    assert result.ret != 0


@pytest.mark.parametrize("tier", ["quick", "soak"])
def test_how_to_see_it_again_names_the_tier_that_saw_it(judged: Any, tier: str) -> None:
    _, record = judged(GOOD, CAUGHT, options=("--tier", tier))
    result = only(record)
    words = f"--cluster auto --tier {tier} --contract lab"
    assert result.reproduce == f"pytest test_probe.py::test_it {words}"


def test_marginal_is_accepted_and_named(judged: Any) -> None:
    result, record = judged('measure("placement_delay", 4.0)', CAUGHT)
    assert verdict(record) is Verdict.MARGINAL
    result.stdout.fnmatch_lines(["*1 marginal*"])


def test_a_traceback_of_an_unproven_probe_is_kept(judged: Any) -> None:
    result, _ = judged('raise RuntimeError("broken probe")')
    result.stdout.fnmatch_lines(["*RuntimeError: broken probe*", "*UNPROVEN*"])


def test_ctrl_c_is_2_and_keeps_the_record(judged: Any) -> None:
    result, record = judged(GOOD, "raise KeyboardInterrupt")
    assert result.ret == 2
    assert record.state == "interrupted"
    assert record.problems == []
    assert [m.name for m in record.results[0].measurements] == ["partially_held"]


def test_junit_has_the_measurements(judged: Any, pytester: pytest.Pytester) -> None:
    judged(GOOD, CAUGHT)
    tree = ET.parse(pytester.path / "run" / "junit.xml")
    properties = {p.get("name"): p.get("value") for p in tree.iter("property")}
    assert properties["partially_held on cluster"] == "0 samples"
    assert properties["rehearsal"] == "a stand-in"
    suites = {suite.get("name"): suite for suite in tree.iter("testsuite")}
    assert list(suites) == [*CRITERIA, "decision"]
    assert all(int(suites[id].get("errors", 0)) for id in CRITERIA)
    (decision,) = suites["decision"].findall("testcase")
    assert (decision.get("name"), len(decision.findall("error"))) == ("decision", 1)


def test_every_rendering_is_written(judged: Any, pytester: pytest.Pytester) -> None:
    judged(GOOD, CAUGHT)
    names = {path.name for path in (pytester.path / "run").iterdir()}
    assert {"events.jsonl", "record.json", "report.html", "junit.xml", "SHA256SUMS"} <= names
    record = json.loads((pytester.path / "run" / "record.json").read_text())
    assert record["state"] == "finished"


def test_header_is_short_and_says_rehearsal(judged: Any) -> None:
    result, _ = judged(GOOD, CAUGHT)
    result.stdout.fnmatch_lines(
        ["cluster *REHEARSAL: a stand-in", "contract  lab @ *", "run *run*"]
    )


def test_secrets_stay_out_of_the_record(judged: Any, pytester: pytest.Pytester) -> None:
    judged(GOOD, CAUGHT, options=("--deselect", "API_TOKEN=hunter2"))
    assert "hunter2" not in (pytester.path / "run" / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "probes need a cluster"),
        (["--cluster", "nowhere"], "--cluster: expected auto, local[:N] or ray://host:port"),
        (["--cluster", "local:0"], "expected 1 to 32 raylets, found 0"),
        (["--cluster", "ray://127.0.0.1:9"], "no Ray answers at ray://127.0.0.1:9 (address from"),
        (["--cluster", "auto", "--contract", "lba"], "did you mean 'lab'?"),
        (["--cluster", "auto", "--baseline", "missing"], "expected a run or a folder of runs"),
    ],
)
def test_wrong_usage_is_one_sentence_and_4(
    pytester: pytest.Pytester, arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    pytester.makepyfile(test_probe=PROBE.format(criterion="GANG", body="pass"))
    result = pytester.runpytest_subprocess("-p", "probes.plugin", *arguments, timeout=60)
    assert result.ret == 4
    output = result.stdout.str() + result.stderr.str()
    assert says in output
    assert "Traceback" not in output


def test_xdist_is_refused(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(
        "-p", "probes.plugin", "--cluster", "auto", "--numprocesses", "2"
    )
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*run them without -n*"])


def test_versions_that_keep_the_driver_out_are_a_finding(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import probes.session.session\nfrom probes.cluster.cluster import VersionMismatch\n"
        "def refuse(spec): raise VersionMismatch('Version mismatch: Ray 2.59.0 there')\n"
        "probes.session.session.connect = refuse\n"
    )
    pytester.makepyfile(test_probe=PROBE.format(criterion="HOSTS", body="pass"))
    result = pytester.runpytest_subprocess(
        "-p", "probes.plugin", "--cluster", "auto", "--run-dir", "run"
    )
    record = load(Path(pytester.path / "run"))
    assert result.ret == 1
    assert record.results[0].findings[0].code == "HOST-VERSIONS"
    assert "2.59.0" in record.results[0].findings[0].statement
    assert "INTERNALERROR" not in result.stdout.str()
