"""Where gangs compete: two jobs, an observer, and what every scenario is judged by.

    with scene(stage, "two gangs of 75 %", measure) as at:
        first, second = at.together(("A", 3), ("B", 3))
        at.until(lambda sample: whole(sample, first), 30)

On leaving, whatever happened inside, both jobs give everything back.  Only what is free when
the scene begins is used; other people's jobs are counted and left alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from probes.acceptance import component_placement as components
from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.findings import listed
from probes.gang import invariants as checks
from probes.gang.competing_job import Rival, RivalSilent
from probes.gang.invariants import Sample, whole
from probes.gang.observer import Mark, Watch
from reports.record import Finding, Value

ROOM_SECONDS = 10  # for accelerators that others may be about to give back
PLACED_SECONDS = 30  # for a gang that has room
DRAIN_SECONDS = 15  # until all is free again


class NoRoom(RuntimeError):
    """Too little is free: nothing was proven, and nobody was disturbed."""


class Stage:
    """Jobs A and B and the observer, kept from scene to scene."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.prefix = f"seatrial-{os.getpid()}-{time.monotonic_ns() % 10**6}-"
        self.jobs: dict[str, Rival] = {}
        self.watch: Watch | None = None
        self.count = 0

    def ready(self) -> Watch:
        """Start what does not run yet; the watch."""
        for name in ("A", "B"):
            if name not in self.jobs or not self.jobs[name].alive:
                if name in self.jobs:
                    self.jobs[name].end()
                self.jobs[name] = Rival(name, self.cluster)
        if self.watch is None:
            self.watch = Watch(self.cluster, self.prefix)
        for name, job in self.jobs.items():
            self.watch.jobs[job.ready()] = name
        return self.watch

    def release(self) -> None:
        """Both jobs give everything back, first their places in the queue.

        What waited would else be started by what is given back, and killed while it starts: Ray
        (seen in 2.60) may then lose its accelerator until the job ends.
        """
        for do in ("withdraw", "release"):
            for job in self.jobs.values():
                if job.alive:
                    job.signal(signal.SIGCONT)  # it may have been stopped
                    # A silent one is ended, and with it all it held.
                    with suppress(RivalSilent, OSError):
                        job.ask(do)

    def close(self) -> None:
        """End the jobs and the observer."""
        with ExitStack() as every:
            for job in self.jobs.values():
                every.callback(job.end)
            if self.watch is not None:
                every.callback(self.watch.close)


@dataclass(frozen=True)
class Debt:
    """A figure that is judged when its scene ends, and what is said where it fails."""

    name: str
    value: Value
    because: Sequence[Finding] = ()
    note: str = ""
    samples: int | None = None
    ours: bool = False  # no other people's job could have spoilt it


class Scene:
    """One scenario: what is free, who asks for what, and what was seen.

    `total` is how many accelerators were free at the start, `room` how many on each node.
    `steady` is False where gangs come and go faster than Ray's view of what is free follows,
    `sampled` is False where nothing rests on how often one looked.  An `alone` one is only begun
    while no other job lives on the cluster.
    """

    def __init__(
        self,
        stage: Stage,
        title: str,
        measure: Ledger,
        nodes: int = 1,
        steady: bool = True,
        sampled: bool = True,
        alone: bool = False,
    ) -> None:
        self.stage, self.title, self.measure = stage, title, measure
        self.steady, self.sampled = steady, sampled
        self.watch = stage.ready()
        self.watch.naive, self.watch.needs = {}, {}
        self.watch.look()
        self.total, self.room = self._room()
        if len(self.room) < nodes:
            has = f"free {stage.cluster.resource}s on {nodes} nodes, found them on {len(self.room)}"
            raise NoRoom(f"{title} needs {has}")
        self.watch.others()  # those that have ended since are nobody's concern any more
        self.others = self.watch.others()
        if alone and self.others:
            who = f"other jobs live on this cluster ({listed(self.others)})"
            raise NoRoom(f"{title}: {who}, and it might hold them up: run it when they have ended")
        self.begun = len(self.watch.samples)
        self.marked = len(self.watch.marks)
        self.faults: list[tuple[int, int]] = []  # samples taken while a control was on
        self.debts: list[Debt] = []  # what is judged when the scene ends
        measure.progress(f"gang: {title}, {self.total} free {stage.cluster.resource}s")

    def _room(self) -> tuple[int, dict[str, int]]:
        """What is free, once it has stopped growing: the last scene's may be on its way back."""
        best, least, since = -1, 2, time.monotonic()
        deadline = since + ROOM_SECONDS
        while (now := time.monotonic()) < deadline:
            self.watch.dwell(0.3)
            sample = self.watch.samples[-1]
            if sample["free"] != best or sample["gangs"]:
                best, since = sample["free"], now
            elif best >= least and now - since > (0 if best == self.stage.cluster.counted else 2):
                break
        size, resource = self.stage.cluster.size, self.stage.cluster.resource
        if best < least:
            raise NoRoom(
                f"contention needs {least} free {resource}s, found {best} of {size} "
                f"after {ROOM_SECONDS} s: run it when others have ended their jobs"
            )
        room = {node: count for node, count in sorted(sample["free_on"].items()) if count}
        return best, room

    # What the jobs are told.

    def name(self, job: str) -> str:
        """A new gang's name."""
        self.stage.count += 1
        return f"{job}-{self.stage.count}"

    def ask(self, job: str, size: int, **options: Any) -> str:
        """One job asks for one gang; its name.

        Options as gang_job.Job.ask has them; `part` is the end of one of its groups' names, `gang`
        the gang that the group is a part of.
        """
        return self.together((job, size, options))[0]

    def together(self, *wanted: tuple[Any, ...]) -> list[str]:
        """Several (job, size[, options]) at the same instant; the gangs' names."""
        named = [
            (options.get("gang") or self.name(job), job, size, options)
            for job, size, options in ((*one, {})[:3] for one in wanted)
        ]
        said = ", ".join(f"{job} asks for {size}" for _, job, size, _ in named)
        self.watch.mark(said)
        for gang, job, size, options in named:
            arguments = [options.get(key, usual) for key, usual in ASK.items()]
            part = options.get("part", "")
            self.stage.jobs[job].tell("ask", f"{self.stage.prefix}{gang}{part}", size, *arguments)
        for _, job, _, _ in named:
            self.stage.jobs[job].answer()
        return [gang for gang, *_ in named]

    def drop(self, gang: str, words: str = "") -> float:
        """The gang's job gives it back; when."""
        job = gang.split("-")[0]
        at = self.watch.mark(words or f"{job} lets go")
        self.stage.jobs[job].ask("drop", f"{self.stage.prefix}{gang}")
        return at

    def stream(self, job: str, sizes: list[int], width: int, hold: float) -> None:
        """The job asks for gangs of these sizes over and over, `width` at a time, until `calm`."""
        prefix = f"{self.stage.prefix}{self.name(job)}x"
        self.stage.jobs[job].ask("flow", prefix, sizes, width, hold, True)

    def flows(self, sizes: list[int], hold: float) -> list[dict[str, Any]]:
        """Both jobs ask for every other of `sizes`; looks on until all had their turn.

        One entry a gang that was placed: size, waited (s).  Gives up when nobody's turn has come
        for PLACED_SECONDS.
        """
        for turn, job in enumerate("AB"):
            prefix = f"{self.stage.prefix}{self.name(job)}x"
            self.stage.jobs[job].ask("flow", prefix, sizes[turn::2], len(sizes), hold, False)
        ran: set[str] = set()
        begun = last = len(self.watch.samples)
        while not all(job.ask("finished") for job in self.stage.jobs.values()):
            self.watch.dwell(0.5)
            new = self.watch.samples[begun:]
            now = {gang for sample in new for gang in sample["gangs"] if whole(sample, gang)}
            begun = len(self.watch.samples)
            if not now <= ran:
                ran, last = ran | now, begun
            elif new and new[-1]["t"] - self.watch.samples[last - 1]["t"] > PLACED_SECONDS:
                break
        return [one for job in self.stage.jobs.values() for one in job.ask("calm")]

    def seated(self, parts: components.Parts) -> dict[str, list[tuple[str, str]]]:
        """Run an actor for each rank of each component; (node, accelerator) of each.

        Raises NoRoom when the gang that they share is not placed.
        """
        gang = self.ask("A", 1 + max(number for numbers in parts.values() for number in numbers))
        if self.placed(gang) is None:
            raise NoRoom(f"the components' gang was not placed within {PLACED_SECONDS} s")
        told = self.stage.jobs["A"].ask("seats", self.stage.prefix + gang, parts)
        self.stage.jobs["A"].ask("release")
        self.idle()
        names = self.watch.names
        return {
            component: [(names.get(node, node), accelerator) for node, accelerator in places]
            for component, places in told.items()
        }

    # What is seen.

    def owe(self, name: str, value: Value, *because: Finding, **options: Any) -> None:
        """A figure that is judged when the scene ends; `because` is said only where it fails.

        Other people's jobs could spoil it, unless it is `ours` alone.  Options as Debt has them.
        """
        self.debts.append(Debt(name, value, because, **options))

    def strangers(self) -> str:
        """Who else had jobs here since the scene began, in words; "" for nobody."""
        self.others = sorted({*self.others, *self.watch.others()})
        return f"other jobs use this cluster: {listed(self.others)}" if self.others else ""

    def until(
        self, done: Callable[[Sample], bool], seconds: float = PLACED_SECONDS
    ) -> float | None:
        """When (eye's clock) a new sample was first `done`; None: not in time."""
        return self.watch.until(done, seconds)

    def placed(self, gang: str, seconds: float = PLACED_SECONDS) -> float | None:
        """When the gang was whole; None: not in time."""
        return self.until(lambda sample: whole(sample, gang), seconds)

    def gone(self, gang: str, seconds: float) -> float | None:
        """When the gang was no more; None: it is still there."""
        return self.until(lambda sample: gang not in sample["gangs"], seconds)

    def idle(self, seconds: float = DRAIN_SECONDS) -> float | None:
        """When all was free again; None: it is not."""
        return self.until(lambda sample: sample["free"] >= self.total, seconds)

    @property
    def stretches(self) -> list[list[Sample]]:
        """What was seen of this scene, cut where its controls were on."""
        edges = [self.begun, *[at for fault in self.faults for at in fault], None]
        cut = [self.watch.samples[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
        return [stretch for stretch in cut if stretch]

    @property
    def samples(self) -> list[Sample]:
        """The same in one list."""
        return [sample for stretch in self.stretches for sample in stretch]

    def knots(self, since: float, seconds: float) -> list[checks.Span]:
        """Jobs that hold and wait for each other, in what was seen since then."""
        return checks.deadlocks([s for s in self.watch.samples if s["t"] >= since], seconds)

    @property
    def marks(self) -> list[Mark]:
        """What was done in this scene."""
        return self.watch.marks[self.marked :]

    def took(self, since: float | None, until: float | None) -> float | None:
        """Seconds between two times; None where one of them never came."""
        return None if since is None or until is None else max(until - since, 0.0)

    # The controls.

    @contextmanager
    def fault(self) -> Iterator[list[Sample]]:
        """Samples of the body belong to a control: they fill the list and are not judged."""
        self.watch.look()
        start = len(self.watch.samples)
        seen: list[Sample] = []
        try:
            yield seen
        finally:
            self.watch.look()
            seen += self.watch.samples[start:]
            self.faults.append((start, len(self.watch.samples)))


ASK = {"strategy": "PACK", "staff": False, "resource": ""}
