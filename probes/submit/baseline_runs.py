"""Chooses which runs of a folder go along as baselines, by what they say of themselves.

The machine that submits has the standard library alone.  The cluster verifies the runs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

EVENTS, RECORD = "events.jsonl", "record.json"  # each run folder has them
ACCEPTED, UNPROVEN = 0, 20  # exit codes of runs that may be a baseline
MAX_CLUSTERS = 4  # of which runs of a folder go along


def choose_runs(folder: Path) -> list[Path]:
    """Choose the runs below a folder that may be the baseline: the cluster chooses among them.

    Of each cluster these are the newest that was accepted, and the newest that did not fail: no
    number of failed runs pushes them out.  The newest run of all goes along: the cluster says why
    it is no baseline.
    """
    runs = sorted(map(_look_at, _find_runs(folder)), key=lambda run: run.started, reverse=True)
    chosen: dict[Path, None] = {}
    for cluster in list(dict.fromkeys(run.cluster for run in runs))[:MAX_CLUSTERS]:
        own = [run for run in runs if run.cluster == cluster]
        accepted = [run for run in own if run.code == ACCEPTED]
        sound = [run for run in own if run.code in (ACCEPTED, UNPROVEN) and run.is_whole]
        chosen |= {run.path: None for run in (*accepted[:1], *sound[:1])}
    return sorted({**chosen, **{run.path: None for run in runs[:1]}})


def _find_runs(folder: Path) -> Iterator[Path]:
    """Find run folders at any depth; neither links nor hidden folders are followed."""
    for place, names, files in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".")]
        if EVENTS in files:
            names.clear()
            yield Path(place)


class _Look(NamedTuple):
    """What a run says of itself; the cluster verifies it."""

    path: Path
    started: str
    cluster: str
    code: int | None
    is_whole: bool = False  # finished, and not PARTIAL


def _look_at(run: Path) -> _Look:
    try:
        record = json.loads((run / RECORD).read_bytes())
        started, facts = str(record["started"]), record["cluster"]
        kind = bool(record.get("rehearsal"))
        cluster = json.dumps([facts.get("name"), len(facts.get("nodes") or ()), kind])
        is_whole = record.get("state") == "finished" and not record.get("partial")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        started, cluster, is_whole = "", "", False
    return _Look(run, started, cluster, recorded_code(run), is_whole)


def recorded_code(run: Path) -> int | None:
    """Read the exit code that a run recorded in metrics.prom; None if it has none."""
    try:
        text = (run / "metrics.prom").read_text()
    except (OSError, ValueError):
        return None
    found = re.search(r"^seatrial_exit_code(?:\{.*\})? (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None
