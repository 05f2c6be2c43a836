"""Jobs that are late, blocked or stopped, and the operator's own guide: what LAUNCH says, live.

Guides that mislead are in `job_faults.py`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from reports.measurement import Verdict
from reports.record import RunRecord
from tests.faults.job_faults import (
    EVERY_TIME,
    FAILING,
    FAILURES,
    IN_A_ROW,
    JOB_FAMILIES,
    LAUNCH,
    LAUNCHERS,
    OWN_DISK,
    STOPPED,
)
from tests.faults.launchers.injected_faults import Case, failed, findings, has_no_problem, is_named
from tests.faults.launchers.leftovers import nothing_left
from tests.faults.launchers.operators_guide import GUIDE, operators
from tests.lab.image_faults import PACKAGES
from tests.lab.lab import Lab
from tests.support.trial import Trial, acceptance, agreed, start

soak = pytest.mark.soak(criterion="launch")


def judged(case: Case, record: RunRecord, trial: Trial) -> None:
    """Compare what is said with what must be."""
    is_named(JOB_FAMILIES["guides"][0], case, record, trial)


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
    case = Case("port", {"LAUNCH-FAILED"}, [], ["ended with 1"], {"exit_code"})
    judged(case, record, trial)
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


TORCH = f"{PACKAGES}/torch/__init__.py"
BROKEN = "/tmp/broken.py"


@soak
def test_a_cold_start_alone_that_is_broken_is_seen(lab: Lab) -> None:
    """Ranks of other probes hide it: torch breaks on a node once they have imported it."""
    asked = ("probes", "-k", "takes_the_fabric or documented_path")
    trial, node = start(lab, "cold", *asked), lab.nodes[3]
    try:
        trial.wait_until(lambda: "all-reduce sweep" in trial.log.read_text())
        node.run("sh", "-c", f"echo 'raise ImportError(\"no libcudart\")' > {BROKEN}")
        node.run("mount", "--bind", BROKEN, TORCH)
        try:
            record = trial.wait()
        finally:
            node.run("umount", TORCH)
    finally:
        trial.process.kill()
    assert record.verdict("FABRIC") is Verdict.PASS, trial.log.read_text()[-3000:]
    case = Case("cold", {"LAUNCH-FAILED"}, [], ["exit code 1"], {"exit_code"})
    judged(case, record, trial)
    assert "no libcudart" in (trial.folder / "evidence" / "transcript.txt").read_text()
    nothing_left(lab)


# A job that is stopped.


@soak
def test_a_stopped_job_that_leaves_a_process_is_named_with_its_node(lab: Lab) -> None:
    fault = ("faulty_guide", "leaves-a-process")
    arguments = [STOPPED, "--tier", "standard"]
    record, trial = acceptance(lab, "left-process", *arguments, fault=fault)
    broken = {"left_processes", "time_to_stop"}
    case = Case("left", {"LAUNCH-LEFT"}, ["node3"], ["still has 1 process and"], broken)
    judged(case, record, trial)
    lab.nodes[3].run("pkill", "-x", "sleep", check=False)
    nothing_left(lab)


SOUND = {
    "launch": (LAUNCH, "quick"),
    "failing_job": (FAILING, "quick"),
    "stopped_job": (STOPPED, "standard"),
    "other_failures": (FAILURES, "standard"),
    "every_time": (EVERY_TIME, "standard"),
    "in_a_row": (IN_A_ROW, "soak"),
    "launchers": (LAUNCHERS, "soak"),
    "own_disk": (OWN_DISK, "standard"),
}


@soak
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_lab_passes_each_probe(lab: Lab, name: str) -> None:
    probe, tier = SOUND[name]
    record, trial = acceptance(lab, f"sound-{name}", probe, "--tier", tier, seconds=900)
    has_no_problem(record, trial)
    nothing_left(lab)


@soak
def test_a_launcher_that_forgets_a_variable_is_named(lab: Lab) -> None:
    """torchrun sets it itself; Ray Train's ranks are left without it."""
    arguments = [LAUNCHERS, "--tier", "soak"]
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
    arguments = [IN_A_ROW, "--tier", "soak"]
    fault = ("faulty_guide", "leaves-a-process")
    record, trial = acceptance(lab, "row-leaves", *arguments, fault=fault, seconds=900)
    case = Case("row", {"LAUNCH-LEFT"}, ["node3"], ["on node3"], {"left_processes"})
    judged(case, record, trial)
    lab.nodes[3].run("pkill", "-x", "sleep", check=False)
    nothing_left(lab)


# The operator's own guide.


@soak
@pytest.mark.near_miss("LAUNCH.guide_faults")
@pytest.mark.parametrize("number", range(3))
def test_the_operators_own_guide_is_followed_and_passes(lab: Lab, number: int) -> None:
    guide = GUIDE.replace('"STAGE": "one"', '"STAGE": "one", "NCCL_BUFFSIZE": "8388608"')
    contract = operators(lab, guide)
    record, trial = acceptance(lab, f"own-guide-{number}", "probes/launch", contract=contract)
    has_no_problem(record, trial, probes=2)
    coverage = "".join(result.coverage for result in record.results)
    assert "/shared/guide.md" in coverage
    assert "NCCL_BUFFSIZE=8388608 (it overrides what this NCCL version would choose)" in coverage
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
        *(
            pytest.param(
                *('"STAGE": "one"', '"STAGE": "one", "NCCL_PROTO": "LL"'),
                *({"guide_faults"}, {"LAUNCH-GUIDE"}, "sets NCCL_PROTO=LL"),
                id=f"slow-nccl-{number}",
            )
            for number in range(3)
        ),
        pytest.param(
            *(
                "cd YOUR-CODE",
                "cd YOUR-CODE\necho 'env_vars: {STAGE: one, NCCL_PROTO: LL}' > e.yaml",
            ),
            *({"guide_faults"}, {"LAUNCH-GUIDE"}, "sets NCCL_PROTO=LL"),
            id="slow-nccl-by-a-file",
        ),
    ],
)
def test_the_operators_guide_is_judged_by_its_lines(
    lab: Lab, request: Any, old: str, new: str, fails: set[str], codes: set[str], says: str
) -> None:
    contract = operators(lab, GUIDE.replace(old, new))
    name = f"operators-{request.node.callspec.id}"
    record, trial = acceptance(lab, name, LAUNCH, contract=contract)
    judged(Case(name, codes, [], [says], fails), record, trial)
    nothing_left(lab)
