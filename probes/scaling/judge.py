"""What the ladder shows, judged and told: efficiency, its causes, its stragglers, its figures."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from probes.acceptance.measure import Ledger
from probes.findings import finding
from probes.scaling.plan import said
from probes.scaling.run_ladder import top_efficiency, wanted
from reports.record import Finding, Limit, Verdict
from scaling.ladder import step_breakdown as decompose
from scaling.ladder.ladder import Rung
from scaling.ladder.skew import exposed_said
from scaling.ladder.step_breakdown import laggard, residual, slow_node, unsummed, wall_gap
from scaling.loss.causes import Cause
from scaling.loss.explain import Explanation
from scaling.loss.ladder_result import Ladder

Limits = Callable[[str], Limit | None]

# Sharded, each rank's optimizer has less to do; that gains a few per cent at most.
MOST_EFFICIENT = 1.1
# What scaling.loss.causes may name.
CAUSES = (
    *("SCALE-SLOW-NODE", "SCALE-SLOWING", "SCALE-STRAGGLER", "SCALE-DATA", "SCALE-CHECKPOINT"),
    *("SCALE-JITTER", "SCALE-LINK", "SCALE-NETWORK", "SCALE-COMMUNICATION", "SCALE-TOKENS"),
    "SCALE-UNEXPLAINED",
)
# What costs a rung its figures, or makes them worthless.
WRONG = ("SCALE-RUNG", "SCALE-NAN", "SCALE-APART")


def judge(ladder: Ladder, limits: Limits, measure: Ledger) -> list[Explanation]:
    """Efficiency and residual of each rung, and who holds the others up; the rungs, explained."""
    rungs, limit = ladder.rungs, limits("efficiency")
    base, explained = rungs[0].median_node(), ladder.explained(wanted(limit))
    blamed = accused(ladder, explained, limit)
    for rung, why in reversed([*zip(rungs[1:], explained, strict=True)]):
        on, efficiency = said(rung.count), ladder.efficiency(rung)
        value, doubt = believed(efficiency)
        measure(
            "efficiency", value, on=f"{on}, {rung.load}", samples=len(rung.steps[0]), note=doubt
        )
        tell(ladder, rung, measure)
        unexplained = residual(base, rung.steps)
        measure("residual", max(unexplained, unsummed(rung.steps)), on=on)
        measure.covered(str(why))
        if rung.count in blamed:
            measure.explain(finding("SCALE-LOSS", str(why)))
        for cause in blamed.get(rung.count, []):
            assert cause.code in CAUSES
            places = words_of(cause.where)
            suspects = [node for node in dict.fromkeys(rung.nodes) if node in places]
            measure.explain(finding(cause.code, f"at {on} {cause.said}", suspects))
    if len(rungs) == 1:
        alone = f"{said(1)}, {rungs[0].load}"
        measure("efficiency", None, on=alone, note="one node cannot show scaling")
    measure("residual", unsummed(rungs[0].steps), on=said(1))
    for rung in rungs:
        one_model(rung, measure, said(rung.count))
    measure.covered(exposed_said(rungs[-1].steps, rungs[-1].separable, rungs[-1].nodes))
    stragglers(rungs, limits, measure)
    return explained


def accused(
    ladder: Ladder, explained: Sequence[Explanation], limit: Limit | None
) -> dict[int, list[Cause]]:
    """The causes to name, by node count of each rung that does not pass the limit of efficiency.

    What is named on a larger rung is not named again on a smaller one.
    """
    found: dict[int, list[Cause]] = {}
    named: list[Cause] = []
    for rung, why in reversed([*zip(ladder.rungs[1:], explained, strict=True)]):
        if limit and limit.judge(ladder.efficiency(rung)) is not Verdict.PASS:
            found[rung.count] = [cause for cause in why.causes if not again(cause, named)]
            named += why.causes
    return found


def again(cause: Cause, named: Sequence[Cause]) -> bool:
    """Whether a cause is among those that were named, at no other place than there.

    What is unexplained in other segments is another cause.
    """

    def known(one: Cause) -> bool:
        alike = cause.code == one.code and words_of(cause.where) <= words_of(one.where)
        free = cause.code != "SCALE-UNEXPLAINED"
        return alike and (free or words_of(cause.segment) <= words_of(one.segment))

    return any(map(known, named))


def words_of(where: str) -> set[str]:
    """The words of a cause's place, nodes among them."""
    return set(re.split("[ ,]+", where))


def tell(ladder: Ladder, rung: Rung, measure: Ledger) -> None:
    """What is known beside a rung's efficiency: the interval, and what collectives should take.

    The replay is what the rung is judged by; the alpha-beta time is of the same calls alone.
    """
    on = said(rung.count)
    least, most = ladder.intervals[rung.count]
    between = f"{on}, {rung.load}, {ladder.over}"
    measure.note("efficiency_from", least, "ratio", on=between)
    measure.note("efficiency_to", most, "ratio", on=between)
    measure.note("replayed_communication", ladder.replayed.get(rung.count), "s", on=on)
    measure.note("alpha_beta_communication", ladder.by_fits.get(rung.count), "s", on=on)


def believed(efficiency: float) -> tuple[float | None, str]:
    """The value and "", or None and why: many nodes cannot be so much better than one."""
    if efficiency <= MOST_EFFICIENT:
        return efficiency, ""
    return None, f"{efficiency:.2f}: one node was slower alone, so something disturbed it there"


def other_runs(others: Sequence[Sequence[Rung]], measure: Ledger) -> None:
    """What the runs that are not the typical one gave: their efficiency, and that they trained."""
    for number, rungs in enumerate(others, 1):
        for rung in rungs:
            one_model(rung, measure, f"{said(rung.count)}, other run {number}")
        on = f"{said(rungs[-1].count)}, {rungs[-1].load}, other run {number}"
        measure.note("efficiency_again", top_efficiency(rungs), "ratio", on=on)


def one_model(rung: Rung, measure: Ledger, on: str) -> None:
    """What a rung took in, that its steps fill its time, and that its ranks trained one model."""
    measure.note("tokens_per_second", rung.tokens_per_second, "tokens/s", on=on)
    measure.note("tokens_per_gpu_step", rung.tokens_per_rank, "tokens", on=on)
    if rung.mfu is not None:
        measure.note("mfu", rung.mfu, "ratio", on=on)
    if rung.memory is not None:
        measure.note("memory_over_estimate", rung.memory, "ratio", on=on)
    measure("wall_gap", wall_gap(rung.steps), on=on)
    measure("non_finite", rung.non_finite, on=on)
    measure("disagreements", len(rung.disagreements), on=on)
    measure.explain(*wrong(rung, on))


def wrong(rung: Rung, on: str) -> list[Finding]:
    """What shows that a rung's ranks did not train one model, however fast they were."""
    found = []
    if rung.non_finite:
        losses = f"{rung.non_finite} losses of ranks and steps were no numbers"
        found.append(finding("SCALE-NAN", f"at {on} {losses}"))
    if rung.disagreements:
        found.append(finding("SCALE-APART", f"at {on} in {rung.disagreements[0]}"))
    return found


def stragglers(rungs: Sequence[Rung], limits: Limits, measure: Ledger) -> None:
    """A node slow by itself, and a rank that holds the others up in the largest rung."""
    by_node = rungs[0].by_node()
    node, alone = slow_node(by_node)
    late = laggard(rungs[-1].steps)
    name = rungs[-1].nodes[late.rank]
    measure.note("one_node_spread", max(by_node.values()) / min(by_node.values()), "ratio")
    measure("straggler", alone, on=f"{node} alone")
    measure("straggler", late.share, on=f"rank {late.rank} ({name}) in {late.segment}")
    measure.explain(*held_up(rungs, limits("straggler")))


def held_up(rungs: Sequence[Rung], limit: Limit | None) -> list[Finding]:
    """The node and the rank that break the limit of stragglers, where there is one."""
    if limit is None:
        return []
    found = []
    node, alone = slow_node(rungs[0].by_node())
    if limit.judge(alone) is Verdict.FAIL:
        words = f"{node} alone takes {alone:.0%} longer for a step than the median node"
        found.append(finding("SCALE-STRAGGLER", words, [node]))
    late = laggard(rungs[-1].steps)
    name = rungs[-1].nodes[late.rank]
    if limit.judge(late.share) is Verdict.FAIL:
        words = f"rank {late.rank} on {name} holds the others up in {late.segment}"
        suspects = [f"rank {late.rank}", name]
        found.append(finding("SCALE-STRAGGLER", f"{words}: {late.share:.0%}", suspects))
    return found


def foresee(ladder: Ladder, measure: Ledger) -> None:
    """What more nodes would do: a prediction, with its band and its assumptions."""
    try:
        seen = ladder.foreseen()
    except ValueError as error:
        measure.covered(str(error))
        return
    measure.covered(str(seen))
    measure.keep("prediction.json", dataclasses.asdict(seen), caption=str(seen))


def draw(
    ladder: Ladder,
    explained: Sequence[Explanation],
    limits: Limits,
    measure: Ledger,
    strong: Mapping[str, Sequence[float]],
) -> None:
    """Numbers for the three figures, and the table behind them.

    `strong` is the same work on fewer nodes; empty where it was not run.
    """
    rungs, base = ladder.rungs, ladder.rungs[0].median_node()
    parts = [decompose.terms(base), *(decompose.terms(rung.steps) for rung in rungs[1:])]
    limit = limits("efficiency")
    caption = "every timed step of every rank, cut into segments; the collectives of each rung"
    measure.keep("ladder.json", ladder.told(), kind="series", caption=caption)
    between = [ladder.intervals[rung.count] for rung in rungs[1:]]
    measure.series(
        "efficiency",
        {
            "nodes": [rung.count for rung in rungs],
            "efficiency": [1.0, *map(ladder.efficiency, rungs[1:])],
            "low": [None, *(low for low, _ in between)],
            "high": [None, *(high for _, high in between)],
            "over": ladder.over,
            "limit": limit.low if limit else None,
            "tokens_per_second": [rung.tokens_per_second for rung in rungs],
            "tokens_per_gpu_step": [rung.tokens_per_rank for rung in rungs],
            "strong": dict(strong),
        },
    )
    if explained:
        measure.series(
            "lost",
            {
                "nodes": [why.nodes for why in explained],
                "lost": [why.lost for why in explained],
                "parts": [[dataclasses.asdict(part) for part in why.parts] for why in explained],
                "sentences": [str(why) for why in explained],
            },
        )
    measure.series(
        "terms",
        {
            "nodes": [rung.count for rung in rungs],
            "terms": {name: [part.get(name, 0.0) for part in parts] for name in parts[-1]},
        },
    )
