"""Each planted cause is named first, two at once are both named, and sound clusters name none."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from reference_trainer.stall import SEGMENTS
from scaling.causes import Cause, Ledger, Part, jitter, tokens_factor
from scaling.explain import Explanation, explain, explain_ladder, sentence
from scaling.ladder import Rung
from scaling.levels import Levels
from tests.simulated_steps import CODES, WHERE, WORK, Cluster, longer

LIMIT = 0.9
SIZE = 0.08  # of a step: the least that must be found

KINDS = [{"slowing", "slowing_jump", "hot"}]  # ways of one cause: no pairs
PAIRS = [pair for pair in combinations(CODES, 2) if not any(set(pair) <= kind for kind in KINDS)]

every_cause = pytest.mark.parametrize("cause", CODES)


def seen(seed: int, nodes: int = 8, steps: int = 24, **planted: Any) -> tuple[Cluster, Explanation]:
    """A cluster and what is said of its largest rung."""
    cluster = Cluster(nodes=nodes, steps=steps, seed=seed, **planted)
    base, here = cluster.base(), cluster.largest()
    return cluster, explain(base, here, predicted=cluster.predicted, limit=LIMIT)


def size(cause: str, share: float = SIZE) -> float:
    """Collectives as predicted are no cause until they alone break the limit."""
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


def test_a_slow_node_hides_what_is_slower_by_less() -> None:
    cluster, found = seen(2, slow_node=0.2, hot=0.1)
    assert named(found) == ["SCALE-SLOW-NODE"]
    assert found.causes[0].where == cluster.slow


def test_without_a_prediction_collectives_are_not_judged() -> None:
    cluster = Cluster(seed=4, link=0.1)
    found = explain(cluster.base(), cluster.largest())
    assert not found.causes
    assert "no prediction to compare with" in str(found)


@pytest.mark.parametrize("limit", [None, 1.0])
def test_tokens_are_not_counted_without_a_limit_that_can_be_reached(limit: float | None) -> None:
    cluster = Cluster(seed=5, tokens=0.2)
    found = explain(cluster.base(), cluster.largest(), predicted=cluster.predicted, limit=limit)
    assert not found.causes


def test_too_few_tokens_says_how_many_would_do() -> None:
    assert tokens_factor(one=1.0, compute=1.0, collectives=0.25, limit=0.8) == pytest.approx(1)
    # 0.1 s do not grow with the tokens: 1.8 s would hide 0.2 s at 90 %, so compute must be 1.7 s.
    assert tokens_factor(1.0, 0.9, 0.2, 0.9) == pytest.approx(1.7 / 0.9)
    found = seen(5, tokens=0.2)[1].causes[0]
    assert "8,192 tokens per GPU and step are too few" in found.said
    assert "would reach 90%" in found.said


@pytest.mark.parametrize(
    ("agreed", "code"), [(0.01, "SCALE-LINK"), (0.2, "SCALE-TOKENS"), (0.24, "SCALE-TOKENS")]
)
def test_collectives_too_slow_are_the_links_if_agreed_ones_would_do(
    agreed: float, code: str
) -> None:
    cluster = Cluster(seed=5, tokens=0.2)
    base, here = cluster.base(), cluster.largest()
    found = explain(base, here, predicted=cluster.predicted, limit=LIMIT, agreed=agreed)
    assert [(cause.code, cause.where) for cause in found.causes] == [(code, "every node")]
    assert ("ms on links of the agreed rate" in found.causes[0].said) == (code == "SCALE-LINK")


def test_spikes_in_a_rung_that_gained_are_no_loss() -> None:
    met = Levels(growth=-0.2, slow=0, slowing=0, variation=-0.25, tail=0.05, communication=0,
                 error=0.01, spikes=0.05, ordinary=0.01, alone=1.0)  # fmt: skip
    ledger = Ledger(1.0)
    jitter(ledger, met, [])
    assert not ledger.causes
    assert ledger.noise == pytest.approx(-0.2)


def test_a_link_is_looked_for_where_nodes_were_added() -> None:
    cluster = Cluster(nodes=4, seed=6)
    base, names = cluster.base(), cluster.names
    two = Rung(2, names[:2], cluster.run(names[:2], alone=False), 1)
    four = cluster.largest()
    slower = [[longer(step, "backward", 0.1) for step in steps] for steps in four.steps]
    predicted = {2: cluster.predicted, 4: cluster.predicted}
    said = explain_ladder([base, two, replace(four, steps=slower)], predicted)
    assert not said[0].causes
    assert [(c.code, c.where) for c in said[1].causes] == [
        ("SCALE-LINK", "fabric, first with node2, node3")
    ]


def test_the_sentence_adds_up_as_printed() -> None:
    parts = [Part(0.0786, "waiting for collectives"), Part(0.0214, "waiting for node3's data"),
             Part(0.0119, "unexplained"), Part(0.0, "in checkpoints")]  # fmt: skip
    assert sentence(8, 0.1119, parts) == (
        "at 8 nodes 11.2 % is lost: 7.9 waiting for collectives, 2.1 waiting for node3's data, "
        "1.2 unexplained"
    )
    for seed in range(5):
        text = str(seen(seed, data=SIZE)[1])
        whole, said = text.removeprefix("at 8 nodes ").split(" % is lost: ")
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
    assert isinstance(cause, Cause)
    assert cause.said.startswith(f"{cluster.slow} alone takes ")
    assert cause.said.endswith(f"{cause.share:.1%} of a step")
