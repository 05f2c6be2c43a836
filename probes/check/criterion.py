"""Defines a criterion: its measures with their limits, its probes, and its controls.

`criterion.py` of each criterion's folder fills it in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from probes.contract.terms import ClusterTerms
from reports.measurement import Limit
from reports.numbers import Value, number

Better = Literal["higher", "lower", "word", ""]


@dataclass(frozen=True)
class Measure:
    """A quantity that a probe measures.

    `unit` must be the unit of its limit.  A `fixed` limit holds on every cluster and no contract
    may change it.  A `default` holds unless the contract gives another limit.  With neither, a
    contract or the cluster's own facts must give the limit, or the result is UNPROVEN.  The limit
    of a `from_run` measure follows from the run's own set-up, which the text names.  Where no
    contract gives one, the limit of a `derived_in_run` measure follows from the devices it ran on.

    `better` is the side of better values.  A limit on the other side is refused, for it would pass
    worse values.  It is "" where a limit has both sides or one value is right, and "word" where
    values are words.  `signed`: a value below zero can be true; elsewhere it is an error of
    measurement, and no value.  `of_data`: it counts wrong results, which no hardware excuses.  It
    is judged also where the rest of its row cannot be proven.  `doubted`: a contradiction leaves it
    UNPROVEN with a note, and never fails it.
    """

    unit: str
    fixed: Limit | None = None
    default: Limit | None = None
    from_run: str = ""
    derived_in_run: bool = False
    better: Better = ""
    signed: bool = False
    of_data: bool = False
    doubted: bool = False

    @property
    def agreeable(self) -> bool:
        """Whether a contract may give its limit."""
        return self.fixed is None and not self.from_run

    def plausible_value(self, value: Value) -> tuple[Value, str]:
        """Return the value and "", or None and why the value cannot be."""
        if self.signed or value is None or isinstance(value, str) or not value < 0:
            return value, ""
        why = " (the clocks of two hosts may differ)" if self.unit == "s" else ""
        text = f"{number(value)} {self.unit}".strip()
        return None, f"the value was {text}: it cannot be negative{why}"


@dataclass(frozen=True)
class Circumstances:
    """Facts that decide whether a measure is owed: tier, terms, agreed limits, the cluster's shape.

    `agreed` are the measures with a limit in the contract, as SCALING.mfu.
    """

    tier: str
    terms: ClusterTerms
    nodes: int
    on_gpu: bool
    agreed: frozenset[str] = frozenset()
    one_host: bool = False  # an embedded cluster: its raylets share a machine
    not_provable: frozenset[str] = frozenset()  # criteria: only their data is judged
    ip_fabric: bool = True  # False where RDMA is agreed and no port has an IP address
    ranks: int = 0  # of all nodes together

    @property
    def ranks_inside(self) -> bool:
        """Whether nodes have several ranks, which reduce among themselves."""
        return self.ranks >= 2 * self.nodes and not self.one_host

    @property
    def emulated(self) -> bool:
        """Whether computation is on the CPU, so that nodes need no NVML."""
        return self.terms.accelerators == "emulated" or self.one_host

    @property
    def speed_in_tokens(self) -> bool:
        """Whether SCALING judges speed by tokens/s alone: mfu has no meaning, or no limit."""
        tokens, mfu = "SCALING.tokens_per_s" in self.agreed, "SCALING.mfu" in self.agreed
        return self.emulated or (tokens and not mfu)


@dataclass(frozen=True)
class Duty:
    """One probe of the suite; `probe` is its file under probes/ and its name."""

    probe: str
    tier: str
    measures: tuple[str, ...]
    controls: tuple[str, ...]

    @property
    def criterion(self) -> str:
        """Row of the acceptance table, which is the folder's name."""
        return self.probe.split("/", 1)[0].upper()


Condition = Callable[[Circumstances], bool]


@dataclass(frozen=True)
class CriterionRow:
    """One row of the acceptance table: what it measures, what it owes, and what shows its faults.

    `headlines` maps the measures that stand for it in a report, the best first, to a sentence with
    {value}, {subject} or {work} (an efficiency as work).  `proven` continues the sentence where
    all of the criterion is accepted.

    `controls`: the measures that each control must make fail.  `no_control`: why a measure has
    none.  `conditions`: the measures and controls that are owed only where their condition holds.
    """

    title: str
    how: str
    headlines: Mapping[str, str]
    measures: dict[str, Measure]
    duties: tuple[Duty, ...]
    controls: Mapping[str, tuple[str, ...]]
    no_control: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    proven: str = ""


def fixed_measure(unit: str, because: str, *, signed: bool = False, **bounds: Any) -> Measure:
    """Build a measure whose limit holds on every cluster."""
    return Measure(unit, fixed=Limit(unit=unit, because=because, **bounds), signed=signed)


def default_measure(unit: str, because: str, **bounds: Any) -> Measure:
    """Build a measure with a limit that a contract may replace; a one-sided limit sets `better`."""
    limit = Limit(unit=unit, because=because, **bounds)
    better: Better = "" if (limit.low is None) == (limit.high is None) else "higher"
    return Measure(unit, default=limit, better="lower" if better and limit.low is None else better)


def none_of(unit: str, because: str) -> Measure:
    """Build a count that must be zero everywhere."""
    return fixed_measure(unit, because, high=0)


def doubted(measure: Measure) -> Measure:
    """Mark a measure that a contradiction leaves UNPROVEN, and never fails."""
    return dataclasses.replace(measure, doubted=True)


def wrong_data(unit: str, because: str) -> Measure:
    """Build a count of wrong results: it must be zero on every machine, also in a rehearsal."""
    return dataclasses.replace(none_of(unit, because), of_data=True)


def exactly(count: float, unit: str, because: str) -> Limit:
    """Build a limit with one allowed value."""
    return Limit(low=count, high=count, unit=unit, because=because)


# By unit: the value, and why there is none above it.
REACH = {
    "ratio": (1.0, "1 is the whole"),
    "s": (86_400.0, "no probe waits for more than a day"),
    "GB/s": (1e5, "no node has a hundred times the network of today's largest"),
    "1/min": (1e6, "no link repeats a million packets in a minute and works"),
    "differences": (1e3, "no node has a thousand parts that are compared"),
    "names": (1.0, "a node has one own name"),
    "connections": (1e6, "20,000 nodes try fewer, for each connects to some 30 others"),
    "tokens/s per rank": (1e9, "no accelerator trains a billion tokens in a second"),
    "entrances": (1e5, "20,000 nodes have a raylet and an agent each, and the head three more"),
    "files": (2**30, "the kernel allows no process more open files"),
    "GiB": (1e6, "no node has a million GiB of memory"),
    "MiB": (2.0**30, "no node has so much memory"),
    "threads a rank": (2**22, "the kernel numbers no more threads on a machine"),
    "nodes": (20_000.0, "no cluster has more nodes"),
    "interfaces": (1.0, "NCCL starts over one interface of a node"),
    "TFLOP/s": (1e6, "no GPU computes a thousand times as fast as an H100"),
    "raylets": (1e3, "no node holds a thousand clusters"),
    "reads": (1e6, "no probe reads a million times"),
    "lines": (1e6, "no probe appends a million lines"),
    "updates": (1e6, "no probe changes a number a million times"),
    "saves": (1e6, "no folder holds a million saves"),
}
