"""Declares a criterion: its checks with their limits, its controls, and its probes.

`criterion.py` of a criterion's folder holds these declarations, and nothing else knows them by
name: what a run must record, what a contract may agree on, and the docs are views of them
(registry.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, cast

from probes.contract.terms import ClusterTerms
from reports.measurement import Limit
from reports.numbers import Value, number

Better = Literal["higher", "lower", "word", ""]
Order = Literal["exactly", "at least", "chosen", ""]
# What probes of several criteria do to a cluster.
TASKS = "runs short tasks on each node"
ALL_GPUS = "uses all GPUs, so other jobs wait"
TRAFFIC = "fills the fabric with traffic"
SPARE_RAYLETS = "adds spare Ray nodes on the head's machine, and kills them"
CHECKPOINTS = "writes checkpoints into the shared folder, and removes them"


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
    not_countable: frozenset[str] = frozenset()  # measures that no device here counts, as agreed
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


@dataclass(frozen=True)
class When:
    """Condition under which something is owed; `terms` are the keys of [cluster] that it reads.

    Conditions are joined by `&`, `|` and `~`.
    """

    holds: Callable[[Circumstances], bool]
    terms: frozenset[str] = frozenset()

    def __call__(self, here: Circumstances) -> bool:
        """Return whether it holds in these circumstances."""
        return self.holds(here)

    def __and__(self, other: When) -> When:
        """Hold where both hold."""
        return When(lambda here: self(here) and other(here), self.terms | other.terms)

    def __or__(self, other: When) -> When:
        """Hold where one of both holds."""
        return When(lambda here: self(here) or other(here), self.terms | other.terms)

    def __invert__(self) -> When:
        """Hold where this does not."""
        return When(lambda here: not self(here), self.terms)


def ordered(*keys: str) -> When:
    """Hold where the contract has one of these keys of [cluster]."""
    return When(lambda here: any(getattr(here.terms, key) for key in keys), frozenset(keys))


ON_GPU = When(lambda here: here.on_gpu)
NVML_THERE = When(lambda here: not here.emulated)
SEVERAL_NODES = When(lambda here: here.nodes > 1)


def one_node_ordered(terms: ClusterTerms, nodes: int, one_host: bool) -> bool:
    """Return whether one node was ordered, and is there: what is between nodes is not owed then.

    `local:1` is no such order: its ranks share a host's cores.
    """
    return nodes == 1 and not one_host and terms.nodes == 1


# It names no term: a value is the same under another order, and what is owed is computed anew.
ONE_NODE = When(lambda here: one_node_ordered(here.terms, here.nodes, here.one_host))
THREE_NODES = When(lambda here: here.nodes > 2)
# An embedded cluster has one host, with the limits of a shell, and shares it with other clusters.
OWN_HOSTS = When(lambda here: not here.one_host)
SEVERAL_HOSTS = SEVERAL_NODES & OWN_HOSTS
RDMA_AGREED = When(lambda here: here.terms.fabric == "rdma", frozenset({"fabric"}))
LONGER_TIER = When(lambda here: here.tier != "quick")


class Named(str):
    """A declaration that is its own name: records and messages have it as plain text."""

    KIND: ClassVar[str]

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Travel to workers as the name alone: conditions stay with the driver."""
        return str, (str(self),)


class Check(Named):
    """A quantity that a probe measures: the name of the measure, with what decides about it.

    `unit` must be the unit of its limit.  A `fixed` limit holds on every cluster and no contract
    may change it.  A `default` holds unless the contract gives another limit.  With neither, a
    contract or the cluster's own facts must give the limit, or the result is UNPROVEN.  The limit
    of a `from_run` measure follows from the run's own set-up, which the text names.  Where no
    contract gives one, the limit of a `derived_in_run` measure follows from the devices it ran on.

    `better` is the side of better values.  A limit on the other side is refused, for it would pass
    worse values.  It is "" where a limit has both sides or one value is right, and "word" where
    values are words.  `signed`: a value below zero can be true; elsewhere it is an error of
    measurement, and no value.  `of_data`: it counts wrong results, which no hardware excuses.  It
    is judged also where the rest of its row cannot be proven.  `doubted`: the probe
    records a contradiction as no value with a note, so that it is UNPROVEN.  `may_lack_counter`:
    some devices do not count it, and a contract may say so.

    `without_limit` is what happens if the contract has no limit for it: a derived limit, or none.

    `when` is where it is owed; `only_agreed`: only where the contract has a limit for it, or where
    `demanded` holds.
    `not_owed` is why no run must record it.  `depends` are further keys of [cluster] that its value
    depends on.  `ordered_by` is the key whose value is its limit: `exactly`, `at least`, or one
    that `chosen` values are compared with in the run.  `no_control` is why no fault can be planted.
    `failing` is what a report says where its value is bad, with {value}, {subject}, or {on}: " on"
    and the subject.
    """

    KIND = "check"
    unit: str = ""
    fixed: Limit | None = None
    default: Limit | None = None
    from_run: str = ""
    derived_in_run: bool = False
    better: Better = ""
    signed: bool = False
    of_data: bool = False
    doubted: bool = False
    may_lack_counter: bool = False
    when: When | None = None
    only_agreed: bool = False
    demanded: When | None = None
    not_owed: str = ""
    depends: tuple[str, ...] = ()
    ordered_by: str = ""
    order: Order = ""
    no_control: str = ""
    failing: str = ""
    without_limit: str = ""

    def __new__(cls, name: str, unit: str = "", **options: Any) -> Check:
        """Declare a check by the name of its measure.  Raises TypeError for an unknown option."""
        if unknown := sorted(options.keys() - cls.__annotations__.keys()):
            raise TypeError(f"check {name!r}: unknown option {unknown[0]!r}")
        check = super().__new__(cls, name)
        check.__dict__.update(options, unit=unit)
        return check

    @property
    def terms(self) -> frozenset[str]:
        """The keys of [cluster] that its value depends on."""
        asked = self.when.terms if self.when else frozenset()
        return asked | {*self.depends, *filter(None, [self.ordered_by])}

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

    def describe_limit(self) -> tuple[str, str]:
        """Return where the limit comes from, with the limit that every run has, and because."""
        for kind, limit in (("fixed", self.fixed), ("default", self.default)):
            if limit:
                return f"{kind}: {limit}", limit.because
        if self.from_run:
            return "agreed" if self.ordered_by else "from the run", self.from_run
        without = self.without_limit or ("only noted" if self.only_agreed else "UNPROVEN")
        return "agreed", f"without a limit: {without}"

    def describe_unit(self) -> str:
        """Name the unit: "text" where the value is one of some words, "number" without a unit."""
        is_text = self.better == "word" or bool(self.fixed and self.fixed.one_of)
        return self.unit or ("text" if is_text else "number")


BOUNDS = ("low", "high", "marginal_low", "marginal_high", "one_of")


def _limit(unit: str, because: str, options: dict[str, Any]) -> Limit:
    """Take the bounds out of the options of a check, and make its limit of them."""
    bounds = {key: options.pop(key) for key in BOUNDS if key in options}
    return Limit(unit=unit, because=because, **bounds)


def fixed_check(name: str, unit: str, because: str, **options: Any) -> Check:
    """Declare a check whose limit holds on every cluster; `options` are bounds, and as in Check."""
    return Check(name, unit, fixed=_limit(unit, because, options), **options)


def default_check(name: str, unit: str, because: str, **options: Any) -> Check:
    """Declare a check with a limit that a contract may replace; a one-sided limit sets `better`."""
    limit = _limit(unit, because, options)
    side = "" if (limit.low is None) == (limit.high is None) else "higher"
    better = cast("Better", "lower" if side and limit.low is None else side)
    return Check(name, unit, default=limit, better=better, **options)


def none_of(name: str, unit: str, because: str, **options: Any) -> Check:
    """Declare a count that must be zero everywhere."""
    return fixed_check(name, unit, because, high=0, **options)


def wrong_data(name: str, unit: str, because: str, **options: Any) -> Check:
    """Declare a count of wrong results: zero on every machine, also in a rehearsal."""
    return none_of(name, unit, because, of_data=True, **options)


def exactly(count: float, unit: str, because: str, most: float | None = None) -> Limit:
    """Build a limit with one allowed value, or with all from `count` to `most`."""
    return Limit(low=count, high=most or count, unit=unit, because=because)


class ControlRow(Named):
    """A fault that a probe plants: its name, and the checks that it must make fail.

    It is owed `when` the condition holds; without one, where any of its checks is owed.
    """

    KIND = "control"
    fails: tuple[Check, ...]
    when: When | None

    def __new__(cls, name: str, *fails: Check, when: When | None = None) -> ControlRow:
        """Declare a control by its name."""
        control = super().__new__(cls, name)
        control.fails, control.when = fails, when
        return control


def without_case(test: str) -> str:
    """Return the name of a test without its case."""
    return test.partition("[")[0]


@dataclass(frozen=True)
class Probe:
    """One probe: `test` is its file in the criterion's folder and its name.

    `cases` maps each case of a parametrised test to its tier; without cases `tier` is the probe's.
    Where several probes are cases of one test, the first says what the test disturbs and how long
    it takes.  `disturbs`: what it does to a cluster, for those who share it.  `usual_s`: its
    seconds in the rehearsal lab, of all cases together; None where that was not measured.
    """

    test: str
    tier: str = ""
    cases: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    controls: tuple[ControlRow, ...] = ()
    disturbs: tuple[str, ...] = ()
    usual_s: int | None = None
    folder: str = ""  # filled in when it is found

    @property
    def function(self) -> str:
        """Its test without the case: what several probes may have in common."""
        return without_case(self.test)

    @property
    def probe(self) -> str:
        """Path below `probes`, and name."""
        return f"{self.folder}/{self.test}"

    @property
    def criterion(self) -> str:
        """Row of the acceptance table, which is the folder's name."""
        return self.folder.upper()


@dataclass(frozen=True)
class OnOneNode:
    """What a criterion claims where one node was ordered, and what it then does not test.

    An empty title, no headlines, and `proven` of None are those of its row.  `failing` replaces
    sentences of it.
    """

    untested: str
    title: str = ""
    proven: str | None = None
    headlines: Mapping[Check, str] = field(default_factory=dict)
    failing: Mapping[Check, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CriterionRow:
    """One row of the acceptance table: what it measures and must record, and what shows its faults.

    `headlines` maps the measures that stand for it in a report, the best first, to a sentence with
    {value}, {subject} or {work} (an efficiency as work).  `proven` continues the sentence where
    all of the criterion is accepted.  `where` says where its probes run, and `needs` what they
    need.  `usual_s`: its seconds in the rehearsal lab by tier.  `depends`: keys of [cluster] that
    all its values depend on.
    """

    title: str
    how: str
    where: str
    needs: tuple[str, ...]
    headlines: Mapping[Check, str] = field(default_factory=dict)
    proven: str = ""
    usual_s: Mapping[str, int] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    least_nodes: int = 1  # of fewer it proves nothing, unless one node was ordered
    on_one_node: OnOneNode | None = None
    least_gpus: int = 1
    keeps_in_shared: bool = False  # it is UNPROVEN without the shared folder
    reports_lost_nodes: bool = False  # its probes go on without lost nodes
    # Filled in when it is found: what its module declares.
    id: str = ""
    checks: tuple[Check, ...] = ()
    planted: tuple[ControlRow, ...] = ()
    duties: tuple[Probe, ...] = ()

    @cached_property
    def measures(self) -> dict[str, Check]:
        """The checks by name."""
        return {str(check): check for check in self.checks}

    @cached_property
    def controls(self) -> dict[str, tuple[Check, ...]]:
        """The measures that each control must make fail."""
        return {str(control): control.fails for control in self.planted}

    @cached_property
    def failing(self) -> dict[str, str]:
        """What a report says of each measure where its value is bad."""
        return {str(check): check.failing for check in self.checks if check.failing}

    @cached_property
    def no_control(self) -> dict[str, str]:
        """Why a measure has no control."""
        return {str(check): check.no_control for check in self.checks if check.no_control}

    def describe_control(self, name: str) -> str:
        """Name the controls that must make a measure fail, or say why there is none."""
        caught = [control for control, measures in self.controls.items() if name in measures]
        why = self.no_control.get(name, "")
        none = [f"{'otherwise ' * bool(caught)}none: {why}"] if why or not caught else []
        return "; ".join([*caught, *none])

    def only_doubts(self, check: Check) -> bool:
        """Return whether no bad value of it is recorded, so that it is UNPROVEN and never fails."""
        return check.doubted and check not in self.headlines

    def owes_check(self, check: Check, here: Circumstances) -> bool:
        """Return whether a check is owed in these circumstances."""
        name, holds = f"{self.id}.{check}", check.when is None or check.when(here)
        wanted = not check.only_agreed or name in here.agreed
        wanted = wanted or (check.demanded is not None and check.demanded(here))
        return holds and wanted and name not in here.not_countable

    def owes_control(self, control: ControlRow, here: Circumstances) -> bool:
        """Return whether a control is owed in these circumstances."""
        if control.when is not None:
            return control.when(here)
        return any(self.owes_check(check, here) for check in control.fails)


# By unit: the largest value that can occur, and why there is none above it: a limit above it
# judges nothing.
REACH = {
    "ratio": (1.0, "a share is at most 1"),
    "s": (86_400.0, "no probe waits for more than a day"),
    "GB/s": (1e5, "no network is this fast"),
    "1/min": (1e6, "a working link does not retransmit a million packets in a minute"),
    "differences": (1e3, "a node cannot differ in a thousand parts"),
    "errors": (1e6, "a working link does not repeat a million packets in a run"),
    "names": (1.0, "a node has one host name"),
    "connections": (1e6, "even 20,000 nodes make fewer connections (about 30 each)"),
    "tokens/s per rank": (1e9, "no accelerator trains a billion tokens in a second"),
    "endpoints": (1e5, "even 20,000 nodes have fewer endpoints (2 each, and 3 of the head)"),
    "files": (2**30, "the kernel does not allow a process more open files"),
    "GiB": (1e6, "no node has a million GiB of memory"),
    "MiB": (2.0**30, "no node has so much memory"),
    "threads a rank": (2**22, "the kernel does not allow more threads on a machine"),
    "nodes": (20_000.0, "no cluster has more nodes"),
    "interfaces": (1.0, "NCCL starts over one interface of a node"),
    "TFLOP/s": (1e6, "no GPU computes a thousand times as fast as an H100"),
    "raylets": (1e3, "no node runs a thousand raylets"),
    "reads": (1e6, "the test makes fewer reads than that, so every run would meet it"),
    "lines": (1e6, "the test appends fewer lines than that, so every run would meet it"),
    "updates": (1e6, "the test makes fewer changes than that, so every run would meet it"),
    "saves": (1e6, "no folder contains a million saves"),
}
