"""Estimates how long a run takes, where such a run was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from probes.acceptance.criteria.usual_times import LAB_NODES, usual_seconds
from probes.acceptance.owed import DUTIES, longer_tier

if TYPE_CHECKING:
    from probes.acceptance.session import RunSession


def estimate_run(run: RunSession, criteria: Iterable[str]) -> int | None:
    """Return the usual seconds of a run of probes of these criteria, one of each probe.

    None where no such run was measured: on GPUs, in a larger rehearsal, or of a part of a row.
    """
    cluster, counts = run.cluster, Counter(criteria)
    if cluster is None or not cluster.rehearsal or len(cluster.nodes) not in LAB_NODES:
        return None
    owed = Counter(one.criterion for one in DUTIES if longer_tier(one.tier, run.tier) == run.tier)
    complete = all(counts[id] == owed[id] for id in counts)
    return usual_seconds(run.tier, counts) if complete else None
