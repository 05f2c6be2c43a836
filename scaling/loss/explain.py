"""What a rung lost, explained: parts that sum to it, causes among them, and one sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scaling.ladder.ladder import Rung
from scaling.ladder.skew import Account, account, grown
from scaling.ladder.step_breakdown import mean_seconds
from scaling.loss.baseline_difference import Levels, levels
from scaling.loss.causes import (
    EVERY,
    FABRIC,
    MEETINGS,
    UNKNOWN,
    WAITED,
    Cause,
    Ledger,
    Part,
    Talk,
    beyond,
    communication,
    jitter,
    own_segments,
    slow_nodes,
    unexplained,
)
from scaling.loss.local_segments import own_levels
from scaling.loss.significance import standard_error
from scaling.loss.slow_under_load import company

NOTHING = Talk()  # is known of a rung's collectives


@dataclass(frozen=True)
class Explanation:
    """A rung's loss: `lost` is 1 - E_n, `parts` sum to it, `causes` are in order of size."""

    nodes: int
    lost: float
    parts: tuple[Part, ...]
    causes: tuple[Cause, ...]

    def __str__(self) -> str:
        return sentence(self.nodes, self.lost, self.parts)


@dataclass(frozen=True)
class Place:
    """A node, or two that share a link, that pairs of nodes show as slow; and how, in words."""

    nodes: tuple[str, ...]
    said: str


def explain(
    base: Rung, here: Rung, talk: Talk = NOTHING, limit: float | None = None
) -> Explanation:
    """Every part of what a rung lost against one node, and the causes among the parts.

    `base` is the rung of one node, run on every node.  Without `talk.replayed` communication is not
    judged, and without `talk.agreed` slow links are not told from few tokens.  `limit` is the
    efficiency that was wanted; without it too few tokens per GPU are not looked for.  ValueError
    where a node of `here` did not run alone.
    """
    first, mine = account(base.median_node()), account(here.steps)
    seconds = mean_seconds(here.steps)
    lost = seconds - mean_seconds(base.median_node())
    ledger = Ledger(seconds, shares(grown(base.median_node(), here.steps)))
    alike = levels(base, here)
    met = _with_leaving(alike, mine, first)
    apart = company(base, here, met.communication - alike.communication)
    owns = own_levels(base, here, mine, first)
    slow_nodes(ledger, met, owns)
    own_segments(ledger, owns)
    jitter(ledger, met, owns)
    communication(ledger, met, here, talk, limit, lost, apart)
    unexplained(ledger, owns, lost, beyond(met.error, mine.steps) + talk.doubt)
    causes = sorted(ledger.causes, key=lambda cause: -cause.share)
    return Explanation(here.count, lost / seconds, tuple(ledger.parts), tuple(causes))


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Each one's share of what all grew by; none where nothing did."""
    more = {name: each for name, each in seconds.items() if each > 0}
    return {name: each / sum(more.values()) for name, each in more.items()}


def _with_leaving(met: Levels, mine: Account, first: Account) -> Levels:
    """Communication with the waiting that nobody's own work accounts for: it is in collectives too.

    Ranks do not leave a collective together: with gloo on 4 nodes that was 1 to 4 % of a step.
    """
    apart = statistics.fmean(mine.unaligned) - statistics.fmean(first.unaligned)
    scatter = math.hypot(standard_error(mine.unaligned), standard_error(first.unaligned))
    return replace(
        met,
        communication=met.communication + max(0.0, apart),
        error=math.hypot(met.error, scatter),
    )


def about_links(cause: Cause) -> bool:
    """Whether pairs of nodes may place a cause: one of links, or of what links may have done."""
    return cause.code in ("SCALE-LINK", "SCALE-COMMUNICATION") or (
        (cause.code, cause.segment) == ("SCALE-UNEXPLAINED", MEETINGS)
    )


def explain_ladder(
    rungs: Sequence[Rung],
    talks: Mapping[int, Talk] | None = None,
    limit: float | None = None,
    places: Sequence[Place] | None = None,
) -> list[Explanation]:
    """Each rung above one node, explained; `talks` are by node count.

    Rungs in rising order.  `places` are what pairs of nodes show, None where none were tried.  A
    link that shows first where nodes were added is looked for at the nodes added there.
    """
    base, before = rungs[0], {*rungs[0].nodes[:1]}
    found: list[Explanation] = []
    seen = False
    for rung in rungs[1:]:
        one = explain(base, rung, (talks or {}).get(rung.count, NOTHING), limit)
        links = [c for c in one.causes if (c.code, c.where) == ("SCALE-LINK", FABRIC)]
        if links and not seen and found and places is None:
            fresh = ", ".join(n for n in dict.fromkeys(rung.nodes) if n not in before)
            where = f"{FABRIC}, first with {fresh}" if fresh else FABRIC
            one = replace(
                one,
                causes=tuple(replace(c, where=where) if c in links else c for c in one.causes),
            )
        seen |= bool(links)
        if places is not None:
            one = _placed(one, [place for place in places if {*place.nodes} <= {*rung.nodes}])
        found.append(one)
        before |= {*rung.nodes}
    return found


def _placed(one: Explanation, shown: Sequence[Place]) -> Explanation:
    """The same with its causes of links at those that pairs of its nodes have shown as slow.

    What only may have been in collectives was, where there is such a link.
    """
    code, where, said = "", EVERY, ["pairs of nodes are all alike"]
    if shown:
        code, said = "SCALE-LINK", [place.said for place in shown]
        where = ", ".join(dict.fromkeys(node for place in shown for node in place.nodes))
    causes = tuple(
        replace(each, code=code or each.code, where=where, said="; ".join([each.said, *said]))
        if about_links(each)
        else each
        for each in one.causes
    )
    parts = [replace(p, said=WAITED) if shown and p.said == UNKNOWN else p for p in one.parts]
    return replace(one, causes=causes, parts=tuple(parts))


def sentence(nodes: int, lost: float, parts: Sequence[Part]) -> str:
    """One sentence per rung, in per cent of its step: its parts sum to the whole as printed."""
    if lost < 0:
        return f"at {nodes} nodes nothing is lost: a step is {-lost:.1%} shorter"
    shown = [part for part in parts if round(part.share * 1000)]
    tenths = rounded([part.share * 1000 for part in shown], round(lost * 1000))
    pairs = sorted(zip(tenths, shown, strict=True), key=lambda pair: -pair[0])
    said = ", ".join(f"{tenth / 10:.1f} {part.said}" for tenth, part in pairs if tenth)
    return f"at {nodes} nodes {lost * 100:.1f} % is lost" + (f": {said}" if said else "")


def rounded(values: Sequence[float], whole: int) -> list[int]:
    """Whole numbers near `values` that sum to `whole`: the largest remainders are rounded up."""
    found = [math.floor(value) for value in values]
    order = sorted(range(len(values)), key=lambda at: found[at] - values[at])
    missing = whole - sum(found)
    if missing < 0:  # the parts are larger than the whole: the least remainders are rounded down
        order.reverse()
    for turn in range(abs(missing) if values else 0):
        found[order[turn % len(order)]] += 1 if missing > 0 else -1
    return found
