"""Judges that each node reaches the addresses outside the cluster that the contract names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from probes.acceptance.measure import Recorder
from probes.findings import finding, join_names

Answers = Mapping[str, Mapping[str, str]]  # node's name -> target -> problem, "" for none


def judge_ways_out(
    targets: Sequence[str], answers: Answers, silent: Sequence[str], measure: Recorder
) -> None:
    """Judge the connections of each node to each target; `silent` nodes prove nothing."""
    for node, problems in answers.items():
        failed = [target for target in targets if problems.get(target, "no answer")]
        measure("egress_closed", len(failed), on=node)
    for node in silent:
        measure("egress_closed", None, on=node, note="the node does not answer")
    for target in targets:
        _explain_target(target, answers, measure)


def _explain_target(target: str, answers: Answers, measure: Recorder) -> None:
    groups: dict[str, list[str]] = defaultdict(list)
    for node, problems in answers.items():
        if problem := problems.get(target, "no answer"):
            groups[problem].append(node)
    for problem, nodes in groups.items():
        where = "each node" if len(nodes) == len(answers) > 1 else join_names(nodes)
        statement = f"{target} from {where}: {problem}. Expected: a connection"
        measure.explain(finding("HOST-EGRESS", statement, nodes, names={"target": target}))
