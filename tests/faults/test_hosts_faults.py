"""GPUs and machines that are not what was ordered: caught, named and located by HOSTS, live.

The nodes have 8 GPUs each by Ray, by a stand-in NVML (tests/lab/nvml_standin.c) and by torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest

from probes.hosts.criterion import HEALTH
from reports.measurement import Verdict
from reports.record import RunRecord
from tests.faults.launchers.injected_faults import findings
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.support.trial import Trial, acceptance, agreed, lab_of

PROBE = "probes/hosts/test_hosts.py"
EIGHT = {"gpus_per_node = 1": "gpus_per_node = 8"}
# Torch is asked as well; that takes longer, so most faults are tried without.
REAL = {
    **EIGHT,
    'accelerators = "emulated"': 'accelerators = "real"',
    "pace_seconds = 0.4": "",  # steps of real accelerators are not padded
}
H100 = "NVIDIA H100 80GB HBM3"
SOAK = pytest.mark.soak(criterion="hosts")


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is planted, and what HOSTS says of it."""

    name: str
    planted: list[str]  # as `python -m tests.lab fault` takes them
    codes: set[str]  # findings, all of them
    suspects: list[str]
    says: list[str]
    contract: dict[str, str] = dataclasses.field(default_factory=lambda: EIGHT)


LOST = Fault(
    "lost", ["nvml 1 3.error=15"], {"HOST-GPU-LOST", "HOST-GPUS"}, ["node1"],
    [
        "node1: NVML does not answer for GPU 3: error 15",
        "Ray counts 8, NVML shows 7, torch sees 8",
    ],
    REAL,
)  # fmt: skip
COMMON = [
    Fault(
        "seven", ["nvml 1 gpus=7"], {"HOST-GPUS"}, ["node1"],
        ["node1: 8 GPUs were ordered, Ray counts 8, NVML shows 7"],
    ),
    LOST,
    Fault(
        "mismatch", ["nvml 2 error=18"], {"HOST-DRIVER-MISMATCH"}, ["node2"],
        ["node2: NVML does not answer for the node's GPUs: error 18"],
    ),
    Fault(
        "another-model", ["nvml 1 name=NVIDIA A100-SXM4-80GB"], {"HOST-GPU-MODEL"}, ["node1"],
        ["NVIDIA A100-SXM4-80GB on node1", f"{H100} on node0"],
    ),
    Fault(
        "one-machine", ["same-machine 1 2"], {"HOST-SAME-MACHINE"}, ["node1", "node2"],
        ["node2 run on the same machine"],
    ),
    Fault("no-library", ["hide-nvml 2"], {"HOST-NO-NVML"}, ["node2"], ["node2"]),
    Fault(
        "sick-gpus", ["nvml 0 2.ecc_errors=3", "nvml 1 5.nvlinks_down=2", "nvml 2 slowdown=136"],
        {"HOST-ECC", "HOST-NVLINK", "HOST-GPU-SLOWED"}, ["node0", "node1", "node2"],
        [
            "3 uncorrected memory errors since the driver was loaded",
            "16 of 18 NVLinks are active",
            "and 4 more on node2: clocks are slowed: power brake",
        ],
    ),
]  # fmt: skip
# One GPU of node1 reports this; by the code of its finding.
SICK = {
    "recovery=2": ("HOST-GPU-RECOVERY", "the driver asks for a reboot of the node"),
    "sram=1": ("HOST-ECC", "SRAM errors are above the threshold"),
    "remap_pending=1": ("HOST-ROW-REMAP", "a memory row waits to be remapped"),
    "remap_failed=1": ("HOST-ROW-REMAP", "a memory row could not be remapped"),
    "retired_pending=1": ("HOST-ROW-REMAP", "a memory row waits to be remapped"),
    "ecc=0": ("HOST-ECC-OFF", "ECC is off"),
    "slowdown=64": ("HOST-GPU-SLOWED", "clocks are slowed: hardware thermal"),
    "power_limit=500": ("HOST-POWER-LIMIT", "power limit is 71.4 % of the default"),
    "pcie_width=8": ("HOST-PCIE", "PCIe runs x8 of x16"),
    "nvlinks_down=18": ("HOST-NVLINK", "0 of 18 NVLinks are active"),
    "fabric_state=2": ("HOST-NVSWITCH", "registration with the NVLink fabric is in progress"),
    "fabric_health=1": ("HOST-NVSWITCH", "NVLink fabric: bandwidth is degraded"),
    "compute_mode=2": ("HOST-COMPUTE-MODE", "compute mode is Prohibited"),
    "ecc_errors=failed": ("HOST-NVML-ERROR", "NVML does not answer for uncorrected_errors"),
}
# What sound GPUs report as well.
SOUND = (
    *("0 slowdown=7", "1 slowdown=8", "0 1.remapped=4", "1 3.lifetime_errors=3"),
    *("2 compute_mode=3", "2 retired_pending=0", "0 2.power_limit=720"),
    *(f"{node} persistence=0" for node in range(3)),
    *(f"{node} recovery=unsupported" for node in range(3)),
    *(f"{node} fabric_state=0" for node in range(3)),
)
LONGER = [
    Fault("none", ["nvml 1 gpus=0"], {"HOST-GPUS"}, ["node1"], ["Ray counts 8, NVML shows 0"]),
    Fault("no-driver", ["nvml 0 error=9"], {"HOST-NO-DRIVER"}, ["node0"], ["node0", "error 9"]),
    Fault("unknown", ["nvml 0 error=999"], {"HOST-NVML-ERROR"}, ["node0"], ["node0", "error 999"]),
    Fault(
        "one-board", ["nvml 2 5.name=NVIDIA H200"], {"HOST-GPU-MODEL"}, ["node2"],
        ["NVIDIA H200 on node2"],
    ),
    Fault(
        "half-memory", ["nvml 0 2.memory_mib=40960"], {"HOST-GPU-MODEL"}, ["node0"],
        ["40 GiB on node0"],
    ),
    Fault(
        "twice", ["nvml 1 0.uuid=GPU-twice", "nvml 2 4.uuid=GPU-twice"], {"HOST-GPU-TWICE"},
        ["node1", "node2"], ["GPU 0 (GPU-twice) on node1", "GPU 4 (GPU-twice) on node2"],
    ),
    Fault("mig", ["nvml 1 7.mig=3"], {"HOST-GPUS"}, ["node1"], ["Ray counts 8, NVML shows 10"]),
    Fault(
        "torch-sees-fewer", ["nvml 1 torch=6"], {"HOST-GPUS"}, ["node1"],
        ["NVML shows 8, torch sees 6"], REAL,
    ),
    Fault(
        "vbios", ["nvml 1 6.vbios=96.00.74.00.01"], {"HOST-FIRMWARE"}, ["node1"],
        ["vBIOS of NVIDIA H100 80GB HBM3: 96.00.74.00.01 on node1; 96.00.89.00.01 on node0"],
    ),
    Fault(
        "clock", ["nvml 1 6.clock=1410"], {"HOST-GPU-SETTINGS"}, ["node1"],
        ["application clock of NVIDIA H100 80GB HBM3: 1410 MHz on node1; 1980 MHz on node0"],
    ),
    *(
        Fault(plant.partition("=")[0], [f"nvml 1 6.{plant}"], {code}, ["node1"], [f"node1: {says}"])
        for plant, (code, says) in SICK.items()
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole_lab() -> Iterator[Lab]:
    """Three nodes of 8 GPUs, up once for all tests of this file."""
    with lab_of(3, "gpus", gpus=8, with_nvml=True) as lab:
        yield lab


def judge_hosts(lab: Lab, name: str, contract: dict[str, str]) -> tuple[RunRecord, Trial]:
    """Run HOSTS on the lab as it is, by the lab's contract with these lines."""
    return acceptance(lab, name, PROBE, contract=agreed(lab, contract))


@SOAK
@pytest.mark.parametrize("contract", [EIGHT, REAL], ids=["emulated", "real"])
def test_sound_nodes_pass(lab: Lab, contract: dict[str, str]) -> None:
    name = f"sound-{len(contract)}"
    record, trial = judge_hosts(lab, name, contract)
    assert record.verdict("HOSTS") is Verdict.PASS, trial.log.read_text()
    assert not findings(record)
    assert bool(record.rehearsal) == (contract is EIGHT), "emulation is what the contract says"


@SOAK
@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in HEALTH))
def test_what_sound_gpus_report_is_no_fault(lab: Lab) -> None:
    for planted in SOUND:
        inject(lab, "nvml", *planted.split(" ", 1))
    record, trial = judge_hosts(lab, "sound-reports", EIGHT)
    assert record.verdict("HOSTS") is Verdict.PASS, trial.log.read_text()
    assert not findings(record)


@SOAK
@pytest.mark.parametrize("fault", [*COMMON, *LONGER], ids=lambda fault: fault.name)
def test_a_fault_is_named(lab: Lab, fault: Fault) -> None:
    for planted in fault.planted:
        inject(lab, *planted.split(" ", 2))
    record, trial = judge_hosts(lab, fault.name, fault.contract)
    said = [(one.code, one.suspects, one.statement) for one in findings(record)]
    assert record.verdict("HOSTS") is Verdict.FAIL, f"{said} {trial.log.read_text()}"
    assert trial.process.returncode == 1
    assert {code for code, _, _ in said} == fault.codes, said
    assert sorted({name for _, suspects, _ in said for name in suspects}) == fault.suspects, said
    assert all(any(words in statement for *_, statement in said) for words in fault.says), said
    if fault is LOST:
        its_other_facts_are_there(trial)


def test_what_happens_during_a_run_is_seen_at_its_end(lab: Lab) -> None:
    inject(lab, "nvml", "1", "torch=8")  # as before; `clear` then heals all of node1's NVML
    inject(lab, "nvml", "0", "torch=8")
    planted = ("faulty_end", "all")
    # Without the work of each GPU: 24 emulated ones would share two cores.
    probes = (PROBE, "probes/hosts/network", "probes/hosts/system", "probes/hosts/test_hosts.py")
    record, trial = acceptance(lab, "end", *probes, contract=agreed(lab, EIGHT), fault=planted)
    lab.node("2").new_boot_id()
    *others, closing = record.results
    assert {one.verdict for one in others} == {Verdict.PASS}, trial.log.read_text()
    assert closing.verdict is Verdict.FAIL
    said = {one.code: (one.suspects, one.statement) for one in closing.findings}
    assert {code: suspects for code, (suspects, _) in said.items()} == {
        "HOST-CHANGED": ["node2"],
        "HOST-GPU-CHANGED": ["node0"],
        "HOST-ECC": ["node1"],
        "HOST-GPU-SLOWED": ["node1"],
        "HOST-PCIE": ["node1"],
        "HOST-NVLINK": ["node1"],
        "HOST-XID": ["node1"],
    }
    assert "node1: Xid 79 of GPU 2 (GPU-" in said["HOST-XID"][1]
    assert "heat slowed the clocks for 30 s of the run" in said["HOST-GPU-SLOWED"][1]
    assert "2 NVLink errors in the run" in said["HOST-NVLINK"][1]
    assert "PCIe repeated 50 packets per minute" in said["HOST-PCIE"][1]


def its_other_facts_are_there(trial: Trial) -> None:
    """One lost GPU must not take the rest of its node with it."""
    (path,) = trial.folder.glob("**/*hosts.json")
    facts = {fact["name"]: fact for fact in json.loads(path.read_text())}
    assert set(facts) == {"node0", "node1", "node2"}
    assert facts["node1"]["software"] == facts["node0"]["software"]
    assert [gpu["name"] for gpu in facts["node1"]["gpus"] if gpu.get("name")] == [H100] * 7
