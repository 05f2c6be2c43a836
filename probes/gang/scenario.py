"""Runs scenarios in which two jobs compete for accelerators while an observer samples.

    with run_scenario(rig, "two gangs of 75 %", measure) as run:
        first, second = run.ask_together(("A", 3), ("B", 3))
        run.until(lambda sample: is_whole(sample, first), 30)

On exit both jobs give everything back, even after an error. A scenario uses only the accelerators
that are free when it begins. Jobs of other people are counted and left alone.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from probes.check.recorder import Recorder
from probes.cluster.ask import make_unique_token
from probes.cluster.cluster import Cluster
from probes.contract import placement as components
from probes.findings import join_names
from probes.gang.competing_job import CompetingJob, JobUnresponsive
from probes.gang.invariants import Sample, is_whole
from probes.gang.observer import Observer, ScenarioMark
from reports.numbers import Value
from reports.record import Finding

SETTLE_SECONDS = 10  # for accelerators that other jobs may be about to free
PLACED_SECONDS = 30  # for a gang that has room
DRAIN_SECONDS = 15  # for all accelerators to be free again


class NoRoom(RuntimeError):
    """Raised when a scenario has no room. Nothing was proven, and no other job was disturbed."""

    explains_itself = True  # a traceback would add nothing


class ContentionRig:
    """Jobs A and B and the observer, kept from scenario to scenario."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.prefix = f"seatrial-{make_unique_token()}-"  # of the names of all its placement groups
        self.jobs: dict[str, CompetingJob] = {}
        self.observer: Observer | None = None
        self.gang_count = 0

    def ensure_started(self) -> Observer:
        """Start the jobs and the observer if they do not run; return the observer."""
        for name in ("A", "B"):
            if name not in self.jobs or not self.jobs[name].alive:
                if name in self.jobs:
                    self.jobs[name].end()
                self.jobs[name] = CompetingJob(name, self.cluster)
        if self.observer is None:
            self.observer = Observer(self.cluster, self.prefix)
        for name, job in self.jobs.items():
            self.observer.jobs[job.wait_ready()] = name
        self.observer.poll()  # from now on samples show the jobs' actors
        return self.observer

    def release(self) -> None:
        """Make both jobs give everything back; first they kill the actors that wait for room.

        Otherwise a waiting actor would get the freed room and be killed while it starts. Ray (seen
        in 2.60) may then lose its accelerator until the job ends.
        """
        for command in ("withdraw", "release"):
            for job in self.jobs.values():
                if job.alive:
                    job.signal(signal.SIGCONT)  # SIGSTOP may have stopped it
                    # A job that does not answer is killed, which frees all it held.
                    with suppress(JobUnresponsive, OSError):
                        job.call(command)

    def close(self) -> None:
        """End the jobs and the observer."""
        with ExitStack() as stack:
            for job in self.jobs.values():
                stack.callback(job.end)
            if self.observer is not None:
                stack.callback(self.observer.close)


class Scenario:
    """One scenario: the free accelerators, the requests and the samples.

    `total` is the number of accelerators that were free at the start, `capacity` their number on
    each node. `steady` is False if gangs come and go faster than Ray's view of free accelerators.
    `sampled` is False if no result depends on the sample rate. An `alone` scenario begins only
    while no other job is on the cluster. Raises NoRoom if it cannot begin.
    """

    def __init__(
        self,
        rig: ContentionRig,
        title: str,
        measure: Recorder,
        nodes: int = 1,
        steady: bool = True,
        sampled: bool = True,
        alone: bool = False,
    ) -> None:
        self.rig, self.title, self.measure = rig, title, measure
        self.steady, self.sampled = steady, sampled
        self.observer = rig.ensure_started()
        self.observer.single_actors, self.observer.gang_sizes = {}, {}
        self.observer.poll()
        self.total, self.capacity = self._wait_capacity()
        resource, found = rig.cluster.resource, len(self.capacity)
        if found < nodes:
            raise NoRoom(
                f"the test {title!r} needs free {resource}s on {nodes} nodes. Found: {found}. "
                "If other jobs hold the rest, test again when those jobs have ended"
            )
        self.observer.other_jobs()  # forget jobs that have ended by now
        self.other_jobs = self.observer.other_jobs()
        if alone and self.other_jobs:
            who = f"other jobs run on this cluster ({join_names(self.other_jobs)})"
            why = f"{who}, and the test might delay them"
            raise NoRoom(f"the test {title!r} did not run: {why}. Test again when they have ended")
        self.first_sample = len(self.observer.samples)
        self.first_mark = len(self.observer.marks)
        self.control_ranges: list[tuple[int, int]] = []  # indices of samples taken during controls
        self.deferred: list[tuple[Any, ...]] = []  # judged at the end: see measure_at_end
        measure.progress(f"gang: {title}, {self.total} free {resource}s")

    def _wait_capacity(self) -> tuple[int, dict[str, int]]:
        """Wait until the free count stops growing; return it, and the free count of each node.

        The last scenario's accelerators may be on their way back. Raises NoRoom if fewer than 2 are
        free.
        """
        free, needed, since = -1, 2, time.monotonic()
        size, resource = self.rig.cluster.size, self.rig.cluster.resource
        if size < needed:
            raise NoRoom(f"GANG needs {needed} {resource}s, but this cluster has only {size}")
        deadline = since + SETTLE_SECONDS
        while (now := time.monotonic()) < deadline:
            self.observer.wait(0.3)
            sample = self.observer.samples[-1]
            if sample["free"] != free or sample["gangs"]:
                free, since = sample["free"], now
            settle_s = 0 if free == self.rig.cluster.ray_gpu_count else 2
            if free >= needed and now - since > settle_s:
                break
        if free < needed:
            held = self.rig.cluster.describe_holders() or "Ray does not report what holds the rest"
            raise NoRoom(
                f"GANG needs {needed} free {resource}s, but {free} of {size} were free after "
                f"{SETTLE_SECONDS} s: {held}. Test again when the other jobs have ended"
            )
        return free, {node: count for node, count in sorted(sample["free_on"].items()) if count}

    # Commands to the jobs.

    def new_gang_name(self, job: str) -> str:
        """Make a new gang's name."""
        self.rig.gang_count += 1
        return f"{job}-{self.rig.gang_count}"

    def ask(self, job: str, size: int, watch_s: float = 0.0, **options: Any) -> str:
        """Ask for one gang in one job, and observe it for `watch_s` seconds; return its name.

        Options are those of JobDriver.ask. `part` is the end of a group's name, `gang` is the gang
        that the group belongs to.
        """
        (gang,) = self.ask_together((job, size, options))
        if watch_s:
            self.observer.wait(watch_s)
        return gang

    def ask_together(self, *requests: tuple[Any, ...]) -> list[str]:
        """Send several requests (job, size[, options]) at once; return the gangs' names."""
        named = [
            (options.get("gang") or self.new_gang_name(job), job, size, options)
            for job, size, options in ((*request, {})[:3] for request in requests)
        ]
        self.observer.mark(", ".join(f"{job} asks for {size}" for _, job, size, _ in named))
        for gang, job, size, options in named:
            arguments = [options.get(key, default) for key, default in ASK_DEFAULTS.items()]
            part = options.get("part", "")
            self.rig.jobs[job].send("ask", f"{self.rig.prefix}{gang}{part}", size, *arguments)
        for _, job, _, _ in named:
            self.rig.jobs[job].read_answer()
        return [gang for gang, *_ in named]

    def drop(self, gang: str, message: str = "") -> float:
        """Make the gang's job give it back; return when."""
        job = gang.split("-")[0]
        t = self.observer.mark(message or f"{job} gives its gang back")
        self.rig.jobs[job].call("drop", f"{self.rig.prefix}{gang}")
        return t

    def start_stream(
        self, job: str, sizes: list[int], width: int, hold: float, endless: bool = True
    ) -> None:
        """Make the job ask for gangs of `sizes`, `width` at a time; if endless, until `calm`."""
        prefix = f"{self.rig.prefix}{self.new_gang_name(job)}x"
        self.rig.jobs[job].call("flow", prefix, sizes, width, hold, endless)

    def run_streams(self, sizes: list[int], hold: float) -> list[dict[str, Any]]:
        """Run a stream in each job with every other size of `sizes`, until all gangs were placed.

        Returns size and waited (s) of each gang that was placed. Gives up when no other gang was
        placed for PLACED_SECONDS.
        """
        for turn, job in enumerate("AB"):
            self.start_stream(job, sizes[turn::2], len(sizes), hold, endless=False)
        ran: set[str] = set()
        start = last_new = len(self.observer.samples)
        while not all(job.call("finished") for job in self.rig.jobs.values()):
            self.observer.wait(0.5)
            new = self.observer.samples[start:]
            running = {gang for sample in new for gang in sample["gangs"] if is_whole(sample, gang)}
            start = len(self.observer.samples)
            if not running <= ran:
                ran, last_new = ran | running, start
            elif new and new[-1]["t"] - self.observer.samples[last_new - 1]["t"] > PLACED_SECONDS:
                break
        return [result for job in self.rig.jobs.values() for result in job.call("calm")]

    def locate_ranks(self, parts: components.Placement) -> dict[str, list[tuple[str, str]]]:
        """Run an actor for each rank of each component; return the (node, accelerator) of each.

        Raises NoRoom if the gang that they share is not placed.
        """
        gang = self.ask("A", 1 + max(number for numbers in parts.values() for number in numbers))
        if self.wait_placed(gang) is None:
            raise NoRoom(f"Ray did not place the gang of all components within {PLACED_SECONDS} s")
        seats = self.rig.jobs["A"].call("seats", self.rig.prefix + gang, parts)
        self.rig.jobs["A"].call("release")
        self.wait_idle()
        names = self.observer.node_names
        return {part: [(names.get(id, id), gpu) for id, gpu in of] for part, of in seats.items()}

    def release_all(self) -> None:
        """Make both jobs give everything back, and wait until all accelerators are free."""
        self.rig.release()
        self.wait_idle()

    # Observations.

    def measure_at_end(
        self, name: str, value: Value, *findings: Finding, ours: bool = False, **more: Any
    ) -> None:
        """Keep a value to judge at the end of the scenario; findings are reported only if it fails.

        Jobs of other people could cause the failure, unless the value is `ours`. `more` is as in
        Recorder.__call__.
        """
        self.deferred.append((name, value, findings, ours, more))

    def describe_other_jobs(self) -> str:
        """Describe the other jobs here since the scenario began; return "" if there were none."""
        self.other_jobs = sorted({*self.other_jobs, *self.observer.other_jobs()})
        names = join_names(self.other_jobs)
        why = f"other jobs ({names}) use this cluster and may have caused the failure"
        return f"{why}. Test again when they have ended" if names else ""

    def until(
        self, condition: Callable[[Sample], bool], seconds: float = PLACED_SECONDS
    ) -> float | None:
        """Wait for a new sample that meets the condition.

        Returns its time (s, the observer's clock), or None if not in time.
        """
        return self.observer.until(condition, seconds)

    def wait_placed(self, gang: str, seconds: float = PLACED_SECONDS) -> float | None:
        """Wait until the gang is fully placed; return when, or None if not in time."""
        return self.until(lambda sample: is_whole(sample, gang), seconds)

    def wait_gone(self, gang: str, seconds: float) -> float | None:
        """Wait until the gang is removed; return when, or None if not in time."""
        return self.until(lambda sample: gang not in sample["gangs"], seconds)

    def wait_idle(self, seconds: float = DRAIN_SECONDS) -> float | None:
        """Wait until all accelerators are free again; return when, or None if not in time."""
        return self.until(lambda sample: sample["free"] >= self.total, seconds)

    @property
    def segments(self) -> list[list[Sample]]:
        """Samples of this scenario, split where its controls ran; theirs are left out."""
        edges = [self.first_sample, *[i for pair in self.control_ranges for i in pair], None]
        cut = [self.observer.samples[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
        return [segment for segment in cut if segment]

    @property
    def samples(self) -> list[Sample]:
        """Samples of all segments in one list."""
        return [sample for segment in self.segments for sample in segment]

    @property
    def marks(self) -> list[ScenarioMark]:
        """Marks of the actions in this scenario."""
        return self.observer.marks[self.first_mark :]

    def elapsed(self, since: float | None, until: float | None) -> float | None:
        """Compute the seconds between two times; None if one of them is None."""
        return None if since is None or until is None else max(until - since, 0.0)

    # Controls.

    @contextmanager
    def as_control(self) -> Iterator[list[Sample]]:
        """Collect the samples of the body for a control; they fill the list and are not judged."""
        self.observer.poll()
        start = len(self.observer.samples)
        samples: list[Sample] = []
        try:
            yield samples
        finally:
            self.observer.poll()
            samples += self.observer.samples[start:]
            self.control_ranges.append((start, len(self.observer.samples)))


ASK_DEFAULTS = {"strategy": "PACK", "staff": False, "resource": ""}
