"""The result of a ladder as data: rungs, base runs, and the schema of its file."""

from __future__ import annotations

import reprlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError

from reference_trainer.telemetry.event_log import SEGMENTS
from reports.numbers import percent, quantity
from scaling.collectives.line_rate import Fit
from scaling.collectives.operations import OPERATIONS
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step
from scaling.loss import predict
from scaling.loss.causes import COLLECTIVES, SEGMENTS_TEXT, CollectiveTimes
from scaling.loss.explain import Explanation, SlowLink, explain_ladder
from scaling.loss.significance import lower_half_mean

APART = 0.01  # share of a step by which its parts may differ from it; more means damage


def describe_damage(error: ValidationError) -> str:
    """Describe the first error in one sentence: what was expected, and what was found."""
    first = error.errors()[0]
    known = {"missing": "expected a value", "dataclass_type": "expected an object"}
    # A tuple here is a list in JSON.
    said = first["msg"].replace("Input should be", "expected").replace("tuple", "list")
    found = "none" if first["type"] == "missing" else reprlib.repr(first["input"])
    message = f"{known.get(first['type'], said)}, found {found}"
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {message}" if where else message


def check_rungs(rungs: Sequence[Rung], base_repeats: Sequence[Rung] = ()) -> None:
    """Refuse rungs that no ladder can have.

    Raises ValueError with what was expected and what was found.
    """
    for name, each in (("rungs", rungs), ("base_repeats", base_repeats)):
        for index, rung in enumerate(each):
            for rank, steps in enumerate(rung.steps):
                for number, step in enumerate(steps):
                    _check_step(step, f"{name}.{index}.steps.{rank}.{number}")
            _check_rung(rung, f"{name}.{index}")
    counts = [rung.count for rung in rungs]
    if counts[:1] != [1] or counts != sorted(set(counts)):
        found = ", ".join(map(str, counts)) or "none"
        raise ValueError(f"expected rungs with rising node counts from 1, found {found}")
    for rung in rungs:
        if strange := sorted({*rung.nodes} - {*rungs[0].nodes}):
            found = f"{', '.join(strange)} only in the run on {rung.count} nodes"
            raise ValueError(f"expected a run of each node alone, found {found}")
    for rung in base_repeats:
        if rung.count != 1 or {*rung.nodes} != {*rungs[0].nodes}:
            found = f"found count {rung.count} on {', '.join(sorted({*rung.nodes}))}"
            raise ValueError(f"expected base_repeats with count 1 on the nodes of rungs.0, {found}")


def _check_step(step: Step, where: str) -> None:
    if {*step.segments} != {*SEGMENTS}:
        found = ", ".join(step.segments) or "none"
        raise ValueError(f"{where}: expected the segments {', '.join(SEGMENTS)}, found {found}")
    whole = sum(step.segments.values())
    if abs(whole - step.seconds) > APART * step.seconds:
        raise ValueError(f"{where}: expected segments of {step.seconds} s, found {whole} s")
    for name, waits in step.exposed.items():
        within, waited = step.segments.get(name), sum(waits.values())
        if within is None or waited > within + APART * step.seconds:
            known = "no such segment" if within is None else f"{within} s"
            raise ValueError(f"{where}: expected waits within {name}, found {waited} s of {known}")


def _check_rung(rung: Rung, where: str) -> None:
    ranks, nodes = len(rung.nodes), len({*rung.nodes})
    if not ranks or len(rung.steps) != ranks or (rung.count > 1 and nodes != rung.count):
        raise ValueError(
            f"{where}: expected the steps of each rank on {quantity(rung.count, 'nodes')}, found: "
            f"ranks with steps {len(rung.steps)}, ranks {ranks}, nodes {nodes}"
        )
    job = ranks if rung.count > 1 else ranks // nodes  # on one node: the ranks of one job
    if rung.tokens_per_step < job:
        few = f"{job} ranks, found {rung.tokens_per_step}"
        raise ValueError(f"{where}: expected at least one token per step for each of {few}")
    counted = {len(steps) for steps in rung.steps}
    if len(counted) > 1 or 0 in counted or not all(rung.other_runs):
        found = ", ".join(map(str, sorted({*counted, *map(len, rung.other_runs)})))
        raise ValueError(f"{where}: expected the same number of steps on each rank, found {found}")


def check_collectives(calls: Iterable[predict.CollectiveCall], fits: Mapping[str, Fit]) -> None:
    """Refuse calls of unknown collectives, or of collectives without a fit.

    Raises ValueError with what was expected and what was found. `fits` may be empty.
    """
    called = {call.operation for call in calls}
    if unknown := sorted((called | {*fits}) - {*OPERATIONS}):
        known = ", ".join(OPERATIONS)
        raise ValueError(f"expected collectives of {known}, found {', '.join(unknown)}")
    if fits and (bare := sorted(called - {*fits})):
        raise ValueError(f"expected a fit of each collective, found none of {', '.join(bare)}")


# Limits of efficiency have a marginal band of 0.05. A base known to 0.05 turns no FAIL into PASS.
TOLERANCE = 0.05
MAX_REPEATS = 2  # of the base: one to confirm it, one to show which of two was disturbed


def base_doubt(base: Rung, other_runs: Sequence[float]) -> str:
    """Describe why `base` is not a valid base; "" if it is.

    `other_runs` are the mean seconds of a step in its other runs.
    """
    fastest, *slower = sorted([base.seconds, *other_runs])
    if not slower:
        return "the run of 1 node was not repeated, so nothing confirms it"
    most = fastest * (1 + TOLERANCE)
    if slower[0] > most or base.seconds > most:
        runs = ", ".join(f"{seconds:.3g}" for seconds in (base.seconds, *other_runs))
        return (
            f"the runs on one node differ by more than {percent(TOLERANCE)}, as if other work "
            f"disturbed some (a step takes {runs} s)"
        )
    excess = base.seconds / lower_half_mean(predict.step_seconds(base.judged_steps)) - 1
    if excess > TOLERANCE:
        return (
            f"the run on one node was disturbed (its mean step is {percent(excess)} longer than "
            "the mean of its faster half)"
        )
    return ""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The rungs of a run, and the times of their collectives.

    `calls` are the collectives of a step, `fits` those of the largest rung. `slow_links` come
    from measurements of node pairs; None if there were none. `base_repeats` are repeats of the
    rung of one node alone. It is empty if the other runs of the ladder repeated that rung.
    """

    rungs: list[Rung]
    calls: list[predict.CollectiveCall]
    fits: dict[str, Fit]
    base_repeats: list[Rung]
    slow_links: list[SlowLink] | None = None

    @property
    def replay_growth(self) -> dict[int, float]:
        """Seconds that replayed collectives add to one node's step, by node count."""
        return self._above_base(self.rungs[0].replay_s, "replay_s")

    @property
    def fit_growth(self) -> dict[int, float]:
        """Seconds that collectives add to one node's step by their fits, by node count."""
        return self._above_base(self._base_fit_s, "alpha_beta_s")

    @property
    def _base_fit_s(self) -> float | None:
        """Seconds of one node's collectives by their fits; None if unknown."""
        base = self.rungs[0]
        single_rank = len(base.judged_steps) == 1  # a single rank has no communication
        return 0.0 if base.alpha_beta_s is None and single_rank else base.alpha_beta_s

    def _above_base(self, base_s: float | None, field: str) -> dict[int, float]:
        """Return that field of each larger rung minus `base_s`; empty if `base_s` is unknown."""
        if base_s is None:
            return {}
        known = {rung.count: getattr(rung, field) for rung in self.rungs[1:]}
        return {count: each - base_s for count, each in known.items() if each is not None}

    @cached_property
    def base_doubt(self) -> str:
        """Describe why the rung of one node is not a valid base; "" if it is."""
        base, repeats = self.rungs[0], [rung.seconds for rung in self.base_repeats]
        return base_doubt(base, [*repeats, *map(statistics.fmean, base.other_runs)])

    def efficiency(self, rung: Rung) -> float:
        """Return T_1 / T_n of this rung."""
        return self.rungs[0].of_kinds(rung).seconds / rung.seconds

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
        found = {}
        for rung in self.rungs[1:]:
            pair = (self.rungs[0].of_kinds(rung), rung)
            runs = ([predict.step_seconds(one.judged_steps), *one.other_runs] for one in pair)
            found[rung.count] = predict.efficiency_interval(*runs)
        return found

    def explanations(self, limit: float | None = None) -> list[Explanation]:
        """Explain each rung above one node."""
        replayed = self.replay_growth
        agreed = self._above_base(self.rungs[0].replay_s, "agreed_s")
        times = {}
        for rung in self.rungs:
            found = (replayed.get(rung.count), agreed.get(rung.count))
            times[rung.count] = CollectiveTimes(*found, rung.uncertainty_s or 0.0, rung.off_fabric)
        return explain_ladder(self.rungs, times, limit, self.slow_links)

    def forecast(self, sizes: Sequence[int] = predict.NODE_COUNTS) -> predict.Forecast:
        """Predict the efficiency on more nodes. Raises ValueError if too little is known."""
        top = self.rungs[-1]
        if self.rungs[0].gpus:
            raise ValueError("a prediction needs nodes with the same GPUs, and these differ")
        if not self.fits:
            raise ValueError("a prediction needs the times of collectives, and this run timed none")
        ranks = len(top.steps)
        model = predict.communication_model(self.calls, self.fits, ranks, ranks // top.count)
        base_s, explained = self._base_fit_s or 0.0, self.explanations()
        larger = zip(self.rungs[1:], explained, strict=True)
        lost = {rung.count: _communication_loss(rung, loss) for rung, loss in larger}
        others = [
            f"{cause.code} {cause.where}"
            for loss in explained[-1:]
            for cause in loss.causes
            if cause.segment != SEGMENTS_TEXT or cause.code == "SCALE-UNEXPLAINED"
        ]
        steps, load = {rung.count: rung.judged_steps for rung in self.rungs}, top.load_text
        return predict.forecast_efficiency(
            steps, lambda nodes: max(0.0, model(nodes) - base_s), sizes, lost, others, load
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the ladder as plain values, for JSON."""
        plain: dict[str, Any] = LADDER_FILE.dump_python(self, warnings=False)
        return plain


LADDER_FILE = TypeAdapter(Ladder)


def _communication_loss(rung: Rung, explanation: Explanation) -> float:
    """Return the seconds of a rung's step that its explanation attributes to collectives."""
    names = {name for steps in rung.steps for step in steps for name in step.waits}
    parts = [p for p in explanation.parts if any(n in p.said for n in (COLLECTIVES, *names))]
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
