"""A quick run of HOSTS and SCALING, judged by a contract with other terms or limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.check.declarations import exactly
from probes.check.owed import Circumstances, owed_by
from probes.check.recorder import Recorder
from probes.check.registry import CRITERIA
from probes.contract.contract import parse
from probes.session.rejudge import rejudge_run
from reports.measurement import Verdict
from reports.run_folder.integrity import load
from reports.run_folder.store import Store
from tests.support.controls import plant
from tests.support.rejudged_runs import BOUGHT, FROM_RUN, STANDARD, rejudged, say_owed

QUICK = f"""{BOUGHT.replace(STANDARD, "")}
[SCALING.mfu]
at_least = 0.3
unit = "ratio"
because = "as agreed"
"""
SYSTEM = {
    "open_files": 65536, "locked_memory": 2015, "stack": 8, "shared_memory": 64, "processes": 9000,
    "temp_room": 0.7,
}  # fmt: skip
SOUND = {  # the others: what their own limit asks for, else 0
    **SYSTEM, "nodes": 4, "machines": 4, "gpus": 8, "power_limit": 1, "efficiency": 0.97,
    "mfu": 0.4,
}  # fmt: skip
FOUR_MACHINES = {"machines": exactly(4, "machines", "each node must be a separate machine")}


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """A sound run of HOSTS and SCALING that measured all that tier quick owes under QUICK."""
    agreed, store = parse(QUICK.encode(), "quick.toml"), Store(tmp_path / "quick")
    nodes = [{"name": f"node{number}"} for number in range(4)]
    cluster = {"terms": agreed.cluster.model_dump(exclude_none=True), "nodes": nodes}
    facts = agreed.facts().model_dump(mode="json")
    store.start(
        agreed.text, id="quick", started="2026-01-01T00:00:00Z", command="x", tier="quick",
        contract=facts, cluster={**cluster, "on_gpu": True},
    )  # fmt: skip
    here = Circumstances("quick", agreed.cluster, 4, True, agreed.limited_names)
    for duty in owed_by(here):
        if duty.criterion not in ("HOSTS", "SCALING"):
            continue
        ledger = Recorder(store, agreed, duty.probe, duty.criterion, "claim", "again", print)
        for name in duty.measures:
            own = CRITERIA[duty.criterion].measures[name].default
            least = (own and own.low) or 0
            ledger(name, SOUND.get(name, least), limit=(FROM_RUN | FOUR_MACHINES).get(name))
        for name in duty.controls:
            plant(ledger, name)
        ledger.finish("finished", 1.0)
    store.close()
    return tmp_path / "quick"


@pytest.mark.parametrize(
    ("key", "hosts"),
    [
        ("save_minutes = 5", Verdict.PASS),
        ('shared = "/s"', Verdict.UNPROVEN),
        ('gpu_model = "NVIDIA L4"', Verdict.UNPROVEN),
        ("ram_gib = 2000", Verdict.UNPROVEN),
        ("gpu_memory_gib = 79", Verdict.UNPROVEN),
        ("cpus_per_node = 96", Verdict.UNPROVEN),
        ('versions = {torch = "2.13.0"}', Verdict.UNPROVEN),
    ],
)
def test_other_terms_ask_a_run_for_what_they_owe_and_nothing_else(
    quick: Path, key: str, hosts: Verdict
) -> None:
    """Tier quick owes no `checkpoint_overhead`; it owes `ram` where the order has it."""
    say_owed(quick)
    judged = rejudged(quick, QUICK.replace("rails = 4", f"rails = 4\n{key}"))
    assert (judged.verdict("HOSTS"), judged.verdict("SCALING")) == (hosts, Verdict.PASS)


@pytest.mark.parametrize(("share", "caught"), [(0.3, True), (0.4, True), (0.1, False)])
def test_a_fault_that_was_planted_for_another_limit_proves_less(
    quick: Path, share: float, caught: bool
) -> None:
    """A node made slow enough to break 0.3 of the peak may keep 0.1 of it."""
    other = parse(QUICK.replace("at_least = 0.3", f"at_least = {share}").encode(), "other.toml")
    (result,) = load(rejudge_run(quick, other)).results_of("SCALING")
    controls = {one.name: one.caught for one in result.controls}
    assert controls.pop("slow base") is caught
    assert set(controls.values()) == {True}
