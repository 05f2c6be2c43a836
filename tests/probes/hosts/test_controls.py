"""The controls of HOSTS: a node that reports what it has not, and a larger order."""

from __future__ import annotations

from typing import Any

import pytest

from probes.hosts import controls
from probes.hosts.controls import DOCTORED, read_doctored_facts
from reports.record import Control
from tests.support.simulated_hosts import StandInHosts, node_facts, run_hosts

# Of these a node alone can be found false; the others need a second node to compare it with.
ALONE = ["gpus", "count_mismatches", "nvml_errors"]
TOGETHER = [
    *("machines", "gpus", "count_mismatches", "nodes_with_fewer_gpus", "nvml_errors"),
    *("duplicate_gpus", "differences", "system_differences"),
]


def doctored_node(cluster: StandInHosts, **terms: Any) -> Control:
    result = run_hosts(cluster, nodes=len(cluster.facts), gpus_per_node=8, **terms)
    (control,) = [one for one in result.controls if one.name == "doctored node"]
    return control


@pytest.mark.parametrize(("nodes", "proves"), [(1, ALONE), (2, TOGETHER), (3, TOGETHER)])
def test_two_nodes_can_be_compared_with_each_other(nodes: int, proves: list[str]) -> None:
    control = doctored_node(StandInHosts(nodes))
    assert (control.caught, control.proves) == (True, proves)


def test_what_is_reported_is_less_than_any_order() -> None:
    control = doctored_node(StandInHosts(), cpus_per_node=1, ram_gib=1, gpu_memory_gib=1)
    assert control.caught is True
    *together, systems = TOGETHER
    assert control.proves == [*together, "gpu_memory", "cpus", "ram", systems]


def test_a_node_that_answers_no_more_proves_nothing() -> None:
    class Silent(StandInHosts):
        def on_each_node(self, function: Any, *_: Any, **how: Any) -> dict[str, Any]:
            answers = super().on_each_node(function, **how)
            if function is read_doctored_facts:
                del answers["id2"]
            return answers

    control = doctored_node(Silent())
    assert (control.caught, control.saw) == (None, "n2 does not answer")


def test_only_a_node_that_gets_false_facts_reports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "node_facts", lambda: node_facts(0))
    assert read_doctored_facts(None) == node_facts(0)
    reported = read_doctored_facts({"boot_id": "other", "uuid": "GPU-other"})
    assert {*reported["software"].values()} == {DOCTORED}
    assert (reported["boot_id"], reported["gpus"][0]["uuid"]) == ("other", "GPU-other")
