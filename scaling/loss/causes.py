"""Detects why a rung lost time: each cause has a place, a share and evidence.

Each detector records seconds of the step in a LossBudget. Seconds beyond the noise that are large
enough to matter are recorded as a cause. The rest is a part without a cause, so that the sum is
complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from reports.numbers import percent
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import COLLECTIVE_SEGMENTS
from scaling.loss.baseline_difference import CollectiveSegmentGrowth
from scaling.loss.significance import FALSE_ALARM_RATE, student_t
from scaling.loss.throttling import LoadSlowdown, LocalSegmentGrowth

# Healthy clusters lose 2 to 4 % in total between 8 and 128 GPUs (torchtitan, llm-foundry). A single
# cause below 2 % of a step cannot be separated from that.
MIN_SHARE = 0.02

# On links that limited the speed, replayed collectives and the waits of steps agreed within this
# ratio. A smaller difference counts as equal to the replay.
REPLAY_TOLERANCE = 0.15

EVERY_NODE = "every node"
FABRIC = "fabric"
COLLECTIVES = "collectives"  # stands for all collectives in the name of a part
SEGMENTS_TEXT = ", ".join(COLLECTIVE_SEGMENTS)  # segment of causes in meetings
NOT_SEPARATED = "this run cannot tell which"
# Parts: time of meetings beyond the replay, in collectives or in an unknown place.
WAITED_PART = f"waiting for {COLLECTIVES} (longer than without training)"
UNKNOWN_PART = "unexplained (communication or compute)"


@dataclass(frozen=True)
class LossCause:
    """One cause: finding code, place, segment, share of this rung's step, and its evidence."""

    code: str
    where: str
    segment: str
    share: float
    statement: str


@dataclass(frozen=True)
class LossPart:
    """One part of the loss: its share of this rung's step, and its name in words."""

    share: float
    said: str


@dataclass(frozen=True)
class CollectiveTimes:
    """Collective times of one rung, measured outside the training step. None: not measured.

    `replayed` is the seconds that collectives add to a step if they are replayed without the
    trainer. `at_agreed_rate` is the same on links of the agreed rate. `uncertainty` is the
    possible error of the replay, in seconds. `off_fabric` are nodes whose bytes did not use the
    agreed interface, and their interface.
    """

    replayed: float | None = None
    at_agreed_rate: float | None = None
    uncertainty: float = 0.0
    off_fabric: Mapping[str, str] = field(default_factory=dict)


class LossBudget:
    """Seconds per step of a rung, and the parts and causes that explain its loss so far.

    `waits` are shares of the cost of collectives, by collective, if the clock separates them. A
    part that went into collectives is then split by these shares.
    """

    def __init__(self, seconds: float, waits: Mapping[str, float] | None = None) -> None:
        self.seconds = seconds  # of this rung's step
        self.waits = waits or {COLLECTIVES: 1.0}
        self.parts: list[LossPart] = []
        self.causes: list[LossCause] = []

    def matters(self, seconds: float) -> bool:
        """Return whether this many seconds of a step are enough for a cause."""
        return seconds >= MIN_SHARE * self.seconds

    def add_part(self, seconds: float, part: str) -> None:
        """Record seconds under a name without a cause: too few, or as expected."""
        shares = self.waits if COLLECTIVES in part else {COLLECTIVES: 1.0}
        for collective, share in shares.items():
            if seconds * share:
                text = part.replace(COLLECTIVES, collective)
                self.parts.append(LossPart(seconds * share / self.seconds, text))

    def add_cause(
        self, code: str, where: str, segment: str, seconds: float, part: str, evidence: str
    ) -> None:
        """Record seconds under a cause."""
        share = seconds / self.seconds
        self.add_part(seconds, part)
        word = "Cost" if share >= 0 else "Difference"
        statement = f"{evidence}. {word}: {percent(share)} of the step time"
        self.causes.append(LossCause(code, where, segment, share, statement))

    def settle(
        self, code: str, where: str, segment: str, seconds: float, part: str, evidence: str
    ) -> None:
        """Record seconds under a cause if they matter, else only under their name."""
        if self.matters(seconds):
            self.add_cause(code, where, segment, seconds, part, evidence)
        else:
            self.add_part(seconds, part)


def detect_slow_nodes(
    budget: LossBudget, growth: CollectiveSegmentGrowth, local_growth: list[LocalSegmentGrowth]
) -> None:
    """Detect a node that is slower alone, and one that became slower, in meetings and elsewhere.

    Its loss in local segments is recorded here as far as its speed explains it.
    """
    base_s, parts = growth.base_s, (growth.slow, growth.slowing)
    slow_ratio, slowing_ratio = (part / base_s if base_s else 0.0 for part in parts)
    slow = growth.slow + _subtract_loss_of_slow_node(local_growth, growth.slow_node, slow_ratio)
    part = f"waiting for {growth.slow_node} (slow compute)"
    if growth.slow_node:
        evidence = f"compute on {growth.slow_node} alone takes {percent(slow_ratio)} longer "
        evidence += "than on the median node"
        hidden = [name for name, extra_s in growth.also_slow.items() if budget.matters(extra_s)]
        evidence += f"; also slower than the median: {', '.join(hidden)}" if hidden else ""
        where = ", ".join([growth.slow_node, *hidden])
        budget.settle("SCALE-SLOW-NODE", where, "compute", slow, part, evidence)
    else:
        budget.add_part(slow, part)
    node = growth.slowing_node
    slowing = growth.slowing + _subtract_loss_of_slow_node(local_growth, node, slowing_ratio)
    part = f"slowdown of {node or 'the job'} during the run"
    where, on = node or "no single node", f" on {node}" if node else ""
    verb, caveat = f"compute{on} takes", ""
    if not growth.compute_slowed:
        verb = f"the parts {SEGMENTS_TEXT} of a step{on} take"
        caveat = f", in compute or on links ({NOT_SEPARATED})"
    evidence = f"{verb} {percent(slowing_ratio)} longer on average than at the start{caveat}"
    budget.settle("SCALE-THROTTLING", where, "compute", slowing, part, evidence)


def _subtract_loss_of_slow_node(
    local_growth: list[LocalSegmentGrowth], node: str | None, ratio: float
) -> float:
    """Take from `local_growth` what a node slower by `ratio` lost there; return the seconds."""
    taken = 0.0
    for index, local in enumerate(local_growth):
        if node is None or local.segment == "checkpoint":  # storage is slow for other reasons
            continue
        own_s = local.nodes[node]
        lost_s = min(max(own_s, 0.0), ratio * local.base_s)
        local_growth[index] = replace(local, nodes={**local.nodes, node: own_s - lost_s})
        taken += lost_s
    return taken


def detect_slow_segments(budget: LossBudget, local_growth: list[LocalSegmentGrowth]) -> None:
    """Detect data, checkpoints and other local segments that are slow on one node or on all.

    Recorded seconds are taken out of `local_growth`. The rest is left for jitter and
    unexplained.
    """
    for index, local in enumerate(local_growth):
        if local.segment == "checkpoint":
            local_growth[index] = _detect_checkpoint_stall(budget, local)
            continue
        nodes, common, segment = dict(local.nodes), local.common, local.segment
        for node in local.slow_nodes:
            if budget.matters(nodes[node]):
                code = "SCALE-DATA" if segment == "data" else "SCALE-STRAGGLER"
                longer = f"{segment} takes longer there than elsewhere"
                evidence = f"other nodes wait for {node}: {longer}"
                part = f"waiting for {node}'s {segment}"
                budget.add_cause(code, node, segment, nodes.pop(node), part, evidence)
        if segment == "data" and local.significant and budget.matters(common):
            evidence = "loading data takes longer on every node than on one node alone"
            part = "waiting for data on every node"
            budget.add_cause("SCALE-DATA", EVERY_NODE, segment, common, part, evidence)
            common = 0.0
        local_growth[index] = replace(local, nodes=nodes, common=common)


def _detect_checkpoint_stall(budget: LossBudget, local: LocalSegmentGrowth) -> LocalSegmentGrowth:
    """Detect checkpoint stalls, without a test against noise: a save happened or did not."""
    seconds = local.common + sum(local.nodes.values())
    worst = max(local.nodes, key=local.nodes.__getitem__)
    where = worst if local.nodes[worst] > seconds / 2 else EVERY_NODE
    evidence = f"checkpoint saves stop {where} for longer than in the run on one node"
    budget.settle("SCALE-CHECKPOINT", where, local.segment, seconds, "saving checkpoints", evidence)
    return replace(local, nodes={}, common=0.0)


def detect_jitter(
    budget: LossBudget, growth: CollectiveSegmentGrowth, local_growth: list[LocalSegmentGrowth]
) -> None:
    """Detect steps that scatter on changing ranks; they cost time as a job waits for the slowest.

    The noise of healthy nodes costs some time too. That part is recorded as ordinary variation.
    """
    remaining = growth.variation + growth.tail
    jitter_s = min(remaining, max(growth.spikes, remaining - growth.ordinary))
    if budget.matters(growth.spikes) and budget.matters(jitter_s):
        where = f"mostly {growth.spiky_node}" if growth.spiky_node else "changing nodes"
        evidence = f"single steps take far longer than the typical step ({where})"
        budget.add_cause("SCALE-JITTER", where, "compute", jitter_s, "single slow steps", evidence)
        remaining -= jitter_s
    budget.add_part(remaining, "normal variation of steps")
    for local in local_growth:
        scattered, segment = sum(local.nodes.values()), local.segment
        part = f"single steps with slow {segment}"
        evidence = f"{segment} takes far longer in single steps, on changing nodes"
        budget.settle("SCALE-JITTER", "changing nodes", segment, scattered, part, evidence)


def detect_communication(
    budget: LossBudget, growth: CollectiveSegmentGrowth, rung: Rung, times: CollectiveTimes,
    limit: float | None, lost: float, slowdown: LoadSlowdown | None = None,
) -> None:  # fmt: skip
    """Detect the loss that the nodes' runs alone do not explain.

    Possible causes are nodes slow only under load (if waits are timed) and a wrong network.
    Others are time beyond the replay, slow links, and too much communication for `limit`.
    `lost` is the seconds lost per step.

    The replay ran on the same links. So time beyond it is not due to links unless it was spent
    waiting for collectives. Links are slow if links of the agreed rate would save seconds that
    matter. The rest, if too much for the limit, is due to too few tokens. Without an agreed
    rate these two cannot be separated.
    """
    # Meetings that overlap contain hidden communication: only what a step lost counts.
    seconds = min(growth.communication, max(lost, 0.0) if rung.overlaps else math.inf)
    noise = noise_limit(growth.error, len(rung.steps[0]))
    if slowdown:
        seconds = _detect_load_slowdown(budget, seconds, slowdown, noise)
    if times.off_fabric and budget.matters(seconds):
        _add_wrong_network(budget, seconds, times.off_fabric)
        return
    if times.replayed is None:
        budget.add_part(seconds, "waiting for collectives (for the network, or for late ranks)")
        return
    replayed = max(times.replayed, 0.0)
    excess = seconds - replayed
    if excess > REPLAY_TOLERANCE * replayed:
        if excess > noise + times.uncertainty and budget.matters(excess):
            _add_beyond_replay(budget, seconds, replayed, waited=slowdown is not None)
        seconds = replayed  # the rest, within the noise, is left for detect_unexplained
    seconds -= _detect_slow_links(budget, seconds, replayed, times.at_agreed_rate)
    _detect_few_tokens(budget, growth, rung, seconds, times, limit, lost)


def _add_wrong_network(budget: LossBudget, seconds: float, off_fabric: Mapping[str, str]) -> None:
    networks, nodes = ", ".join(sorted(set(off_fabric.values()))), ", ".join(off_fabric)
    part = f"waiting for collectives over {networks}"
    evidence = f"collectives of {nodes} used {networks}, not the agreed fabric"
    budget.add_cause("SCALE-NETWORK", nodes, SEGMENTS_TEXT, seconds, part, evidence)


def _add_beyond_replay(budget: LossBudget, seconds: float, replayed: float, waited: bool) -> None:
    """Record the seconds beyond the replay; `waited`: all of it was for collectives."""
    took_text, replay_text = (f"{each * 1e3:.3g} ms" for each in (seconds, replayed))
    if waited:
        code, where, part = "SCALE-LINK", FABRIC, WAITED_PART
        evidence = (
            f"steps wait {took_text} longer for collectives than on one node. "
            f"Without training, collectives take {replay_text} longer"
        )
    else:
        code, where, part = "SCALE-UNEXPLAINED", EVERY_NODE, UNKNOWN_PART
        evidence = (
            f"the parts {SEGMENTS_TEXT} of a step take {took_text} longer than on one node, in "
            f"communication or compute ({NOT_SEPARATED}). Without training, collectives take "
            f"{replay_text} longer"
        )
    budget.add_cause(code, where, SEGMENTS_TEXT, seconds - replayed, part, evidence)


def _detect_load_slowdown(
    budget: LossBudget, seconds: float, slowdown: LoadSlowdown, noise: float
) -> float:
    """Record the compute part of these seconds; return the seconds waited for collectives."""
    waited = min(seconds, slowdown.transfer)
    computed = slowdown.common + sum(slowdown.nodes.values())
    ratio = min(1.0, (seconds - waited) / computed) if computed > 0 else 0.0
    for node, extra_s in slowdown.nodes.items():
        if budget.matters(ratio * extra_s):
            part = f"waiting for {node} (slow only when all nodes run)"
            evidence = f"{node} computes longer when all nodes run than when only {node} runs"
            budget.add_cause("SCALE-STRAGGLER", node, "compute", ratio * extra_s, part, evidence)
    common = ratio * slowdown.common
    if common > noise and budget.matters(common):
        part = "slower compute on every node (unexplained)"
        evidence = "compute takes longer on every node than on one node alone"
        budget.add_cause("SCALE-UNEXPLAINED", EVERY_NODE, "compute", common, part, evidence)
    return waited


def _detect_slow_links(
    budget: LossBudget, seconds: float, replayed: float, agreed: float | None
) -> float:
    """Record the seconds that a step waits because links are slower than agreed; return them.

    A step that hides some of its collectives saves only its share of what the replay would
    save.
    """
    if agreed is None or not replayed:
        return 0.0
    slow = (replayed - agreed) * min(1.0, seconds / replayed)
    if slow <= REPLAY_TOLERANCE * seconds or not budget.matters(slow):
        return 0.0
    evidence = (
        f"without training, collectives take {replayed * 1000.0:.3g} ms longer than on one node "
        f"({agreed * 1000.0:.3g} ms on links of the agreed rate)"
    )
    part = "waiting for collectives on slow links"
    budget.add_cause("SCALE-LINK", EVERY_NODE, SEGMENTS_TEXT, slow, part, evidence)
    return slow


def _detect_few_tokens(
    budget: LossBudget, growth: CollectiveSegmentGrowth, rung: Rung, seconds: float,
    times: CollectiveTimes, limit: float | None, lost: float,
) -> None:  # fmt: skip
    """Record seconds of collectives as replayed: as a cause if they alone break the limit."""
    base_s, part = budget.seconds - lost, "waiting for collectives (as long as without training)"
    too_slow = limit is not None and limit < 1 and budget.matters(seconds) and growth.base_s
    if limit is None or not too_slow or base_s / (base_s + seconds) >= limit:
        budget.add_part(seconds, part)
    elif times.at_agreed_rate is None:
        evidence = (
            f"collectives take {seconds * 1000.0:.3g} ms longer than on one node. Without "
            "an agreed line rate, slow links cannot be distinguished from too few tokens"
        )
        budget.add_cause("SCALE-COMMUNICATION", EVERY_NODE, SEGMENTS_TEXT, seconds, part, evidence)
    else:
        per_gpu = rung.tokens_per_step / len(rung.steps)
        needed = per_gpu * tokens_factor(base_s, growth.base_s, seconds, limit)
        evidence = (
            f"{per_gpu:,.0f} tokens per GPU and step are too few, though collectives run at "
            f"their normal speed ({needed:,.0f} tokens would reach {percent(limit)} efficiency)"
        )
        budget.add_cause("SCALE-TOKENS", EVERY_NODE, SEGMENTS_TEXT, seconds, part, evidence)


def noise_limit(error: float, steps: int) -> float:
    """Return the largest difference that noise explains, in the unit of its standard `error`.

    The chance of a larger one is FALSE_ALARM_RATE. Returns infinity for 2 `steps` or fewer.
    """
    return student_t(FALSE_ALARM_RATE, steps - 1) * error if steps > 2 else math.inf


def tokens_factor(base_s: float, compute: float, collectives: float, limit: float) -> float:
    """Compute by what factor the tokens per GPU must grow for efficiency to reach `limit`.

    `base_s` is a step on one node, `compute` the part of it that grows with the tokens.
    `collectives` is the time that more nodes add, which does not grow. All are in seconds.
    """
    needed_s = limit * collectives / (1 - limit)  # a step on one node that meets the limit
    return (needed_s - (base_s - compute)) / compute


def detect_unexplained(
    budget: LossBudget, local_growth: list[LocalSegmentGrowth], lost: float, uncertainty: float
) -> None:
    """Record the rest of `lost`: as a cause if it matters and exceeds `uncertainty` (seconds).

    The uncertainty is ignored if a segment grew on every node, beyond the noise and without a
    known reason.
    """
    remaining = lost - sum(part.share for part in budget.parts) * budget.seconds
    grown = [each for each in local_growth if each.significant and budget.matters(each.common)]
    grown_segments = [each.segment for each in grown]
    if budget.matters(abs(remaining)) and (grown_segments or abs(remaining) > uncertainty):
        segment = ", ".join(grown_segments) or "unknown"
        longer = f"{segment} takes longer on every node"
        longer = longer if grown_segments else "no single part grew"
        evidence = f"no known cause explains this part of the lost time: {longer}"
        if remaining < 0:
            evidence = "the known causes together explain more time than was lost"
        code, part = "SCALE-UNEXPLAINED", "unexplained"
        budget.add_cause(code, EVERY_NODE, segment, remaining, part, evidence)
    else:
        budget.add_part(remaining, "unexplained")
