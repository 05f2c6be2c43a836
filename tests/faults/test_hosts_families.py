"""A fault of each family of HOSTS at once: each is named where it is, and nothing else, live."""

from __future__ import annotations

from reports.measurement import Verdict
from tests.faults.launchers.injected_faults import all_caught, failed, findings
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.faults import inject
from tests.support.trial import acceptance, agreed, lab_of

CONTRACT = {'shared = "/shared"': 'shared = "/shared"\nhost_names = true\nauthentication = "token"'}
# By family: what is planted.  Each fault alone is in the soak.
FAMILIES = {
    "work": ["gemm", "1", "wrong"],
    "inventory": ["nvml", "2", "name=NVIDIA A100-SXM4-80GB"],
    "health": ["nvml", "1", "0.remap_failed=1"],
    "system": ["limit", "2", "nofile", "1024"],
    "names": ["unknown-name", "2"],
    "storage": ["shared", "2", "readonly"],
    "exposure": ["open-dashboard"],
}
FOUND = {
    ("HOST-WRONG-SUM", "node1"),
    ("HOST-GPU-MODEL", "node2"),
    ("HOST-ROW-REMAP", "node1"),
    ("HOST-OPEN-FILES", "node2"),
    ("HOST-NAMES", "node2"),
    *(("HOST-SHARED", "node2"), ("HOST-STORAGE-ERROR", "node2")),  # it can read, and not write
    ("HOST-AUTH-OPEN",),
}
FAILED = {"gemm_wrong", "gemm_hash_differs", "differences", "row_remaps", "open_files"}
FAILED |= {"names_unresolved", "failed_shards", "shared_missing", "wrong_entrances"}


def test_a_fault_of_each_family_is_named() -> None:
    with lab_of(3, "families", with_nvml=True, auth="token") as lab:
        for planted in FAMILIES.values():
            inject(lab, *planted)
        record, trial = acceptance(lab, "families", "probes/hosts", contract=agreed(lab, CONTRACT))
        assert record.verdict("HOSTS") is Verdict.FAIL, trial.log.read_text()
        assert failed(record) == FAILED, trial.log.read_text()
        assert {(one.code, *one.suspects) for one in findings(record)} == FOUND
        assert all_caught(record)
        nothing_left(lab)
