"""A trial that is submitted from a machine that is no node: cut off, killed, refused, crowded."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reports.acceptance import load_summary
from reports.record import RunRecord, Verdict
from tests.faults.launchers.leftovers import nothing_left
from tests.faults.test_good_guest import foreign_actor
from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.lean_image import make_image
from tests.lab.node import SHARED, token_file
from tests.support.built_wheel import wheel_of
from tests.support.submit_client import RUN, Submission
from tests.support.trial import lab_of

SOAK = pytest.mark.soak(criterion="submit")
SHORT = ["--contract", "lab", "--only", "GANG", "-k", "cancelled"]
GANG = ["--contract", "lab", "--only", "GANG"]
CUT_S = 30
PARTIAL = 20  # exit code of a part of the suite in which nothing failed
Submit = Callable[..., Submission]


@pytest.fixture
def submit(lab: Lab, tmp_path: Path) -> Iterator[Submit]:
    """Submits from the lab's client, or from another machine; nothing is left running."""
    yield from submitter(lab, tmp_path)


def submitter(lab: Lab, folder: Path) -> Iterator[Submit]:
    begun: list[Submission] = []

    def start(*words: str, **more: object) -> Submission:
        one = Submission(lab, folder / f"client{len(begun)}", *words, **more)  # type: ignore[arg-type]
        begun.append(one)
        return one

    yield start
    for one in begun:
        one.kill()


def jobs(lab: Lab) -> list[str]:
    """Ids of the submitted jobs that Ray lists."""
    code = "import json; from ray.job_submission import JobSubmissionClient as C; "
    code += "print(json.dumps([j.submission_id for j in C('http://127.0.0.1:8265').list_jobs()]))"
    said = lab.nodes[0].run(sys.executable, "-c", code).splitlines()[-1]
    return [id for id in json.loads(said) if id]


def gang_passed(record: RunRecord, probes: int, nodes: int = 4) -> None:
    """Assert that so many probes of GANG ran, and that each passed."""
    ran = [result for result in record.results if result.state == "finished"]
    assert [result.criterion for result in ran] == ["GANG"] * probes
    assert {result.verdict for result in ran} == {Verdict.PASS}
    assert record.cluster["alive"] == nodes


def test_a_trial_is_submitted_from_a_machine_without_ray(lab: Lab, submit: Submit) -> None:
    one = submit(*SHORT, "--run-dir", "here")
    assert one.end() == PARTIAL, one.said
    gang_passed(one.record, 1)
    assert "GANG PASS" in one.said
    assert RUN.findall(one.said) == ["here"]
    assert load_summary(one.folder / "here").exit_code == PARTIAL
    nothing_left(lab)  # on the head's disk, too
    assert [id for id in jobs(lab) if id.startswith(one.id)] == [one.id]


@SOAK
def test_the_complete_suite_is_accepted_by_submit(lab: Lab, submit: Submit) -> None:
    one = submit("--contract", "lab", "--nodes", "4")
    assert one.end(1200) == 0, one.said[-3000:]
    assert {name: one.record.verdict(name).value for name in ("HOSTS", "FABRIC", "LAUNCH")} == {
        "HOSTS": "PASS", "FABRIC": "PASS", "LAUNCH": "PASS",
    }  # fmt: skip
    nothing_left(lab)


@SOAK
def test_a_connection_that_is_cut_for_30_s_changes_nothing(lab: Lab, submit: Submit) -> None:
    one = submit(*GANG)
    one.until(re.compile("GANG two gangs"))
    network.set_link(lab.name, network.CLIENT, "eth0", "down")
    try:
        one.until(re.compile("connection lost"))
        time.sleep(CUT_S)  # the outage itself
    finally:
        network.set_link(lab.name, network.CLIENT, "eth0", "up")
    assert one.end() == PARTIAL, one.said
    assert re.search(r"connected again after \d+ s", one.said)
    gang_passed(one.record, 3)
    assert one.said.count("GANG PASS") == 3  # each line once
    nothing_left(lab)


@SOAK
def test_a_killed_client_is_replaced_by_another_machine(lab: Lab, submit: Submit) -> None:
    first = submit(*GANG)
    first.until(re.compile("GANG two gangs"))
    first.kill()
    second = submit("--attach", first.id, machine=3)
    assert second.end() == PARTIAL, second.said
    gang_passed(second.record, 3)
    assert second.said.count("GANG PASS") == 3
    nothing_left(lab)
    third = submit("--attach", first.id)  # the run was brought back, and is gone from the head
    assert third.end() == PARTIAL, third.said
    assert "run folder" not in third.said


@SOAK
def test_an_interrupted_client_stops_the_run_and_has_what_there_is(
    lab: Lab, submit: Submit
) -> None:
    one = submit(*GANG)
    one.until(re.compile("GANG two gangs"))
    time.sleep(3)  # into the probe, so that its gangs hold accelerators
    one.process.send_signal(signal.SIGTERM)
    assert one.end(180) == 2, one.said
    assert one.record.state == "interrupted"
    nothing_left(lab)


@SOAK
def test_a_second_trial_says_so_or_waits(lab: Lab, submit: Submit) -> None:
    first = submit(*GANG)
    first.until(re.compile("GANG two gangs"))
    refused = submit(*SHORT)
    waiting = submit(*SHORT, "--wait-for-room", "10m")
    assert refused.end() == 4, refused.said
    assert "another run of seatrial uses this cluster, started on node0 at 20" in refused.said
    assert "wait for it with --wait-for-room" in refused.said
    assert waiting.end() == PARTIAL, waiting.said
    assert "waiting   another run of seatrial uses this cluster" in waiting.said
    assert first.end() == PARTIAL, first.said
    gang_passed(first.record, 3)
    gang_passed(waiting.record, 1)
    nothing_left(lab)


@SOAK
def test_a_submitted_trial_waits_for_room(lab: Lab, submit: Submit) -> None:
    with foreign_actor(lab) as job:
        one = submit(*SHORT, "--wait-for-room", "20")
        assert one.end() == PARTIAL, one.said
        assert job.poll() is None
    assert "waiting   1 GPU on node" in one.said
    assert "is held by actor Train of job" in one.said
    assert "Traceback" not in one.said
    nothing_left(lab)


@SOAK
def test_a_cluster_with_a_token_takes_no_submission_without_it(tmp_path: Path) -> None:
    with lab_of(2, "asks", auth="token") as lab:
        start = submitter(lab, tmp_path)
        submit = next(start)
        refused = submit(*SHORT)
        assert refused.end() == 4, refused.said
        assert "refuses access without a token (HTTP 401): set RAY_AUTH_TOKEN" in refused.said
        variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file(lab.home))}
        one = submit(*SHORT, variables=variables)
        assert one.end() == PARTIAL, one.said
        gang_passed(one.record, 1, nodes=2)
        token = token_file(lab.home).read_bytes()
        files = [one.log, *(path for path in one.folder.rglob("*") if path.is_file())]
        assert [path.name for path in files if token in path.read_bytes()] == []
        nothing_left(lab)
        next(start, None)


LACKING = ("pytest", "pluggy", "iniconfig", "pandas", "matplotlib", "nvidia-ml-py")


@SOAK
def test_a_head_without_internet_gets_what_it_lacks_from_wheels(tmp_path: Path) -> None:
    """Its Python has Ray and torch, and nothing that only seatrial needs."""
    with lab_of(2, "lean", ray=False) as lab:
        image = lab.home / "shared" / "image"
        make_image(image, LACKING)
        for node in lab.nodes:
            node.plant({"python": f"{SHARED}/image/bin/python"})
            node.run(*node.ray_command(), seconds=120)
        before = sorted(path.name for path in image.rglob("*"))
        start = submitter(lab, tmp_path)
        submit = next(start)
        refused = submit(*SHORT)
        assert refused.end() == 4, refused.said
        assert "lacks pytest" in refused.said
        assert "or pass them with --wheels" in refused.said
        (wheels := tmp_path / "wheels").mkdir()
        for name in LACKING:
            wheel_of(name, wheels)
        one = submit(*SHORT, "--wheels", str(wheels))
        assert one.end() == PARTIAL, one.said
        gang_passed(one.record, 1, nodes=2)
        nothing_left(lab)
        assert sorted(path.name for path in image.rglob("*") if path.suffix != ".pyc") == [
            name for name in before if not name.endswith(".pyc")
        ]
        next(start, None)
