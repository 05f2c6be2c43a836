"""Keeps what commands print in bounds: the first lines, the last, and those of the job's ranks."""

from __future__ import annotations

import codecs
import io
from collections import deque
from collections.abc import Iterator

from probes.launch.training import ATTEMPT, PARAMETERS, STEP, TRAINED_WORD
from reports.numbers import quantity

MAX_LINE = 64 << 10  # characters of a line; a rank says a few thousand in one
PARTIAL_WORD = 4096  # a word that is cut there may be a secret, whose form is then not known
LINE_COST = 64  # bytes of Python's own for each line
FIRST_BYTES = LAST_BYTES = 1 << 20
RANKS_BYTES = 4 << 20  # of what ranks say, for a small cluster
RANK_BYTES = 8 << 10  # and for each rank
OF_RANKS = (ATTEMPT, PARAMETERS, STEP, TRAINED_WORD)


class LineReader:
    """Splits bytes into lines, as a terminal does; the end of a long line is left out."""

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._line, self._left_out = "", 0

    def read(self, content: bytes, final: bool = False) -> Iterator[str]:
        """Yield the lines that have ended; at the end of all content, also the last one."""
        *ended, rest = self._decoder.decode(content, final).split("\n")
        for piece in ended:
            self._extend(piece)
            yield self._end()
        self._extend(rest)
        if final and (self._line or self._left_out):
            yield self._end()

    def _extend(self, piece: str) -> None:
        room = MAX_LINE - len(self._line)
        self._line += piece[:room]
        self._left_out += max(0, len(piece) - room)

    def _end(self) -> str:
        line, count = self._line, self._left_out
        self._line, self._left_out = "", 0
        if not count:
            return line
        end = line.rfind(" ", len(line) - PARTIAL_WORD)
        kept = line[: end if end > 0 else len(line) - PARTIAL_WORD]
        count += len(line) - len(kept)
        return f"{kept} [seatrial left out {quantity(count, 'characters')} of this line]"


class OutputLines:
    """Lines of an output: the first and the last of them, and those of the job's ranks.

    `lines` is a plain list, which grows while the commands run.
    """

    def __init__(self, lines: list[str], ranks: int) -> None:
        self.lines = lines
        self._ranks_room = RANKS_BYTES + ranks * RANK_BYTES
        self._first_room, self._first = FIRST_BYTES, 0  # how many lines are the first ones
        self._last_bytes, self._dropped, self._dropped_bytes = 0, 0, 0
        self._of_ranks: list[str] = []

    def add(self, line: str) -> None:
        """Add a line, and leave out others if there are too many."""
        self.lines.append(line)
        if self._first_room > 0:
            self._first_room -= _cost(line)
            self._first += 1
            return
        self._last_bytes += _cost(line)
        if self._last_bytes > 2 * LAST_BYTES:
            self._leave_out()

    def _leave_out(self) -> None:
        """Drop the oldest lines after the first ones, but for those of ranks; say how many."""
        last = deque(self.lines[self._first + len(self._of_ranks) + (self._dropped > 0) :])
        while self._last_bytes > LAST_BYTES:
            line = last.popleft()
            self._last_bytes -= _cost(line)
            if self._ranks_room > 0 and any(pattern.search(line) for pattern in OF_RANKS):
                self._ranks_room -= _cost(line)
                self._of_ranks.append(line)
            else:
                self._dropped += 1
                self._dropped_bytes += len(line) + 1
        size = quantity(self._dropped_bytes / 1e6, "MB")
        note = f"[seatrial left out {quantity(self._dropped, 'lines')} here, {size}]"
        self.lines[self._first :] = [*[note] * (self._dropped > 0), *self._of_ranks, *last]


def _cost(line: str) -> int:
    return len(line) + LINE_COST
