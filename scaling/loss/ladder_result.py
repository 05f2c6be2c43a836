"""What a run's ladder says, told again from its evidence (ladder_schema.py); needs no cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scaling.collectives.alpha_beta import Fit
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step
from scaling.loss.causes import COLLECTIVES, MEETINGS, Talk
from scaling.loss.explain import Explanation, Place, explain_ladder
from scaling.loss.predict import (
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

    By node count: `talk` is seconds of a step whose collectives were replayed, where it was;
    `agreed` what it would be on links of the agreed rate, where there is one; `doubt` by how much
    the replay may be off; `alpha_beta` what the fits say of the step's collectives; `strays` nodes
    whose bytes took another road than agreed; `again` the seconds of each step of the rungs' other
    runs, where there were more than one.  `places` are slow links that pairs of nodes show; None
    where none were tried.
    """

    rungs: Sequence[Rung]
    talk: Mapping[int, float | None]
    calls: Sequence[Call]
    fits: Mapping[str, Fit]
    agreed: Mapping[int, float] = field(default_factory=dict)
    doubt: Mapping[int, float] = field(default_factory=dict)
    alpha_beta: Mapping[int, float] = field(default_factory=dict)
    strays: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    places: Sequence[Place] | None = None
    again: Mapping[int, Sequence[Sequence[float]]] = field(default_factory=dict)

    @property
    def replayed(self) -> dict[int, float]:
        """Seconds that collectives, replayed alone, add to one node's step on each rung."""
        return _beyond(self.talk, self.talk.get(1))

    @property
    def by_fits(self) -> dict[int, float]:
        """Seconds that collectives, by their fits, add to one node's step on each rung."""
        return _beyond(self.alpha_beta, self._alone)

    @property
    def _alone(self) -> float | None:
        """Seconds of one node's collectives by their fits; None where these are not known."""
        silent = len(self.rungs[0].judged) == 1  # a rank by itself has nobody to talk to
        return self.alpha_beta.get(1, 0.0 if silent else None)

    def efficiency(self, rung: Rung) -> float:
        """T_1 / T_n."""
        return self.rungs[0].seconds / rung.seconds

    @property
    def over(self) -> str:
        """What the intervals are over, in words: one run holds no noise between runs."""
        runs = 1 + max(map(len, self.again.values()), default=0)
        return f"over {runs} runs" if runs > 1 else "within one run"

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
        agreed, replayed = _beyond(self.agreed, self.talk.get(1)), self.replayed
        talks = {
            rung.count: Talk(
                replayed.get(rung.count),
                agreed.get(rung.count),
                self.doubt.get(rung.count, 0.0),
                self.strays.get(rung.count, {}),
            )
            for rung in self.rungs
        }
        return explain_ladder(self.rungs, talks, limit, self.places)

    def foreseen(self, sizes: Sequence[int] = (16, 64, 256, 1024)) -> Outlook:
        """What more nodes would do.  ValueError where too little is known."""
        top = self.rungs[-1]
        if not self.fits:
            raise ValueError("a prediction needs collectives, and none were timed on this ladder")
        seconds = communication(self.calls, self.fits, len(top.steps), len(top.steps) // top.count)
        alone, explained = self._alone or 0.0, self.explained()
        causes = [cause for why in explained[-1:] for cause in why.causes]
        return outlook(
            {rung.count: rung.judged for rung in self.rungs},
            lambda nodes: max(0.0, seconds(nodes) - alone),
            sizes,
            {
                rung.count: _spoken(rung, why)
                for rung, why in zip(self.rungs[1:], explained, strict=True)
            },
            [
                f"{cause.code} {cause.where}"
                for cause in causes
                if cause.segment != MEETINGS or cause.code == "SCALE-UNEXPLAINED"
            ],
            top.load,
        )

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
                "clock": rung.clock,
                "played": self.talk.get(rung.count),
                "at_agreed_rate": self.agreed.get(rung.count),
                "replay_doubt": self.doubt.get(rung.count),
                "alpha_beta": self.alpha_beta.get(rung.count),
                "strays": dict(self.strays.get(rung.count, {})),
                "steps": [[dataclasses.asdict(step) for step in steps] for steps in rung.steps],
                "again": self.again.get(rung.count, []),
            }
            for rung in self.rungs
        ]
        calls = [dataclasses.asdict(call) for call in self.calls]
        fits = {name: dataclasses.asdict(fit) for name, fit in self.fits.items()}
        places = None
        if self.places is not None:
            places = [dataclasses.asdict(place) for place in self.places]
        return {"rungs": rungs, "calls": calls, "fits": fits, "places": places}


def _spoken(rung: Rung, why: Explanation) -> float:
    """Seconds of a rung's step that its explanation says were lost to collectives."""
    names = {name for steps in rung.steps for step in steps for name in step.waited}
    talk = [part for part in why.parts if any(one in part.said for one in (COLLECTIVES, *names))]
    return rung.seconds * sum(part.share for part in talk)


def _beyond(each: Mapping[int, float | None], alone: float | None) -> dict[int, float]:
    """Seconds of each larger rung, less those of one node; none where these are not known."""
    if alone is None:
        return {}
    known = {count: seconds for count, seconds in each.items() if seconds is not None}
    return {count: seconds - alone for count, seconds in known.items() if count > 1}


def retold(content: Any) -> Ladder:
    """The ladder that `told` wrote.  ValueError where it is none, in one sentence."""
    from scaling.loss.ladder_schema import checked

    told = checked(content)
    return Ladder(
        rungs=[
            Rung(
                count=rung.nodes,
                nodes=rung.ranks,
                steps=[[Step(**dict(step)) for step in steps] for steps in rung.steps],
                tokens_per_step=rung.tokens_per_step,
                non_finite=rung.non_finite,
                disagreements=tuple(rung.disagreements),
                separable=rung.separable,
                clock=rung.clock,
            )
            for rung in told.rungs
        ],
        talk={rung.nodes: rung.played for rung in told.rungs},
        calls=[Call(**dict(call)) for call in told.calls],
        fits={name: Fit(**dict(fit)) for name, fit in told.fits.items()},
        again={rung.nodes: rung.again for rung in told.rungs if rung.again},
        agreed=_known((rung.nodes, rung.at_agreed_rate) for rung in told.rungs),
        doubt=_known((rung.nodes, rung.replay_doubt) for rung in told.rungs),
        alpha_beta=_known((rung.nodes, rung.alpha_beta) for rung in told.rungs),
        strays={rung.nodes: rung.strays for rung in told.rungs if rung.strays},
        places=None
        if told.places is None
        else [Place(tuple(place.nodes), place.said) for place in told.places],
    )


def _known(each: Iterable[tuple[int, float | None]]) -> dict[int, float]:
    """Those that are known, by node count."""
    return {count: seconds for count, seconds in each if seconds is not None}
