"""What holds the accelerators of a cluster is named: groups, actors, tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import state
from ray.core.generated.gcs_pb2 import ActorTableData

from probes.cluster import ray_internals
from probes.cluster.room import (
    HeldAccelerators,
    describe_holders,
    find_holders,
    list_holders,
    read_tables,
)

NODES = {"a": "node0", "b": "node1"}
JOB = "01000000"


def tables(free: dict[str, float], actors: Any = (), groups: Any = ()) -> Any:
    totals = {node: {"GPU": 4.0, "CPU": 8.0} for node in NODES}
    left = {node: {"GPU": count} for node, count in free.items()}
    return totals, left, actors, {str(number): group for number, group in enumerate(groups)}


def actor(node: str, gpus: float = 1, name: str = "", more: str = "") -> dict[str, Any]:
    resources = {"GPU": gpus, **({more: 1.0} if more else {})}
    place = {"job": JOB, "namespace": "other", "node": node}
    return {"class": "Train", "name": name, "resources": resources, **place}


def group(name: str, *nodes: str, state: str = "CREATED") -> dict[str, Any]:
    bundles = {index: {"GPU": 1.0} for index in range(len(nodes))}
    on = dict(enumerate(nodes))
    id = "5f0362a8c35c963cc9e7230eab91" + JOB
    return {"placement_group_id": id, "name": name, "state": state, "bundles": bundles,
            "bundles_to_node_id": on}  # fmt: skip


def cpus(holder: dict[str, Any]) -> dict[str, Any]:
    """An actor or a group that holds CPUs in place of GPUs."""
    if "resources" in holder:
        return {**holder, "resources": {"CPU": 1.0}}
    return {**holder, "bundles": {index: {"CPU": 1.0} for index in holder["bundles"]}}


FREE = {"a": 4.0, "b": 4.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (tables(FREE), ""),
        (
            tables({**FREE, "a": 3.0}, [actor("a")]),
            "1 GPU on node0 is held by actor Train of job 01000000, namespace other",
        ),
        (
            tables({**FREE, "a": 2.0}, [actor("a"), actor("a")]),
            "2 GPUs on node0 are held by actor Train of job 01000000, namespace other",
        ),
        (
            tables({**FREE, "b": 2.0}, [actor("b", 2, "trainer")]),
            "2 GPUs on node1 are held by actor Train (its name: trainer) of job 01000000, "
            "namespace other",
        ),
        # The actor is in the group: its accelerator is counted once.
        (
            tables(
                {**FREE, "a": 3.0}, [actor("a", 1, "", f"GPU_group_{JOB}")], [group("gang", "a")]
            ),
            "1 GPU on node0 is held by placement group gang of job 01000000",
        ),
        (
            tables({"a": 3.0, "b": 2.0}, [], [group("gang", "a", "b")]),
            "1 GPU on node0 is held by placement group gang of job 01000000; "
            "1 GPU on node1 is held by a task; "
            "1 GPU on node1 is held by placement group gang of job 01000000",
        ),
        # An actor, or a bundle of a group, of CPUs alone holds none.
        (tables(FREE, [cpus(actor("a"))], [cpus(group("gang", "a"))]), ""),
        # Parts of an accelerator leave no rest that is a rounding error.
        (
            tables({**FREE, "a": 3.7}, [actor("a", 0.3)]),
            "0.3 GPUs on node0 are held by actor Train of job 01000000, namespace other",
        ),
        # A group that waits holds nothing, and neither does a removed one.
        (tables(FREE, [], [group("waits", "", ""), group("was", "a", state="REMOVED")]), ""),
        # A node whose free accelerators are not known has none of them free.
        (tables({"a": 4.0}), "4 GPUs on node1 are held by a task"),
    ],
)
def test_each_holder_is_named(given: Any, said: str) -> None:
    assert describe_holders(list_holders("GPU", NODES, *given), "GPU") == said


def test_a_long_list_is_cut() -> None:
    many = [HeldAccelerators(f"node{i}", 1, "a task") for i in range(8)]
    assert describe_holders(many, "GPU").endswith("; and 3 more")
    assert describe_holders(many[:6], "GPU").endswith("; and 1 more")
    assert "more" not in describe_holders(many[:5], "GPU")


def test_without_an_answer_nothing_is_named_and_no_task_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise ray.exceptions.GetTimeoutError("no answer")

    asked, cancelled = object(), list[Any]()

    def options(**given: Any) -> Any:
        assert given == {"num_cpus": 0, "max_retries": 0}, "it finds room on a full cluster"
        return SimpleNamespace(remote=lambda: asked)

    monkeypatch.setattr(ray, "remote", lambda function: SimpleNamespace(options=options))
    monkeypatch.setattr(ray, "get", silent)
    monkeypatch.setattr(ray, "cancel", lambda *what, **how: cancelled.append((*what, how)))
    assert find_holders("GPU", NODES) == []
    assert cancelled == [(asked, {"force": True})]
    monkeypatch.setattr(ray, "get", lambda *_, **__: tables({**FREE, "a": 3.0}, [actor("a")]))
    (held,) = find_holders("GPU", NODES)
    assert (held.node, held.count) == ("node0", 1)


def row(name: str, state_name: str) -> bytes:
    """An actor as Ray's table has it."""
    found = ActorTableData(class_name=name, name="", ray_namespace="other")
    found.state = ActorTableData.ActorState.Value(state_name)
    found.job_id, found.address.node_id = bytes.fromhex(JOB), b"\xab\xcd"
    found.required_resources["GPU"] = 1.0
    return bytes(found.SerializeToString())


def test_rays_tables_are_read_without_what_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("Train", "ALIVE"), row("Old", "DEAD"), row("Soon", "PENDING_CREATION")]
    accessor = SimpleNamespace(get_actor_table=lambda *_: rows)
    monkeypatch.setattr(ray_internals, "gcs_accessor", lambda: accessor)
    nodes = [
        {"NodeID": "a", "Alive": True, "Resources": {"GPU": 4.0}},
        {"NodeID": "b", "Alive": False, "Resources": {}},
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(state, "available_resources_per_node", lambda: {"a": {"GPU": 3.0}})
    monkeypatch.setattr(ray.util, "placement_group_table", lambda: {"g": {}})
    totals, free, living, groups = read_tables()
    assert (totals, free, groups) == ({"a": {"GPU": 4.0}}, {"a": {"GPU": 3.0}}, {"g": {}})
    assert living == [
        {
            "class": "Train",
            "name": "",
            "namespace": "other",
            "job": JOB,
            "node": "abcd",
            "resources": {"GPU": 1.0},
        }
    ]


def test_a_node_that_has_no_accelerator_holds_none() -> None:
    assert list_holders("GPU", NODES, {"a": {"CPU": 8.0}}, {}, [], {}) == []
    (held,) = list_holders("GPU", NODES, {"a": {"GPU": 0.0015}}, {"a": {}}, [], {})
    assert held.count == 0.002  # to a thousandth
