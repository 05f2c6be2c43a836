"""Judge an old run by another contract.  Needs no cluster: the record has what was measured."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from probes.acceptance.contract import Contract
from probes.acceptance.criteria import CRITERIA, exactly
from reports.renamed import with_current_names
from reports.store import Store, read_events
from reports.store import fold_events as check

# What was measured against terms of the old contract: under others it says nothing.
MEASURE_TERMS = {
    **dict.fromkeys(("fabric_share", "other_share", "log_errors"), ("fabric",)),
    "checkpoint_overhead": ("save_minutes", "save_gb"),
}


def rejudge_run(run: Path, contract: Contract) -> Path:
    """Write `<run>-by-<contract>` beside `run` and return it; the old run stays as it is.

    Limits that came from the probe's own set-up (such as a save interval) are kept: no
    contract gives them.  Raises UnreadableRun.
    """
    events = [*with_current_names(read_events(run))]
    check(events)
    run = run.resolve()  # "." has no name
    target = run.with_name(f"{run.name}-by-{contract.name}")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run / "evidence", target / "evidence") if (run / "evidence").is_dir() else None
    store, criteria, old_terms = Store(target), {}, {}
    for event in events:
        data: dict[str, Any] = dict(event["data"])
        if event["event"] == "run_started":
            old_terms = data.get("cluster", {}).get("terms", {})
            data |= {"id": target.name, "contract": contract.facts().model_dump(mode="json")}
        if event["event"] == "probe_started":
            criteria[event["probe"]] = data["criterion"]
        if event["event"] == "measurement" and data["judged"]:
            data["limit"] = _limit_of(contract, criteria[event["probe"]], data, old_terms)
        store.event(event["event"], event.get("probe", ""), **data)
    store.save()
    store.close()
    return target


def _limit_of(contract: Contract, criterion: str, data: dict[str, Any], old: dict[str, Any]) -> Any:
    """The limit that the new contract gives; what only the run could know is kept."""
    name, terms = data["name"], contract.cluster
    if name not in CRITERIA[criterion].measures:
        return data["limit"]
    if criterion == "HOSTS" and name == "nodes" and terms.nodes:
        return exactly(terms.nodes, "nodes", "ordered").model_dump(mode="json")
    if criterion == "HOSTS" and name == "gpus" and terms.gpus_per_node is not None:
        return exactly(terms.gpus_per_node, "GPUs", "ordered").model_dump(mode="json")
    if any(getattr(terms, term) != old.get(term) for term in MEASURE_TERMS.get(name, ())):
        return None
    if CRITERIA[criterion].measures[name].from_run:
        return data["limit"]
    limit = contract.limit(criterion, name)
    old_limit = data["limit"] or {}
    if limit is None and CRITERIA[criterion].measures[name].derived_in_run:
        return old_limit if old_limit.get("source") == "derived" else None
    return limit.model_dump(mode="json") if limit else None
