"""Keeps a job going: a gang that loses a rank is repaired or replaced, and the job resumes.

Three things end an attempt. A rank's process dies or fails (Ray reports it). A rank does not answer
(a stopped process closes no socket). A rank makes no progress in its step.

If only processes were lost, they are started again in their places. The others stay, because a
start takes long. Otherwise the old group is removed before a new one is requested: a group that
waits for a lost node blocks every other group of the cluster (Ray 2.60). While there is no room,
the job waits and holds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from reference_trainer.late import ray
from reference_trainer.launch.gang import Gang, GangError, GangPending, WorkerLost
from reference_trainer.launch.worker import RankLocation
from reference_trainer.telemetry.event_log import exit_message

POLL_SECONDS = 0.5  # seconds between two heartbeats; a death is reported at once


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Limits in seconds: long before the first step, short after it.

    `answer` is for a heartbeat (importing torch may block a process for long). `step` is for a step
    that does not end. A save, and the end of a run, have the same limits as the start.
    """

    first_answer: float = 60
    first_step: float = 300
    answer: float = 10
    step: float = 60


@dataclass
class Attempt:
    """One attempt of a supervised run: where its ranks were, and how it ended.

    Times are seconds since the epoch on the supervisor's clock. `ready` is None when no gang came
    together. `lost` are the ranks to blame, `reason` is a sentence. `left` is true if the run left
    on SIGTERM; `reason` then includes whether its state was saved.
    """

    places: list[RankLocation]
    started: float
    ready: float | None = None
    ended: float = 0.0
    lost: list[int] = field(default_factory=list)
    reason: str = ""
    left: bool = False


def supervise(
    make_gang: Callable[[], Gang],
    function: Callable[..., Any],
    *arguments: Any,
    restarts: int = 3,
    timeout: float = 600,
    timeouts: Timeouts | None = None,
    on_start: Callable[[Gang, int], None] | None = None,
    on_event: Callable[[str, dict[str, Any]], None] = lambda event, values: None,
) -> tuple[list[Any], list[Attempt]]:
    """Run `function` to its end; after each lost rank, repair the gang or make a new one.

    `on_start(gang, attempt)` is called with each attempt's gang. `on_event(event, values)` is
    called with "attempt", "repaired", "removed", "ready", "lost", "left", "done", "given-up". A
    trainer's result with `left` true comes from a rank that left on SIGTERM: that ends the attempt,
    too. `timeout` bounds each attempt, in seconds. Raises GangError with one sentence when there
    was no room in time, and when the attempts are used up. The exception's `attempts` holds all of
    them.
    """
    attempts: list[Attempt] = []
    with ExitStack() as stack:
        gang: Gang | None = None
        while True:
            lost = attempts[-1].lost if attempts else []
            attempt = Attempt(places=[], started=time.time())
            attempts.append(attempt)
            on_event("attempt", {"number": len(attempts)})
            try:
                gang = _ready_gang(gang, lost, make_gang, stack, on_event)
                attempt.places, attempt.ready = gang.places, time.time()
                on_event("ready", {"hosts": [place.host for place in gang.places]})
                if on_start:
                    on_start(gang, len(attempts))
                calls = gang.begin(function, *arguments)
                results = wait_for_results(gang, calls, timeout, timeouts or Timeouts())
                attempt.ended = time.time()
            except WorkerLost as loss:
                attempt.ended, attempt.lost, attempt.reason = loss.lost_at, loss.ranks, str(loss)
            except GangPending as error:
                attempt.ended, attempt.reason = time.time(), str(error)
                on_event("given-up", {"reason": str(error)})
                raise _with_attempts(attempts, error) from None
            except GangError as error:  # there was room, but it did not start in time
                attempt.ended, attempt.reason = time.time(), str(error)
            else:
                attempt.left = any(isinstance(r, dict) and r.get("left") for r in results)
                if not attempt.left:
                    on_event("done", {"attempts": len(attempts)})
                    return results, attempts
                attempt.reason = exit_message(results[0])
            details = {"ranks": attempt.lost, "reason": attempt.reason}
            on_event("left" if attempt.left else "lost", details)
            if len(attempts) > restarts:
                message = f"attempt {len(attempts)} of {restarts + 1} failed: {attempt.reason}"
                on_event("given-up", {"reason": message})
                raise _with_attempts(attempts, GangError(message))


def _ready_gang(
    gang: Gang | None,
    lost: Sequence[int],
    make_gang: Callable[[], Gang],
    stack: ExitStack,
    on_event: Callable[[str, dict[str, Any]], None],
) -> Gang:
    """Return the old gang with new processes for what it lost, or else a new gang.

    The old gang is removed before the new one is requested: there may be room for one only.
    """
    if gang is not None:
        if replaced := gang.replace_workers(lost):
            on_event("repaired", {"ranks": replaced})
            return gang
        stack.close()
        on_event("removed", {})
    return stack.enter_context(make_gang())


def _with_attempts(attempts: list[Attempt], error: GangError) -> GangError:
    error.attempts = attempts
    return error


def wait_for_results(gang: Gang, calls: list[Any], timeout: float, timeouts: Timeouts) -> list[Any]:
    """Wait for all ranks' results. Raises WorkerLost as soon as one is dead, silent or stuck."""
    deadline = time.monotonic() + timeout
    pending, monitor = list(calls), HeartbeatMonitor(gang, timeouts)
    while pending:
        done, pending = ray.wait(pending, num_returns=1, timeout=POLL_SECONDS)
        for call in done:
            try:
                ray.get(call)
            except ray.exceptions.RayError as error:
                raise gang.describe_loss(calls, error, "") from error
        monitor.poll([rank for rank, call in enumerate(calls) if call in pending])
        if time.monotonic() > deadline:
            raise WorkerLost(f"the attempt did not end within {timeout:.0f} s", [], time.time())
    return list(ray.get(calls))


class HeartbeatMonitor:
    """Monitor of all ranks' progress, which judges ranks that are silent or stuck."""

    def __init__(self, gang: Gang, timeouts: Timeouts) -> None:
        self.gang, self.timeouts = gang, timeouts
        self._asked_at = [time.monotonic()] * gang.size
        self._calls = [gang.heartbeat(rank) for rank in range(gang.size)]
        self._answers: list[dict[str, Any]] = [{"step": 0, "phase": "", "age": 0.0}] * gang.size

    def poll(self, running: list[int]) -> None:
        """Read the heartbeats that came and request the next.

        Raises WorkerLost that names the ranks which do not answer or make no progress.
        """
        done, _ = ray.wait(self._calls, num_returns=len(self._calls), timeout=0)
        now = time.monotonic()
        for rank, call in enumerate(self._calls):
            if call in done:
                try:
                    self._answers[rank] = ray.get(call)
                except ray.exceptions.RayError:  # the rank's own result explains it better
                    continue
                self._calls[rank], self._asked_at[rank] = self.gang.heartbeat(rank), now
        self._check(running, now)

    def _check(self, running: list[int], now: float) -> None:
        starting = [self._answers[rank]["phase"] != "training" for rank in range(self.gang.size)]
        limits = self.timeouts.first_answer, self.timeouts.answer
        silent = [r for r in running if now - self._asked_at[r] > limits[0 if starting[r] else 1]]
        if silent:
            longest = max(now - self._asked_at[rank] for rank in silent)
            message = f"{self._describe_ranks(silent)} did not answer for {longest:.0f} s"
            raise WorkerLost(message, silent, time.time())
        limits = self.timeouts.first_step, self.timeouts.step
        late = [r for r in running if self._answers[r]["age"] > limits[0 if starting[r] else 1]]
        if late:  # all wait for those that are furthest behind
            step = min(self._answers[rank]["step"] for rank in late)
            behind = [rank for rank in late if self._answers[rank]["step"] == step]
            longest = max(self._answers[rank]["age"] for rank in behind)
            message = f"{self._describe_ranks(behind)} stayed in step {step} for {longest:.0f} s"
            raise WorkerLost(message, behind, time.time())

    def _describe_ranks(self, ranks: list[int]) -> str:
        return ", ".join(f"rank {rank} on {self.gang.places[rank].host}" for rank in ranks)
