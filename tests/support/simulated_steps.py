"""Simulates the steps of a cluster: ranks that meet, noise, and injected causes.

A step is data, forward, backward, clip, optimizer, checkpoint, other. A meeting begins with a
gather that needs all ranks. It ends for all together when the slowest is done. All injected sizes
are shares of a healthy step on one node, lost per step of the largest rung.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from scaling.ladder.ladder import HOST_CLOCK, Rung
from scaling.ladder.step_breakdown import Step
from scaling.loss.causes import CollectiveTimes

# Seconds of each segment on one node; they sum to 1.
WORK = {
    "data": 0.04,
    "forward": 0.29,
    "backward": 0.55,
    "clip": 0.01,
    "optimizer": 0.09,
    "checkpoint": 0.0,
    "other": 0.02,
}
SHARES = {"forward": 0.4, "backward": 0.55, "clip": 0.05}  # share of the communication, by meeting
COLLECTIVES = {"forward": ["all-gather"], "backward": ["all-gather", "reduce-scatter"]}
TOKENS = 8192

# For each cause: the code that must name it, and the attribute with the node that has it.
CODES = {
    "slow_node": "SCALE-SLOW-NODE",
    "slowing": "SCALE-THROTTLING",
    "slowing_jump": "SCALE-THROTTLING",
    "hot": "SCALE-THROTTLING",
    "data": "SCALE-DATA",
    "checkpoint": "SCALE-CHECKPOINT",
    "jitter": "SCALE-JITTER",
    "link": "SCALE-LINK",
    "tokens": "SCALE-TOKENS",
    "unexplained": "SCALE-UNEXPLAINED",
}
WHERE = {
    "slow_node": "slow",
    "slowing": "tired",
    "slowing_jump": "tired",
    "hot": "tired",
    "data": "late",
}


@dataclass
class Cluster:
    """Cluster on which rungs are run. Causes are shares of a healthy one-node step."""

    nodes: int = 8
    per_node: int = 1
    steps: int = 24
    seed: int = 0
    noise: float = 0.02  # standard deviation of each segment of each step, as a share of it
    data_noise: float = 0.15  # loading varies more than compute
    uneven: float = 0.004  # between healthy nodes
    ragged: float = 0.001  # seconds between ranks when they leave a meeting
    communication: float = 0.04  # at the largest rung, replayed as such
    slow_node: float = 0.0
    slowing: float = 0.0  # a ramp, mean over the window
    slowing_jump: float = 0.0  # half of the window twice as much
    hot: float = 0.0  # slows down in the first half of the rung of 1, and stays so
    data: float = 0.0
    checkpoint: float = 0.0
    save_every: int = 4
    jitter: float = 0.0
    link: float = 0.0  # communication that links of the agreed rate would spare
    tokens: float = 0.0  # more communication, on links of the agreed rate
    unexplained: float = 0.0
    company: float = 0.0  # one node, only when it runs with others
    solo: float = 0.0  # one node, only when it runs alone
    inner: float = 0.0  # one node waits for its own links, alone too
    warm: float = 0.0  # every node, only when it runs with others
    separable: bool = False  # waits are timed separately from compute, as on GPUs
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.names = [f"node{at}" for at in range(self.nodes)]
        self.pace = {name: self.chance.gauss(1, self.uneven) for name in self.names}
        culprits = self.chance.sample(self.names, min(3, self.nodes))
        self.slow, self.late, self.tired = (*culprits, culprits[0])[:3]

    @property
    def talk(self) -> CollectiveTimes:
        """Times that a replay of the collectives finds at the largest rung.

        A link that is slow all the time is slow in the replay too. Links of the agreed rate would
        save what it costs.
        """
        agreed = self.communication + self.tokens
        return CollectiveTimes(replayed=agreed + self.link, at_agreed_rate=agreed)

    def base(self) -> Rung:
        """Run every node alone."""
        steps = [ranks for name in self.names for ranks in self.run([name], alone=True)]
        return self._rung(1, self.names, steps)

    def largest(self) -> Rung:
        """Run all nodes together."""
        return self._rung(self.nodes, self.names, self.run(self.names, alone=False))

    def _rung(self, count: int, names: list[str], steps: list[list[Step]]) -> Rung:
        nodes = [name for name in names for _ in range(self.per_node)]
        ranks = count * self.per_node
        clock = "cuda events" if self.separable else HOST_CLOCK
        tokens = TOKENS * ranks
        return Rung(count, nodes, steps, tokens, 0, separable=self.separable, clock=clock)

    def run(self, names: list[str], alone: bool) -> list[list[Step]]:
        """Run one job on these nodes; return the timed steps of every rank."""
        where = [name for name in names for _ in range(self.per_node)]
        clock = [0.0] * len(where)
        found: list[list[Step]] = [[] for _ in where]
        for at in range(self.steps):
            rows: list[dict[str, float]] = [{} for _ in where]
            waits: list[dict[str, dict[str, float]]] = [{} for _ in where]
            for segment in WORK:
                spent = [self.work(name, segment, at, alone) for name in where]
                ends = [a + b for a, b in zip(clock, spent, strict=True)]
                if segment in SHARES:
                    together = max(clock) + max(spent) + self.traffic(segment, alone)
                    together += SHARES[segment] * self.inner * (self.slow in names)
                    ends = [together + abs(self.chance.gauss(0, self.ragged)) for _ in where]
                for row, end, start in zip(rows, ends, clock, strict=True):
                    row[segment] = end - start
                for wait, row, own in zip(waits, rows, spent, strict=True):
                    wait |= self.waits(segment, row[segment] - own)
                clock = ends
            for steps, row, wait in zip(found, rows, waits, strict=True):
                whole = sum(row.values())
                steps.append(Step(whole, row, wait, wall=whole))
        return found

    def waits(self, segment: str, seconds: float) -> dict[str, dict[str, float]]:
        """Return what a meeting waited, by collective, where the trainer times it."""
        if not self.separable or segment not in COLLECTIVES:
            return {}
        names = COLLECTIVES[segment]
        return {segment: dict.fromkeys(names, seconds / len(names))}

    def traffic(self, segment: str, alone: bool) -> float:
        """Return the seconds of communication in one meeting."""
        if alone:
            return 0.0
        whole = self.communication + self.tokens + self.link
        return SHARES[segment] * self.gamma(whole, 0.05)

    def work(self, node: str, segment: str, at: int, alone: bool) -> float:
        """Return the seconds of one rank's own work in one segment."""
        if segment == "data":
            return self.gamma(WORK["data"], self.data_noise) + (
                self.gamma(self.data, self.data_noise) if node == self.late else 0.0
            )
        if segment == "checkpoint":
            saves = self.checkpoint > 0 and at % self.save_every == self.save_every - 1
            size = self.save_every * self.checkpoint * (0.05 if alone else 1.0)
            return self.gamma(size, 0.05) if saves else 0.0
        seconds = WORK[segment] * self.pace[node] * self.speed(node, at, alone)
        if segment == "optimizer" and not alone:
            seconds += self.unexplained
        spiked = segment == "backward" and self.chance.random() < 0.5 / (self.nodes * self.per_node)
        return self.gamma(seconds, self.noise) + (
            # Some rank has a spike in 40 % of the steps, so that the mean loss is `jitter`.
            self.chance.expovariate(1 / (self.jitter / 0.45)) if spiked and self.jitter else 0.0
        )

    def speed(self, node: str, at: int, alone: bool) -> float:
        """Return how many times longer than a healthy node this node takes now."""
        factor = 1.0 + (0.0 if alone else self.warm)
        if node == self.slow:
            factor += self.slow_node + (self.solo if alone else self.company)
        if node == self.tired:
            if not alone:
                factor += 2 * self.slowing * at / max(1, self.steps - 1)
                factor += 2 * self.slowing_jump * (at >= self.steps // 2)
            factor += self.hot * (not alone or at >= self.steps // 2)
        return factor

    def gamma(self, mean: float, share: float) -> float:
        """Draw a positive random number with that mean; `share` is its deviation over the mean."""
        if mean <= 0 or share <= 0:
            return max(mean, 0.0)
        return self.chance.gammavariate(1 / share**2, mean * share**2)


def longer(step: Step, segment: str, seconds: float, waited: str | None = None) -> Step:
    """Return the step with a segment that takes longer, as it waits for a collective."""
    waits = step.exposed
    if waited:
        there = waits[segment]
        waits = waits | {segment: there | {waited: there[waited] + seconds}}
    whole, segments = step.seconds + seconds, step.segments
    segments = segments | {segment: segments[segment] + seconds}
    return Step(whole, segments, waits, wall=whole)
