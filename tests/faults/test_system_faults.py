"""Limits, room, clocks, images and models that hinder a job: caught, named and located, live."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from reports.measurement import Verdict
from reports.record import RunRecord
from tests.faults.launchers.injected_faults import failed, findings
from tests.lab import network
from tests.lab.faults import inject
from tests.lab.image_faults import MODEL
from tests.lab.lab import Lab
from tests.support.trial import Trial, acceptance, agreed, lab_of

# In `make test`, test_hosts_families.py plants a fault of each family.
pytestmark = pytest.mark.soak(criterion="hosts")
PROBE = "probes/hosts/test_hosts.py"
RDMA = {
    'fabric = "fab0"': 'fabric = "rdma"\nrails = 1',
    'one_of = ["fab0"]': 'one_of = ["rdma"]',
}
SHARED = 'shared = "/shared"'
# The dashboard of the head stands in for a server outside: the lab has no way out.
SERVER = f"http://{network.address('eth0', 0)}:8265/"
NEEDS = {SHARED: f'{SHARED}\nmodel_files = ["{MODEL}"]\negress = ["{SERVER}"]'}
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


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is planted, and what HOSTS says of it: measure, finding, node, words."""

    planted: str  # as `python -m tests.lab fault` takes it
    measure: str
    code: str
    suspects: list[str]
    says: str
    contract: dict[str, str] = dataclasses.field(default_factory=dict)


FILES = Fault(
    "limit 1 nofile 1024",
    "open_files",
    "HOST-OPEN-FILES",
    ["node1"],
    "node1: a worker may open 1024 files",
)
SHM = Fault(
    "shm 2 64m",
    "shared_memory",
    "HOST-SHARED-MEMORY",
    ["node2"],
    "node2: /dev/shm has 64 MiB",
)
FULL = Fault(
    "tmp-full 1",
    "temp_room",
    "HOST-TEMP-FULL",
    ["node1"],
    "(tmpfs at /tmp) has ",
)
STRAY = Fault(
    "stray-raylet 2",
    "stray_raylets",
    "HOST-STRAY-RAYLET",
    ["node2"],
    "node2: raylets of another cluster run: process ",
)
VERSION = Fault(
    "version 1 pandas 0.1",
    "image_differences",
    "HOST-IMAGE",
    ["node1"],
    "node1: Python has pandas 0.1; Python lacks pandas ",
)
TORN = Fault(
    "model 2 torn",
    "model_differences",
    "HOST-MODEL-FILES",
    ["node2"],
    f"{MODEL} on node2: weights-2 has 1500000 bytes in place of 3000000",
    NEEDS,
)
FAULTS = [
    FILES, SHM, FULL, STRAY, VERSION, TORN,
    Fault(
        "model 1 missing", "model_differences", "HOST-MODEL-FILES", ["node1"],
        f"{MODEL} on node1: No such file or directory", NEEDS,
    ),
    Fault(
        "model 0 changed", "model_differences", "HOST-MODEL-FILES", ["node0"],
        f"{MODEL} on node0: weights-1 has other content", NEEDS,
    ),
    Fault(
        "block-port 0 8265", "egress_closed", "HOST-EGRESS", ["node1", "node2"],
        f"{SERVER} from node1, node2: timed out", NEEDS,
    ),
    Fault(
        "limit 0 pids 200", "processes", "HOST-PROCESSES", ["node0"],
        "more threads for 1 ranks, by pids.max of /sys/fs/cgroup",
    ),
    Fault(
        "limit 2 memlock 64", "locked_memory", "HOST-LOCKED-MEMORY", ["node2"],
        "node2: a worker may lock 64 KiB of memory", RDMA,
    ),
    Fault(
        "limit 1 stack 1024", "stack", "HOST-STACK", ["node1"],
        "node1: the stack of a worker may have 1024 KiB",
    ),
    Fault(
        "clock 1 +2s", "clock_offset", "HOST-CLOCK", ["node1"],
        "against the median of 3 clocks, node1 is 2",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole_lab() -> Iterator[Lab]:
    """Three nodes, up once for all tests of this file."""
    with lab_of(3, "system") as lab:
        yield lab


def judge_system(lab: Lab, name: str, contract: dict[str, str]) -> tuple[RunRecord, Trial]:
    """Run the probe on the lab as it is, by the lab's contract with these lines."""
    name = "".join(c if c.isalnum() else "-" for c in name)
    return acceptance(lab, name, PROBE, contract=agreed(lab, contract))


def passes(record: RunRecord, trial: Trial) -> None:
    """Check that nothing was found, and that each control was caught."""
    assert record.verdict("HOSTS") is Verdict.PASS, trial.log.read_text()
    assert not findings(record)
    (result,) = record.results
    assert all(control.caught for control in result.controls)


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in (*ALL, *NEEDED)))
def test_a_sound_lab_passes(lab: Lab) -> None:
    inject(lab, "model", "1", "sound")
    record, trial = judge_system(lab, "sound", NEEDS)
    passes(record, trial)
    (result,) = record.results
    assert {control.name for control in result.controls} == {
        *("strained process", "lost clock", "other image", "closed target", "changed file")
    }


@pytest.mark.near_miss("HOSTS.locked_memory")
def test_a_sound_lab_passes_again_and_by_rdma_too(lab: Lab) -> None:
    passes(*judge_system(lab, "sound-2", {}))
    record, trial = judge_system(lab, "sound-3", RDMA)
    assert not findings(record), trial.log.read_text()
    verdicts = {m.verdict for m in record.results[0].measurements if m.name == "locked_memory"}
    assert verdicts == {Verdict.PASS}  # of the rest, the lab has no RDMA device


@pytest.mark.near_miss("HOSTS.open_files", "HOSTS.shared_memory", "HOSTS.processes")
def test_what_is_just_enough_passes(lab: Lab) -> None:
    inject(lab, "limit", "1", "nofile", "4096")
    inject(lab, "limit", "2", "pids", "800")
    inject(lab, "shm", "2", "1g")
    passes(*judge_system(lab, "enough", {}))


def test_faults_of_several_nodes_are_each_named(lab: Lab) -> None:
    faults = (TORN, FILES, SHM, FULL, STRAY, VERSION)
    for fault in faults:
        inject(lab, *fault.planted.split())
    record, trial = judge_system(lab, "several", NEEDS)
    assert failed(record) == {fault.measure for fault in faults}, trial.log.read_text()
    for fault in faults:
        is_named(fault, record)
    assert len(findings(record)) == len(faults)
    assert trial.process.returncode == 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.planted)
def test_a_fault_is_named(lab: Lab, fault: Fault) -> None:
    if fault.measure == "egress_closed":
        inject(lab, "model", "1", "sound")
    inject(lab, *fault.planted.split())
    record, trial = judge_system(lab, fault.planted, fault.contract)
    assert failed(record) == {fault.measure}, trial.log.read_text()
    is_named(fault, record)
    assert len(findings(record)) == 1


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


def is_named(fault: Fault, record: RunRecord) -> None:
    """Check that a fault was found, where it was planted."""
    found = {(one.code, tuple(one.suspects)): one.statement for one in findings(record)}
    statement = found.get((fault.code, tuple(fault.suspects)), "")
    assert fault.says in statement, found
