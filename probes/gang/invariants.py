"""Interprets samples of competing gangs: pure functions that ask no cluster.

probes/gang/observer.py describes the shape of a sample.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from reports.numbers import quantity

Sample = dict[str, Any]
WAITING_STATES = ("PENDING", "PREPARED")
MAX_BLIND_S = 10.0  # that NVML may be silent while a scenario is judged
FREE_LAG = 2.0  # s that Ray's view of free accelerators may lag behind
MAX_GAP = 1.0  # s between two samples: a shorter partial hold keeps no job waiting


@dataclass(frozen=True)
class PartialHold:
    """A gang that held `placed` of `size` accelerators from `start` to `end` (s)."""

    start: float
    end: float
    gang: str
    job: str
    placed: int
    size: int

    def describe(self) -> str:
        """Format as `test job B held 1 of 3 accelerators while it waited for the rest (...)`."""
        return (
            f"test job {self.job} held {self.placed} of {self.size} accelerators while it waited "
            f"for the rest (gang {self.gang}, from {self.start:.2f} to {self.end:.2f} s)"
        )


def count_placed(sample: Sample, gang: str) -> int:
    """Count the accelerators that the gang holds."""
    return int(sample["gangs"].get(gang, {}).get("placed", 0))


def is_whole(sample: Sample, gang: str) -> bool:
    """Return whether the gang holds all accelerators that it asked for."""
    entry = sample["gangs"].get(gang)
    return bool(entry) and entry["placed"] == entry["size"]


def count_held(sample: Sample, job: str | None = None) -> int:
    """Count accelerators held by all gangs, or by those of one job; spare gangs do not count."""
    own = [entry for entry in sample["gangs"].values() if job in (None, entry["job"])]
    return sum(entry["placed"] for entry in own if not entry["spare"])


def partial_gangs(sample: Sample) -> dict[str, tuple[str, int, int]]:
    """Find gangs that hold some of their accelerators but not all: {gang: (job, placed, size)}.

    A gang whose actors run while its group waits counts too. A gang that lost a node (RESCHEDULING)
    does not count: it was fully placed before, and another check judges it.
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
    """Find spans in which a gang was partly placed, in the order of their start."""
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


def find_overcommitted(samples: Sequence[Sample], capacity: dict[str, int]) -> list[dict[str, str]]:
    """List the samples that hold more on a node than its capacity, each as {node: "3 of 2"}."""
    return [excess for sample in samples if (excess := _overcommitted_nodes(sample, capacity))]


def _overcommitted_nodes(sample: Sample, capacity: dict[str, int]) -> dict[str, str]:
    held_on: Counter[str] = Counter()
    for entry in sample["gangs"].values():
        if not entry["spare"]:
            held_on.update(entry["nodes"])
    excess = {node: count for node, count in held_on.items() if count > capacity.get(node, 0)}
    return {node: f"{count} of {capacity.get(node, 0)}" for node, count in excess.items()}


def count_leaked(samples: Sequence[Sample], total: int, lag_s: float = FREE_LAG) -> int:
    """Count accelerators that were neither free nor held by a gang for more than `lag_s` seconds.

    Accelerators that are held and also free count as well. Each span counts with its smallest
    difference; the result is the largest of these.
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
    """Find spans of at least `seconds` in which two or more jobs hold parts of their gangs.

    Such jobs hold and wait for each other: none can go on before another gives up.
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
            spans += [PartialHold(run[0]["t"], run[-1]["t"], *hold) for hold in holds_of_run]
    return spans


def find_hidden_gpus(
    samples: Sequence[Sample], ray_gpus: dict[str, int], lag_s: float = FREE_LAG
) -> dict[str, tuple[int, list[str]]]:
    """Find GPUs that processes use although Ray counts them as free: {node: (count, GPUs)}.

    A use counts if it lasts for more than `lag_s` seconds. It also counts if two or more samples
    show it on a calm node. There Ray's free count has not changed for `lag_s`, so no gang comes or
    goes. `in_use` of a sample, if present, is {node: {UUID: process ids}} from NVML. `ray_gpus` is
    the number of GPUs that Ray counts on each node. Ray does not report which GPUs these are. So
    the result lists all GPUs that are in use at the worst moment, with their processes.
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
                    f"{uuid} (processes {', '.join(map(str, pids)) or 'unknown'})"
                    for uuid, pids in uses.items()
                ]
                hidden[node] = worst, gpus
    return hidden


def _excess_use(sample: Sample, node: str, count: int) -> int | None:
    """Count a node's GPUs in use beyond those that Ray has given away; None without NVML data."""
    uses = sample.get("in_use", {}).get(node)
    return len(uses) - (count - sample["free_on"].get(node, 0)) if isinstance(uses, dict) else None


def _calm_samples(samples: Sequence[Sample], node: str, lag_s: float) -> list[bool]:
    """Return for each sample whether Ray's free count on the node has been constant for `lag_s`."""
    calm, since, before = [], None, None
    for sample in samples:
        free = sample["free_on"].get(node, 0)
        if since is None or free != before:
            since, before = sample["t"], free
        calm.append(sample["t"] - since > lag_s)
    return calm


def nvml_errors(samples: Sequence[Sample], ray_gpus: dict[str, int]) -> dict[str, str]:
    """Find nodes without NVML data in these samples, or without it for too long: {node: reason}.

    One slow answer is no error. Without persistence mode NVML starts the driver, which takes 1 to 2
    s for each GPU. NVML also waits while CUDA contexts are torn down.
    """
    reasons = {node: _nvml_silence(samples, node) for node, count in ray_gpus.items() if count}
    return {node: reason for node, reason in reasons.items() if reason}


SILENCE = "NVML has not answered"  # begins what the observer says of a GPU driver that hangs


def _nvml_silence(samples: Sequence[Sample], node: str) -> str:
    """Explain why NVML has no data in all of these samples, or for more than MAX_BLIND_S."""
    looks = [(one["t"], one["in_use"].get(node)) for one in samples if "in_use" in one]
    errors = [use for _, use in looks if isinstance(use, str)]
    answered = [t for t, use in looks if isinstance(use, dict)]
    if not answered:
        return errors[-1] if errors else "seatrial has no answer from NVML"
    edges = [samples[0]["t"], *answered, samples[-1]["t"]]
    silent = max(b - a for a, b in pairwise(edges))
    # What only says that NVML was silent would be a second number for the same silence.
    other = [error for error in errors if not error.startswith(SILENCE)]
    why = f" ({other[-1]})" if other else ""
    return f"NVML did not answer for {silent:.0f} s{why}" if silent > MAX_BLIND_S else ""


def sample_gaps(samples: Sequence[Sample]) -> list[float]:
    """Compute the seconds between neighbouring samples."""
    return [b["t"] - a["t"] for a, b in pairwise(samples)]


def sample_rate(gaps: Sequence[float], required: float) -> tuple[float | None, str]:
    """Compute samples per second, or (None, reason) if there are too few or a gap is too long."""
    rate = len(gaps) / sum(gaps) if gaps else 0.0
    if rate >= required and max(gaps) <= MAX_GAP:
        return rate, ""
    longest = max(gaps, default=0)
    return None, (
        f"seatrial took {rate:.1f} samples a second, and the longest pause was {longest:.1f} s. "
        f"Expected: {required:g} samples a second or more, and no pause above {MAX_GAP:g} s. "
        "Reduce the load on Ray's head node, and test again"
    )


def percentile_95(values: Sequence[float]) -> float | None:
    """Compute the 95th percentile; None if there are no values."""
    return sorted(values)[int(0.95 * (len(values) - 1))] if values else None


def explain_misplaced(strategy: str, nodes: dict[str, int], capacity: dict[str, int]) -> str:
    """Explain why a placed group breaks its strategy; return "" if it does not.

    `nodes` is the group's bundles per node, `capacity` what was free per node before. PACK and
    SPREAD are only preferences in Ray: they are judged only if they could be met in full.
    """
    size, used = sum(nodes.values()), len(nodes)
    free_nodes = sum(count > 0 for count in capacity.values())
    fits_one = max(capacity.values(), default=0) >= size
    spread = f"{size} nodes"
    wrong, expected = {
        "STRICT_PACK": (used > 1, "1 node"),
        "STRICT_SPREAD": (used < size, spread),
        "PACK": (used > 1 and fits_one, "1 node (one node had room for all)"),
        "SPREAD": (used < size <= free_nodes, f"{spread} ({free_nodes} nodes had room)"),
    }[strategy]
    found = f"{strategy} gang of {size} accelerators is on {quantity(used, 'nodes')}"
    return f"{found}. Expected: {expected}" if wrong else ""


def sample_changes(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Reduce samples to rows for the chart: per node and job, only where something changed."""
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
