"""What samples of competing gangs mean: pure functions over what the observer saw.

A sample is as probes/gang/observer.py describes it.  Nothing here asks a cluster anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

Sample = dict[str, Any]
WAITING = ("PENDING", "PREPARED")
LINGER = 2.0  # s for which Ray's view of what is free may lag behind
BLIND = 1.0  # s without a look: a part of a gang that is held for less keeps nobody waiting


@dataclass(frozen=True)
class Span:
    """A gang held `placed` of `size` from `start` to `end` (s)."""

    start: float
    end: float
    gang: str
    job: str
    placed: int
    size: int

    def said(self) -> str:
        """`job B held 1 of 3 while it waited (from 1.2 to 1.9 s)`."""
        return (
            f"job {self.job} held {self.placed} of {self.size} while it waited "
            f"(gang {self.gang}, from {self.start:.2f} to {self.end:.2f} s)"
        )


def placed(sample: Sample, gang: str) -> int:
    """Accelerators that the gang holds."""
    return int(sample["gangs"].get(gang, {}).get("placed", 0))


def whole(sample: Sample, gang: str) -> bool:
    """Whether the gang holds all that it asked for."""
    entry = sample["gangs"].get(gang)
    return bool(entry) and entry["placed"] == entry["size"]


def held(sample: Sample, job: str | None = None) -> int:
    """Accelerators held by all gangs, or by those of one job; spare ones are not counted."""
    return sum(
        entry["placed"]
        for entry in sample["gangs"].values()
        if job in (None, entry["job"]) and not entry["spare"]
    )


def part_held(sample: Sample) -> dict[str, tuple[str, int, int]]:
    """Gangs that hold something but not all: {gang: (job, placed, size)}.

    So is a gang whose actors run while its group waits.  A gang that lost a node
    (RESCHEDULING) once was whole: it is judged elsewhere.
    """
    found = {}
    for gang, entry in sample["gangs"].items():
        if 0 < entry["placed"] < entry["size"] and entry["state"] != "RESCHEDULING":
            found[gang] = entry["job"], entry["placed"], entry["size"]
        elif entry["state"] in WAITING and not entry["placed"]:
            alive = sample["actors"].get(entry["job"], 0)
            if alive and not held(sample, entry["job"]):
                found[gang] = entry["job"], alive, entry["size"]
    return found


def halves(samples: Sequence[Sample]) -> list[Span]:
    """Spans in which part of a gang was held, in the order of their beginning."""
    spans: list[Span] = []
    for gang in sorted({gang for sample in samples for gang in part_held(sample)}):
        marked = [(sample["t"], part_held(sample).get(gang)) for sample in samples]
        spans += _runs(gang, marked)
    return sorted(spans, key=lambda span: (span.start, span.gang))


def _runs(gang: str, marked: list[tuple[float, tuple[str, int, int] | None]]) -> list[Span]:
    """Equal neighbours joined; each lasts until the next sample."""
    ends = [t for t, _ in marked[1:]] + [marked[-1][0]]
    rows = [(t, end, part) for (t, part), end in zip(marked, ends, strict=True)]
    spans = []
    for part, group in groupby(rows, key=lambda row: row[2]):
        run = list(group)
        if part:
            spans.append(Span(run[0][0], run[-1][1], gang, *part))
    return spans


def half_samples(samples: Sequence[Sample]) -> int:
    """How many samples show a part of a gang."""
    return sum(bool(part_held(sample)) for sample in samples)


def overcommitted(samples: Sequence[Sample], room: dict[str, int]) -> list[dict[str, str]]:
    """Samples that show more held on a node than was free there before: {node: "3 of 2"}."""
    return [over for sample in samples if (over := _over(sample, room))]


def _over(sample: Sample, room: dict[str, int]) -> dict[str, str]:
    on: Counter[str] = Counter()
    for entry in sample["gangs"].values():
        if not entry["spare"]:
            on.update(entry["nodes"])
    return {
        node: f"{count} of {room.get(node, 0)}"
        for node, count in on.items()
        if count > room.get(node, 0)
    }


def unaccounted(samples: Sequence[Sample], total: int, linger: float = LINGER) -> int:
    """Accelerators that for more than `linger` s were neither free nor held by a gang.

    Negative ones (held and yet free) count as well: the largest stretch's smallest difference.
    """
    worst, since, least = 0, None, 0
    for sample in samples:
        missing = total - sample["free"] - held(sample)
        if since is None or not missing or (missing > 0) != (least > 0):
            since, least = (sample["t"], missing) if missing else (None, 0)
            continue
        least = min(least, missing, key=abs)
        if sample["t"] - since > linger:
            worst = max(worst, abs(least))
    return worst


def deadlocks(samples: Sequence[Sample], seconds: float) -> list[Span]:
    """Hold and wait: spans over `seconds` in which two jobs or more hold parts of their gangs.

    Such jobs wait for each other: none can go on before another gives up.
    """

    def knot(sample: Sample) -> tuple[tuple[str, str, int, int], ...]:
        holds = {g: e for g, e in sample["gangs"].items() if 0 < e["placed"] < e["size"]}
        if len({entry["job"] for entry in holds.values()}) < 2:
            return ()
        return tuple((g, e["job"], e["placed"], e["size"]) for g, e in sorted(holds.items()))

    spans = []
    for held_by, group in groupby(samples, key=knot):
        run = list(group)
        if held_by and run[-1]["t"] - run[0]["t"] >= seconds:
            spans += [
                Span(run[0]["t"], run[-1]["t"], gang, job, part, size)
                for gang, job, part, size in held_by
            ]
    return spans


def unseen(
    samples: Sequence[Sample], counted: dict[str, int], linger: float = LINGER
) -> dict[str, tuple[int, list[str]]]:
    """GPUs by node that processes use for more than `linger` s though Ray counts them as free.

    `in_use` of a sample, where it has one, is {node: {UUID: process ids}} by NVML; `counted` is
    what each node has by Ray.  Which of a node's GPUs those are Ray does not say: beside their
    number all that are in use at the worst moment are listed, with their processes.
    """
    found: dict[str, tuple[int, list[str]]] = {}
    for node, count in counted.items():
        rows = [one for one in samples if isinstance(one.get("in_use", {}).get(node), dict)]
        since, most = None, 0
        for sample in rows:
            uses = sample["in_use"][node]
            more = len(uses) - (count - sample["free_on"].get(node, 0))
            since = (sample["t"] if since is None else since) if more > 0 else None
            if since is not None and sample["t"] - since > linger and more > most:
                most = more
                told = [
                    f"{uuid} (processes {', '.join(map(str, pids)) or 'not told'})"
                    for uuid, pids in uses.items()
                ]
                found[node] = most, told
    return found


def sightless(samples: Sequence[Sample], counted: dict[str, int]) -> dict[str, str]:
    """Nodes with GPUs of which NVML told nothing at some look in these samples, and why."""
    looks = [sample["in_use"] for sample in samples if "in_use" in sample] or [{}]
    told = {node: [look.get(node, "nobody looked") for look in looks] for node in counted}
    blind = {node: [one for one in each if isinstance(one, str)] for node, each in told.items()}
    return {node: each[-1] for node, each in blind.items() if counted[node] and each}


def gaps(samples: Sequence[Sample]) -> list[float]:
    """Seconds between neighbours."""
    return [b["t"] - a["t"] for a, b in pairwise(samples)]


def rate_seen(gaps: Sequence[float], owed: float) -> tuple[float | None, str]:
    """Looks a second, where there were enough and none was missed for long; else None and why."""
    rate = len(gaps) / sum(gaps) if gaps else 0.0
    if rate >= owed and max(gaps) <= BLIND:
        return rate, ""
    return None, f"{rate:.1f} samples a second, and none for {max(gaps, default=0):.1f} s"


def usual_most(values: Sequence[float]) -> float | None:
    """What 95 of 100 values do not exceed; None of none."""
    return sorted(values)[int(0.95 * (len(values) - 1))] if values else None


def misplaced(strategy: str, nodes: dict[str, int], room: dict[str, int]) -> str:
    """Why a placed group breaks its strategy; "" when it keeps it.

    `nodes` are its bundles per node, `room` what was free per node before.  PACK and SPREAD are
    wishes to Ray: they are judged only where they could be met in full.
    """
    size, used = sum(nodes.values()), len(nodes)
    open_ = sum(count > 0 for count in room.values())
    if strategy == "STRICT_PACK" and used > 1:
        return f"STRICT_PACK of {size} lies on {used} nodes, expected 1"
    if strategy == "STRICT_SPREAD" and used < size:
        return f"STRICT_SPREAD of {size} lies on {used} nodes, expected {size}"
    if strategy == "PACK" and used > 1 and max(room.values(), default=0) >= size:
        return f"PACK of {size} lies on {used} nodes though one had room for all"
    if strategy == "SPREAD" and used < size <= open_:
        return f"SPREAD of {size} lies on {used} nodes though {open_} had room"
    return ""


def changes(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Samples as the picture needs them: per node and job, and only where something changed."""
    found: list[dict[str, Any]] = []
    for sample in samples:
        nodes: dict[str, dict[str, int]] = {}
        waits: dict[str, int] = {}
        for entry in sample["gangs"].values():
            for node, count in entry["nodes"].items():
                per_job = nodes.setdefault(node, {})
                per_job[entry["job"]] = per_job.get(entry["job"], 0) + count
            if entry["placed"] < entry["size"]:
                wanted = entry["size"] - entry["placed"]
                waits[entry["job"]] = waits.get(entry["job"], 0) + wanted
        if not found or (found[-1]["nodes"], found[-1]["waits"]) != (nodes, waits):
            found.append({"t": sample["t"], "nodes": nodes, "waits": waits})
    return found
