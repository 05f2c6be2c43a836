"""Limits, room, clocks, images and models that are sound, or wrong on several nodes, live.

Faults one by one are in `live_faults.py`.
"""

from __future__ import annotations

import pytest

from reports.measurement import Verdict
from reports.record import RunRecord
from tests.faults.launchers.injected_faults import failed, findings, is_sound, plant
from tests.faults.live_faults import LIMITS, NEEDS, RDMA, SEVERAL, SHARED
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.support.trial import Trial, acceptance, agreed

# In `make test`, test_hosts_families.py plants a fault of each family.
pytestmark = pytest.mark.soak(criterion="hosts")
LAB = {"nodes": 3, "name": "system"}
NEEDED = ("image_differences", "egress_closed", "model_differences")
ALL = (
    "open_files",
    "stack",
    "shared_memory",
    "processes",
    "temp_room",
    "stray_raylets",
    "clock_offset",
)


def judge_system(lab: Lab, name: str, contract: dict[str, str]) -> tuple[RunRecord, Trial]:
    """Run the probe on the lab as it is, by the lab's contract with these lines."""
    return acceptance(lab, name, LIMITS, contract=agreed(lab, contract))


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in (*ALL, *NEEDED)))
def test_a_sound_lab_passes(lab: Lab) -> None:
    inject(lab, "model", "1", "sound")
    record, trial = judge_system(lab, "sound", NEEDS)
    is_sound(record, trial)
    (result,) = record.results
    assert {control.name for control in result.controls} == {
        *("strained process", "lost clock", "other image", "closed target", "changed file")
    }


@pytest.mark.near_miss("HOSTS.locked_memory")
def test_a_sound_lab_passes_again_and_by_rdma_too(lab: Lab) -> None:
    is_sound(*judge_system(lab, "sound-2", {}))
    record, trial = judge_system(lab, "sound-3", RDMA)
    assert not findings(record), trial.log.read_text()
    verdicts = {m.verdict for m in record.results[0].measurements if m.name == "locked_memory"}
    assert verdicts == {Verdict.PASS}  # of the rest, the lab has no RDMA device


@pytest.mark.near_miss("HOSTS.open_files", "HOSTS.shared_memory", "HOSTS.processes")
def test_what_is_just_enough_passes(lab: Lab) -> None:
    inject(lab, "limit", "1", "nofile", "4096")
    inject(lab, "limit", "2", "pids", "800")
    inject(lab, "shm", "2", "1g")
    is_sound(*judge_system(lab, "enough", {}))


def test_faults_of_several_nodes_are_each_named(lab: Lab) -> None:
    for case in SEVERAL:
        plant(lab, case)
    record, trial = judge_system(lab, "several", NEEDS)
    broken = {measure for case in SEVERAL for measure in case.broken or ()}
    assert failed(record) == broken, trial.log.read_text()
    said = {(one.code, *one.suspects): one.statement for one in findings(record)}
    for case in SEVERAL:
        (code,), (words,) = case.codes, case.says
        assert words in said.get((code, *case.suspects), ""), said
    assert len(findings(record)) == len(SEVERAL)
    assert trial.process.returncode == 1


@pytest.mark.parametrize(
    ("port", "verdict"),
    [
        pytest.param(10001, Verdict.PASS, marks=pytest.mark.near_miss("HOSTS.ray_client")),
        (10009, Verdict.FAIL),
    ],
)
def test_programs_join_by_the_client_where_it_listens(
    lab: Lab, port: int, verdict: Verdict
) -> None:
    client = {SHARED: f"{SHARED}\nray_client_port = {port}"}
    record, trial = judge_system(lab, f"client-{port}", client)
    assert record.verdict("HOSTS") is verdict, trial.log.read_text()
    codes = [one.code for one in findings(record)]
    assert codes == ([] if verdict is Verdict.PASS else ["HOST-RAY-CLIENT"])
    (result,) = record.results
    assert {c.name: c.caught for c in result.controls}["closed client"]
