"""Writes an accepted run folder, with all that a run of tier quick owes; its values are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from probes.check.declarations import exactly
from probes.check.owed import owed_event
from probes.check.recorder import Recorder
from probes.check.registry import CRITERIA
from probes.contract.contract import Contract, is_one_node, load
from reports.acceptance import load_summary, summarize_acceptance
from reports.exports import render_all, write_all
from reports.frames.history import Baseline, choose_baseline
from reports.measurement import Limit
from reports.run_folder.integrity import read_run
from reports.run_folder.store import Store
from reports.run_folder.times import known_time, utc_time
from reports.version import suite_version
from tests.support.controls import plant

NODES = 4
IN_RUN = Limit(low=1, high=1, because="follows from the probe's own set-up")
GPUS = exactly(1, "GPUs", "ordered")


def write_sound_run(
    folder: Path,
    nonce: str = "",
    submission: str = "",
    end: bool = True,
    contract: Contract | None = None,
    partially_held: int = 0,
    values: Mapping[str, tuple[float, float]] | None = None,
    baseline: Path | None = None,
    nodes_named: Sequence[str] = (),
    started: str = "2026-11-20T22:17:03.120Z",
    count: int = NODES,
    paths: Any = None,
) -> Path:
    """Write the run of a rehearsal that passed: exit code 0.

    Without `end` it is a run that was killed. With gangs that were `partially_held` it failed.
    `values` replaces value and spread of measures; `baseline` is what the run is compared with.
    `paths` are the pairs of nodes that met, as FABRIC lists them where some did not.
    """
    contract, store = contract or load("lab"), Store(folder)
    ordered = contract.cluster.nodes or count
    terms = contract.cluster.model_copy(update={"nodes": ordered})
    names = nodes_named or [f"node{number}" for number in range(count)]
    nodes = [{"name": name, "address": f"10.77.0.{i}"} for i, name in enumerate(names)]
    store.start(
        contract.text,
        id=folder.name,
        started=started,
        command="pytest probes --cluster auto --contract lab",
        tier="quick",
        versions=suite_version(),
        contract=contract.facts(is_one_node(terms, {"alive": count})).model_dump(mode="json"),
        cluster={
            "name": "node0",
            "nodes": nodes,
            "alive": count,
            "terms": terms.model_dump(exclude_none=True),
        },
        rehearsal=f"{count} emulated nodes",
        nonce=nonce,
        submission=submission,
    )
    agreed = contract.limited_names
    shape: dict[str, Any] = {"nodes": count, "on_gpu": False, "agreed": agreed, "one_host": False}
    shape["not_countable"] = frozenset(contract.not_countable)
    owed = owed_event("quick", contract.tier, (), terms=terms, **shape)
    store.event("run_owes", **owed)
    for probe in owed["owed"]:
        found: dict[str, Any] = {"nodes": (count, None), **(values or {})}
        limit = exactly(ordered, "nodes", "ordered")
        _write_probe(store, contract, probe, partially_held, found, limit, paths)
    if end:
        before = choose_baseline(baseline, store.save()) if baseline else Baseline()
        store.event("run_updated", loaded=[], **before.event(contract.baseline))
        began = known_time(started)
        finished = utc_time(began and began + timedelta(minutes=3))
        store.event("run_finished", finished=finished, state="finished")
        store.save()
        write_all(folder, render_all(folder, summarize_acceptance(*read_run(folder))))
        store.close()
    return folder


def _write_probe(
    store: Store,
    contract: Contract,
    owed: dict[str, Any],
    partially_held: int,
    values: Mapping[str, tuple[float, float]],
    ordered: Limit,
    paths: Any,
) -> None:
    """Write all that one probe owes: measures that pass, and controls that are caught."""
    id = owed["criterion"]
    probe = Recorder(store, contract, owed["probe"], id, "a claim", "again", lambda words: None)
    for name in owed["measures"]:
        limit = {"nodes": ordered, "gpus": GPUS}.get(name)
        if limit is None and CRITERIA[id].measures[name].from_run:
            limit = IN_RUN
        value = _sound_value(limit or contract.limit(id, name))
        spread = None
        if name == "partially_held":
            value = partially_held
        elif name in values:
            value, spread = values[name]
        probe(name, value, limit=limit, spread=spread)
    for name in owed["controls"]:
        plant(probe, name)
    probe.keep(f"{id}.log", f"what {id} saw\n", kind="log", caption="a log")
    probe.series("steps", [1, 2, 3])
    if paths and id == "FABRIC":
        probe.series("paths", paths)
    probe.covered("all nodes")
    probe.finish("finished", 1.0)


def _sound_value(limit: Limit | None) -> Any:
    """Return a value that passes."""
    if limit is None:
        return 0
    if limit.one_of:
        return limit.one_of[0]
    for bound in (limit.marginal_low, limit.low, limit.marginal_high, limit.high):
        if bound is not None:
            return bound
    return 0


if __name__ == "__main__":
    import sys

    print(load_summary(write_sound_run(Path(sys.argv[1]))).headline)
