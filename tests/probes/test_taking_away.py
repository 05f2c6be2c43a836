"""Taking away a rank or a witness of a sound job never leaves a PASS.

The same of probes, measures and controls is in tests/reports/test_owed.py; of nodes and GPUs in
tests/probes/hosts/test_nothing_missing_passes.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from probes.fabric.judge import judge_transport
from probes.fabric.transport import TransportReport
from probes.launch.judge import judge_ranks
from reports.measurement import Verdict
from tests.support.controls import recorder
from tests.support.launched_job import cluster_of, guided, transcript
from tests.support.sweep_results import sweep_result

NODES = ["n0", "n1", "n2", "n3"]
CRITERIA = {"FABRIC": ("network", "agreeing_sources"), "LAUNCH": ("ranks", "wrong_ranks")}
steady = settings(derandomize=True, deadline=None)
some_nodes = st.sets(st.sampled_from(NODES), min_size=1)


def verdict(criterion: str, judge: Any) -> Verdict:
    """The worst of what a criterion says of ranks, or of witnesses."""
    measure = recorder(criterion)
    judge(measure)
    result = measure.finish("finished", 1.0)
    names = CRITERIA[criterion]
    seen = [m.verdict for m in result.measurements if m.name in names and m.verdict]
    assert {m.name for m in result.measurements} >= {*names}
    return Verdict.worst(seen)


def transport_verdict(uncounted: set[str], unreported: set[str]) -> Verdict:
    """FABRIC's, when counters and library say nothing of some nodes."""
    whole = sweep_result(0.118)
    said = {node: "fab0" for node in NODES if node not in unreported}
    run = dataclasses.replace(
        whole,
        sent={node: sent for node, sent in whole.sent.items() if node not in uncounted},
        library=TransportReport("gloo's sockets", said, "" if said else "nothing is open"),
        rank_nodes=NODES,
    )
    return verdict("FABRIC", lambda measure: judge_transport(run, "fab0", measure))


def launch_verdict(missing: set[str]) -> Verdict:
    """LAUNCH's, when the ranks of some nodes were never announced."""
    said = transcript(ranks=4)
    said.lines = [
        line
        for line in said.lines
        if not any(f" host={node} " in line or line.endswith(f"uuid-{node}") for node in missing)
    ]
    trained = {f"trained RANK={rank} " for rank, node in enumerate(NODES) if node in missing}
    said.lines = [line for line in said.lines if not line.startswith((*trained, "none"))]
    path = guided(cluster_of(4, on_gpu=False))
    return verdict("LAUNCH", lambda measure: judge_ranks(path, said, measure))


def test_with_all_of_them_there_both_pass() -> None:
    assert transport_verdict(set(), set()) is Verdict.PASS
    assert launch_verdict(set()) is Verdict.PASS


@steady
@given(uncounted=some_nodes, unreported=st.sets(st.sampled_from(NODES)))
def test_without_a_counter_the_network_is_not_proven(
    uncounted: set[str], unreported: set[str]
) -> None:
    if uncounted != set(NODES):  # without any there is no sweep to judge
        assert not transport_verdict(uncounted, unreported).accepted


@steady
@given(unreported=some_nodes)
def test_without_the_librarys_word_the_network_is_not_proven(unreported: set[str]) -> None:
    assert not transport_verdict(set(), unreported).accepted


@steady
@given(missing=some_nodes)
def test_without_a_rank_the_launch_is_not_right(missing: set[str]) -> None:
    assert not launch_verdict(missing).accepted
