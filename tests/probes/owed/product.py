"""Reads from the product what each criterion declares, and what a run owes in a case.

The golden list reads nothing of the product elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from probes.check.declarations import Check, Circumstances
from probes.check.owed import owed_by
from probes.check.registry import CRITERIA, run_order
from probes.contract.terms import ClusterTerms, LaunchTerms
from reports.record import TIERS


@dataclass(frozen=True)
class DeclaredCriterion:
    """What one criterion declares, as text: measures by name, and controls with their measures."""

    texts: Mapping[str, str]
    measures: Mapping[str, str]
    agreeable: frozenset[str]  # measures whose limit a contract may give
    controls: Mapping[str, frozenset[str]]
    no_control: Mapping[str, str]


@dataclass(frozen=True)
class DueProbe:
    """What one probe owes in one case."""

    tier: str
    measures: frozenset[str]
    controls: frozenset[str]
    uncontrolled: frozenset[str]


@dataclass(frozen=True)
class Case:
    """The circumstances of a run; `terms` and `launch` are the keys of a contract that are set."""

    tier: str
    nodes: int
    on_gpu: bool
    one_host: bool
    ip_fabric: bool
    ranks: int
    terms: Mapping[str, Any]
    launch: Mapping[str, Any]
    agreed: frozenset[str]
    not_provable: frozenset[str] = frozenset()


Owed = dict[tuple[str, str], DueProbe]  # by criterion and name of the probe's function


@dataclass(frozen=True)
class Product:
    """All that the golden list is made from."""

    tiers: tuple[str, ...]
    run_order: tuple[str, ...]
    terms: frozenset[str]  # keys of [cluster]
    launch: frozenset[str]  # keys of [launch]
    criteria: Mapping[str, DeclaredCriterion]
    owed: Callable[[Case], Owed]


def read_product() -> Product:
    """Read the declarations of all criteria, in the order of the acceptance table."""
    criteria = {
        name: DeclaredCriterion(
            texts={
                "title": row.title,
                "how": row.how,
                "proven": row.proven,
                **{f"headline {measure}": text for measure, text in row.headlines.items()},
            },
            measures={name: describe_measure(one) for name, one in row.measures.items()},
            agreeable=frozenset(name for name, one in row.measures.items() if one.agreeable),
            controls={control: frozenset(names) for control, names in row.controls.items()},
            no_control=row.no_control,
        )
        for name, row in CRITERIA.items()
    }
    keys = frozenset(ClusterTerms.model_fields), frozenset(LaunchTerms.model_fields)
    cases: dict[str, Owed] = {}

    def remember(case: Case) -> Owed:
        key = repr(case)
        if key not in cases:
            cases[key] = find_owed(case)
        return cases[key]

    return Product(TIERS, run_order(), *keys, criteria, remember)


def find_owed(case: Case) -> Owed:
    """Return what each probe owes in a case.  Raises ValueError if two have the same name."""
    here = Circumstances(
        tier=case.tier,
        # Not validated: single keys are set, of which a contract may ask for others with them.
        terms=ClusterTerms.model_construct(
            **case.terms, launch=LaunchTerms.model_construct(**case.launch)
        ),
        nodes=case.nodes,
        on_gpu=case.on_gpu,
        agreed=case.agreed,
        one_host=case.one_host,
        not_provable=case.not_provable,
        ip_fabric=case.ip_fabric,
        ranks=case.ranks,
    )
    found: Owed = {}
    for probe in owed_by(here):
        key = probe.criterion, probe.probe.partition("::")[2]
        if key in found:
            raise ValueError(f"two probes of {key[0]} are called {key[1]}")
        names = (probe.measures, probe.controls, probe.uncontrolled)
        found[key] = DueProbe(probe.tier, *(frozenset(each) for each in names))
    return found


def describe_measure(one: Check) -> str:
    """Describe all of a measure in one line."""
    parts = [one.unit or "no unit"]
    because = ""
    for kind, limit in (("fixed", one.fixed), ("default", one.default)):
        if limit is not None:
            bounds = limit.model_dump(exclude={"because", "unit"}, exclude_defaults=True)
            parts.append(" ".join([kind, *(f"{key} {value}" for key, value in bounds.items())]))
            parts += [f"limit in {limit.unit}"] * (limit.unit != one.unit)
            because += f"; because {limit.because}"
    parts += [f"from the run: {one.from_run}"] * bool(one.from_run)
    parts += [f"without a limit: {one.without_limit}"] * bool(one.without_limit)
    parts += [f"better {one.better}"] * bool(one.better)
    flags = ("derived_in_run", "signed", "of_data", "doubted")
    parts += [flag.replace("_", " ") for flag in flags if getattr(one, flag)]
    return "; ".join(parts) + because
