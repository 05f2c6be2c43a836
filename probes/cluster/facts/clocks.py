"""Compares the clocks of nodes with the driver's, by exchanges of messages.

The answer of a node is as old as the message was on its way.  That is half of the round trip, with
an error of at most that half (Cristian's algorithm).  The shortest round trip tells the most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from probes.cluster.cluster import TASK_SECONDS
from probes.cluster.node_affinity import on_node

EXCHANGES = 8  # with each node: some of them meet no other work
MOST_EXCHANGES = 20  # with a node that is busy, or far away
SHORT_SECONDS = 0.01  # half of a round trip; a shorter one changes no verdict on 100 ms
ANSWER_SECONDS = 5.0  # of one exchange; a node that takes longer is not asked again
CLOCK = "CLOCK_REALTIME"


@dataclass(frozen=True)
class ClockOffset:
    """Clock of a node less the driver's (s), and the most that this may be wrong (s)."""

    seconds: float
    error: float


class ClockReader:
    """Ray actor on one node that reads its clock."""

    def read(self, clock: str) -> float:
        """Read a clock of this node (s), by its name in `time`."""
        return time.clock_gettime(getattr(time, clock))


class ClockReaders:
    """The readers of these nodes.  `close` ends them; so does the end of the job."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._readers = {id: on_node(ClockReader, id).remote() for id in nodes}

    def wait_until_up(self) -> list[str]:
        """Wait until the readers answer; return the nodes where one does."""
        import ray

        calls = {reader.read.remote(CLOCK): id for id, reader in self._readers.items()}
        done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=TASK_SECONDS)
        answered = []
        for call in done:
            with suppress(ray.exceptions.RayError):
                ray.get(call)
                answered.append(calls[call])
        return answered

    def compare(self, nodes: Iterable[str], clock: str = CLOCK) -> dict[str, ClockOffset]:
        """Compare the clocks of these nodes with the driver's; silent ones are left out."""
        import ray

        found = {}
        for id in nodes:
            read = self._readers[id].read

            def ask(read: Any = read) -> float:
                return float(ray.get(read.remote(clock), timeout=ANSWER_SECONDS))

            with suppress(ray.exceptions.RayError):
                if offset := exchange_times(ask):
                    found[id] = offset
        return found

    def close(self) -> None:
        """End all readers."""
        import ray

        for reader in self._readers.values():
            ray.kill(reader)


def exchange_times(
    ask: Callable[[], float], now: Callable[[], float] = time.time
) -> ClockOffset | None:
    """Ask for a node's clock several times; return the offset by the shortest exchange, if any."""
    best = None
    for count in range(1, MOST_EXCHANGES + 1):
        sent = now()
        answer = ask()
        error = (now() - sent) / 2
        # A negative trip is a driver's clock that was set meanwhile.
        if error >= 0 and (best is None or error < best.error):
            best = ClockOffset(answer - sent - error, error)
        if best and count >= EXCHANGES and best.error <= SHORT_SECONDS:
            break
    return best
