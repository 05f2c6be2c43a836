"""LAUNCH on a cluster that asks for a token, and from a machine that is no node."""

from __future__ import annotations

import subprocess
import sys

import pytest

from reports.record import Verdict
from reports.run_folder.integrity import load
from tests.faults.launchers.injected_faults import failed, findings
from tests.faults.launchers.leftovers import nothing_left
from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.node import SHARED, token_file
from tests.support.paths import REPO
from tests.support.trial import acceptance, lab_of

SOAK = pytest.mark.soak(criterion="launch")
LAUNCH = ["probes/launch/test_launch.py", "probes/launch/test_failing_job.py"]


@SOAK
def test_a_user_of_a_cluster_with_a_token_has_it_in_the_own_home() -> None:
    with lab_of(2, "asks", auth="token") as lab:
        record, trial = acceptance(lab, "token", *LAUNCH)
        assert failed(record) == set(), trial.log.read_text()[-3000:]
        assert findings(record) == []
        assert [result.problems() for result in record.results] == [[], []]
        token = token_file(lab.home).read_bytes()
        files = [trial.log, *(path for path in trial.folder.rglob("*") if path.is_file())]
        assert [path.name for path in files if token in path.read_bytes()] == []
        nothing_left(lab)


@SOAK
def test_a_user_on_a_machine_that_is_no_node_launches_a_correct_job(lab: Lab) -> None:
    """The driver and its user are on the management network alone, and join by Ray's client."""
    node, name = lab.nodes[1], "from-outside"
    folder = lab.home / "shared" / "runs" / name
    folder.parent.mkdir(exist_ok=True)
    head = network.address("eth0", 0)
    command = node.command(
        *[sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *LAUNCH],
        *["--cluster", f"ray://{head}:10001", "--contract", "lab"],
        *["--run-dir", f"{SHARED}/runs/{name}"],
        cwd=str(REPO),
    )
    client = f"--net=/run/netns/{network.namespace(lab.name, network.CLIENT)}"
    outside = [client if word == "-n" else word for word in command]
    environment = {**node.environment(), "SEATRIAL_NODES": str(len(lab.nodes)), "CI": "1"}
    done = subprocess.run(
        outside, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    record = load(folder)
    assert record.verdict("LAUNCH") is Verdict.PASS, done.stdout[-3000:]
    assert "user id 6" in "".join(result.coverage for result in record.results)
    nothing_left(lab)
