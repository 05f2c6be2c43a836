"""The watch over the nodes of a run, against lists of nodes as Ray gives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from probes.cluster import node_watch
from probes.cluster.node_watch import NodeState, NodeWatch
from reports.record import Finding

NODES = {
    one.id: one
    for one in (
        NodeState("a", "node0", "10.0.0.1", head=True),
        NodeState("b", "node1", "10.0.0.2"),
        NodeState("c", "node2", "10.0.0.3"),
        NodeState("d", "node3", "10.0.0.4"),
    )
}
MEMBERS = {"b": "node1", "c": "node2"}
DEAD: dict[str, Any] = {"alive": False, "reason": 2, "message": "health check failed\nagain"}


class Cluster:
    """List of nodes that changes, and what a watch says of it."""

    def __init__(self) -> None:
        self.nodes, self.heard, self.expected = dict(NODES), list[Finding](), set[str]()
        self.read: Callable[[], list[NodeState]] = lambda: list(self.nodes.values())
        self.reads = 0
        self.watch = NodeWatch(self._read, MEMBERS, self.heard.append, self.expected)
        self.look()

    def _read(self) -> list[NodeState]:
        self.reads += 1
        return self.read()

    def look(self, polls: int = 2) -> list[Finding]:
        """Wait for so many more polls, or the end of the watch."""
        due = self.reads + polls
        while self.reads < due and self.watch._thread.is_alive():
            time.sleep(0.005)  # between two looks
        return self.heard

    def change(self, *ids: str, **fields: Any) -> None:
        self.nodes |= {id: replace(self.nodes[id], **fields) for id in ids}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "POLL_S", 0.01)
    monkeypatch.setattr(node_watch, "PAUSE_S", 0.01)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.watch.close()


def test_a_lost_node_is_one_finding_with_time_and_cause(cluster: Cluster) -> None:
    cluster.change("c", **DEAD)
    (found,) = cluster.look()
    assert found.code == "HOST-NODE-LOST"
    assert found.suspects == ["node2"]
    assert found.names == {"node": "node2", "ray_address": "10.0.0.3"}
    assert found.statement == (
        "node2: lost (Ray's reason: unexpected termination: health check failed again). "
        "Seen 0 s after the run began. Expected: alive until the run ends"
    )


def test_nodes_that_are_lost_together_are_one_finding(cluster: Cluster) -> None:
    cluster.change("b", "c", alive=False, reason=1)
    (found,) = cluster.look()
    assert found.suspects == ["node1", "node2"]
    assert found.statement.startswith(
        "node1: lost (Ray's reason: expected termination), node2: lost"
    )


@pytest.mark.parametrize(("id", "counts"), [("a", True), ("d", False)])
def test_the_head_counts_and_who_takes_no_part_does_not(
    cluster: Cluster, id: str, counts: bool
) -> None:
    cluster.change(id, **DEAD)
    assert len(cluster.look()) == counts


def test_a_node_that_was_dead_before_is_not_lost() -> None:
    before = Cluster.__new__(Cluster)
    before.nodes, before.heard, before.reads = dict(NODES), [], 0
    before.change("c", **DEAD)
    before.read = lambda: list(before.nodes.values())
    before.watch = NodeWatch(before._read, MEMBERS, before.heard.append)
    assert before.look(5) == []
    before.watch.close()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"drained_by": 1e12}, "node2: being drained, it ends in "),
        ({"alive": False, "reason": 3}, "node2: lost (Ray's reason: drained because its"),
        ({"alive": False, "reason": 4, "message": "idle for 60 s"}, ""),
        ({"alive": False, "reason": 99}, "node2: lost (Ray's reason: none)"),
    ],
)
def test_what_is_a_loss(cluster: Cluster, fields: dict[str, object], says: str) -> None:
    cluster.change("c", **fields)
    heard = cluster.look()
    assert [one.statement.startswith(says) for one in heard] == [True] * bool(says)


def test_a_node_that_comes_back_has_another_id(cluster: Cluster) -> None:
    both = cluster.nodes | {"e": NodeState("e", "node2", "10.0.0.3")}
    cluster.nodes = both | {"c": replace(NODES["c"], **DEAD)}
    (found,) = cluster.look()
    assert found.statement.startswith("node2: lost and back with a different node id (Ray's")


def test_another_raylet_of_the_same_machine_is_not_that_node(cluster: Cluster) -> None:
    """As where all raylets of an embedded cluster have one host."""
    cluster.nodes["e"] = NodeState("e", "node2", "10.0.0.3")
    assert cluster.look() == []


def test_a_node_is_gone_only_when_several_lists_lack_it(cluster: Cluster) -> None:
    lists = [dict(NODES), *[{k: v for k, v in NODES.items() if k != "c"}] * 2] * 4
    cluster.read = lambda: list((lists.pop() if lists else NODES).values())
    assert cluster.look(14) == []
    del cluster.nodes["c"]
    cluster.read = lambda: list(cluster.nodes.values())
    (found,) = cluster.look(5)
    assert found.statement.startswith("node2: lost, Ray no longer lists it. Seen ")


def fail() -> list[NodeState]:
    raise RuntimeError("Ray does not answer")


@pytest.mark.parametrize("read", [list, fail], ids=["empty", "an error"])
def test_no_list_is_no_loss(cluster: Cluster, read: Callable[[], list[NodeState]]) -> None:
    cluster.read = read
    assert cluster.look(8) == []
    cluster.read = lambda: list(cluster.nodes.values())
    assert cluster.look() == []


def test_a_late_list_is_no_loss(cluster: Cluster) -> None:
    late = threading.Event()
    cluster.read = lambda: (late.wait(0.5) and []) or list(cluster.nodes.values())
    assert cluster.look(2) == []


def test_an_announced_loss_is_none_and_the_next_is_one(cluster: Cluster) -> None:
    cluster.expected.add("b")
    cluster.change("b", **DEAD)
    assert cluster.look() == []
    cluster.change("c", **DEAD)
    (found,) = cluster.look()
    assert found.suspects == ["node2"]


def test_who_settles_gets_a_new_look(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "POLL_S", 100.0)
    cluster.look(1)
    cluster.change("c", **DEAD)
    cluster.watch._settled = -1000.0  # long ago
    cluster.watch.settle()
    assert len(cluster.heard) == 1


def test_it_settles_in_bounds_where_ray_does_not_answer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause between two polls is the measure: one look may take ten of them."""
    monkeypatch.setattr(node_watch, "LOOK_S", 0.1)
    stuck = threading.Event()
    cluster.read = lambda: (stuck.wait(30) and []) or []
    cluster.look(1)
    begun = time.monotonic()
    cluster.watch.settle()
    assert time.monotonic() - begun < 30 / 2
    stuck.set()
    assert cluster.heard == []


def test_it_ends_at_once(cluster: Cluster) -> None:
    cluster.watch.close()
    cluster.watch.settle()
    assert not cluster.watch._thread.is_alive()


def test_a_raylet_that_stays_silent_and_alive_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent, asked = set[str](), list[str]()

    def query(target: tuple[str, int], *_: object) -> str:
        asked.append(target[0])
        return "no answer" * (target[0] in silent)

    monkeypatch.setattr(node_watch, "query_port", query)
    monkeypatch.setattr(node_watch, "SETTLE_S", 0.2)
    cluster = Cluster()
    silent.add("10.0.0.2")
    for waits in (True, False):
        asked.clear()
        cluster.watch._settled = -1000.0  # long ago
        cluster.watch.settle()
        assert (asked.count("10.0.0.2") > 1) is waits
        assert asked.count("10.0.0.3") >= 1
    cluster.watch.close()
    assert cluster.heard == []
