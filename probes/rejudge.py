"""Judge an old run by another contract.  Needs no cluster: the record has what was measured."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from probes.contract import Contract, load
from probes.criteria import TABLE
from reports.store import Store, read_events
from reports.store import fold as check


def rejudged(run: Path, name: str) -> Path:
    """Write `<run>-by-<contract>` beside `run` and return it; the old run stays as it is.

    Limits that came from the probe's own set-up (such as a save interval) are kept: no
    contract gives them.  Raises ContractError or UnreadableRun.
    """
    contract, events = load(name), read_events(run)
    check(events)
    target = run.with_name(f"{run.name}-by-{contract.name}")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run / "evidence", target / "evidence") if (run / "evidence").is_dir() else None
    store, criterion = Store(target), {}
    for event in events:
        data: dict[str, Any] = dict(event["data"])
        if event["event"] == "run_started":
            data |= {"id": target.name, "contract": contract.facts().model_dump(mode="json")}
        if event["event"] == "probe_started":
            criterion[event["probe"]] = data["criterion"]
        if event["event"] == "measurement" and data["judged"]:
            data["limit"] = _limit(contract, criterion[event["probe"]], data)
        store.event(event["event"], event.get("probe", ""), **data)
    store.save()
    store.close()
    return target


def _limit(contract: Contract, criterion: str, data: dict[str, Any]) -> Any:
    if data["name"] not in TABLE[criterion].measures:
        return data["limit"]
    limit = contract.limit(criterion, data["name"])
    old = data["limit"]
    if limit is None and old is not None and not old.get("source"):
        return old
    return limit.model_dump(mode="json") if limit else None
