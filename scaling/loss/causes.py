"""Why a rung lost what it lost: detectors that name causes with place, share and evidence.

Each books seconds of the step in a ledger.  What is beyond the noise, and large enough to matter,
is booked as a cause; the rest by its name alone, so that nothing is lost on the way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scaling.ladder.ladder import Rung
from scaling.loss.baseline_difference import Levels
from scaling.loss.local_segments import Own
from scaling.loss.significance import FALSE_ALARM, student
from scaling.loss.slow_under_load import Company

# Sound clusters lose 2 to 4 % in all between 8 and 128 GPUs (torchtitan, llm-foundry): a single
# cause below 2 % of a step is not told from what they have too.
LEAST = 0.02

# A replay of a rung's collectives met what its steps waited for within this, on links that set the
# pace.  Within it all is as replayed; what is beyond it is not.
NEAR = 0.15

EVERY = "every node"
FABRIC = "fabric"
COLLECTIVES = "collectives"  # in a part's words
MEETINGS = "forward, backward, clip"  # what holds a collective, as a cause's segment
UNTOLD = "they are not told apart here"
# Parts: what meetings took beyond the replay, where it was in collectives, and where nobody knows.
WAITED = f"in {COLLECTIVES} beyond the replay"
UNKNOWN = "unexplained beyond the replay"


@dataclass(frozen=True)
class Cause:
    """One cause: finding code, place, segment, share of this rung's step, and its evidence."""

    code: str
    where: str
    segment: str
    share: float
    said: str


@dataclass(frozen=True)
class Part:
    """A part of what is lost: its share of this rung's step, and what it went into."""

    share: float
    said: str


@dataclass(frozen=True)
class Talk:
    """What is known of a rung's collectives beside its steps; None where it is not known.

    `replayed` is the seconds they add to a step when they are replayed without the trainer,
    `agreed` the same on links of the agreed rate; `strays` are nodes whose bytes took another road
    than the agreed one, and which.  `doubt` is by how much the replay may be off, in seconds.
    """

    replayed: float | None = None
    agreed: float | None = None
    doubt: float = 0.0
    strays: Mapping[str, str] = field(default_factory=dict)


class Ledger:
    """Seconds per step that are still to be explained, and what was explained so far.

    `waits` are shares of what collectives cost, by collective, where the clock tells them apart: a
    part that went into collectives is then a part for each.
    """

    def __init__(self, seconds: float, waits: Mapping[str, float] | None = None) -> None:
        self.seconds = seconds  # of this rung's step
        self.waits = waits or {COLLECTIVES: 1.0}
        self.parts: list[Part] = []
        self.causes: list[Cause] = []

    def matters(self, seconds: float) -> bool:
        """Whether this much of a step is worth a name."""
        return seconds >= LEAST * self.seconds

    def book(self, seconds: float, part: str) -> None:
        """Seconds that have a name and are no cause: too few, or as they should be."""
        each = self.waits if COLLECTIVES in part else {COLLECTIVES: 1.0}
        for collective, share in each.items():
            if seconds * share:
                said = part.replace(COLLECTIVES, collective)
                self.parts.append(Part(seconds * share / self.seconds, said))

    def name(
        self, code: str, where: str, segment: str, seconds: float, part: str, why: str
    ) -> None:
        """Book seconds under a cause.  `why` is its evidence."""
        share = seconds / self.seconds
        self.book(seconds, part)
        self.causes.append(Cause(code, where, segment, share, f"{why}: {share:.1%} of a step"))


def slow_nodes(ledger: Ledger, met: Levels, owns: list[Own]) -> None:
    """A node slower alone, and one that became slower: in meetings and in their own segments.

    What such a node lost in own segments is booked here as far as its speed explains it.
    """
    by, later = (part / met.alone if met.alone else 0.0 for part in (met.slow, met.slowing))
    slow = met.slow + _stretched(owns, met.slow_node, by)
    part = f"behind slow {met.slow_node}"
    if met.slow_node and ledger.matters(slow):
        why = f"{met.slow_node} alone takes {by:.1%} longer for its compute"
        hidden = [name for name, more in met.also_slow.items() if ledger.matters(more)]
        why += f"; {', '.join(hidden)} slower too, hidden behind it" if hidden else ""
        where = ", ".join([met.slow_node, *hidden])
        ledger.name("SCALE-SLOW-NODE", where, "compute", slow, part, why)
    else:
        ledger.book(slow, part)
    slowing = met.slowing + _stretched(owns, met.slowing_node, later)
    part = f"as {met.slowing_node or 'the job'} slows down"
    if ledger.matters(slowing):
        where = met.slowing_node or "not shown by any single node"
        verb, doubt = "compute takes", ""
        if not met.slowing_told:
            verb, doubt = f"{MEETINGS} take", f", for compute or links: {UNTOLD}"
        why = f"{verb} {later:.1%} longer over the window than at its start{doubt}"
        ledger.name("SCALE-SLOWING", where, "compute", slowing, part, f"{where}: {why}")
    else:
        ledger.book(slowing, part)


def _stretched(owns: list[Own], node: str | None, by: float) -> float:
    """Takes out of own segments what a node slower `by` a share lost there; seconds."""
    taken = 0.0
    for at, own in enumerate(owns):
        if node is None or own.segment == "checkpoint":  # storage has its own reasons
            continue
        part = min(max(own.nodes[node], 0.0), by * own.alone)
        owns[at] = replace(own, nodes={**own.nodes, node: own.nodes[node] - part})
        taken += part
    return taken


def own_segments(ledger: Ledger, owns: list[Own]) -> None:
    """Data, checkpoints and other own segments: slow on one node, or on all.

    What is booked here is taken out of `owns`; what is not is left for jitter and unexplained.
    """
    for at, own in enumerate(owns):
        if own.segment == "checkpoint":
            owns[at] = _checkpoint(ledger, own)
            continue
        nodes, common = dict(own.nodes), own.common
        for node in own.tied:
            if ledger.matters(nodes[node]):
                code = "SCALE-DATA" if own.segment == "data" else "SCALE-STRAGGLER"
                why = f"{node} comes last and is slower in {own.segment} than the other nodes"
                part = f"waiting for {node}'s {own.segment}"
                ledger.name(code, node, own.segment, nodes.pop(node), part, why)
        if own.segment == "data" and own.shared and ledger.matters(common):
            why = "data take longer on every node than on one node alone"
            ledger.name("SCALE-DATA", EVERY, "data", common, "waiting for data everywhere", why)
            common = 0.0
        owns[at] = replace(own, nodes=nodes, common=common)


def _checkpoint(ledger: Ledger, own: Own) -> Own:
    """Checkpoint stalls: no noise to test against, for a save either happened or did not."""
    seconds = own.common + sum(own.nodes.values())
    if ledger.matters(seconds):
        worst = max(own.nodes, key=own.nodes.__getitem__)
        where = worst if own.nodes[worst] > seconds / 2 else EVERY
        why = f"saves hold up {where} longer than with one node"
        ledger.name("SCALE-CHECKPOINT", where, own.segment, seconds, "in checkpoints", why)
    else:
        ledger.book(seconds, "in checkpoints")
    return replace(own, nodes={}, common=0.0)


def jitter(ledger: Ledger, met: Levels, owns: list[Own]) -> None:
    """Steps that scatter on changing ranks.  A job waits for the slowest, so scatter costs time.

    The noise of sound nodes costs some as well: that part is ordinary variation.
    """
    whole = met.variation + met.tail
    share = min(whole, max(met.spikes, whole - met.ordinary))
    if ledger.matters(met.spikes) and ledger.matters(share):
        where = f"mostly {met.spiky_node}" if met.spiky_node else "changing nodes"
        why = f"single steps take far longer than the typical step, on {where}"
        ledger.name("SCALE-JITTER", where, "compute", share, "in jitter", why)
        whole -= share
    ledger.book(whole, "in ordinary variation")
    for own in owns:
        scattered, part = sum(own.nodes.values()), f"in jitter of {own.segment}"
        if ledger.matters(scattered):
            why = f"{own.segment} takes far longer in single steps, on changing nodes"
            ledger.name("SCALE-JITTER", "changing nodes", own.segment, scattered, part, why)
        else:
            ledger.book(scattered, part)


def communication(
    ledger: Ledger, met: Levels, here: Rung, talk: Talk, limit: float | None, lost: float,
    apart: Company | None = None,
) -> None:  # fmt: skip
    """What nodes alone do not explain: nodes slow in company, where waits are timed `apart`; on the
    wrong network, beyond the replay, on slow links, or too much for the limit.

    The replay ran on the same links, so what is beyond it is no link's unless it was waited for.
    Links are slow where links of the agreed rate would spare what matters; what is left and is too
    much for the limit is too much for so few tokens.  Without an agreed rate nobody can tell.
    """
    seconds = met.communication
    if here.overlaps:  # meetings hold what is hidden behind compute: only what a step lost counts
        seconds = min(seconds, max(lost, 0.0))
    noise = beyond(met.error, len(here.steps[0]))
    if apart:
        seconds = _in_company(ledger, seconds, apart, noise)
    if talk.strays and ledger.matters(seconds):
        roads = ", ".join(sorted(set(talk.strays.values())))
        nodes = ", ".join(talk.strays)
        why = f"the bytes of collectives of {nodes} went over {roads}, not over the agreed fabric"
        part = f"waiting for collectives over {roads}"
        ledger.name("SCALE-NETWORK", nodes, MEETINGS, seconds, part, why)
        return
    if talk.replayed is None:
        said = "in collectives, with no replay to compare with"
        ledger.book(seconds, said)
        return
    replayed = max(talk.replayed, 0.0)
    excess = seconds - replayed
    if excess > NEAR * replayed:
        if excess > noise + talk.doubt and ledger.matters(excess):
            _beyond_replay(ledger, seconds, replayed, waited=apart is not None)
        seconds = replayed  # what is not beyond the noise is left for `unexplained`
    seconds -= _slow_links(ledger, seconds, replayed, talk.agreed)
    _too_much(ledger, met, here, seconds, talk, limit, lost)


def _beyond_replay(ledger: Ledger, seconds: float, replayed: float, waited: bool) -> None:
    """Names what meetings gained beyond the replay; `waited`: all of it was, for collectives."""
    took, alone = (f"{each * 1e3:.3g} ms" for each in (seconds, replayed))
    if waited:
        code, where, part = "SCALE-LINK", FABRIC, WAITED
        why = f"steps wait {took} for collectives, replayed without the trainer they take {alone}"
    else:
        code, where, part = "SCALE-UNEXPLAINED", EVERY, UNKNOWN
        why = (
            f"{MEETINGS} take {took} longer, for collectives or compute: {UNTOLD}; replayed "
            f"without the trainer the collectives take {alone}"
        )
    ledger.name(code, where, MEETINGS, seconds - replayed, part, why)


def _in_company(ledger: Ledger, seconds: float, apart: Company, noise: float) -> float:
    """Books what compute took of these seconds; returns what was waited for collectives."""
    waited = min(seconds, apart.transfer)
    computed = apart.common + sum(apart.nodes.values())
    by = min(1.0, (seconds - waited) / computed) if computed > 0 else 0.0
    for node, more in apart.nodes.items():
        if ledger.matters(by * more):
            part = f"behind {node}, slow in company only"
            why = f"{node} computes longer with the others than alone, and they wait for it"
            ledger.name("SCALE-STRAGGLER", node, "compute", by * more, part, why)
    common = by * apart.common
    if common > noise and ledger.matters(common):
        part = "unexplained compute on every node"
        why = "compute takes longer on every node than on one node alone"
        ledger.name("SCALE-UNEXPLAINED", EVERY, "compute", common, part, why)
    return waited


def _slow_links(ledger: Ledger, seconds: float, replayed: float, agreed: float | None) -> float:
    """Books what a step waits because links are slower than agreed; returns it, in seconds.

    Of what the replay would save, a step that hides some of its collectives saves only its share.
    """
    if agreed is None or not replayed:
        return 0.0
    slow = (replayed - agreed) * min(1.0, seconds / replayed)
    if slow <= NEAR * seconds or not ledger.matters(slow):
        return 0.0
    why = (
        f"collectives replayed without the trainer take {replayed * 1e3:.3g} ms, and would take "
        f"{agreed * 1e3:.3g} ms on links of the agreed rate"
    )
    part = "waiting for collectives on slow links"
    ledger.name("SCALE-LINK", EVERY, MEETINGS, slow, part, why)
    return slow


def _too_much(
    ledger: Ledger, met: Levels, here: Rung, seconds: float, talk: Talk,
    limit: float | None, lost: float,
) -> None:  # fmt: skip
    """Books collectives as replayed, under a cause where they alone break the limit."""
    one, part = ledger.seconds - lost, "waiting for collectives, as replayed"
    sought = limit is not None and limit < 1 and ledger.matters(seconds) and met.alone
    if limit is None or not sought or _kept(one, seconds, limit):
        ledger.book(seconds, part)
    elif talk.agreed is None:
        why = (
            f"collectives take {seconds * 1e3:.3g} ms; slow links and too few tokens are not told "
            "apart without an agreed line rate"
        )
        ledger.name("SCALE-COMMUNICATION", EVERY, MEETINGS, seconds, part, why)
    else:
        per_gpu = here.tokens_per_step / len(here.steps)
        needed = per_gpu * tokens_factor(one, met.alone, seconds, limit)
        why = (
            f"{per_gpu:,.0f} tokens per GPU and step are too few for collectives that are as "
            f"replayed; {needed:,.0f} would reach {limit:.0%}"
        )
        ledger.name("SCALE-TOKENS", EVERY, MEETINGS, seconds, part, why)


def _kept(one: float, more: float, limit: float) -> bool:
    """Whether a step of `one` s on one node, and `more` s longer on many, keeps the limit."""
    return one / (one + more) >= limit


def beyond(error: float, steps: int) -> float:
    """The least difference that noise with this standard error over so many steps does not make."""
    return student(FALSE_ALARM, steps - 1) * error if steps > 2 else math.inf


def tokens_factor(one: float, compute: float, collectives: float, limit: float) -> float:
    """How many times the tokens per GPU at which efficiency would reach `limit`.

    `one` is a step on one node, `compute` the part of it that grows with the tokens, `collectives`
    what more nodes add, which does not grow; all in seconds.
    """
    enough = limit * collectives / (1 - limit)  # a step on one node that would hide so much
    return (enough - (one - compute)) / compute


def unexplained(ledger: Ledger, owns: list[Own], lost: float, doubt: float) -> None:
    """What is left; a cause of its own where it is beyond `doubt` (seconds) and matters.

    A segment that grew on every node, clearly and without a known reason, is beyond doubt.
    """
    left = lost - sum(part.share for part in ledger.parts) * ledger.seconds
    grown = [own.segment for own in owns if own.shared and ledger.matters(own.common)]
    if ledger.matters(abs(left)) and (grown or abs(left) > doubt):
        segment = ", ".join(grown) or "unknown"
        longer = f"{segment} longer on every node" if grown else "no segment stands out"
        why = f"nothing that was looked for explains it, {longer}"
        if left < 0:
            why = "the parts that were found are larger than what is lost"
        ledger.name("SCALE-UNEXPLAINED", EVERY, segment, left, "unexplained", why)
    else:
        ledger.book(left, "unexplained")
