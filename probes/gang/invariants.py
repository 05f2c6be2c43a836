"""What samples of competing gangs mean: pure functions over what the observer saw.

A sample is as probes/gang/observer.py describes it.  Nothing here asks a cluster anything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

Sample = dict[str, Any]
WAITING_STATES = ("PENDING", "PREPARED")
MAX_BLIND_S = 10.0  # that NVML may be silent while a scene is judged
FREE_LAG = 2.0  # s for which Ray's view of what is free may lag behind
MAX_GAP = 1.0  # s without a look: a part of a gang that is held for less keeps nobody waiting


@dataclass(frozen=True)
class PartialHold:
    """A gang held `placed` of `size` from `start` to `end` (s)."""

    start: float
    end: float
    gang: str
    job: str
    placed: int
    size: int

    def describe(self) -> str:
        """`job B held 1 of 3 while it waited (from 1.2 to 1.9 s)`."""
        return (
            f"job {self.job} held {self.placed} of {self.size} while it waited "
            f"(gang {self.gang}, from {self.start:.2f} to {self.end:.2f} s)"
        )


def count_placed(sample: Sample, gang: str) -> int:
    """Accelerators that the gang holds."""
    return int(sample["gangs"].get(gang, {}).get("placed", 0))


def is_whole(sample: Sample, gang: str) -> bool:
    """Whether the gang holds all that it asked for."""
    entry = sample["gangs"].get(gang)
    return bool(entry) and entry["placed"] == entry["size"]


def count_held(sample: Sample, job: str | None = None) -> int:
    """Accelerators held by all gangs, or by those of one job; spare ones are not counted."""
    return sum(
        entry["placed"]
        for entry in sample["gangs"].values()
        if job in (None, entry["job"]) and not entry["spare"]
    )


def partial_gangs(sample: Sample) -> dict[str, tuple[str, int, int]]:
    """Gangs that hold something but not all: {gang: (job, placed, size)}.

    So is a gang whose actors run while its group waits.  A gang that lost a node
    (RESCHEDULING) once was whole: it is judged elsewhere.
    """
    partial = {}
    for gang, entry in sample["gangs"].items():
        if 0 < entry["placed"] < entry["size"] and entry["state"] != "RESCHEDULING":
            partial[gang] = entry["job"], entry["placed"], entry["size"]
        elif entry["state"] in WAITING_STATES and not entry["placed"]:
            alive = sample["actors"].get(entry["job"], 0)
            if alive and not count_held(sample, entry["job"]):
                partial[gang] = entry["job"], alive, entry["size"]
    return partial


def find_partial_holds(samples: Sequence[Sample]) -> list[PartialHold]:
    """Find spans in which part of a gang was held, in the order of their beginning."""
    spans, parts = [], [partial_gangs(sample) for sample in samples]
    starts = [sample["t"] for sample in samples]
    ends = starts[1:] + starts[-1:]  # each lasts until the next sample
    for gang in sorted({gang for part in parts for gang in part}):
        rows = zip([part.get(gang) for part in parts], starts, ends, strict=True)
        for part, group in groupby(rows, key=itemgetter(0)):  # equal neighbours are one span
            run = list(group)
            if part:
                spans.append(PartialHold(run[0][1], run[-1][2], gang, *part))
    return sorted(spans, key=lambda span: (span.start, span.gang))


def count_partial(samples: Sequence[Sample]) -> int:
    """How many samples show a part of a gang."""
    return sum(bool(partial_gangs(sample)) for sample in samples)


def find_overcommitted(samples: Sequence[Sample], capacity: dict[str, int]) -> list[dict[str, str]]:
    """Samples that show more held on a node than was free there before: {node: "3 of 2"}."""
    return [excess for sample in samples if (excess := _overcommitted_nodes(sample, capacity))]


def _overcommitted_nodes(sample: Sample, capacity: dict[str, int]) -> dict[str, str]:
    held_on: Counter[str] = Counter()
    for entry in sample["gangs"].values():
        if not entry["spare"]:
            held_on.update(entry["nodes"])
    return {
        node: f"{count} of {capacity.get(node, 0)}"
        for node, count in held_on.items()
        if count > capacity.get(node, 0)
    }


def count_leaked(samples: Sequence[Sample], total: int, lag_s: float = FREE_LAG) -> int:
    """Accelerators that for more than `lag_s` were neither free nor held by a gang.

    Negative ones (held and yet free) count as well: the largest stretch's smallest difference.
    """
    lost, since, smallest = 0, None, 0
    for sample in samples:
        missing = total - sample["free"] - count_held(sample)
        if since is None or not missing or (missing > 0) != (smallest > 0):
            since, smallest = (sample["t"], missing) if missing else (None, 0)
            continue
        smallest = min(smallest, missing, key=abs)
        if sample["t"] - since > lag_s:
            lost = max(lost, abs(smallest))
    return lost


def find_deadlocks(samples: Sequence[Sample], seconds: float) -> list[PartialHold]:
    """Hold and wait: spans over `seconds` in which two jobs or more hold parts of their gangs.

    Such jobs wait for each other: none can go on before another gives up.
    """

    def waiting_holds(sample: Sample) -> tuple[tuple[str, str, int, int], ...]:
        holds = {g: e for g, e in sample["gangs"].items() if 0 < e["placed"] < e["size"]}
        if len({entry["job"] for entry in holds.values()}) < 2:
            return ()
        return tuple((g, e["job"], e["placed"], e["size"]) for g, e in sorted(holds.items()))

    spans = []
    for holds_of_run, group in groupby(samples, key=waiting_holds):
        run = list(group)
        if holds_of_run and run[-1]["t"] - run[0]["t"] >= seconds:
            spans += [
                PartialHold(run[0]["t"], run[-1]["t"], gang, job, part, size)
                for gang, job, part, size in holds_of_run
            ]
    return spans


def find_hidden_gpus(
    samples: Sequence[Sample], ray_gpus: dict[str, int], lag_s: float = FREE_LAG
) -> dict[str, tuple[int, list[str]]]:
    """GPUs by node that processes use though Ray counts them as free.

    For more than `lag_s` on end, or at two looks or more at a node where Ray's count has not
    changed for as long: what comes and goes there is no gang's.  `in_use` of a sample, where it has
    one, is {node: {UUID: process ids}} by NVML; `ray_gpus` is what each node has by Ray.  Which of
    a node's GPUs those are Ray does not say: beside their number all that are in use at the worst
    moment are listed, with their processes.
    """
    hidden: dict[str, tuple[int, list[str]]] = {}
    for node, count in ray_gpus.items():
        excess = [_excess_use(sample, node, count) for sample in samples]
        calm = _calm_samples(samples, node, lag_s)
        stray = [e is not None and e > 0 and quiet for e, quiet in zip(excess, calm, strict=True)]
        comes_and_goes, since, worst = stray.count(True) > 1, None, 0
        for sample, more, is_stray in zip(samples, excess, stray, strict=True):
            if more is None:
                continue
            since = (sample["t"] if since is None else since) if more > 0 else None
            lasts = since is not None and sample["t"] - since > lag_s
            if more > worst and (lasts or (is_stray and comes_and_goes)):
                worst, uses = more, sample["in_use"][node]
                gpus = [
                    f"{uuid} (processes {', '.join(map(str, pids)) or 'not told'})"
                    for uuid, pids in uses.items()
                ]
                hidden[node] = worst, gpus
    return hidden


def _excess_use(sample: Sample, node: str, count: int) -> int | None:
    """How many GPUs of a node are in use beyond what Ray has given away; None: nobody looked."""
    uses = sample.get("in_use", {}).get(node)
    return len(uses) - (count - sample["free_on"].get(node, 0)) if isinstance(uses, dict) else None


def _calm_samples(samples: Sequence[Sample], node: str, lag_s: float) -> list[bool]:
    """Whether at each sample what Ray counts as free on a node has been the same for so long."""
    calm, since, before = [], None, None
    for sample in samples:
        free = sample["free_on"].get(node, 0)
        if since is None or free != before:
            since, before = sample["t"], free
        calm.append(sample["t"] - since > lag_s)
    return calm


def nvml_errors(samples: Sequence[Sample], ray_gpus: dict[str, int]) -> dict[str, str]:
    """Find nodes whose GPUs NVML told nothing of in these samples, or nothing for too long; why.

    One slow answer is no blindness: NVML starts a driver that does not persist, which takes 1 to
    2 s for each GPU, and waits behind contexts that are torn down.
    """
    return {
        node: reason
        for node, count in ray_gpus.items()
        if count and (reason := _nvml_silence(samples, node))
    }


def _nvml_silence(samples: Sequence[Sample], node: str) -> str:
    """Tell why nothing is known of a node's GPUs for all of these samples, or MAX_BLIND_S."""
    looks = [(one["t"], one["in_use"].get(node)) for one in samples if "in_use" in one]
    errors = [use for _, use in looks if isinstance(use, str)]
    reason = errors[-1] if errors else "nobody looked"
    answered = [t for t, use in looks if isinstance(use, dict)]
    if not answered:
        return reason
    edges = [samples[0]["t"], *answered, samples[-1]["t"]]
    silent = max(b - a for a, b in pairwise(edges))
    return f"no answer for {silent:.0f} s ({reason})" if silent > MAX_BLIND_S else ""


def sample_gaps(samples: Sequence[Sample]) -> list[float]:
    """Seconds between neighbours."""
    return [b["t"] - a["t"] for a, b in pairwise(samples)]


def sample_rate(gaps: Sequence[float], required: float) -> tuple[float | None, str]:
    """Looks a second, where there were enough and none was missed for long; else None and why."""
    rate = len(gaps) / sum(gaps) if gaps else 0.0
    if rate >= required and max(gaps) <= MAX_GAP:
        return rate, ""
    return None, f"{rate:.1f} samples a second, and none for {max(gaps, default=0):.1f} s"


def percentile_95(values: Sequence[float]) -> float | None:
    """What 95 of 100 values do not exceed; None of none."""
    return sorted(values)[int(0.95 * (len(values) - 1))] if values else None


def explain_misplaced(strategy: str, nodes: dict[str, int], capacity: dict[str, int]) -> str:
    """Why a placed group breaks its strategy; "" when it keeps it.

    `nodes` are its bundles per node, `capacity` what was free per node before.  PACK and SPREAD are
    wishes to Ray: they are judged only where they could be met in full.
    """
    size, used = sum(nodes.values()), len(nodes)
    free_nodes = sum(count > 0 for count in capacity.values())
    if strategy == "STRICT_PACK" and used > 1:
        return f"STRICT_PACK of {size} lies on {used} nodes, expected 1"
    if strategy == "STRICT_SPREAD" and used < size:
        return f"STRICT_SPREAD of {size} lies on {used} nodes, expected {size}"
    if strategy == "PACK" and used > 1 and max(capacity.values(), default=0) >= size:
        return f"PACK of {size} lies on {used} nodes though one had room for all"
    if strategy == "SPREAD" and used < size <= free_nodes:
        return f"SPREAD of {size} lies on {used} nodes though {free_nodes} had room"
    return ""


def sample_changes(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Samples as the picture needs them: per node and job, and only where something changed."""
    rows: list[dict[str, Any]] = []
    for sample in samples:
        nodes: dict[str, Counter[str]] = defaultdict(Counter)
        waits: Counter[str] = Counter()
        for entry in sample["gangs"].values():
            for node, count in entry["nodes"].items():
                nodes[node][entry["job"]] += count
            if entry["placed"] < entry["size"]:
                waits[entry["job"]] += entry["size"] - entry["placed"]
        if not rows or (rows[-1]["nodes"], rows[-1]["waits"]) != (nodes, waits):
            rows.append({"t": sample["t"], "nodes": nodes, "waits": waits})
    return rows
