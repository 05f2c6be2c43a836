"""What HOSTS says of sound GPUs, and of what happens to them during a run, live.

Faults of GPUs one by one are in `live_faults.py`.
"""

from __future__ import annotations

import pytest

from reports.measurement import Verdict
from tests.faults.launchers.injected_faults import findings
from tests.faults.live_faults import EIGHT, GPU_LAB, LIMITS, ORDERED, REACHED, REAL, TO_THE_END
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.support.trial import acceptance, agreed

LAB = GPU_LAB


@pytest.mark.soak(criterion="hosts")
@pytest.mark.parametrize("contract", [EIGHT, REAL], ids=["emulated", "real"])
def test_sound_nodes_pass(lab: Lab, contract: dict[str, str]) -> None:
    name = f"sound-{len(contract)}"
    record, trial = acceptance(lab, name, ORDERED, contract=agreed(lab, contract))
    assert record.verdict("HOSTS") is Verdict.PASS, trial.log.read_text()
    assert not findings(record)
    assert bool(record.rehearsal) == (contract is EIGHT), "emulation is what the contract says"


def test_what_happens_during_a_run_is_seen_at_its_end(lab: Lab) -> None:
    inject(lab, "nvml", "1", "torch=8")  # as before; `clear` then heals all of node1's NVML
    inject(lab, "nvml", "0", "torch=8")
    planted = ("faulty_end", "all")
    # Without the work of each GPU: 24 emulated ones would share two cores.
    probes = (ORDERED, REACHED, LIMITS, TO_THE_END)
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
    assert "heat slowed the clocks for 30 s in 10 min" in said["HOST-GPU-SLOWED"][1]
    assert "2 NVLink errors in the run" in said["HOST-NVLINK"][1]
    assert "PCIe retransmitted 50 packets per minute" in said["HOST-PCIE"][1]
