"""A ladder on token shards: a rung whose shards are bad is one sentence, and costs no other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from reports.measurement import Verdict
from tests.faults.launchers.injected_faults import findings
from tests.lab.lab import Lab
from tests.lab.node import SHARED
from tests.support.trial import acceptance, agreed

pytestmark = pytest.mark.soak(criterion="shards")
CORPUS, SHARDS = f"{SHARED}/corpus", "/tmp/shards"  # /tmp is each node's own
RUNGS, MORE = (1, 2, 4), 8


def make(lab: Lab, rung: int, nodes: int) -> None:
    """Each node's shard for the rung, where there are so many nodes."""
    for node in lab.nodes:
        out = f"{SHARDS}-{rung}"
        node.run("rm", "-rf", out)
        words = ["--documents", CORPUS, "--out", out]
        words += ["--node", str(node.index % nodes), "--nodes", str(nodes)]
        node.run(sys.executable, "-m", "reference_trainer", "shards", *words)


@pytest.fixture
def contract(lab: Lab) -> Iterator[str]:
    """The lab's contract, on shards that every node has for each rung in a folder of its own."""
    corpus = lab.home / CORPUS.lstrip("/")
    corpus.mkdir()
    for number in range(48):
        (corpus / f"{number:02}.txt").write_text(f"document {number} says little. " * 40)
    for rung in RUNGS:
        make(lab, rung, rung)
    pace = "pace_seconds = 0.25"
    yield agreed(lab, {pace: f'{pace}\nshards = "{SHARDS}-{{nodes}}"'})
    for node in lab.nodes:
        node.run("rm", "-rf", *(f"{SHARDS}-{rung}" for rung in RUNGS))
    lab.nodes[0].run("rm", "-rf", CORPUS)


def missing(lab: Lab) -> None:
    """One node has none."""
    lab.nodes[3].run("rm", "-rf", f"{SHARDS}-4")


def flipped(lab: Lab) -> None:
    """A byte of one node's shard is not what it was; its size is."""
    lane = f"{SHARDS}-4/shard-2-of-4/lane-00002"
    words = ["dd", "if=/dev/zero", f"of={lane}", "bs=1", "seek=100", "count=1", "conv=notrunc"]
    lab.nodes[2].run(*words)


def stale(lab: Lab) -> None:
    """They were made when there were more nodes."""
    make(lab, 4, MORE)


BAD: list[tuple[Callable[[Lab], None], str]] = [
    (missing, "rank 3 on node3: /tmp/shards-4 has no shard (a folder shard-I-of-N)"),
    (flipped, "rank 2 on node2: /tmp/shards-4/shard-2-of-4: lane-00002"),
    (stale, "no node has shard 4, 5, 6, 7 of 8: use 8 nodes"),
]


@pytest.mark.parametrize(("damage", "says"), BAD, ids=lambda value: getattr(value, "__name__", ""))
def test_bad_shards_cost_no_other_rung_its_figures(
    lab: Lab, contract: str, damage: Callable[[Lab], None], says: str
) -> None:
    damage(lab)
    record, _ = acceptance(
        lab, damage.__name__, "probes/scaling/test_scaling.py", contract=contract
    )
    (result,) = record.results
    said = [(one.code, one.statement) for one in findings(record)]
    assert record.verdict("SCALING") is Verdict.UNPROVEN, said
    efficiency = {
        m.subject.split(",")[0]: m.value for m in result.measurements if m.name == "efficiency"
    }
    assert efficiency["4 nodes"] is None
    assert efficiency["2 nodes"] > 0.5
    ((code, statement),) = said
    assert code == "SCALE-RUNG-FAILED", said
    assert statement.startswith("the job on 4 nodes failed: "), said
    assert says in statement, said


def test_without_the_rung_of_one_node_there_is_nothing_to_compare_with(
    lab: Lab, contract: str
) -> None:
    lab.nodes[1].run("rm", "-rf", f"{SHARDS}-1")
    record, _ = acceptance(lab, "alone", "probes/scaling/test_scaling.py", contract=contract)
    ((code, statement),) = [(one.code, one.statement) for one in findings(record)]
    assert record.verdict("SCALING") is Verdict.UNPROVEN
    assert code == "SCALE-RUNG-FAILED"
    assert statement.startswith("the job on 1 node failed: "), statement
    assert "on node1: /tmp/shards-1 has no shard" in statement


def test_a_ladder_on_shards_is_sound(lab: Lab, contract: str) -> None:
    record, _ = acceptance(lab, "on-shards", "probes/scaling/test_scaling.py", contract=contract)
    (result,) = record.results
    assert record.verdict("SCALING") in (Verdict.PASS, Verdict.MARGINAL), result.problems()
    assert "on the shards in /tmp/shards-{nodes}" in result.coverage
