"""A fault of each family of HOSTS at once: each is named where it is, and nothing else, live."""

from __future__ import annotations

from reports.measurement import Verdict
from tests.faults.launchers.injected_faults import failed, findings
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.faults import inject
from tests.support.trial import acceptance, agreed, lab_of

CONTRACT = {'shared = "/shared"': 'shared = "/shared"\nhost_names = true\nauthentication = "token"'}
# Family: what is planted, and the finding with its suspects.  Every fault alone is in the soak.
FAMILIES = {
    "work": ("gemm 1 wrong", "HOST-WRONG-SUM", ["node1"]),
    "inventory": ("nvml 2 name=NVIDIA A100-SXM4-80GB", "HOST-GPU-MODEL", ["node2"]),
    "health": ("nvml 1 0.remap_failed=1", "HOST-ROW-REMAP", ["node1"]),
    "system": ("limit 2 nofile 1024", "HOST-OPEN-FILES", ["node2"]),
    "names": ("unknown-name 2", "HOST-NAMES", ["node2"]),
    "storage": ("shared 2 private", "HOST-SHARED", ["node2"]),
    "exposure": ("open-dashboard", "HOST-AUTH-OPEN", []),
}
FAILED = {"gemm_wrong", "gemm_hash_differs", "differences", "row_remaps", "open_files"}
FAILED |= {"names_unresolved", "unseen_files", "shared_missing", "wrong_entrances"}


def test_a_fault_of_each_family_is_named() -> None:
    with lab_of(3, "families", with_nvml=True, auth="token") as lab:
        for planted, _, _ in FAMILIES.values():
            inject(lab, *planted.split(" ", 2))
        record, trial = acceptance(lab, "families", "probes/hosts", contract=agreed(lab, CONTRACT))
        assert record.verdict("HOSTS") is Verdict.FAIL, trial.log.read_text()
        assert failed(record) == FAILED, trial.log.read_text()
        assert all(control.caught for result in record.results for control in result.controls)
        found = {(one.code, *one.suspects) for one in findings(record)}
        assert found == {(code, *suspects) for _, code, suspects in FAMILIES.values()}
        nothing_left(lab)
