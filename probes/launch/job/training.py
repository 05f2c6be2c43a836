"""Judges what a job trained: weights, samples, validation, metrics, loss, and its export."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from probes.launch.job.announcements import ids_of, logged_losses, numbers_of
from probes.launch.job.ranks import Row
from reference_trainer.config import TrainConfig
from reports.numbers import quantity

BATCH = TrainConfig.batch  # samples of a rank and step: the guide's job leaves it as it is
MAX_SHOWN = 8  # samples that a finding names


@dataclass(frozen=True)
class TrainedJob:
    """What the ranks of a job that ended say of their training, and the losses that it logged."""

    rows: Sequence[Row]
    logged: Sequence[float]

    @classmethod
    def read(cls, rows: Sequence[Row], text: str) -> TrainedJob:
        """Read the logged losses from the job's output."""
        return cls(rows, logged_losses(text))


@dataclass(frozen=True)
class Wrong:
    """Ranks with something wrong, and a sentence without a full stop."""

    ranks: tuple[str, ...]
    text: str


def wrong_weights(job: TrainedJob) -> list[Wrong]:
    """Find the ranks whose weights are not those of most, before the first step or at the end."""
    return [
        *_odd_ranks(job, "start", "weights before the first step"),
        *_odd_ranks(job, "end", "weights after the last step"),
    ]


def wrong_validation(job: TrainedJob) -> list[Wrong]:
    """Find the ranks that validate on other data than most."""
    return _odd_ranks(job, "validation", "validation data")


def _odd_ranks(job: TrainedJob, name: str, what: str) -> list[Wrong]:
    """Find the ranks whose value differs from that of most; of a tie, from rank 0's."""
    values = {row["RANK"]: row.get(name) for row in job.rows}
    counts = Counter(value for value in values.values() if value is not None)
    most = max(counts, key=lambda value: (counts[value], value == values.get("0")), default=None)
    groups: dict[str | None, list[str]] = {}
    for rank, value in values.items():
        if value != most or value is None:
            groups.setdefault(value, []).append(rank)
    return [
        Wrong(tuple(ranks), f"{what}: {value or 'none was reported'}, others {most or 'neither'}")
        for value, ranks in groups.items()
    ]


def wrong_samples(job: TrainedJob) -> tuple[int | None, list[Wrong]]:
    """Count the samples that two ranks trained on, none, or one again; None if a rank did not say.

    The samples of all ranks together are those from 0 on, each once, BATCH a rank and step.
    """
    known = {row["RANK"]: ids_of(row) for row in job.rows}
    ids = {rank: found for rank, found in known.items() if found is not None}
    if not ids or len(ids) < len(known) or not job.logged:
        return None, []
    holders: dict[int, list[str]] = {}
    for rank, own in ids.items():
        for sample in own:
            holders.setdefault(sample, []).append(rank)
    shared: dict[tuple[str, ...], list[int]] = {}
    for sample, ranks in sorted(holders.items()):
        if len(ranks) > 1:
            shared.setdefault(tuple(ranks), []).append(sample)
    missing = sorted(set(range(BATCH * len(job.logged) * len(ids))) - holders.keys())
    again = {row["RANK"]: _seen_again(row, ids[row["RANK"]]) for row in job.rows}
    wrong = [
        Wrong(ranks, f"trained on the same {_samples(samples)}")
        for ranks, samples in shared.items()
    ]
    wrong += [
        Wrong((rank,), f"trained {quantity(count, 'times')} on a sample that it had seen")
        for rank, count in again.items()
        if count
    ]
    if missing:
        wrong.append(Wrong((), f"no rank trained on {_samples(missing)}"))
    return sum(map(len, shared.values())) + len(missing) + sum(again.values()), wrong


def _seen_again(row: Row, ids: set[int]) -> int:
    """Count the samples of a rank that were not its first of that number."""
    seen = row.get("seen", "")
    return max(0, int(seen) - len(ids)) if seen.isdecimal() else 0


def _samples(samples: Sequence[int]) -> str:
    shown = ", ".join(map(str, samples[:MAX_SHOWN]))
    more = f" and {len(samples) - MAX_SHOWN} more" if len(samples) > MAX_SHOWN else ""
    return f"{'sample' if len(samples) == 1 else 'samples'} {shown}{more}"


def metric_error(job: TrainedJob) -> tuple[float | None, int]:
    """Return the largest relative error of a logged loss, against the mean of the ranks' own.

    The second is its step.  None if a rank's losses or the logged ones are missing.
    """
    losses = [numbers_of(row, "losses") for row in job.rows]
    if not losses or not job.logged or any(len(own) != len(job.logged) for own in losses):
        return None, 0
    means = [sum(step) / len(step) for step in zip(*losses, strict=True)]
    errors = [
        abs(logged - mean) / abs(mean) if mean else math.inf
        for logged, mean in zip(job.logged, means, strict=True)
    ]
    if any(math.isnan(error) for error in errors):
        return None, 0
    worst = max(errors)
    return worst, errors.index(worst) + 1


def loss_ratio(job: TrainedJob) -> float | None:
    """Return the last logged loss over the first; None for fewer than two, or no number."""
    if len(job.logged) < 2 or not job.logged[0]:
        return None
    ratio = job.logged[-1] / job.logged[0]
    return ratio if math.isfinite(ratio) else None


def exporting_ranks(job: TrainedJob) -> list[str]:
    """List the ranks that exported the model."""
    return [row["RANK"] for row in job.rows if row.get("exported")]


def export_error(job: TrainedJob) -> tuple[float | None, str]:
    """Return how far the loss of the loaded export is from the job's own, relative to it.

    The second is why there is none: no rank loaded it, or the files are others.
    """
    loaded = next((row for row in job.rows if row.get("loaded")), None)
    first = next((row for row in job.rows if row["RANK"] == "0"), None)
    if loaded is None or first is None:
        return None, "no rank loaded the export"
    if loaded["loaded"] != first.get("exported"):
        return None, f"rank {loaded['RANK']} loaded {loaded['loaded']}, rank 0 exported another"
    own = numbers_of(first, "validation_loss")
    again = numbers_of(loaded, "loaded_loss")
    if not own or not again or not math.isfinite(own[0] * again[0]) or not own[0]:
        return None, "there is no validation loss"
    return abs(again[0] - own[0]) / abs(own[0]), ""
