"""Which nodes take part.  Ray is a stand-in here."""

from __future__ import annotations

from typing import Any

import pytest

from probes.cluster.cluster import Cluster
from probes.cluster.node_watch import NodeState
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
        monkeypatch.setattr("probes.cluster.cluster.read_draining", dict)
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
    monkeypatch.setattr(
        cluster,
        "on_each_node",
        lambda function, nodes: {node["id"]: {"address": node["address"]} for node in nodes},
    )
    assert names(cluster.facts) == ["n0", "n2"]
    assert names(cluster.read_facts(cluster.bystanders)) == ["n1"]


def test_a_drained_node_takes_no_part(joined: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = joined(8, 8, 0)
    monkeypatch.setattr("probes.cluster.cluster.read_draining", lambda: {"id1": 0, "id2": 0})
    assert names(cluster.nodes) == ["n0"]
    assert cluster.bystanders == []
    assert [one["name"] for one in cluster.known_nodes() if one["drained"]] == ["n1", "n2"]
    cluster.kind = "client"  # it does not learn of it
    assert names(cluster.nodes) == ["n0", "n1"]


def test_a_node_that_came_back_by_another_name_is_not_missing(
    joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    cluster = joined(8, 8)
    former = {**ray.nodes()[1], "NodeID": "old", "NodeManagerHostname": "before", "Alive": False}
    gone = {**former, "NodeID": "gone", "NodeManagerAddress": "10.0.0.9"}
    rows = [*ray.nodes(), former, gone]
    monkeypatch.setattr(ray, "nodes", lambda: rows)
    assert [node["id"] for node in cluster.known_nodes()] == ["id0", "id1", "gone"]


def test_the_states_of_all_nodes_are_as_ray_counts_them(
    joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    cluster = joined(0, 8, 8)
    rows = ray.nodes()
    rows[1] |= {"NodeManagerPort": 6000}
    rows[2] |= {
        "Alive": False,
        "Resources": {},
        "DeathReason": 2,
        "DeathReasonMessage": "health check failed",
    }
    rows.append({**rows[0], "NodeID": "spare", "Resources": {"seatrial_spare_1": 1.0}})
    draining = {"id0": 1_800_000_000_500, "id1": 0}
    monkeypatch.setattr("probes.cluster.cluster.read_draining", lambda: draining)
    assert cluster.node_states() == [
        NodeState("id0", "n0", "10.0.0.0", head=True, drained_by=1_800_000_000.5),
        NodeState("id1", "n1", "10.0.0.1", 6000),
        NodeState("id2", "n2", "10.0.0.2", alive=False, reason=2, message="health check failed"),
    ]
    cluster.kind = "client"  # Ray's client has no list of them
    assert [one.drained_by for one in cluster.node_states()] == [None] * 3


def test_a_loss_is_announced_for_nodes_that_are_lost_meanwhile(
    joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr("probes.cluster.cluster.read_draining", dict)
    cluster = joined(8, 8, 8)
    cluster.expected_losses = set()
    with cluster.expecting_loss("id1", "id2"):
        assert cluster.expected_losses == {"id1", "id2"}
        ray.nodes()[1]["Alive"] = False
    assert cluster.expected_losses == {"id1"}, "the other one is as it was"
