"""Each planted cause is named first, two at once are both named, and sound clusters name none."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from reference_trainer.telemetry.event_log import SEGMENTS
from reports.numbers import percent
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step
from scaling.loss.baseline_difference import CollectiveSegmentGrowth
from scaling.loss.causes import (
    CollectiveTimes,
    LossBudget,
    LossCause,
    LossPart,
    detect_communication,
    detect_jitter,
    detect_slow_nodes,
    detect_slow_segments,
    tokens_factor,
)
from scaling.loss.explain import (
    Explanation,
    SlowLink,
    explain,
    explain_ladder,
    is_link_cause,
    loss_sentence,
)
from scaling.loss.throttling import LocalSegmentGrowth
from tests.support.simulated_steps import CODES, WHERE, WORK, Cluster, longer

LIMIT = 0.9
SIZE = 0.08  # of a step: the least that must be found

KINDS = [{"slowing", "slowing_jump", "hot"}]  # ways of one cause: no pairs
PAIRS = [pair for pair in combinations(CODES, 2) if not any(set(pair) <= kind for kind in KINDS)]

every_cause = pytest.mark.parametrize("cause", CODES)


def seen(seed: int, nodes: int = 8, steps: int = 24, **planted: Any) -> tuple[Cluster, Explanation]:
    """A cluster and what is said of its largest rung."""
    cluster = Cluster(nodes=nodes, steps=steps, seed=seed, **planted)
    base, here = cluster.base(), cluster.largest()
    return cluster, explain(base, here, cluster.talk, limit=LIMIT)


def size(cause: str, share: float = SIZE) -> float:
    """Collectives as replayed are no cause until they alone break the limit."""
    return max(share, 0.2) if cause == "tokens" else share


def named(found: Explanation) -> list[str]:
    return [cause.code for cause in found.causes]


def test_the_simulated_step_is_cut_as_the_trainer_cuts_it() -> None:
    assert tuple(WORK) == SEGMENTS
    assert sum(WORK.values()) == pytest.approx(1)
    for rank in Cluster(nodes=3, steps=4).largest().steps:
        assert all(sum(step.segments.values()) == pytest.approx(step.seconds) for step in rank)


@pytest.mark.parametrize(("nodes", "steps"), [(4, 24), (8, 8), (8, 24)])
def test_sound_clusters_name_no_cause(nodes: int, steps: int) -> None:
    accused = {seed: named(seen(seed, nodes, steps)[1]) for seed in range(50)}
    assert not {seed: codes for seed, codes in accused.items() if codes}


@every_cause
@pytest.mark.parametrize(("nodes", "steps"), [(4, 24), (8, 24)])
def test_one_cause_is_named_first_and_at_its_place(cause: str, nodes: int, steps: int) -> None:
    for seed in range(10):
        cluster, found = seen(seed, nodes, steps, **{cause: size(cause)})
        assert named(found)[:1] == [CODES[cause]], f"seed {seed}: {found}"
        first = found.causes[0]
        # What is planted is a share of a healthy step; this step is longer by all that is lost.
        # Of jitter only the mean is planted: what a window gets of it is drawn.
        if cause != "jitter":
            assert 0.5 * size(cause) < first.share / (1 - found.lost) < 1.6 * size(cause)
        if cause in WHERE and (nodes, steps) == (8, 24):
            assert first.where == getattr(cluster, WHERE[cause])


@pytest.mark.parametrize("cause", [cause for cause in CODES if cause != "jitter"])
def test_eight_steps_are_enough(cause: str) -> None:
    """Not for jitter: in eight steps it may not even happen."""
    right = [
        named(seen(s, 4, 8, **{cause: size(cause)})[1])[:1] == [CODES[cause]] for s in range(10)
    ]
    assert all(right)


@pytest.mark.parametrize("cause", ["slow_node", "data", "link", "jitter"])
def test_nodes_of_eight_ranks(cause: str) -> None:
    cluster, found = seen(1, per_node=8, **{cause: SIZE})
    assert named(found) == [CODES[cause]]
    assert not named(seen(1, per_node=8)[1])
    if cause in WHERE:
        assert found.causes[0].where == getattr(cluster, WHERE[cause])


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_two_causes_are_both_named(pair: tuple[str, str]) -> None:
    """Sizes differ, and a node that slows down must get past one that was slow all along."""
    first, second = pair
    sizes = {first: size(first, 1.6 * SIZE), second: size(second)}
    if first == "slow_node" and second in KINDS[0]:
        sizes = {first: SIZE, second: 2 * SIZE}
    right = sum(
        {CODES[first], CODES[second]} <= set(named(seen(seed, **sizes)[1])) for seed in range(10)
    )
    assert right >= 9


def test_two_causes_are_in_order_of_size() -> None:
    for sizes in ({"data": 0.16, "checkpoint": 0.08}, {"data": 0.08, "checkpoint": 0.16}):
        found = seen(3, **sizes)[1]
        assert named(found) == [CODES[name] for name in sorted(sizes, key=lambda n: -sizes[n])]


@pytest.mark.parametrize(
    ("segment", "waited_s", "left_s"),
    [
        ("data", 0.03, 0.0),  # as long as a node that is a tenth slower takes for 0.4 s
        ("data", 0.1, 0.06),  # its data is slower than itself
        ("data", -0.02, -0.02),  # it was not waited for
        ("checkpoint", 0.03, 0.03),  # storage is slow for other reasons
    ],
)
def test_a_slow_node_is_slow_in_its_own_segments_too(
    segment: str, waited_s: float, left_s: float
) -> None:
    growth = CollectiveSegmentGrowth(
        0.06, 0.06, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.6, slow_node="n1"
    )
    local = [LocalSegmentGrowth(segment, 0.0, False, {"n0": 0.0, "n1": waited_s}, (), 0.4)]
    budget = LossBudget(1.0)
    detect_slow_nodes(budget, growth, local)
    assert local[0].nodes == {"n0": 0.0, "n1": pytest.approx(left_s)}
    (cause,) = budget.causes
    assert (cause.code, cause.where) == ("SCALE-SLOW-NODE", "n1")
    assert cause.share == pytest.approx(0.06 + waited_s - left_s)


@pytest.mark.parametrize(
    ("nodes", "common", "where"),
    [
        ({"n0": 0.0, "n1": 0.06}, 0.02, "n1"),
        ({"n0": 0.01, "n1": 0.02}, 0.05, "every node"),
    ],
)
def test_saves_are_one_nodes_only_where_it_is_waited_for_most_of_the_time(
    nodes: dict[str, float], common: float, where: str
) -> None:
    budget = LossBudget(1.0)
    detect_slow_segments(budget, [LocalSegmentGrowth("checkpoint", common, False, nodes, (), 0.0)])
    (cause,) = budget.causes
    assert (cause.code, cause.where) == ("SCALE-CHECKPOINT", where)
    assert cause.share == pytest.approx(0.08)
    assert cause.statement.startswith(f"checkpoint saves stop {where} for longer than in the run")


def test_a_slow_node_hides_what_is_slower_by_less() -> None:
    cluster, found = seen(2, slow_node=0.2, hot=0.1)
    assert named(found) == ["SCALE-SLOW-NODE"]
    assert found.causes[0].where == cluster.slow


def test_without_a_replay_collectives_are_not_judged() -> None:
    cluster = Cluster(seed=4, link=0.1)
    found = explain(cluster.base(), cluster.largest())
    assert not found.causes
    assert "waiting for collectives (for the network, or for late ranks)" in str(found)


@pytest.mark.parametrize("limit", [None, 0.0, 1.0])
def test_tokens_are_not_counted_without_a_limit_that_can_be_missed_and_reached(
    limit: float | None,
) -> None:
    cluster = Cluster(seed=5, tokens=0.2)
    found = explain(cluster.base(), cluster.largest(), cluster.talk, limit=limit)
    assert not found.causes


def test_too_few_tokens_says_how_many_would_do() -> None:
    assert tokens_factor(base_s=1.0, compute=1.0, collectives=0.25, limit=0.8) == pytest.approx(1)
    # 0.1 s do not grow with the tokens: 1.8 s would hide 0.2 s at 90 %, so compute must be 1.7 s.
    assert tokens_factor(1.0, 0.9, 0.2, 0.9) == pytest.approx(1.7 / 0.9)
    found = seen(5, tokens=0.2)[1].causes[0]
    assert "8,192 tokens per GPU and step are too few" in found.statement
    assert "tokens would reach 90 %" in found.statement


@pytest.mark.parametrize(
    ("agreed", "codes"),
    [
        (0.01, ["SCALE-LINK"]),
        (0.15, ["SCALE-TOKENS", "SCALE-LINK"]),
        (0.22, ["SCALE-TOKENS"]),
        (0.24, ["SCALE-TOKENS"]),
        (None, ["SCALE-COMMUNICATION"]),
    ],
)
def test_slow_links_and_too_few_tokens_are_told_apart_by_the_agreed_rate(
    agreed: float | None, codes: list[str]
) -> None:
    """Each has its part; without an agreed rate neither is accused."""
    cluster = Cluster(seed=5, tokens=0.2)
    found = explain(cluster.base(), cluster.largest(), CollectiveTimes(0.24, agreed), limit=LIMIT)
    assert named(found) == codes
    assert {cause.where for cause in found.causes} == {"every node"}
    for cause in found.causes:
        words = {"SCALE-LINK": "on links of the agreed rate", "SCALE-TOKENS": "too few",
                 "SCALE-COMMUNICATION": "Without an agreed line rate"}  # fmt: skip
        assert words[cause.code] in cause.statement


def met_for(seconds: float, error: float) -> CollectiveSegmentGrowth:
    """Meetings that gained so much, all of it in collectives."""
    nothing = dict.fromkeys(("slow", "slowing", "variation", "tail", "spikes", "ordinary"), 0.0)
    return CollectiveSegmentGrowth(
        growth=seconds, communication=seconds, error=error, base_s=0.8, **nothing
    )


@pytest.mark.parametrize(
    ("extra", "booked", "left"), [(0.012, 0.092, 0.0), (0.03, 0.08, 0.03)], ids=["near", "beyond"]
)
def test_what_is_beyond_the_replay_is_not_booked_as_replayed(
    extra: float, booked: float, left: float
) -> None:
    """A step of 1 s; the replay took 0.08, and noise hides what is beyond it."""
    met, ledger = met_for(0.08 + extra, error=1.0), LossBudget(1.0)
    here = Rung(2, ["a", "b"], [[Step(1.0, {})] * 24] * 2, 2, non_finite=0)
    detect_communication(ledger, met, here, CollectiveTimes(0.08, 0.08), None, 0.08 + extra)
    assert [part.share for part in ledger.parts] == [pytest.approx(booked)]
    assert 0.08 + extra - booked == pytest.approx(left)


def test_what_is_beyond_the_replay_and_its_doubt_is_unexplained() -> None:
    cluster = Cluster(seed=5, communication=0.1)
    base, here = cluster.base(), cluster.largest()
    for doubt, code in ((0.0, ["SCALE-UNEXPLAINED"]), (0.08, [])):
        assert named(explain(base, here, CollectiveTimes(0.05, 0.05, doubt), limit=0.5)) == code


@pytest.mark.parametrize("clock", ["host", "cuda events"])
def test_hidden_collectives_accuse_nobody(clock: str) -> None:
    """A step that waits a tenth of the replay on slow links would be spared a tenth of it."""
    cluster = Cluster(seed=5, communication=0.03)
    here = replace(cluster.largest(), clock=clock)
    found = explain(
        cluster.base(), here, CollectiveTimes(replayed=0.3, at_agreed_rate=0.15), limit=LIMIT
    )
    assert not found.causes
    assert sum(p.share for p in found.parts) == pytest.approx(found.lost)


def test_on_a_gpu_no_more_is_blamed_on_collectives_than_the_step_lost() -> None:
    met = met_for(0.2, error=0.01)
    for clock, most in (("host", 0.2), ("cuda events", 0.05)):
        ledger = LossBudget(1.0)
        here = Rung(2, ["a", "b"], [[Step(1.0, {})] * 24] * 2, 2, 0, clock=clock)
        detect_communication(ledger, met, here, CollectiveTimes(0.2), None, 0.05)
        assert [part.share for part in ledger.parts] == [pytest.approx(most)]


def test_bytes_on_another_road_are_the_cause_whatever_they_cost_there() -> None:
    cluster = Cluster(seed=5, tokens=0.2)
    strays = {"node1": "eth0", "node3": "eth0"}
    base, here = cluster.base(), cluster.largest()
    (cause,) = explain(
        base, here, CollectiveTimes(0.24, 0.01, off_fabric=strays), limit=LIMIT
    ).causes
    assert (cause.code, cause.where) == ("SCALE-NETWORK", "node1, node3")
    assert "collectives of node1, node3 used eth0, not the agreed fabric" in cause.statement
    quiet = Cluster(seed=5, communication=0.0)
    assert not explain(
        quiet.base(), quiet.largest(), CollectiveTimes(0.0, 0.0, off_fabric=strays), limit=LIMIT
    ).causes


@pytest.mark.parametrize("agreed", [0.01, None])
def test_a_slow_link_is_placed_where_pairs_of_nodes_show_it(agreed: float | None) -> None:
    """On a rung that has it; elsewhere, and where pairs show nothing, it is every node's."""
    cluster = Cluster(nodes=4, seed=6, tokens=0.3)
    names = cluster.names
    two = Rung(2, names[:2], cluster.run(names[:2], alone=False), 1, 0)
    rungs, talk = [cluster.base(), two, cluster.largest()], CollectiveTimes(0.34, agreed)

    def said(places: list[SlowLink] | None) -> list[list[tuple[str, str]]]:
        found = explain_ladder(rungs, {2: talk, 4: talk}, LIMIT, places)
        return [[(cause.code, cause.where) for cause in one.causes] for one in found]

    code = "SCALE-COMMUNICATION" if agreed is None else "SCALE-LINK"
    unplaced = [(code, "every node")]
    assert said(None) == said([]) == [unplaced, unplaced]
    one = SlowLink(("node3",), "the links of node3 are slow both ways")
    assert said([one]) == [unplaced, [("SCALE-LINK", "node3")]]
    both = SlowLink(("node0", "node1"), "node0 -> node1")
    assert said([one, both])[0] == [("SCALE-LINK", "node0, node1")]


def test_spikes_in_a_rung_that_gained_are_no_loss() -> None:
    nothing = dict.fromkeys(("slow", "slowing", "communication"), 0.0)
    met = CollectiveSegmentGrowth(growth=-0.2, variation=-0.25, tail=0.05, error=0.01, spikes=0.05,
                                  ordinary=0.01, base_s=1.0, **nothing)  # fmt: skip
    ledger = LossBudget(1.0)
    detect_jitter(ledger, met, [])
    assert not ledger.causes
    assert [(part.said, part.share) for part in ledger.parts] == [
        ("normal variation of steps", pytest.approx(-0.2))
    ]


@pytest.mark.parametrize(("node", "where"), [("n1", "mostly n1"), (None, "changing nodes")])
def test_single_slow_steps_are_a_nodes_only_where_it_has_most_of_them(
    node: str | None, where: str
) -> None:
    nothing = dict.fromkeys(("slow", "slowing", "communication"), 0.0)
    met = CollectiveSegmentGrowth(
        growth=0.1, variation=0.05, tail=0.05, error=0.01, spikes=0.08, ordinary=0.01, base_s=1.0,
        spiky_node=node, **nothing,
    )  # fmt: skip
    budget = LossBudget(1.0)
    detect_jitter(budget, met, [])
    (cause,) = budget.causes
    assert (cause.code, cause.where) == ("SCALE-JITTER", where)
    assert f"far longer than the typical step ({where})" in cause.statement


def test_what_is_too_little_for_a_cause_keeps_its_name() -> None:
    """A save that costs 1 % of the step time accuses nobody."""
    _, found = seen(3, checkpoint=0.01)
    assert not found.causes
    shares = {part.said: part.share for part in found.parts}
    assert shares["saving checkpoints"] == pytest.approx(0.01, rel=0.2)
    assert "single steps with slow data" in shares
    assert sum(shares.values()) == pytest.approx(found.lost)
    assert len(shares) == len(found.parts)  # each name once


def later(separable: bool, waited: bool) -> list[Rung]:
    """A ladder whose rung of 4 takes 0.1 s longer in backward than its replay tells."""
    cluster = Cluster(nodes=4, seed=6, separable=separable)
    base, names = cluster.base(), cluster.names
    two = replace(cluster.largest(), count=2, nodes=names[:2], steps=cluster.run(names[:2], False))
    four = cluster.largest()
    wait = "reduce-scatter" if waited else None
    slower = [[longer(step, "backward", 0.1, wait) for step in steps] for steps in four.steps]
    return [base, two, replace(four, steps=slower)]


@pytest.mark.parametrize(
    ("separable", "waited", "code", "where"),
    [
        (True, True, "SCALE-LINK", "fabric, first with node2, node3"),
        (True, False, "SCALE-UNEXPLAINED", "every node"),
        (False, False, "SCALE-UNEXPLAINED", "every node"),
    ],
    ids=["waited", "computed", "cannot be separated"],
)
def test_a_link_is_accused_beyond_the_replay_only_where_it_was_waited_for(
    separable: bool, waited: bool, code: str, where: str
) -> None:
    """Where nodes were added; the replay was on the same links, and they did as well as it says."""
    talk = CollectiveTimes(0.04, 0.04)
    said = explain_ladder(later(separable, waited), {2: talk, 4: talk})
    assert not said[0].causes
    (cause,) = said[1].causes
    assert (cause.code, cause.where) == (code, where)
    assert ("cannot tell which" in cause.statement) is not separable
    assert cause.share == pytest.approx(0.1 / 1.15, rel=0.2)


def test_what_is_beyond_the_replay_is_a_links_where_pairs_of_nodes_show_one() -> None:
    rungs, talk = later(separable=False, waited=False), CollectiveTimes(0.04, 0.04)
    place = SlowLink(("node3",), "the links of node3 are slow both ways")
    for places, code, where in (
        ([place], "SCALE-LINK", "node3"),
        ([], "SCALE-UNEXPLAINED", "every node"),
    ):
        found = explain_ladder(rungs, {2: talk, 4: talk}, LIMIT, places)[1]
        (cause,) = found.causes
        assert is_link_cause(cause)
        assert (cause.code, cause.where) == (code, where)
        shares = {part.said: part.share for part in found.parts}
        known = "waiting for collectives (longer than without training)"
        unknown = "unexplained (communication or compute)"
        there, gone = (known, unknown) if places else (unknown, known)
        assert shares[there] == pytest.approx(cause.share)
        assert gone not in str(found)
    (computed,) = explain_ladder(later(separable=True, waited=False), {2: talk, 4: talk})[1].causes
    assert not is_link_cause(computed)


def test_the_sentence_adds_up_as_printed() -> None:
    parts = [LossPart(0.0786, "waiting for collectives"),
             LossPart(0.0214, "waiting for node3's data"),
             LossPart(0.0119, "unexplained"), LossPart(0.0, "saving checkpoints")]  # fmt: skip
    assert loss_sentence(8, 0.1119, parts) == (
        "at 8 nodes, 11.2 % of a step is lost: 7.9 % waiting for collectives, "
        "2.1 % waiting for node3's data, 1.2 % unexplained"
    )
    for seed in range(5):
        text = str(seen(seed, data=SIZE)[1])
        whole, said = text.removeprefix("at 8 nodes, ").split(" % of a step is lost: ")
        tenths = [
            round(float(part.split(" ")[0]) * 10)
            for part in said.split(", ")
            if part[:1] in "-0123456789"
        ]
        assert sum(tenths) == round(float(whole) * 10)
        assert "'s data" in text


def test_a_cause_carries_its_evidence() -> None:
    cluster, found = seen(7, slow_node=0.2)
    cause = found.causes[0]
    assert isinstance(cause, LossCause)
    assert cause.statement.startswith(f"compute on {cluster.slow} alone takes ")
    assert cause.statement.endswith(f"{percent(cause.share)} of the step time")
