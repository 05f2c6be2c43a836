"""Images, models and ways out that are wrong on a node: caught, named and located, live."""

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

PROBE = "probes/hosts/system/test_system.py"
SHARED = 'shared = "/shared"'
# The dashboard of the head stands in for a server outside: the lab has no way out.
SERVER = f"http://{network.address('eth0', 0)}:8265/"
NEEDS = {SHARED: f'{SHARED}\nmodel_files = ["{MODEL}"]\negress = ["{SERVER}"]'}
SOAK = pytest.mark.soak(criterion="hosts")
CONTROLS = ("other image", "closed target", "changed file")
NAMES = ("image_differences", "egress_closed", "model_differences")


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is planted, and what HOSTS says of it: measure, finding, nodes, words."""

    planted: str  # as `python -m tests.lab fault` takes it
    measure: str
    code: str
    suspects: list[str]
    says: str


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
)
CLOSED = Fault(
    "block-port 0 8265",
    "egress_closed",
    "HOST-EGRESS",
    ["node1", "node2"],
    f"{SERVER} from node1, node2: timed out",
)
LONGER = [
    VERSION,
    TORN,
    CLOSED,
    Fault(
        "model 1 missing", "model_differences", "HOST-MODEL-FILES", ["node1"],
        f"{MODEL} on node1: No such file or directory",
    ),
    Fault(
        "model 0 changed", "model_differences", "HOST-MODEL-FILES", ["node0"],
        f"{MODEL} on node0: weights-1 has other content",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole_lab() -> Iterator[Lab]:
    """Three nodes, up once for all tests of this file."""
    with lab_of(3, "needs") as lab:
        yield lab


def judge_needs(lab: Lab, name: str) -> tuple[RunRecord, Trial]:
    """Run the probe on the lab as it is, with a model and a way out in the contract."""
    name = "".join(c if c.isalnum() else "-" for c in name)
    return acceptance(lab, name, PROBE, contract=agreed(lab, NEEDS))


def is_named(fault: Fault, record: RunRecord) -> None:
    """Check that a fault was found, where it was planted."""
    found = {(one.code, tuple(one.suspects)): one.statement for one in findings(record)}
    statement = found.get((fault.code, tuple(fault.suspects)), "")
    assert fault.says in statement, found


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in NAMES))
@pytest.mark.parametrize("time", [1, pytest.param(2, marks=SOAK), pytest.param(3, marks=SOAK)])
def test_a_sound_lab_passes(lab: Lab, time: int) -> None:
    inject(lab, "model", "1", "sound")
    record, trial = judge_needs(lab, f"sound-{time}")
    assert record.verdict("HOSTS") is Verdict.PASS, trial.log.read_text()
    assert not findings(record)
    (result,) = record.results
    caught = {control.name: control.caught for control in result.controls}
    assert caught | dict.fromkeys(CONTROLS, True) == caught


def test_faults_of_several_nodes_are_each_named(lab: Lab) -> None:
    faults = (TORN, VERSION)
    for fault in faults:
        inject(lab, *fault.planted.split())
    record, trial = judge_needs(lab, "several")
    assert failed(record) == {fault.measure for fault in faults}, trial.log.read_text()
    for fault in faults:
        is_named(fault, record)
    assert len(findings(record)) == len(faults)
    assert trial.process.returncode == 1


@SOAK
@pytest.mark.parametrize("fault", LONGER, ids=lambda fault: fault.planted)
def test_a_fault_is_named(lab: Lab, fault: Fault) -> None:
    if fault.measure != "model_differences":
        inject(lab, "model", "1", "sound")
    inject(lab, *fault.planted.split())
    record, trial = judge_needs(lab, fault.planted)
    assert failed(record) == {fault.measure}, trial.log.read_text()
    is_named(fault, record)
    assert len(findings(record)) == 1
