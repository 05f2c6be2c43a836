"""Faults of a cluster, each caught, named and located by the probe that must see it."""

from __future__ import annotations

import sys
import time

import pytest

from reports.measurement import Verdict
from reports.record import Finding, RunRecord
from tests.faults.job_faults import LAUNCH
from tests.faults.live_faults import ORDERED
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.support.trial import acceptance, agreed, start


def only(record: RunRecord, code: str) -> Finding:
    """Return the only finding of this code; fail with what was found instead."""
    found = [finding for result in record.results for finding in result.findings]
    codes = [finding.code for finding in found]
    assert codes.count(code) == 1, f"expected one {code}, found {codes}"
    return found[codes.index(code)]


def test_kill_node(lab: Lab) -> None:
    inject(lab, "kill-node", "3")
    record, trial = acceptance(lab, "kill-node", ORDERED)
    assert record.verdict("HOSTS") is Verdict.FAIL
    assert only(record, "HOST-MISSING").suspects == ["node3"]
    assert trial.process.returncode == 1


COUNT = """
import ray
ray.init("auto", log_to_driver=False, logging_level="error")
print(sum(node["Alive"] for node in ray.nodes()))
"""


def wait_until_ray_counts(lab: Lab, count: int, seconds: float = 60) -> None:
    """Wait until Ray has noticed that nodes are gone: its health checks take some seconds."""
    end = time.monotonic() + seconds
    while lab.nodes[0].run(sys.executable, "-c", COUNT).split()[-1] != str(count):
        assert time.monotonic() < end, f"Ray never counted {count} nodes"


@pytest.mark.soak(criterion="hosts")
@pytest.mark.parametrize(("seconds", "joins"), [(120, True), (5, False)])
def test_a_node_that_joins_late_is_waited_for(lab: Lab, seconds: int, joins: bool) -> None:
    """Within its patience the run begins with all nodes; after it HOSTS names the missing one."""
    inject(lab, "kill-node", "3")
    wait_until_ray_counts(lab, 3)
    name = f"late-node-{seconds}"
    trial = start(lab, name, ORDERED, f"--wait-for-nodes={seconds}")
    if joins:
        time.sleep(15)  # the driver has joined by then, and waits
        lab.start_ray([lab.node("3")])
    record = trial.wait()
    assert "waited" in trial.log.read_text()
    assert len(record.cluster["nodes"]) == (4 if joins else 3)
    if joins:
        assert record.verdict("HOSTS") is Verdict.PASS
    else:
        assert only(record, "HOST-MISSING").suspects == ["node3"]


def test_cut_node(lab: Lab) -> None:
    inject(lab, "cut-node", "2")
    record, _ = acceptance(lab, "cut-node", "probes/fabric/test_fabric.py")
    assert record.verdict("FABRIC") is Verdict.FAIL
    assert only(record, "FAB-LINK-DOWN").suspects == ["node2"]


@pytest.mark.soak(criterion="fabric")
def test_slow_link(lab: Lab) -> None:
    inject(lab, "slow-link", "1", "200mbit")
    record, _ = acceptance(lab, "slow-link", "probes/fabric/test_fabric.py")
    assert record.verdict("FABRIC") is Verdict.FAIL
    assert only(record, "FAB-SLOW-LINK").suspects == ["node1"]


@pytest.mark.soak(criterion="fabric")
def test_slow_one_way(lab: Lab) -> None:
    inject(lab, "slow-one-way", "2", "700mbit", "receives")
    record, _ = acceptance(lab, "slow-one-way", "probes/fabric/test_fabric.py")
    assert record.verdict("FABRIC") is Verdict.FAIL
    found = only(record, "FAB-SLOW-LINK")
    assert found.suspects == ["node2"]
    assert "when it receives" in found.statement


@pytest.mark.soak(criterion="fabric")
def test_narrow_link(lab: Lab) -> None:
    inject(lab, "narrow-link", "3", "1400")
    record, _ = acceptance(lab, "narrow-link", "probes/fabric/test_fabric.py")
    assert record.verdict("FABRIC") is Verdict.FAIL
    assert only(record, "FAB-MTU").suspects == ["node3"]


@pytest.mark.soak(criterion="fabric")
def test_an_mtu_of_its_own(lab: Lab) -> None:
    inject(lab, "odd-mtu", "3", "1400")
    record, _ = acceptance(lab, "odd-mtu", "probes/fabric/test_fabric.py")
    assert record.verdict("FABRIC") is Verdict.FAIL
    found = only(record, "FAB-MTU")
    assert found.suspects == ["node3"]
    assert "node3 1400; the others 1500" in found.statement


@pytest.mark.soak(criterion="fabric")
def test_corrupt_data(lab: Lab) -> None:
    inject(lab, "corrupt-data", "1")
    record, _ = acceptance(lab, "corrupt-data", "probes/fabric/test_fabric.py")
    assert record.verdict("FABRIC") is Verdict.FAIL
    found = only(record, "FAB-WRONG-LINK")  # where a link is named, who received is no news
    assert found.suspects == ["node1"]
    assert "what node1 sends" in found.statement


@pytest.mark.soak(criterion="fabric")
def test_wrong_interface_on_one_node(lab: Lab) -> None:
    inject(lab, "wrong-interface-on", "2")
    record, _ = acceptance(lab, "wrong-interface-on", "probes/fabric/test_fabric.py")
    assert record.verdict("FABRIC") is Verdict.FAIL
    assert only(record, "ENV-HARMFUL").suspects == ["node2"]
    told = [one for result in record.results for one in result.findings]
    assert {one.code for one in told} == {"ENV-HARMFUL", "ENV-DIFFERS"}
    assert all(one.suspects == ["node2"] for one in told)


@pytest.mark.soak(criterion="fabric")
def test_block_pair(lab: Lab) -> None:
    inject(lab, "block-pair", "1", "2")
    record, _ = acceptance(lab, "block-pair", "probes/fabric/test_fabric.py")
    assert record.verdict("FABRIC") is Verdict.FAIL
    assert only(record, "FAB-PAIR-BLOCKED").suspects == ["node1", "node2"]


@pytest.mark.soak(criterion="fabric")
def test_wrong_interface(lab: Lab) -> None:
    inject(lab, "wrong-interface")
    record, _ = acceptance(lab, "wrong-interface", "probes/fabric/test_fabric.py")
    assert record.verdict("FABRIC") is Verdict.FAIL
    finding = only(record, "FAB-WRONG-INTERFACE")
    assert finding.suspects == ["node0", "node1", "node2", "node3"]
    assert "used eth0. Expected: fab0" in finding.statement


def test_hide_shared(lab: Lab) -> None:
    inject(lab, "hide-shared", "2")
    record, _ = acceptance(lab, "hide-shared", ORDERED, "probes/restart")
    assert record.verdict("HOSTS") is Verdict.FAIL
    assert only(record, "HOST-SHARED").suspects == ["node2"]
    assert record.verdict("RESTART") is Verdict.UNPROVEN
    assert only(record, "RESTART-NO-FOLDER").suspects == ["node2"]


@pytest.mark.soak(criterion="scaling")
def test_slow_cpu(lab: Lab) -> None:
    # A paced step hides what is slower by less than its pace, which on a fast machine is much.
    inject(lab, "slow-cpu", "2", "0.1")
    brisk = agreed(lab, {"pace_seconds = 0.25": "pace_seconds = 0.1"})
    record, _ = acceptance(lab, "slow-cpu", "probes/scaling/test_scaling.py", contract=brisk)
    assert record.verdict("SCALING") is Verdict.FAIL
    assert only(record, "SCALE-STRAGGLER").suspects == ["node2"]


@pytest.mark.soak(criterion="restart")
def test_names_on_the_loopback_keep_no_rank_from_the_others(lab: Lab) -> None:
    """As on Debian's and Ubuntu's images: gloo would bind 127.0.1.1, and find nobody."""
    inject(lab, "loopback-names")
    probes = ["probes/restart/test_restart.py", LAUNCH]
    record, trial = acceptance(lab, "loopback-names", *probes)
    assert record.verdict("RESTART") in (Verdict.PASS, Verdict.MARGINAL), trial.log.read_text()
    assert record.verdict("LAUNCH") in (Verdict.PASS, Verdict.MARGINAL), trial.log.read_text()
