"""Derives the results of a run's ladder again from its evidence; needs no cluster."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from pydantic import TypeAdapter, ValidationError

from scaling.collectives.alpha_beta import Fit
from scaling.ladder.ladder import Rung
from scaling.loss.base_runs import base_doubt
from scaling.loss.causes import COLLECTIVES, SEGMENTS_TEXT, CollectiveTimes
from scaling.loss.explain import Explanation, SlowLink, explain_ladder
from scaling.loss.ladder_schema import check_collectives, check_rungs, describe_damage
from scaling.loss.predict import (
    NODE_COUNTS,
    CollectiveCall,
    Forecast,
    communication_model,
    efficiency_interval,
    forecast_efficiency,
    step_seconds,
)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The rungs of a run, and the times of their collectives.

    `calls` are the collectives of a step, `fits` those of the largest rung. `slow_links` come
    from measurements of node pairs; None if there were none. `base_repeats` are repeats of the
    rung of one node alone. It is empty if the other runs of the ladder repeated that rung.
    """

    rungs: list[Rung]
    calls: list[CollectiveCall]
    fits: dict[str, Fit]
    base_repeats: list[Rung]
    slow_links: list[SlowLink] | None = None

    @property
    def replay_growth(self) -> dict[int, float]:
        """Seconds that replayed collectives add to one node's step, by node count."""
        return self._above_base(self.rungs[0].replay_s, attrgetter("replay_s"))

    @property
    def fit_growth(self) -> dict[int, float]:
        """Seconds that collectives add to one node's step by their fits, by node count."""
        return self._above_base(self._base_fit_s, attrgetter("alpha_beta_s"))

    @property
    def _base_fit_s(self) -> float | None:
        """Seconds of one node's collectives by their fits; None if unknown."""
        base = self.rungs[0]
        single_rank = len(base.judged_steps) == 1  # a single rank has no communication
        return 0.0 if base.alpha_beta_s is None and single_rank else base.alpha_beta_s

    def _above_base(
        self, base_s: float | None, rung_seconds: Callable[[Rung], float | None]
    ) -> dict[int, float]:
        """Return the seconds of each larger rung minus `base_s`; empty if `base_s` is unknown."""
        if base_s is None:
            return {}
        known = {rung.count: rung_seconds(rung) for rung in self.rungs[1:]}
        return {count: each - base_s for count, each in known.items() if each is not None}

    @cached_property
    def base_doubt(self) -> str:
        """Describe why the rung of one node is not a valid base; "" if it is."""
        repeats = [rung.seconds for rung in self.base_repeats]
        return base_doubt(
            self.rungs[0], [*repeats, *map(statistics.fmean, self.rungs[0].other_runs)]
        )

    def efficiency(self, rung: Rung) -> float:
        """Return T_1 / T_n of this rung."""
        return self.rungs[0].seconds / rung.seconds

    @property
    def interval_basis(self) -> str:
        """Basis of the intervals, in words: one run contains no noise between runs."""
        runs = 1 + max(len(rung.other_runs) for rung in self.rungs)
        return f"over {runs} runs" if runs > 1 else "within one run"

    @cached_property
    def intervals(self) -> dict[int, tuple[float, float]]:
        """Return each larger rung's 95 % confidence interval of efficiency, by node count.

        If rungs were run once, it covers the differences between steps but not between
        runs.
        """
        base_runs, *runs = (
            [step_seconds(rung.judged_steps), *rung.other_runs] for rung in self.rungs
        )
        return {
            rung.count: efficiency_interval(base_runs, each)
            for rung, each in zip(self.rungs[1:], runs, strict=True)
        }

    def explanations(self, limit: float | None = None) -> list[Explanation]:
        """Explain each rung above one node."""
        replayed = self.replay_growth
        agreed = self._above_base(self.rungs[0].replay_s, attrgetter("agreed_s"))
        times = {
            rung.count: CollectiveTimes(
                replayed.get(rung.count),
                agreed.get(rung.count),
                rung.uncertainty_s or 0.0,
                rung.off_fabric,
            )
            for rung in self.rungs
        }
        return explain_ladder(self.rungs, times, limit, self.slow_links)

    def forecast(self, sizes: Sequence[int] = NODE_COUNTS) -> Forecast:
        """Predict the efficiency on more nodes. Raises ValueError if too little is known."""
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
        """Return the ladder as plain values, for JSON."""
        plain: dict[str, Any] = LADDER_FILE.dump_python(self, warnings=False)
        return plain


LADDER_FILE = TypeAdapter(Ladder)


def _communication_loss(rung: Rung, explanation: Explanation) -> float:
    """Return the seconds of a rung's step that its explanation attributes to collectives."""
    names = {name for steps in rung.steps for step in steps for name in step.waits}
    parts = [
        part
        for part in explanation.parts
        if any(collective in part.said for collective in (COLLECTIVES, *names))
    ]
    return rung.seconds * sum(part.share for part in parts)


def load_ladder(content: Any) -> Ladder:
    """Load a ladder that `to_dict` wrote.

    Raises ValueError with one sentence if the content is not valid.
    """
    try:
        ladder = LADDER_FILE.validate_python(content)
    except ValidationError as error:
        raise ValueError(describe_damage(error)) from None
    check_rungs(ladder.rungs, ladder.base_repeats)
    check_collectives(ladder.calls, ladder.fits)
    return ladder
