"""Judges the sums of each accelerator: right, and equal to the last bit where they must be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from probes.acceptance.measure import Recorder
from probes.findings import finding, join_names, name_gpu
from probes.hosts.compute.fleet import Speed, WorkFleet
from probes.hosts.compute.results import Accelerators, count_by_node, explain_by_node
from reports.record import Finding

Sums = Mapping[str, Any]  # as AcceleratorWorker.check_sums gives them
SHOWN = 8  # digits of a hash in messages


def judge_sums(
    fleet: WorkFleet, sums: Mapping[str, Sums], measure: Recorder, *, hashes: bool
) -> None:
    """Judge wrong sums, and (`hashes`) whether equal accelerators give equal bits."""
    judge_known_sums(fleet, sums, measure)
    if hashes:
        judge_hashes(fleet, sums, measure)


def judge_errors(
    fleet: WorkFleet,
    sums: Mapping[str, Sums],
    runs: Iterable[Mapping[str, Speed]],
    measure: Recorder,
) -> None:
    """Judge that no accelerator ends its work with an error, and that its worker answers.

    A worker that never started proves nothing: its accelerator may be in use.
    """
    errors = {key: one.error for key, one in fleet.accelerators.items() if one.error}
    errors |= {key: str(one["error"]) for key, one in sums.items() if one["error"]}
    errors |= {key: one.error for run in runs for key, one in run.items() if one.error}
    texts = {key: f"torch stops with: {text}" for key, text in errors.items()}
    silent = [key for key, one in fleet.accelerators.items() if key in fleet.errors]
    started = [key for key in silent if fleet.accelerators[key].number]
    texts |= {key: f"it stops to answer: {fleet.errors[key]}" for key in started}
    unknown = {key: fleet.why_unknown(key) for key in silent if key not in started}
    count_by_node("work_errors", fleet.accelerators, texts, unknown, measure)
    explain_by_node("HOST-GPU-ERROR", fleet.accelerators, texts, measure)


def judge_known_sums(fleet: WorkFleet, sums: Mapping[str, Sums], measure: Recorder) -> None:
    """Judge that each element of the GEMM with a known answer is right."""
    counts = {key: one["wrong"] for key, one in sums.items()}
    wrong = {key: count for key, count in counts.items() if count}
    unknown = {key: fleet.why_unknown(key) for key in fleet.accelerators if counts.get(key) is None}
    count_by_node("gemm_wrong", fleet.accelerators, wrong, unknown, measure)
    texts = {
        key: f"{count} elements of a GEMM of whole numbers are wrong"
        for key, count in wrong.items()
    }
    explain_by_node("HOST-WRONG-SUM", fleet.accelerators, texts, measure)


def judge_hashes(fleet: WorkFleet, sums: Mapping[str, Sums], measure: Recorder) -> None:
    """Judge that accelerators of one build give the same bits, each time."""
    hashes = {key: list(one["hashes"]) for key, one in sums.items() if one["hashes"]}
    found = HashComparison()
    for keys in group_by_build(fleet.accelerators).values():
        found.compare({key: hashes[key] for key in keys if key in hashes})
    unknown = {key: fleet.why_unknown(key) for key in fleet.accelerators if key not in hashes}
    for key in found.alone:
        one = fleet.accelerators[key]
        unknown[key] = f"{one.label}: no other {one.model} with its software gave a result"
    accused = [*found.odd, *(key for keys in found.split for key in keys)]
    count_by_node("gemm_hash_differs", fleet.accelerators, accused, unknown, measure)
    explain_by_node("HOST-WRONG-SUM", fleet.accelerators, found.odd, measure)
    for keys in found.split:
        measure.explain(_split_finding(fleet.accelerators, keys))


@dataclass
class HashComparison:
    """Who gives other bits than most of its build, with the text of a finding.

    `split` are groups in which no result has a majority.  `alone` could not be compared.
    """

    odd: dict[str, str] = field(default_factory=dict)
    split: list[list[str]] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)

    def compare(self, hashes: Mapping[str, list[str]]) -> None:
        """Compare the results of accelerators of one build."""
        unstable = find_unstable(hashes)
        first = {key: own[0] for key, own in hashes.items() if key not in unstable}
        self.odd |= unstable
        usual = find_majority(first)
        if len(first) == 1:
            self.alone += first
        elif usual is None:
            self.split += [list(first)] * bool(first)
        else:
            others = {key: one for key, one in first.items() if one != usual}
            self.odd |= {key: _odd_text(one, usual) for key, one in others.items()}


def _odd_text(one: str, usual: str) -> str:
    return f"a GEMM gives {one[:SHOWN]}, and {usual[:SHOWN]} on most GPUs of its kind"


def group_by_build(accelerators: Accelerators) -> dict[tuple[str, ...], list[str]]:
    """Group the accelerators that must give the same bits; those that did not start have none."""
    groups = defaultdict[tuple[str, ...], list[str]](list)
    for key, one in accelerators.items():
        groups[one.build or (key,)].append(key)
    return groups


def find_unstable(hashes: Mapping[str, list[str]]) -> dict[str, str]:
    """Find who does not give the same bits each time, with the text of a finding."""
    return {
        key: f"the same GEMM gives {len(set(own))} results in {len(own)} runs"
        for key, own in hashes.items()
        if len(set(own)) > 1
    }


def find_majority(hashes: Mapping[str, str]) -> str | None:
    """Find the hash that more than half have; None if there is none."""
    if not hashes:
        return None
    usual, count = Counter(hashes.values()).most_common(1)[0]
    return usual if 2 * count > len(hashes) else None


def _split_finding(accelerators: Accelerators, keys: list[str]) -> Finding:
    labels = join_names(accelerators[key].label for key in keys)
    text = f"{labels}: the same GEMM gives other bits on some of them, and no result has a majority"
    nodes = list(dict.fromkeys(accelerators[key].node for key in keys))
    first = accelerators[keys[0]]
    return finding("HOST-WRONG-SUM", text, nodes, names=name_gpu(first.uuid, first.number))
