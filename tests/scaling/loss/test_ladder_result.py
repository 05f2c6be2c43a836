"""What causes of single rungs mean for the whole ladder: which are named, and what is foreseen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.scaling.judge import causes_to_report
from scaling.loss.causes import LossCause
from scaling.loss.explain import Explanation, SlowLink
from scaling.loss.ladder_result import Ladder
from tests.support.simulated_ladder import CALLS, FITS, agreed, ladder
from tests.support.simulated_steps import Cluster


def test_what_is_unexplained_for_another_reason_is_named_on_the_smaller_rung_too() -> None:
    """Compute takes longer on 4 nodes; on 2 nodes it is meetings, or as on 4."""
    computed = LossCause("SCALE-UNEXPLAINED", "every node", "compute", 0.2, "compute takes longer")
    for segment, there in (("forward, backward, clip", True), ("compute", False)):
        one = replace(computed, segment=segment)
        why = [Explanation(nodes, 0.3, (), (each,)) for nodes, each in ((2, one), (4, computed))]
        blamed = causes_to_report(ladder(), why, agreed(0.99, None).limit("SCALING", "efficiency"))
        assert blamed == {4: [computed], 2: [one] if there else []}


def test_what_pairs_of_nodes_show_as_a_links_is_communication_and_the_rest_is_not_known() -> None:
    """On rungs whose meetings take longer than replayed, and nobody timed what they waited for."""
    whole = Cluster(nodes=4, seed=1, communication=0.3)
    names = whole.names[:2]
    two = Cluster(nodes=4, seed=1, communication=0.15).run(names, alone=False)
    rungs = [
        replace(whole.base(), replay_s=0.0),
        replace(whole.largest(), count=2, nodes=names, steps=two, replay_s=0.05),
        replace(whole.largest(), replay_s=0.1),
    ]
    found = Ladder(rungs=rungs, calls=CALLS, fits=FITS, base_repeats=[])
    unknown = found.forecast()
    assert unknown.beside == pytest.approx(0.2, rel=0.2)
    words = "s of a step were lost to causes other than communication (SCALE-UNEXPLAINED"
    assert words in unknown.assumptions[-1]
    placed = replace(found, slow_links=[SlowLink(("node0", "node1"), "node0 -> node1 is slow")])
    assert {cause.code for cause in placed.explanations()[-1].causes} == {"SCALE-LINK"}
    known = placed.forecast()
    assert known.beside < 0.1 * unknown.beside
    assert known.share > 2 * unknown.share
    assert not any("SCALE-" in words for words in known.assumptions)
