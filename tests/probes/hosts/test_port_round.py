"""The actors that connect to each other's ports; Ray is a stand-in here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.cluster.network_facts import LOOKUP_SECONDS, max_try_seconds
from probes.hosts import port_round
from probes.hosts.port_round import PortRound
from tests.support.simulated_names import SimulatedNetwork


class Actor:
    """Actor of one node; its calls are answered when they are made."""

    def __init__(self, node: str, calls: list[Any], answers: dict[str, Any]) -> None:
        self.node, self.calls, self.answers = node, calls, answers

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *values: self.call(method, values))

    def call(self, method: str, values: tuple[Any, ...]) -> str:
        self.calls.append((method, self.node, values))
        return f"{method} {self.node}"


@pytest.fixture
def ray_calls(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], dict[str, Any]]:
    """What was asked of actors, and what they answer: a value, an error, or None for nothing."""
    import ray

    calls: list[Any] = []
    answers: dict[str, Any] = {}

    def wait(refs: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert num_returns == len(refs)
        assert timeout > 0
        done = [ref for ref in refs if answers.get(ref, ref) is not None]
        return done, [ref for ref in refs if ref not in done]

    def get(ref: str) -> Any:
        if isinstance(answer := answers.get(ref, ref), Exception):
            raise answer
        return answer

    def on_node(target: type, node: str) -> Any:
        assert target is port_round.NodePorts
        return SimpleNamespace(remote=lambda: Actor(node, calls, answers))

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", lambda actor: calls.append(("kill", actor.node, ())))
    monkeypatch.setattr(port_round, "on_node", on_node)
    return calls, answers


def test_an_actor_is_on_each_live_node_in_the_order_of_addresses(
    ray_calls: tuple[list[Any], dict[str, Any]],
) -> None:
    calls, _ = ray_calls
    cluster = SimulatedNetwork(3)
    cluster.known.reverse()
    started = PortRound.start(cast(Any, cluster))
    assert list(started.nodes) == ["id0", "id1", "id2"]
    assert calls == [("open_ports", f"id{i}", (f"10.0.0.{i + 1}",)) for i in range(3)]
    assert started.opened == {f"id{i}": f"open_ports id{i}" for i in range(3)}
    started.close()
    assert [call[:2] for call in calls[3:]] == [("kill", "id0"), ("kill", "id1"), ("kill", "id2")]


def test_an_actor_that_does_not_answer_has_its_reason(
    ray_calls: tuple[list[Any], dict[str, Any]],
) -> None:
    import ray

    _, answers = ray_calls
    answers["open_ports id1"] = None
    answers["open_ports id2"] = ray.exceptions.RayError("lines\nbefore the last\n")
    answers["open_ports id3"] = ray.exceptions.RayError("")
    started = PortRound.start(cast(Any, SimulatedNetwork(4)))
    assert list(started.opened) == ["id0"]
    assert started.errors == {
        "id1": "no answer within 90 s",
        "id2": "before the last",
        "id3": "the worker died",
    }
    assert started.call_each("look_up_names", {}) == {}


def test_each_round_has_time_for_all_its_connections(
    ray_calls: tuple[list[Any], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    seconds = []
    wait = ray.wait
    monkeypatch.setattr(
        ray, "wait", lambda refs, **how: seconds.append(how["timeout"]) or wait(refs, **how)
    )
    cluster = SimulatedNetwork(40)
    started = PortRound.start(cast(Any, cluster))
    started.opened = {id: cluster.open_ports(id, node["address"]) for id, node in
                      started.nodes.items()}  # fmt: skip
    seconds.clear()
    with pytest.raises(ValueError, match="zip"):  # the stand-in's answer is no list of problems
        started.connect(started.plan())
    assert seconds == [30 + max_try_seconds(39 * 4 + 1)]


def test_only_nodes_whose_actor_runs_look_up_names(
    ray_calls: tuple[list[Any], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = PortRound.start(cast(Any, SimulatedNetwork(3)))
    started.opened = {"id0": cast(Any, None)}
    asked: list[Any] = []
    monkeypatch.setattr(started, "call_each", lambda *given: asked.append(given) or {})
    found = started.look_up_names({"id0": ["id1"], "id1": ["id0"]})
    ((name, each, seconds),) = asked
    assert (name, [*each]) == ("look_up_names", ["id0"])
    assert seconds == 30 + LOOKUP_SECONDS, "an answer that takes as long as it may still comes"
    assert [(one.source, one.target) for one in found] == [("id0", "id1"), ("id1", "id0")]
