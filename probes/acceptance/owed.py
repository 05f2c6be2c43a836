"""Lists what each tier owes: its probes, with the measures and controls that each must record.

Each criterion writes its part by hand.  It is read before pytest selects anything.  So what is
deselected, ignored, not collected or never recorded is noticed.  A test keeps it equal to what is
collected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probes.acceptance.cluster_terms import ClusterTerms
from probes.acceptance.criteria import CRITERIA, RUN_ORDER, is_judged
from probes.acceptance.criteria.criterion import Circumstances, Duty
from probes.acceptance.criteria.usual_times import usual_full_run
from reports.record import TIERS, OwedProbe

MANY_NODES = 8  # enough that every measure that depends on the number of nodes is owed


DUTIES = tuple(duty for name in RUN_ORDER for duty in CRITERIA[name].duties)


def owed_by(here: Circumstances) -> Iterator[OwedProbe]:
    """Yield the probes that a tier owes, each with what it must record in these circumstances."""
    for duty in DUTIES:
        if TIERS.index(duty.tier) <= TIERS.index(here.tier):
            measures = [
                name
                for name in _owed_names(duty, duty.measures, here)
                if is_judged(duty.criterion, name, here.not_provable)
            ]
            reasons = CRITERIA[duty.criterion].no_control
            yield OwedProbe(
                probe=f"probes/{duty.probe}",
                criterion=duty.criterion,
                tier=duty.tier,
                measures=measures,
                controls=[*_owed_names(duty, duty.controls, here)],
                uncontrolled={name: reasons[name] for name in measures if name in reasons},
            )


def _owed_names(duty: Duty, names: tuple[str, ...], here: Circumstances) -> Iterator[str]:
    for name in names:
        condition = CRITERIA[duty.criterion].conditions.get(name)
        if condition is None or condition(here):
            yield name


def judged_names(tier: str, terms: ClusterTerms, agreed: frozenset[str]) -> set[str]:
    """Return the measures, as SCALING.mfu, that a run of this tier may be judged by."""
    return {
        f"{probe.criterion}.{name}"
        for on_gpu in (False, True)
        for probe in owed_by(
            Circumstances(tier, terms, MANY_NODES, on_gpu, agreed, ranks=2 * MANY_NODES)
        )
        for name in probe.measures
    }


def longer_tier(one: str, other: str) -> str:
    """Return the longer of two tiers, which has all the probes of the shorter."""
    return max(one, other, key=TIERS.index)


def partial_reason(only: Sequence[str], tier: str, agreed_tier: str) -> str:
    """Return why a run was started with less than it owes; "" if it was not."""
    reasons = [f"only {', '.join(only)} was asked for (--only)"] if only else []
    if longer_tier(tier, agreed_tier) != tier:
        reasons.append(f"tier {tier} was run, and the contract asks for tier {agreed_tier}")
    return "; ".join(reasons)


def owed_event(tier: str, agreed_tier: str, only: Sequence[str], **shape: Any) -> dict[str, Any]:
    """Build the data of the event `run_owes`; `shape` is Circumstances without their tier."""
    here = Circumstances(tier=longer_tier(tier, agreed_tier), **shape)
    return {
        "owed": [probe.model_dump() for probe in owed_by(here)],
        "only": list(only),
        "partial": partial_reason(only, tier, agreed_tier),
        "full_run_s": None if here.on_gpu else usual_full_run(agreed_tier, here.nodes),
    }


def has_ip_fabric(fabric: str | None, facts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the fabric has IP addresses: always, but for RDMA without any on its ports.

    `facts` are those of a record's nodes.  A record without these facts counts as having addresses.
    """
    try:
        return fabric != "rdma" or any(
            bool(fact["interfaces"].get(port["netdev"], {}).get("address"))
            for fact in facts
            for port in fact["rdma"]
        )
    except (KeyError, TypeError, AttributeError):  # a modified record
        return True
