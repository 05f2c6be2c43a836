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
from scaling.loss.causes import COLLECTIVES, SEGMENTS_TEXT, CollectiveTimes
from scaling.loss.explain import Explanation, SlowLink, explain_ladder
from scaling.loss.predict import (
    CollectiveCall,
    Forecast,
    communication_model,
    efficiency_interval,
    forecast_efficiency,
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
    replay_s: Mapping[int, float | None]
    calls: Sequence[CollectiveCall]
    fits: Mapping[str, Fit]
    agreed_s: Mapping[int, float] = field(default_factory=dict)
    uncertainty_s: Mapping[int, float] = field(default_factory=dict)
    alpha_beta_s: Mapping[int, float] = field(default_factory=dict)
    off_fabric: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    slow_links: Sequence[SlowLink] | None = None
    other_runs: Mapping[int, Sequence[Sequence[float]]] = field(default_factory=dict)

    @property
    def replay_growth(self) -> dict[int, float]:
        """Seconds that collectives, replayed alone, add to one node's step on each rung."""
        return _above_base(self.replay_s, self.replay_s.get(1))

    @property
    def fit_growth(self) -> dict[int, float]:
        """Seconds that collectives, by their fits, add to one node's step on each rung."""
        return _above_base(self.alpha_beta_s, self._base_fit_s)

    @property
    def _base_fit_s(self) -> float | None:
        """Seconds of one node's collectives by their fits; None where these are not known."""
        single_rank = len(self.rungs[0].judged_steps) == 1  # a rank by itself has nobody to talk to
        return self.alpha_beta_s.get(1, 0.0 if single_rank else None)

    def efficiency(self, rung: Rung) -> float:
        """T_1 / T_n."""
        return self.rungs[0].seconds / rung.seconds

    @property
    def interval_basis(self) -> str:
        """What the intervals are over, in words: one run holds no noise between runs."""
        runs = 1 + max(map(len, self.other_runs.values()), default=0)
        return f"over {runs} runs" if runs > 1 else "within one run"

    @cached_property
    def intervals(self) -> dict[int, tuple[float, float]]:
        """Within which each larger rung's efficiency lies, with 95 % confidence, by node count.

        Where rungs were run once it knows how steps differ, and nothing of how runs do.
        """
        runs = {
            rung.count: [step_seconds(rung.judged_steps), *self.other_runs.get(rung.count, ())]
            for rung in self.rungs
        }
        base_runs = runs.pop(self.rungs[0].count)
        return {count: efficiency_interval(base_runs, each) for count, each in runs.items()}

    def explanations(self, limit: float | None = None) -> list[Explanation]:
        """Each rung above one node."""
        agreed, replayed = _above_base(self.agreed_s, self.replay_s.get(1)), self.replay_growth
        times = {
            rung.count: CollectiveTimes(
                replayed.get(rung.count),
                agreed.get(rung.count),
                self.uncertainty_s.get(rung.count, 0.0),
                self.off_fabric.get(rung.count, {}),
            )
            for rung in self.rungs
        }
        return explain_ladder(self.rungs, times, limit, self.slow_links)

    def forecast(self, sizes: Sequence[int] = (16, 64, 256, 1024)) -> Forecast:
        """What more nodes would do.  ValueError where too little is known."""
        top = self.rungs[-1]
        if not self.fits:
            raise ValueError("a prediction needs collectives, and none were timed on this ladder")
        model = communication_model(
            self.calls, self.fits, len(top.steps), len(top.steps) // top.count
        )
        base_s, explained = self._base_fit_s or 0.0, self.explanations()
        causes = [cause for explanation in explained[-1:] for cause in explanation.causes]
        return forecast_efficiency(
            {rung.count: rung.judged_steps for rung in self.rungs},
            lambda nodes: max(0.0, model(nodes) - base_s),
            sizes,
            {
                rung.count: _communication_loss(rung, explanation)
                for rung, explanation in zip(self.rungs[1:], explained, strict=True)
            },
            [
                f"{cause.code} {cause.where}"
                for cause in causes
                if cause.segment != SEGMENTS_TEXT or cause.code == "SCALE-UNEXPLAINED"
            ],
            top.load_text,
        )

    def to_dict(self) -> dict[str, Any]:
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
                "played": self.replay_s.get(rung.count),
                "at_agreed_rate": self.agreed_s.get(rung.count),
                "replay_doubt": self.uncertainty_s.get(rung.count),
                "alpha_beta": self.alpha_beta_s.get(rung.count),
                "strays": dict(self.off_fabric.get(rung.count, {})),
                "steps": [[dataclasses.asdict(step) for step in steps] for steps in rung.steps],
                "again": self.other_runs.get(rung.count, []),
            }
            for rung in self.rungs
        ]
        calls = [dataclasses.asdict(call) for call in self.calls]
        fits = {name: dataclasses.asdict(fit) for name, fit in self.fits.items()}
        slow_links = None
        if self.slow_links is not None:
            slow_links = [dataclasses.asdict(place) for place in self.slow_links]
        return {"rungs": rungs, "calls": calls, "fits": fits, "places": slow_links}


def _communication_loss(rung: Rung, explanation: Explanation) -> float:
    """Seconds of a rung's step that its explanation says were lost to collectives."""
    names = {name for steps in rung.steps for step in steps for name in step.waits}
    parts = [
        part
        for part in explanation.parts
        if any(collective in part.said for collective in (COLLECTIVES, *names))
    ]
    return rung.seconds * sum(part.share for part in parts)


def _above_base(
    seconds_by_count: Mapping[int, float | None], base_s: float | None
) -> dict[int, float]:
    """Seconds of each larger rung, less those of one node; none where these are not known."""
    if base_s is None:
        return {}
    known = {count: seconds for count, seconds in seconds_by_count.items() if seconds is not None}
    return {count: seconds - base_s for count, seconds in known.items() if count > 1}


def load_ladder(content: Any) -> Ladder:
    """The ladder that `told` wrote.  ValueError where it is none, in one sentence."""
    from scaling.loss.ladder_schema import checked

    parsed = checked(content)
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
            for rung in parsed.rungs
        ],
        replay_s={rung.nodes: rung.played for rung in parsed.rungs},
        calls=[CollectiveCall(**dict(call)) for call in parsed.calls],
        fits={name: Fit(**dict(fit)) for name, fit in parsed.fits.items()},
        other_runs={rung.nodes: rung.again for rung in parsed.rungs if rung.again},
        agreed_s=_drop_missing((rung.nodes, rung.at_agreed_rate) for rung in parsed.rungs),
        uncertainty_s=_drop_missing((rung.nodes, rung.replay_doubt) for rung in parsed.rungs),
        alpha_beta_s=_drop_missing((rung.nodes, rung.alpha_beta) for rung in parsed.rungs),
        off_fabric={rung.nodes: rung.strays for rung in parsed.rungs if rung.strays},
        slow_links=None
        if parsed.places is None
        else [SlowLink(tuple(place.nodes), place.said) for place in parsed.places],
    )


def _drop_missing(pairs: Iterable[tuple[int, float | None]]) -> dict[int, float]:
    """Those that are known, by node count."""
    return {count: seconds for count, seconds in pairs if seconds is not None}
