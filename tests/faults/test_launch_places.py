"""LAUNCH elsewhere: with a token, from a machine that is no node, with a second cluster near."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reports.record import Verdict
from tests.faults.launchers.injected_faults import failed, findings, has_no_problem
from tests.faults.launchers.leftovers import nothing_left
from tests.faults.launchers.operators_guide import GUIDE, operators
from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.node import token_file
from tests.support.trial import acceptance, lab_of

SOAK = pytest.mark.soak(criterion="starts")
LAUNCH = ["probes/launch/test_launch.py", "probes/launch/test_failing_job.py"]


@SOAK
def test_a_user_of_a_cluster_with_a_token_has_it_in_the_own_home() -> None:
    with lab_of(2, "asks", auth="token") as lab:
        record, trial = acceptance(lab, "token", *LAUNCH)
        has_no_problem(record, trial, probes=2)
        token = token_file(lab.home).read_bytes()
        files = [trial.log, *(path for path in trial.folder.rglob("*") if path.is_file())]
        assert [path.name for path in files if token in path.read_bytes()] == []
        nothing_left(lab)


@SOAK
def test_a_user_launches_from_a_machine_that_is_no_node() -> None:
    with lab_of(2, "outside") as lab:
        record, trial = acceptance(lab, "outside", *LAUNCH, outside=True)
        has_no_problem(record, trial, probes=2)
        nothing_left(lab)


@pytest.fixture
def two_clusters() -> Iterator[Lab]:
    """Nodes 0 and 1 are the cluster under test; node 2 is a cluster of its own."""
    with lab_of(3, "two", ray=False) as lab:
        for node, head in zip(lab.nodes, (0, 0, 2), strict=True):
            node.run(*node.ray_command(head), seconds=120)
        yield lab


@SOAK
def test_a_job_that_runs_on_another_cluster_is_named_with_its_host(two_clusters: Lab) -> None:
    """The guide exports the address of an older cluster: its job is right, and elsewhere."""
    old = f"RAY_API_SERVER_ADDRESS=http://{network.address('eth0', 2)}:8265"
    guide = GUIDE.replace("export PATH", f"export {old} PATH")
    contract = operators(two_clusters, guide)
    record, trial = acceptance(two_clusters, "elsewhere", *LAUNCH[:1], contract=contract)
    assert record.verdict("LAUNCH") is Verdict.FAIL, trial.log.read_text()[-3000:]
    said = {one.code: (one.suspects, one.statement) for one in findings(record)}
    suspects, statement = said["LAUNCH-ELSEWHERE"]
    assert suspects == ["rank 0", "node2"], said
    assert "of host node2" in statement
    assert "ranks" in failed(record)  # it has one node, and the cluster under test two
