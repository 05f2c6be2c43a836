"""Makes healthy runs and judges them by another contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probes.check.declarations import exactly
from probes.check.recorder import Recorder
from probes.contract.contract import parse
from probes.session.rejudge import rejudge_run
from reports.measurement import Limit, Verdict
from reports.record import RunRecord
from reports.run_folder.integrity import load
from reports.run_folder.store import Store
from tests.support.controls import write_control
from tests.support.run_folders import rewrite

HEALTHY: dict[str, dict[str, Any]] = {
    "HOSTS": {"nodes": 4, "gpus": 8, "differences": 0, "rdma_closed": 0},
    "FABRIC": {"busbw": 380.0, "network": "rdma", "agreeing_sources": 2, "fabric_share": 1.0,
               "share_on_other_networks": 0.0, "rails": 4, "slowest_rail": 1.0},
    "SCALING": {"efficiency": 0.97, "residual": 0.0, "straggler": 0.0,
                "checkpoint_overhead": 0.001},
    "GANG": {"partially_held": 0, "misplaced": 0, "placement_delay": 0.5},
    "RESTART": {"unequal_steps": 0, "recovery_time": 20.0, "steps_lost": 2},
    "LAUNCH": {"exit_code": 0, "time_to_first_step": 20.0, "share_on_agreed_network": 1.0},
}  # fmt: skip
FROM_RUN = {
    "nodes": exactly(4, "nodes", "ordered"),
    "gpus": exactly(8, "GPUs", "ordered"),
    "rails": Limit(low=4, unit="rails", because="the contract says so"),
    "steps_lost": Limit(high=4, unit="steps", because="it saves every 4 steps"),
}
STANDARD = 'tier = "standard"\n'
BOUGHT = """schema = 1
tier = "standard"
name = "bought"
[cluster]
nodes = 4
gpus_per_node = 8
fabric = "rdma"
rails = 4
[FABRIC.busbw]
at_least = 170
unit = "GB/s"
because = "as agreed"
[FABRIC.network]
one_of = ["rdma"]
because = "as agreed"
[SCALING.efficiency]
at_least = 0.9
unit = "ratio"
because = "as agreed"
"""


def measured(folder: Path, text: str, *, rehearsal: str = "", keep: bool = True) -> Path:
    """Write a run of a healthy cluster under a contract; `keep` puts its terms into the record."""
    agreed, store = parse(text.encode(), "bought.toml"), Store(folder)
    terms = agreed.cluster.model_dump(exclude_none=True) if keep else {}
    store.start(
        agreed.text, id="run", started="2026-01-01T00:00:00Z", command="x", tier="standard",
        contract=agreed.facts().model_dump(mode="json"), cluster={"terms": terms},
        rehearsal=rehearsal,
    )  # fmt: skip
    for criterion, values in HEALTHY.items():
        probe = Recorder(store, agreed, criterion, criterion, "claim", "again", lambda words: None)
        for name, value in values.items():
            probe(name, value, limit=FROM_RUN.get(name))
        write_control(probe)
        probe.finish("finished", 1.0)
    store.event("run_finished", finished="2026-01-01T00:01:00Z", state="finished")
    store.close()
    return folder


def rejudged(run: Path, text: str) -> RunRecord:
    """Judge the run by a contract of this text."""
    return load(rejudge_run(run, parse(text.encode(), "other.toml")))


def verdicts(record: RunRecord) -> dict[str, Verdict]:
    return {id: record.verdict(id) for id in HEALTHY}


def say_owed(run: Path) -> None:
    """Change it into a run that records what it owes."""
    owes = {"t": "", "event": "run_owes", "data": {"owed": [], "only": [], "partial": ""}}
    rewrite(run, lambda events: [events[0], owes, *events[1:]])
