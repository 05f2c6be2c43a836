"""Keeps a job going: a gang that loses a rank is mended or replaced, and resumes.

Three things end an attempt: a rank's process dies or fails (Ray says so), a rank does not answer (a
stopped process closes no socket), or no rank gets on with its step.  Where only processes were lost
they are started again in their places, and the others stay: starting is what takes time.  Else the
old group is removed before a new one is asked for: a group that waits for a lost node blocks every
other group of the cluster (Ray 2.60).  While there is no room, the job waits and holds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from reference_trainer.launch.gang import Gang, GangError, GangPending, WorkerLost
from reference_trainer.launch.worker import Place
from reference_trainer.telemetry.heartbeat import farewell

LOOK_SECONDS = 0.5  # between two heartbeats; death is heard of at once


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long is too long, in seconds: long before the first step, short after it.

    `answer` is for a heartbeat (importing torch may hold a process up for a while), `step` for a
    step that does not end.  A save, and the end of a run, are given as long as the beginning.
    """

    first_answer: float = 60
    first_step: float = 300
    answer: float = 10
    step: float = 60


@dataclass
class Attempt:
    """One try of a supervised run: where its ranks were, and how it ended.

    Times are seconds since the epoch on the supervisor's clock; `ready` is None when no gang came
    together.  `lost` are the ranks to blame, `reason` is a sentence; `left` says that it was told
    to leave (SIGTERM) and did; the reason says whether with its state saved.
    """

    places: list[Place]
    started: float
    ready: float | None = None
    ended: float = 0.0
    lost: list[int] = field(default_factory=list)
    reason: str = ""
    left: bool = False


def supervise(
    make: Callable[[], Gang],
    function: Callable[..., Any],
    *arguments: Any,
    restarts: int = 3,
    timeout: float = 600,
    patience: Patience | None = None,
    on_start: Callable[[Gang, int], None] | None = None,
    tell: Callable[[str, dict[str, Any]], None] = lambda event, values: None,
) -> tuple[list[Any], list[Attempt]]:
    """Run `function` to its end, with the gang mended, or a new one, after each lost rank.

    `on_start(gang, attempt)` is told of each attempt's gang; `tell(event, values)` hears the events
    "attempt", "mended", "removed", "ready", "lost", "left", "done", "given-up".  A result that is a
    trainer's with `left` true is a rank that was told to leave: that ends the attempt, too.
    `timeout` bounds each attempt.  Raises GangError with one sentence when there was no room in
    time, and when the attempts are used up; each of them is in the exception's `attempts`.
    """
    attempts: list[Attempt] = []
    with ExitStack() as held:
        gang: Gang | None = None
        while True:
            lost = attempts[-1].lost if attempts else []
            attempt = Attempt(places=[], started=time.time())
            attempts.append(attempt)
            tell("attempt", {"number": len(attempts)})
            try:
                gang = _ready(gang, lost, make, held, tell)
                attempt.places, attempt.ready = gang.places, time.time()
                tell("ready", {"hosts": [place.host for place in gang.places]})
                if on_start:
                    on_start(gang, len(attempts))
                calls = gang.begin(function, *arguments)
                results = follow(gang, calls, timeout, patience or Patience())
                attempt.ended = time.time()
            except WorkerLost as loss:
                attempt.ended, attempt.lost, attempt.reason = loss.at, loss.ranks, str(loss)
            except GangPending as error:
                attempt.ended, attempt.reason = time.time(), str(error)
                tell("given-up", {"reason": str(error)})
                raise _with(attempts, error) from None
            except GangError as error:  # it had room, and did not come together in time
                attempt.ended, attempt.reason = time.time(), str(error)
            else:
                attempt.left = any(isinstance(one, dict) and one.get("left") for one in results)
                if not attempt.left:
                    tell("done", {"attempts": len(attempts)})
                    return results, attempts
                attempt.reason = farewell(results[0])
            words = {"ranks": attempt.lost, "reason": attempt.reason}
            tell("left" if attempt.left else "lost", words)
            if len(attempts) > restarts:
                said = f"{len(attempts)} attempts were lost, the last one so: {attempt.reason}"
                tell("given-up", {"reason": said})
                raise _with(attempts, GangError(said))


def _ready(
    gang: Gang | None,
    lost: Sequence[int],
    make: Callable[[], Gang],
    held: ExitStack,
    tell: Callable[[str, dict[str, Any]], None],
) -> Gang:
    """The old gang with new processes for what it lost, or else a new one.

    The old one is removed before the new one is asked for: its room may be all that there is.
    """
    if gang is not None:
        if replaced := gang.mend(lost):
            tell("mended", {"ranks": replaced})
            return gang
        held.close()
        tell("removed", {})
    return held.enter_context(make())


def _with(attempts: list[Attempt], error: GangError) -> GangError:
    error.attempts = attempts
    return error


def follow(gang: Gang, calls: list[Any], timeout: float, patience: Patience) -> list[Any]:
    """Wait for all ranks' results.  Raises WorkerLost as soon as one is dead, silent or stuck."""
    import ray

    deadline = time.monotonic() + timeout
    pending, watch = list(calls), Heartbeats(gang, patience)
    while pending:
        done, pending = ray.wait(pending, num_returns=1, timeout=LOOK_SECONDS)
        for call in done:
            try:
                ray.get(call)
            except ray.exceptions.RayError as error:
                raise gang.lost(calls, error, "train") from error
        watch.look([rank for rank, call in enumerate(calls) if call in pending])
        if time.monotonic() > deadline:
            raise WorkerLost(f"the attempt did not end within {timeout:.0f} s", [], time.time())
    return list(ray.get(calls))


class Heartbeats:
    """Asks every rank what it does, again once it has answered, and judges the silence."""

    def __init__(self, gang: Gang, patience: Patience) -> None:
        self.gang, self.patience = gang, patience
        self._asked = [time.monotonic()] * gang.size
        self._calls = [gang.beat(rank) for rank in range(gang.size)]
        self._last: list[dict[str, Any]] = [{"step": 0, "phase": "", "age": 0.0}] * gang.size

    def look(self, running: list[int]) -> None:
        """Raises WorkerLost that names the ranks which do not answer, or do not get on."""
        import ray

        done, _ = ray.wait(self._calls, num_returns=len(self._calls), timeout=0)
        now = time.monotonic()
        for rank, call in enumerate(self._calls):
            if call not in done:
                continue
            try:
                self._last[rank] = ray.get(call)
            except ray.exceptions.RayError:  # its result says better how it died
                continue
            self._calls[rank], self._asked[rank] = self.gang.beat(rank), now
        self._judge(running, now)

    def _judge(self, running: list[int], now: float) -> None:
        early = [self._last[rank]["phase"] != "training" for rank in range(self.gang.size)]
        limits = self.patience.first_answer, self.patience.answer
        silent = [r for r in running if now - self._asked[r] > limits[0 if early[r] else 1]]
        if silent:
            longest = max(now - self._asked[rank] for rank in silent)
            raise WorkerLost(
                f"train: {self._named(silent)} did not answer for {longest:.0f} s",
                silent,
                time.time(),
            )
        limits = self.patience.first_step, self.patience.step
        late = [r for r in running if self._last[r]["age"] > limits[0 if early[r] else 1]]
        if late:  # all wait for the one that is furthest behind
            step = min(self._last[rank]["step"] for rank in late)
            behind = [rank for rank in late if self._last[rank]["step"] == step]
            longest = max(self._last[rank]["age"] for rank in behind)
            raise WorkerLost(
                f"train: {self._named(behind)} stayed in step {step} for {longest:.0f} s",
                behind,
                time.time(),
            )

    def _named(self, ranks: list[int]) -> str:
        places = [f"rank {rank} on {self.gang.places[rank].host}" for rank in ranks]
        return ", ".join(places)
