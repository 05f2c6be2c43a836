"""Where a slow fabric is placed, and what the sentence about a loss adds up to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling.ladder.ladder import Rung
from scaling.loss.causes import CollectiveTimes, LossPart
from scaling.loss.explain import explain_ladder, loss_sentence
from tests.scaling.loss.test_causes import later
from tests.support.simulated_steps import longer

TALK = CollectiveTimes(0.04, 0.04)


def places(rungs: list[Rung]) -> list[list[str]]:
    """Where each larger rung's slow links are."""
    return [
        [cause.where for cause in found.causes if cause.code == "SCALE-LINK"]
        for found in explain_ladder(rungs, {2: TALK, 4: TALK})
    ]


@pytest.mark.parametrize(
    ("two", "where"),
    [(["node0", "node1"], "node2, node3"), (["node2", "node3"], "node0, node1")],
)
def test_links_that_are_slow_from_a_rung_on_are_those_of_the_nodes_that_it_adds(
    two: list[str], where: str
) -> None:
    """Whichever nodes the smaller rung ran on: alone no node uses a link."""
    base, smaller, largest = later(separable=True, waited=True)
    rungs = [base, replace(smaller, nodes=two), largest]
    assert places(rungs) == [[], [f"fabric, first with {where}"]]


def test_links_that_are_slow_in_each_rung_are_the_fabric() -> None:
    base, smaller, largest = later(separable=True, waited=True)
    slow = [[longer(one, "backward", 0.1, "reduce-scatter") for one in s] for s in smaller.steps]
    assert places([base, replace(smaller, steps=slow), largest]) == [["fabric"], ["fabric"]]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "60.0 % of a step is lost"),
        ([LossPart(0.5994, "here"), LossPart(0.0006, "there")],
         "60.0 % of a step is lost: 59.9 % here, 0.1 % there"),
    ],
)  # fmt: skip
def test_the_sentence_of_a_large_loss_adds_up(parts: list[LossPart], words: str) -> None:
    assert loss_sentence(8, 0.6, parts) == f"at 8 nodes, {words}"
