"""Guides that do not lead a user to a correct job: LAUNCH says which command, rank and variable."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from reports.record import RunRecord, Verdict
from tests.faults.launchers.injected_faults import failed, findings
from tests.faults.launchers.leftovers import nothing_left
from tests.faults.launchers.operators_guide import GUIDE, operators
from tests.lab.lab import Lab
from tests.support.trial import Trial, acceptance, agreed

LAUNCH = "probes/launch/test_launch.py"
FAILING = "probes/launch/test_failing_job.py"
STOPPED = "probes/launch/test_failing_job.py"
soak = pytest.mark.soak(criterion="launch")
soak_guides = pytest.mark.soak(criterion="guides")

ENV = {"LAUNCH-ENV"}
ENDED = {"LAUNCH-ENV", "LAUNCH-FAILED"}
# The fault, what fails, the findings, some suspects, what a sentence says.
FAULTS: list[Any] = [
    # No rank is announced, so nothing is known of them.
    ("typo", {"exit_code", "ranks"}, {"LAUNCH-FAILED"}, [], "No module named reference_trainr"),
]
SLOW: list[Any] = [
    # The job runs to its end, and so many things are wrong that every measure of it is red.
    (
        "everything",
        {
            *("wrong_ranks", "ranks_with_other_weights", "ranks_with_other_validation"),
            *("misplaced_samples", "metric_error", "loss_ratio", "wrong_exports", "export_error"),
            "share_on_agreed_network",
        },
        {
            *("LAUNCH-ENV", "LAUNCH-WEIGHTS", "LAUNCH-DATA", "LAUNCH-METRICS", "LAUNCH-EXPORT"),
            "LAUNCH-NETWORK",
        },
        ["rank 3", "node3"],
        "rank 3 on node3: weights before the first step",
    ),
    ("first-command", {"exit_code", "ranks"}, {"LAUNCH-FAILED"}, [], "`seatrial exmaple"),
    # The job runs to its end, and three ranks of four are there: rank 3 is missing.
    ("one-rank-fewer", {"ranks", "wrong_ranks"}, ENV, ["rank 3"],
     "WORLD_SIZE is 3. Expected: 4"),
    # Every rank says what it lacks, and ends.
    ("no-rank", {"exit_code", "wrong_ranks"}, ENDED, ["node3"], "RANK not set"),
    ("no-world-size", {"exit_code", "wrong_ranks"}, ENDED, ["rank 3"], "WORLD_SIZE not set"),
    ("no-local-rank", {"exit_code", "wrong_ranks"}, ENDED, ["rank 3"], "LOCAL_RANK not set"),
    ("no-master-addr", {"exit_code", "wrong_ranks"}, ENDED, ["rank 3"], "MASTER_ADDR not set"),
    ("no-master-port", {"exit_code", "wrong_ranks"}, ENDED, ["rank 3"], "MASTER_PORT not set"),
    # The trainer needs none of these, and a user's own job may.
    ("no-local-world-size", {"wrong_ranks"}, ENV, ["rank 3"], "LOCAL_WORLD_SIZE not set"),
    ("no-node-rank", {"wrong_ranks"}, ENV, ["node3"], "NODE_RANK not set"),
    ("wrong-local-rank", {"wrong_ranks"}, ENV, ["node3"], "LOCAL_RANK is 7. Expected: 0 to 0"),
    ("wrong-local-world-size", {"wrong_ranks"}, ENV, ["node3"], "LOCAL_WORLD_SIZE is 4"),
    ("wrong-node-rank", {"wrong_ranks"}, ENV, ["node3"], "NODE_RANK is 0 on 4 nodes"),
    ("wrong-group-rank", {"wrong_ranks"}, ENV, ["node3"], "GROUP_RANK is 9. Expected: 0 to 3"),
    ("wrong-world-size", {"exit_code", "wrong_ranks"}, ENDED, ["rank 0"], "WORLD_SIZE is 3"),
    ("loopback-master", {"exit_code", "wrong_ranks"}, ENDED, ["rank 3"], "MASTER_ADDR is 127."),
    ("no-environment", {"wrong_ranks"}, ENV, ["node3"], "MYJOB_STAGE not set"),
    ("weights", {"ranks_with_other_weights"}, {"LAUNCH-WEIGHTS"}, ["node3"], "rank 3 on node3"),
    ("samples", {"misplaced_samples"}, {"LAUNCH-DATA"}, ["rank 0", "rank 3"], "the same samples"),
    ("repeat", {"misplaced_samples"}, {"LAUNCH-DATA"}, ["rank 3"], "on a sample that it had seen"),
    ("validation", {"ranks_with_other_validation"}, {"LAUNCH-DATA"}, ["node3"], "validation data"),
    ("metrics", {"metric_error"}, {"LAUNCH-METRICS"}, [], "from the mean of its ranks"),
    ("loss", {"loss_ratio"}, {"LAUNCH-METRICS"}, [], "Expected: it falls"),
    ("export", {"wrong_exports"}, {"LAUNCH-EXPORT"}, ["rank 3"], "rank 0, rank 1, rank 2, rank 3"),
    ("corrupt", {"export_error"}, {"LAUNCH-EXPORT"}, [], "Expected: the same model"),
    ("other-network", {"share_on_agreed_network"}, {"LAUNCH-NETWORK"}, ["node0", "node3"],
     "eth0 sent"),
]  # fmt: skip


def named(fault: Any) -> str:
    return fault if isinstance(fault, str) and " " not in fault else ""


@pytest.mark.parametrize(
    ("fault", "fails", "codes", "suspects", "says"),
    [
        *(pytest.param(*case, id=case[0]) for case in FAULTS),
        *(pytest.param(*case, id=case[0], marks=soak_guides) for case in SLOW),
    ],
)
def test_a_guide_that_misleads_is_named(
    lab: Lab,
    fault: str,
    fails: set[str],
    codes: set[str],
    suspects: list[str],
    says: str,
) -> None:
    record, trial = acceptance(lab, f"guide-{fault}", LAUNCH, fault=("faulty_guide", fault))
    judged(record, trial, fails, codes, suspects, says)
    nothing_left(lab)


def judged(
    record: RunRecord,
    trial: Trial,
    fails: set[str],
    codes: set[str],
    suspects: list[str],
    says: str,
) -> None:
    """Compare what is said with what must be."""
    said = [(one.code, one.suspects, one.statement) for one in findings(record)]
    assert record.verdict("LAUNCH") is Verdict.FAIL, trial.log.read_text()[-3000:]
    assert failed(record) == fails, said
    assert {one for one, *_ in said} == codes, said
    assert any(says in statement for *_, statement in said), said
    assert {*suspects} <= {name for _, names, _ in said for name in names}, said


@soak
def test_a_first_step_that_comes_late_fails(lab: Lab) -> None:
    """Nothing is wrong but the time: a second was agreed, and a job takes some to start."""
    late = '[LAUNCH.time_to_first_step]\nat_most = 1\nunit = "s"\nbecause = "they are in a hurry"'
    record, _ = acceptance(lab, "late", LAUNCH, contract=agreed(lab, {}, late))
    assert record.verdict("LAUNCH") is Verdict.FAIL
    assert failed(record) == {"time_to_first_step"}


@soak
def test_a_port_that_is_taken_is_named(lab: Lab) -> None:
    with busy_port(lab, 29500):
        fault = ("faulty_guide", "occupied-port")
        record, trial = acceptance(lab, "port-taken", LAUNCH, fault=fault)
    judged(record, trial, {"exit_code"}, {"LAUNCH-FAILED"}, [], "ended with 1")
    log = (trial.folder / "evidence" / "transcript.txt").read_text()
    assert "29500" in log
    assert "EADDRINUSE" in log or "address already in use" in log
    nothing_left(lab)


@contextmanager
def busy_port(lab: Lab, port: int) -> Iterator[None]:
    """Listen on a port of node0, where rank 0 runs."""
    listen = f"import socket, time; s = socket.create_server(('', {port})); time.sleep(300)"
    command = lab.nodes[0].command(sys.executable, "-c", listen, cwd="/")
    with subprocess.Popen(command, env=lab.nodes[0].environment()) as listener:
        try:
            yield
        finally:
            listener.kill()
            lab.nodes[0].run("pkill", "-f", f"create_server.*{port}", check=False)


# A job that fails.


@soak
@pytest.mark.parametrize(
    ("fault", "fails", "says"),
    [
        ("swallowed", {"hidden_errors"}, "the job failed and ended with 0"),
        ("into-a-file", {"facts_missing_from_error"}, "do not name the error, the rank, the host"),
    ],
)
def test_an_error_that_is_hidden_is_found(lab: Lab, fault: str, fails: set[str], says: str) -> None:
    record, trial = acceptance(lab, f"failing-{fault}", FAILING, fault=("faulty_guide", fault))
    judged(record, trial, fails, {"LAUNCH-ERROR"}, [], says)
    nothing_left(lab)


# A job that is stopped.


@soak
def test_a_stopped_job_that_leaves_a_process_is_named_with_its_node(lab: Lab) -> None:
    fault = ("faulty_guide", "leaves-a-process")
    arguments = [STOPPED, "--tier", "standard"]
    record, trial = acceptance(lab, "left-process", *arguments, fault=fault)
    fails = {"left_processes", "time_to_stop"}
    judged(record, trial, fails, {"LAUNCH-LEFT"}, ["node3"], "still has 1 process and")
    lab.nodes[3].run("pkill", "-x", "sleep", check=False)
    nothing_left(lab)


@soak
@pytest.mark.parametrize(
    ("probe", "tier"),
    [
        *(("launch", "quick"), ("failing_job", "quick"), ("stopped_job", "standard")),
        *(("other_failures", "standard"), ("every_time", "standard"), ("in_a_row", "soak")),
        *(("launchers", "soak"), ("own_disk", "standard")),
    ],
)
def test_a_sound_lab_passes_each_probe(lab: Lab, probe: str, tier: str) -> None:
    arguments = [f"probes/launch/test_{probe}.py", "--tier", tier]
    record, trial = acceptance(lab, f"sound-{probe}", *arguments, seconds=900)
    assert failed(record) == set(), trial.log.read_text()[-3000:]
    assert findings(record) == []
    assert [result.problems() for result in record.results] == [[]]
    nothing_left(lab)


@soak
def test_a_launcher_that_forgets_a_variable_is_named(lab: Lab) -> None:
    """torchrun sets it itself; Ray Train's ranks are left without it."""
    arguments = ["probes/launch/test_launch.py", "--tier", "soak"]
    fault = ("faulty_guide", "no-local-world-size")
    record, trial = acceptance(lab, "forgetful", *arguments, fault=fault, seconds=900)
    assert record.verdict("LAUNCH") is Verdict.FAIL, trial.log.read_text()[-3000:]
    wrong = {
        one.subject: one.value
        for result in record.results
        for one in result.measurements
        if one.name == "wrong_ranks"
    }
    assert wrong == {"torchrun": 0, "ray-train": 4}
    (found,) = findings(record)
    assert (found.code, found.suspects[0]) == ("LAUNCH-ENV", "rank 0")
    assert "LOCAL_WORLD_SIZE not set" in found.statement
    nothing_left(lab)


@soak
def test_jobs_in_a_row_that_leave_processes_are_named_with_their_node(lab: Lab) -> None:
    arguments = ["probes/launch/test_launch.py", "--tier", "soak"]
    fault = ("faulty_guide", "leaves-a-process")
    record, trial = acceptance(lab, "row-leaves", *arguments, fault=fault, seconds=900)
    judged(record, trial, {"left_processes"}, {"LAUNCH-LEFT"}, ["node3"], "on node3")
    lab.nodes[3].run("pkill", "-x", "sleep", check=False)
    nothing_left(lab)


@soak
def test_a_job_whose_checkpoint_was_cleared_is_named(lab: Lab) -> None:
    arguments = ["probes/launch/test_failing_job.py", "--tier", "standard"]
    fault = ("faulty_guide", "clears-tmp")
    record, trial = acceptance(lab, "cleared", *arguments, fault=fault)
    says = "rank 3 on node0, node1, node2, node3: began at step 0"
    judged(record, trial, {"ranks_not_resumed"}, {"LAUNCH-RESUME"}, ["rank 3", "node3"], says)
    nothing_left(lab)


# The operator's own guide.


@soak
def test_the_operators_own_guide_is_followed_and_passes(lab: Lab) -> None:
    contract = operators(lab, GUIDE)
    record, trial = acceptance(lab, "own-guide", "probes/launch", contract=contract)
    assert failed(record) == set(), trial.log.read_text()[-3000:]
    assert findings(record) == []
    assert [result.problems() for result in record.results] == [[], []]
    assert "/shared/guide.md" in "".join(result.coverage for result in record.results)
    nothing_left(lab)


@soak
@pytest.mark.parametrize(
    ("old", "new", "fails", "codes", "says"),
    [
        pytest.param(
            *("cd YOUR-CODE", "cd YOUR-CODE && raay status"),
            *({"exit_code", "ranks"}, {"LAUNCH-FAILED"}, "command not found"),
            id="broken-command",
        ),
        pytest.param(
            *("cd YOUR-CODE", "cd YOUR-CODE\ntouch /etc/our-cluster"),
            *({"exit_code", "ranks"}, {"LAUNCH-FAILED"}, "touch /etc/our-cluster` ended with 1"),
            id="needs-root",
        ),
        pytest.param(
            *("cd YOUR-CODE", "mkdir /shared/myjob\ncd YOUR-CODE"),
            *({"exit_code", "ranks"}, {"LAUNCH-FAILED"}, "mkdir /shared/myjob` ended with 1"),
            id="no-rights-on-the-shared-folder",
        ),
        pytest.param(
            *("cd YOUR-CODE", "cd YOUR-CODE\nexport HEAD=10.78.0.1"),
            *({"guide_faults"}, {"LAUNCH-GUIDE"}, "names a fixed address (10.78.0.1)"),
            id="fixed-address",
        ),
    ],
)
def test_the_operators_guide_is_judged_by_its_lines(
    lab: Lab, request: Any, old: str, new: str, fails: set[str], codes: set[str], says: str
) -> None:
    contract = operators(lab, GUIDE.replace(old, new))
    name = f"operators-{request.node.callspec.id}"
    record, trial = acceptance(lab, name, LAUNCH, contract=contract)
    judged(record, trial, fails, codes, [], says)
    nothing_left(lab)
