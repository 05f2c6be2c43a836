"""Which nodes take part.  Ray is a stand-in here."""

from __future__ import annotations

from typing import Any

import pytest

from probes.cluster.cluster import Cluster
from scaling.ladder.ladder import rung_sizes

pytestmark = pytest.mark.alone


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`joined(8, 0)`: a cluster whose nodes have so many GPUs; the first is the head."""
    import ray

    def make(*gpus: float) -> Cluster:
        rows = [
            {
                "NodeID": f"id{i}",
                "NodeManagerHostname": f"n{i}",
                "NodeManagerAddress": f"10.0.0.{i}",
                "Alive": True,
                "Resources": {"CPU": 8.0, **({"GPU": count} if count else {})}
                | ({"node:__internal_head__": 1.0} if i == 0 else {}),
            }
            for i, count in enumerate(gpus)
        ]
        monkeypatch.setattr(ray, "nodes", lambda: rows)
        cluster = Cluster.__new__(Cluster)
        cluster._local, cluster.emulated, cluster.kind = None, False, "ray"
        return cluster

    return make


def names(nodes: list[dict[str, Any]]) -> list[str]:
    return [node["name"] for node in nodes]


def test_workers_without_gpus_are_no_nodes_of_a_gpu_cluster(joined: Any) -> None:
    cluster = joined(0, 8, 8, 0, 0)  # a head and two loaders of data, without
    assert names(cluster.nodes) == ["n1", "n2"]
    assert names(cluster.bystanders) == ["n0", "n3", "n4"]
    assert cluster.size == 16
    assert rung_sizes(len(cluster.nodes)) == [1, 2]
    assert cluster.gpus_by_node == {"n1": 8, "n2": 8}


def test_all_nodes_of_a_cluster_without_gpus_take_part(joined: Any) -> None:
    cluster = joined(0, 0, 0)
    assert names(cluster.nodes) == ["n0", "n1", "n2"]
    assert cluster.bystanders == []
    assert (cluster.resource, cluster.size) == ("CPU", 3)


def test_facts_are_read_of_the_members_alone(joined: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fabric is derived from them: a node without ports that takes no part says nothing."""
    cluster = joined(8, 0, 8)
    cluster._facts = None
    monkeypatch.setattr(
        cluster,
        "on_each_node",
        lambda function, nodes: {node["id"]: {"address": node["address"]} for node in nodes},
    )
    assert names(cluster.facts) == ["n0", "n2"]
    assert names(cluster.read_facts(cluster.bystanders)) == ["n1"]
