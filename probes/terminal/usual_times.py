"""Usual times of the probes in the rehearsal lab, from docs/measurements.md.

Nothing was measured on GPUs: there every time is another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from probes.acceptance.criteria import CRITERIA
from probes.acceptance.owed import DUTIES, longer_tier

if TYPE_CHECKING:
    from probes.acceptance.session import RunSession

SOURCE = "docs/measurements.md"
LAB = "a lab of 4 nodes"
# Seconds by tier and criterion.  What is missing was not measured alone.
CRITERION_S: dict[str, dict[str, int]] = {
    "quick": {"FABRIC": 30, "GANG": 12, "LAUNCH": 50, "RESTART": 44, "SCALING": 63},
    "standard": {"FABRIC": 30, "GANG": 155, "LAUNCH": 61, "RESTART": 250, "SCALING": 81},
}
RUN_S = {"quick": 238, "standard": 523}  # seconds of a complete run, by tier


LAB_NODES = range(3, 6)  # sizes of a rehearsal that takes about as long


def usual_seconds(tier: str, criteria: Collection[str]) -> int | None:
    """Return the usual seconds of these criteria together; None where it was not measured."""
    if set(criteria) == set(CRITERIA):
        return RUN_S.get(tier)
    known = CRITERION_S.get(tier, {})
    return sum(known[id] for id in criteria) if set(criteria) <= known.keys() else None


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
