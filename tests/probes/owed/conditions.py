"""Finds where each measure and control is owed, and writes it in words.

Which facts an entry depends on is found by changing them one at a time.  All combinations of those
facts then give its condition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any

from tests.probes.owed.cases import (
    UNSET,
    Facts,
    build_case,
    list_facts,
    plain_case,
    random_cases,
    typical_cases,
)
from tests.probes.owed.product import Owed, Product

Probe = tuple[str, str]  # criterion, and name of the function
Entry = tuple[str, str, str, str]  # of a probe: "measure" or "control", and its name
Box = tuple[tuple[Any, ...], ...]  # the values of each fact; a condition is some of them


@dataclass(frozen=True)
class OwedWhere:
    """The condition of one entry: the facts that it depends on, and where it is owed."""

    facts: dict[str, tuple[Any, ...]]  # with all values of each
    boxes: tuple[Box, ...]

    def holds(self, facts: Facts) -> bool:
        """Return whether the entry is owed in a case."""
        return any(
            all(facts[name] in some for name, some in zip(self.facts, box, strict=True))
            for box in self.boxes
        )

    def __str__(self) -> str:
        """Write it in words, as `nodes 2/3/4/8, not one_host; or on_gpu`."""
        return "; or ".join(
            ", ".join(
                _in_words(name, values, some)
                for (name, values), some in zip(self.facts.items(), box, strict=True)
                if len(some) < len(values)
            )
            or "always"
            for box in self.boxes
        )


def _in_words(name: str, values: tuple[Any, ...], some: tuple[Any, ...]) -> str:
    if some == (UNSET,):
        return f"no {name}"
    if some in ((False,), (True,)) and isinstance(values[0], bool):
        return name if some[0] else f"not {name}".replace("not a ", "no ")
    if UNSET in values and len(some) == len(values) - 1 and UNSET not in some:
        return name
    return f"{name} {'/'.join(map(str, some))}"


class ConditionFinder:
    """Finds the conditions of all entries, each of the tiers that its probe belongs to."""

    def __init__(self, product: Product) -> None:
        self.product, self.facts = product, list_facts(product)
        self.plain, self.typical = plain_case(product), [*typical_cases(product)]
        owed = [product.owed(build_case(case)) for case in self.typical]
        self.tiers = {probe: due.tier for each in owed for probe, due in each.items()}
        self._depends: dict[Entry, set[str]] = defaultdict(set)

    def find(self) -> dict[Entry, OwedWhere]:
        """Find where each entry is owed.

        Single changes of typical cases show most facts that it depends on.  A random case in which
        the condition does not hold shows the others.  Raises ValueError where it shows none.
        """
        for case in self.typical:
            for entry in self._owed_in(case):
                self._depends[entry] |= set()
            self._add_dependences(case)
        found = {entry: self._find_condition(entry) for entry in self._depends}
        for case in random_cases(self.product):
            if odd := self._find_odd(found, case):
                self._add_dependences(case)
                found |= {entry: self._find_condition(entry) for entry in odd}
                if odd := self._find_odd(found, case):
                    raise ValueError(
                        f"{odd[0]} depends on more than {self._depends[odd[0]]}, or a tier before "
                        "its own owes it"
                    )
        return found

    def _owed_in(self, case: Facts) -> frozenset[Entry]:
        return entries_of(self.product.owed(build_case(case)))

    def _tiers_of(self, entry: Entry) -> tuple[str, ...]:
        """Return the tiers that have the entry's probe: its own, and those after it."""
        return self.product.tiers[self.product.tiers.index(self.tiers[entry[:2]]) :]

    def _add_dependences(self, case: Facts) -> None:
        """Add what entries depend on, as far as single changes of this case show it."""
        before = self._owed_in(case)
        for name, values in self.facts.items():
            for changed in ({**case, name: value} for value in values if value != case[name]):
                for entry in before ^ self._owed_in(changed):
                    if changed["tier"] in self._tiers_of(entry):
                        self._depends[entry].add(name)

    def _find_condition(self, entry: Entry) -> OwedWhere:
        """Find the condition of an entry by all combinations of the facts that it depends on."""
        facts = {**self.facts, "tier": self._tiers_of(entry)}
        # In the order of the facts, so that the same condition has the same words.
        some = {name: values for name, values in facts.items() if name in self._depends[entry]}
        true = {
            chosen
            for chosen in combinations(*(range(len(values)) for values in some.values()))
            if entry in self._owed_in({**self.plain, **_pick(some, chosen)})
        }
        return OwedWhere(some, tuple(_find_boxes(some, true)))

    def _find_odd(self, found: dict[Entry, OwedWhere], case: Facts) -> list[Entry]:
        """Return the entries whose condition is not what one case shows."""
        expected = {
            entry
            for entry, where in found.items()
            if case["tier"] in self._tiers_of(entry) and where.holds(case)
        }
        return sorted(expected ^ self._owed_in(case))


def entries_of(owed: Owed) -> frozenset[Entry]:
    """Return all measures and controls of all probes."""
    return frozenset(
        (*probe, kind, name)
        for probe, due in owed.items()
        for kind, names in (("measure", due.measures), ("control", due.controls))
        for name in names
    )


def _pick(facts: dict[str, tuple[Any, ...]], chosen: tuple[int, ...]) -> Facts:
    return {name: facts[name][at] for name, at in zip(facts, chosen, strict=True)}


def _find_boxes(facts: dict[str, tuple[Any, ...]], true: set[tuple[int, ...]]) -> Iterator[Box]:
    """Yield boxes that cover just what is true: each as large as it can be."""
    left = set(true)
    # First all values of a fact, so that words name few facts; then single ones.
    steps = [(at, range(len(values))) for at, values in enumerate(facts.values())]
    steps += [(at, range(one, one + 1)) for at, values in steps for one in values]
    while left:
        box = [(at,) for at in min(left)]
        for at, more in steps:
            larger = [*box[:at], tuple(sorted({*box[at], *more})), *box[at + 1 :]]
            if true.issuperset(combinations(*larger)):
                box = larger
        left.difference_update(combinations(*box))
        yield tuple(
            tuple(values[at] for at in some)
            for values, some in zip(facts.values(), box, strict=True)
        )


def describe_not_provable(product: Product, criterion: str) -> str:
    """Describe what is still owed of a criterion that cannot be proven, where all is owed."""
    *_, case = typical_cases(product)
    before, after = (
        entries_of(product.owed(build_case(case, not_provable)))
        for not_provable in (frozenset[str](), frozenset({criterion}))
    )
    own = {entry for entry in before if entry[0] == criterion and entry[2] == "measure"}
    kept = ", ".join(sorted({name for *_, name in own & after})) or "no measure"
    return f"{kept}; all controls, and all of other criteria" + "".join(
        f", but for {' '.join(entry)}" for entry in sorted((before ^ after) - own)
    )
