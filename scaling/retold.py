"""What a run's ladder says, told again from its evidence; needs no cluster.

`ladder.json`: {"rungs": [{"nodes", "ranks" (node of each), "tokens_per_step", "non_finite",
"disagreements", "separable", "played" (s of a step that was played, None: none was),
"at_agreed_rate" (the same, were links as fast as agreed), "steps" [rank][step] {"seconds",
"segments"}, "again" (seconds [run][step] of its other runs)}], "calls": [...], "fits":
{operation: ...} of the largest rung}.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scaling.alphabeta import Fit
from scaling.decompose import Step, mean_seconds
from scaling.explain import Explanation, explain_ladder
from scaling.ladder import Rung
from scaling.predict import (
    Call,
    Outlook,
    communication,
    efficiency_interval,
    outlook,
    step_seconds,
)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The rungs that were run, and what their collectives took.

    `talk` is seconds of a step that was played, by node count, where one was; `agreed` what it
    would be on links of the agreed rate, where there is one; `again` the seconds of each step of
    the rungs' other runs, where there were more than one.
    """

    rungs: Sequence[Rung]
    talk: Mapping[int, float | None]
    calls: Sequence[Call]
    fits: Mapping[str, Fit]
    agreed: Mapping[int, float] = field(default_factory=dict)
    again: Mapping[int, Sequence[Sequence[float]]] = field(default_factory=dict)

    @property
    def expected(self) -> dict[int, float]:
        """Seconds that communication should add to one node's step on each rung."""
        return self._beyond_one_node(self.talk)

    def _beyond_one_node(self, talk: Mapping[int, float | None]) -> dict[int, float]:
        alone = self.talk.get(1)
        if alone is None:
            return {}
        more = {count: seconds for count, seconds in talk.items() if seconds is not None}
        return {count: seconds - alone for count, seconds in more.items() if count > 1}

    def efficiency(self, rung: Rung) -> float:
        """T_1 / T_n."""
        return mean_seconds(self.rungs[0].median_node()) / rung.seconds

    @cached_property
    def intervals(self) -> dict[int, tuple[float, float]]:
        """Within which each larger rung's efficiency lies, with 95 % confidence, by node count.

        Where rungs were run once it knows how steps differ, and nothing of how runs do.
        """
        runs = {
            rung.count: [step_seconds(rung.judged), *self.again.get(rung.count, ())]
            for rung in self.rungs
        }
        alone = runs.pop(self.rungs[0].count)
        return {count: efficiency_interval(alone, each) for count, each in runs.items()}

    def explained(self, limit: float | None = None) -> list[Explanation]:
        """Each rung above one node."""
        agreed = self._beyond_one_node(self.agreed)
        return explain_ladder(self.rungs, self.expected, limit, agreed)

    def foreseen(self, sizes: Sequence[int] = (16, 64, 256, 1024)) -> Outlook:
        """What more nodes would do.  ValueError where too little is known."""
        top = self.rungs[-1]
        if not self.fits:
            raise ValueError("a prediction needs collectives, and none were timed on this ladder")
        seconds = communication(self.calls, self.fits, len(top.steps), len(top.steps) // top.count)
        tables = {rung.count: rung.steps for rung in self.rungs[1:]}
        return outlook({1: self.rungs[0].median_node(), **tables}, seconds, sizes)

    def told(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        rungs = [
            {
                "nodes": rung.count,
                "ranks": rung.nodes,
                "tokens_per_step": rung.tokens_per_step,
                "non_finite": rung.non_finite,
                "disagreements": rung.disagreements,
                "separable": rung.separable,
                "played": self.talk.get(rung.count),
                "at_agreed_rate": self.agreed.get(rung.count),
                "steps": [[dataclasses.asdict(step) for step in steps] for steps in rung.steps],
                "again": self.again.get(rung.count, []),
            }
            for rung in self.rungs
        ]
        calls = [dataclasses.asdict(call) for call in self.calls]
        fits = {name: dataclasses.asdict(fit) for name, fit in self.fits.items()}
        return {"rungs": rungs, "calls": calls, "fits": fits}


def retold(content: Mapping[str, Any]) -> Ladder:
    """The ladder that `told` wrote.  KeyError or TypeError where it is none."""
    rungs = [
        Rung(
            count=rung["nodes"],
            nodes=rung["ranks"],
            steps=[[Step(**step) for step in steps] for steps in rung["steps"]],
            tokens_per_step=rung["tokens_per_step"],
            non_finite=rung["non_finite"],
            disagreements=tuple(rung.get("disagreements", ())),
            separable=rung.get("separable", False),
        )
        for rung in content["rungs"]
    ]
    return Ladder(
        rungs=rungs,
        talk={rung["nodes"]: rung["played"] for rung in content["rungs"]},
        calls=[Call(**call) for call in content["calls"]],
        fits={name: Fit(**fit) for name, fit in content["fits"].items()},
        again={rung["nodes"]: rung["again"] for rung in content["rungs"] if rung.get("again")},
        agreed={
            rung["nodes"]: seconds
            for rung in content["rungs"]
            if (seconds := rung.get("at_agreed_rate")) is not None
        },
    )
