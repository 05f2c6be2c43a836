"""Names, addresses and ports that are wrong: caught, named and located by HOSTS, live."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from reports.measurement import Verdict
from reports.record import RunRecord
from tests.faults.launchers.injected_faults import findings
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.support.trial import Trial, acceptance, agreed, lab_of

# In `make test`, test_hosts_families.py plants a fault of each family.
pytestmark = pytest.mark.soak(criterion="hosts")
PROBE = "probes/hosts/test_hosts.py"
NAMES_COUNT = {'shared = "/shared"': 'shared = "/shared"\nhost_names = true'}


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is planted, and what HOSTS says of it."""

    planted: str  # as `python -m tests.lab fault` takes it
    code: str
    suspects: list[str]
    says: list[str]
    contract: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return "-".join(self.planted.split())


CLOSED = "HOST-PORT-CLOSED"
FAULTS = [
    Fault(
        "loopback-name 1", "HOST-LOOPBACK-NAME", ["node1"],
        ["The own name of node1 leads to 127.0.1.1, and GLOO_SOCKET_IFNAME names no interface"],
    ),
    Fault(
        "block-port 1 ephemeral", CLOSED, ["node1"],
        ["No other node connects to node1: port that the kernel picked for a job"],
    ),
    Fault(
        "block-port 2 object-manager", CLOSED, ["node2"],
        ["No other node connects to node2: object manager port", "packets are dropped"],
    ),
    Fault(
        "loopback-names", "HOST-LOOPBACK-NAME", ["node0", "node1", "node2"],
        ["The own name of node0, node1, node2 leads to 127.0.1.1"],
    ),
    Fault(
        "unknown-name 2", "HOST-NAMES", ["node2"],
        ["The name node2 does not lead to node2 on other nodes"], NAMES_COUNT,
    ),
    Fault(
        "lost-address 1", "HOST-ADDRESS", ["node1"],
        ["node1: Ray's address 10.78.0.2 is on no interface of the node, which has"],
    ),
    Fault(
        "link-local-ib 2", "HOST-NCCL-INTERFACE", ["node2"],
        ["NCCL starts over ib9 (169.254.9.1) on node2: its address is link-local"],
    ),
]  # fmt: skip
NEAR = pytest.mark.near_miss
MISSES = [
    pytest.param("unknown-name 2", {}, marks=[NEAR("HOSTS.closed_ports")]),
    pytest.param(
        "debian-name 1", NAMES_COUNT, marks=NEAR("HOSTS.loopback_names", "HOSTS.names_unresolved")
    ),
    pytest.param("second-address 1", {}, marks=[NEAR("HOSTS.address_elsewhere")]),
    pytest.param(
        "block-port 0 8265", {}, marks=[NEAR("HOSTS.closed_ports", "HOSTS.closed_job_ports")]
    ),
]


@pytest.fixture(scope="module")
def whole_lab() -> Iterator[Lab]:
    """Three nodes, up once for all tests of this file."""
    with lab_of(3, "names") as lab:
        yield lab


def judge_names(lab: Lab, name: str, contract: dict[str, str]) -> tuple[RunRecord, Trial]:
    """Run the probe on the lab as it is, by the lab's contract with these lines."""
    return acceptance(lab, name, PROBE, contract=agreed(lab, contract))


@pytest.mark.parametrize(
    "fault",
    FAULTS,
    ids=lambda fault: fault.name,
)
def test_a_fault_is_named(lab: Lab, fault: Fault) -> None:
    inject(lab, *fault.planted.split())
    record, trial = judge_names(lab, fault.name, fault.contract)
    said = [(one.code, one.suspects, one.statement) for one in findings(record)]
    assert record.verdict("HOSTS") is Verdict.FAIL, f"{said} {trial.log.read_text()}"
    ((code, suspects, statement),) = said
    assert (code, suspects) == (fault.code, fault.suspects), said
    assert all(words in statement for words in fault.says), said
    (result,) = record.results
    assert all(control.caught for control in result.controls), result.controls


@pytest.mark.parametrize(("planted", "contract"), MISSES)
def test_what_is_near_to_a_fault_is_sound(lab: Lab, planted: str, contract: dict[str, str]) -> None:
    inject(lab, *planted.split())
    record, trial = judge_names(lab, f"near-{planted.replace(' ', '-')}", contract)
    assert record.verdict("HOSTS") is Verdict.PASS, trial.log.read_text()
    assert not findings(record)


@pytest.mark.parametrize("time", [1, 2, 3])
def test_sound_nodes_pass(lab: Lab, time: int) -> None:
    record, trial = judge_names(lab, f"sound-{time}", NAMES_COUNT)
    assert record.verdict("HOSTS") is Verdict.PASS, trial.log.read_text()
    assert not findings(record)
    (result,) = record.results
    assert len(result.controls) == 6
    assert all(control.caught for control in result.controls), result.controls
