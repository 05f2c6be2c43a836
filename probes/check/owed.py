"""Lists what each tier must record, how long it usually takes, and what it disturbs.

Each criterion declares its part, which is read before pytest selects anything.  So what is
deselected, ignored, not collected or never recorded is noticed.  A test keeps it equal to what is
collected, and another to a list that stands for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from probes.check.declarations import Circumstances, Probe, without_case
from probes.check.registry import CRITERIA, all_probes, is_judged
from probes.contract.terms import ClusterTerms
from reports.record import TIERS, OwedProbe

SOURCE = "docs/develop/measurements.md"
LAB = "a lab of 4 nodes"
RUN_S = {"quick": 225, "standard": 745}  # seconds of a complete run, by tier
LAB_NODES = range(3, 6)  # sizes of a rehearsal that takes about as long


def usual_seconds(tier: str, criteria: Collection[str]) -> int | None:
    """Return the usual seconds of these criteria together; None where it was not measured."""
    if set(criteria) == set(CRITERIA):
        return RUN_S.get(tier)
    known = [CRITERIA[id].usual_s.get(tier) for id in criteria]
    return None if None in known else sum(filter(None, known))


def disturbed_seconds(probes: Iterable[str]) -> int | None:
    """Return the usual seconds of these probes together; None where one was not measured."""
    tests = {without_case(probe): find_test(probe) for probe in probes}
    known = [one.usual_s for one in tests.values()]
    return None if None in known else sum(filter(None, known))


MANY_NODES = 8  # enough that every measure that depends on the number of nodes is owed


def owed_by(here: Circumstances) -> Iterator[OwedProbe]:
    """Yield the probes that a tier runs, each with what it must record in these circumstances."""
    for duty in all_probes():
        row = CRITERIA[duty.criterion]
        if TIERS.index(duty.tier) <= TIERS.index(here.tier):
            owed = [check for check in duty.checks if row.owes_check(check, here)]
            measures = [check for check in owed if is_judged(row.id, check, here.not_provable)]
            controls = [one for one in duty.controls if row.owes_control(one, here)]
            planted = {check for control in controls for check in control.fails}
            free = [one for one in measures if one.no_control and one not in planted]
            yield OwedProbe(
                probe=f"probes/{duty.probe}",
                criterion=duty.criterion,
                tier=duty.tier,
                measures=[*map(str, measures)],
                controls=[*map(str, controls)],
                uncontrolled={str(one): one.no_control for one in free},
            )


def judged_names(
    tier: str, terms: ClusterTerms, agreed: frozenset[str], nodes: int = MANY_NODES
) -> set[str]:
    """Return the measures, as SCALING.mfu, that a run on so many nodes may be judged by."""
    return {
        f"{probe.criterion}.{name}"
        for on_gpu in (False, True)
        for probe in owed_by(Circumstances(tier, terms, nodes, on_gpu, agreed, ranks=2 * nodes))
        for name in probe.measures
    }


def longer_tier(one: str, other: str) -> str:
    """Return the longer of two tiers, which has all the probes of the shorter."""
    return max(one, other, key=TIERS.index)


def partial_reason(only: Sequence[str], tier: str, agreed_tier: str) -> str:
    """Return why a run was started with less than it must record; "" if it was not."""
    were = f"{' and '.join(only)} {'was' if len(only) == 1 else 'were'} asked for (--only)"
    reasons = [f"only {were}"] if only else []
    if longer_tier(tier, agreed_tier) != tier:
        reasons.append(f"tier {tier} was run, and the contract asks for tier {agreed_tier}")
    return "; ".join(reasons)


def owed_event(tier: str, agreed_tier: str, only: Sequence[str], **shape: Any) -> dict[str, Any]:
    """Build the data of the event `run_owes`; `shape` is Circumstances without their tier."""
    here = Circumstances(tier=longer_tier(tier, agreed_tier), **shape)
    is_measured = here.nodes in LAB_NODES and not here.on_gpu
    return {
        "owed": [probe.model_dump() for probe in owed_by(here)],
        "only": list(only),
        "partial": partial_reason(only, tier, agreed_tier),
        "full_run_s": RUN_S.get(agreed_tier) if is_measured else None,
    }


def has_ip_fabric(fabric: str | None, facts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the fabric has IP addresses: always, but for RDMA without any on its ports.

    `facts` are those of a record's nodes.  A record without these facts counts as having addresses.
    """
    try:
        ports = [(fact["interfaces"], port["netdev"]) for fact in facts for port in fact["rdma"]]
        return fabric != "rdma" or any(of.get(name, {}).get("address") for of, name in ports)
    except (KeyError, TypeError, AttributeError):  # a modified record
        return True


GPUS_FREE = "all GPUs free. If a job holds GPUs, tests wait up to 2 minutes and are then UNPROVEN"


def find_test(probe: str) -> Probe:
    """Find the declaration of a probe's test; `probe` is as in Probe, with or without its case.

    Raises KeyError where no criterion declares it.
    """
    tests = {without_case(one.probe): one for one in reversed(all_probes())}  # the first case's
    return tests[without_case(probe)]


def disturbances_of(probe: str) -> tuple[str, ...]:
    """Return what a probe disturbs; `probe` is as in Probe, with or without its case."""
    return find_test(probe).disturbs
