"""The memory that one log's facts may take, so that no log takes all there is."""

from __future__ import annotations

ROOM = 200 << 20  # bytes: 100,000 ranks on 12,500 hosts, with two communicators and 20 edges each
# Prices in bytes, above what CPython 3.11 takes: with short texts and the slots of dicts.
RANK, HOST, COMMUNICATOR, SEAT, LINK, FACT = 800, 800, 600, 330, 24, 200


class Room:
    """What is remembered is paid for; what cannot be paid is left out, and `full` says so."""

    def __init__(self, size: int = ROOM) -> None:
        self.left, self.full = size, False

    def take(self, price: int, *, given: bool = True) -> bool:
        """Whether there is room for it; `given` is a further condition that must hold."""
        if price > self.left or not given:
            self.full = True
            return False
        self.left -= price
        return True

    def give(self, price: int) -> None:
        """Something was forgotten again."""
        self.left += price
