"""Who is to blame: from what pairs of nodes can do, the node or the link that is bad."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Mapping
from typing import TypeVar

Pair = tuple[str, str]
Key = TypeVar("Key")

_listeners: list[socket.socket] = []


def listen(address: str) -> int:
    """Accept connections on `address` in the background until this process ends; the port."""
    server = socket.create_server((address, 0))
    _listeners.append(server)
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    return int(server.getsockname()[1])


def _accept(server: socket.socket) -> None:
    while True:
        server.accept()[0].close()


def reach(
    own: str, doors: Mapping[str, tuple[str, int] | None], seconds: float = 3
) -> dict[str, bool]:
    """Whether a TCP connection from `own` to each named door is accepted, all tried at once."""
    answers: dict[str, bool] = {}

    def knock(name: str, door: tuple[str, int]) -> None:
        try:
            socket.create_connection(door, timeout=seconds, source_address=(own, 0)).close()
            answers[name] = True
        except OSError:
            answers[name] = False

    threads = [
        threading.Thread(target=knock, args=(name, door), daemon=True)
        for name, door in doors.items()
        if door
    ]
    deadline = time.monotonic() + seconds + 1
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: answers.get(name, False) for name in doors}


def typical(pairs: Mapping[Key, float]) -> float:
    """What a good pair gives: the upper quartile, as one bad node spoils 2/n of all pairs."""
    values = sorted(pairs.values())
    return (
        statistics.quantiles(values, n=4, method="inclusive")[2] if len(values) > 1 else values[0]
    )


def blame(bad: list[Pair], nodes: list[str]) -> tuple[list[str], list[Pair]]:
    """(nodes all of whose pairs are bad, bad pairs that no such node explains).

    Nodes are taken greedily, the one with most bad pairs first; with only two nodes a bad
    pair cannot be told apart, so it stays a pair.
    """
    guilty: list[str] = []
    left = list(bad)
    while left and len(nodes) > 2:
        counts = {node: sum(node in pair for pair in left) for node in nodes if node not in guilty}
        worst = max(counts, key=lambda node: counts[node])
        if counts[worst] < 2 or counts[worst] < len(nodes) - 1 - len(guilty):
            break
        guilty.append(worst)
        left = [pair for pair in left if worst not in pair]
    return guilty, left
