"""A start that took long but ended: `Init timings`, of NCCL 2.22 and later (src/init.cc)."""

from __future__ import annotations

import re
from typing import NamedTuple

from probes.findings import SHOWN, finding
from probes.nccl.job import Rank
from probes.nccl.log import Log
from probes.nccl.remedies import LATE, SLOW
from reports.record import Finding

TIMINGS = re.compile(
    rb"Init timings - [^:]{1,64}: rank \d{1,9} nranks (\d{1,9}) total (\d{1,9}\.\d{1,3}) "
    rb"\((.{1,300}?)\)"
)
PHASE = re.compile(rb"(\w{1,16}) (\d{1,9}\.\d{1,3})")
# Seconds.  A start that waits for nothing takes a few; for one connection NCCL waits 60 at most
# (NCCL_SOCKET_RETRY_CNT), and users take that for a hang.
LIMIT = 30.0
PER_RANK = 0.01  # further seconds: ranks are gathered one after another


class Start(NamedTuple):
    """How long a rank took to make its first communicator, in seconds."""

    rank: Rank
    ranks: int
    total: float
    phases: dict[str, float]

    @property
    def limit(self) -> float:
        """Seconds that a start of so many ranks may take."""
        return LIMIT + PER_RANK * self.ranks

    @property
    def phase(self) -> str:
        """The phase that took most."""
        return max(self.phases, key=lambda name: self.phases[name])

    @property
    def bootstrap(self) -> float:
        """Seconds in which it found the others, and waited for them."""
        return self.phases.get("bootstrap", 0.0)


def start(rank: Rank, text: bytes) -> Start | None:
    """What a line of timings says; None for any other."""
    match = TIMINGS.match(text)
    phases = {
        name.decode(): float(took) for name, took in PHASE.findall(match[3] if match else b"")
    }
    return Start(rank, int(match[1]), float(match[2]), phases) if match and phases else None


def slow(log: Log) -> list[Finding]:
    """A start over the limit, with the phase that took most; who came late where others waited."""
    if not log.slow:
        return []
    worst = max(log.slow, key=lambda start: start.total)
    phase, name = worst.phase, worst.rank.name
    said = (
        f"{name} took {worst.total:.1f} s to start, {worst.phases[phase]:.1f} s of them in "
        f"{phase}, expected under {worst.limit:.1f} s (half of what NCCL waits for a connection)"
    )
    first = log.quickest.get(worst.ranks, worst)
    if phase == "bootstrap" and first.bootstrap < worst.bootstrap / 2:
        late = first.rank.name
        said += f"; it waited for {late}, which was there {first.bootstrap:.1f} s"
        return [finding("INIT-SLOW", said, [late], remedy=LATE)]
    alike = sorted((s for s in log.slow if s.phase == phase), key=lambda start: -start.total)
    suspects = list(dict.fromkeys(start.rank.name for start in alike))[:SHOWN]
    return [finding("INIT-SLOW", said, suspects, remedy=SLOW.get(phase, ""))]
