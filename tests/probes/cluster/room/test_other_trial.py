"""One trial at a time: who claims, who waits, and whose claim has ended with its driver."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.experimental import internal_kv

from probes.cluster import room
from probes.cluster.room import OtherTrial, claim_cluster, release_cluster

CLUSTER = SimpleNamespace(head_node_id="id0")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, bytes]:
    """Ray's store, with the jobs `mine` (this driver) and `theirs`."""
    kept: dict[bytes, bytes] = {}

    def put(key: bytes, value: bytes, overwrite: bool = True, *, namespace: bytes) -> bool:
        existed = key in kept
        if overwrite or not existed:
            kept[key] = value
        return existed

    monkeypatch.setattr(internal_kv, "_internal_kv_put", put)
    monkeypatch.setattr(internal_kv, "_internal_kv_get", lambda key, *, namespace: kept.get(key))
    monkeypatch.setattr(internal_kv, "_internal_kv_del", lambda key, *, namespace: kept.pop(key))
    monkeypatch.setattr(room, "_own_job", lambda: "mine")
    monkeypatch.setattr(room, "CLAIM_SETTLE_S", 0.0)
    monkeypatch.setattr(room, "CLAIM_POLL_S", 0.01)
    asked = SimpleNamespace(remote=lambda: None)
    monkeypatch.setattr(room, "on_node", lambda *_: asked)
    living(monkeypatch, "mine", "theirs")
    return kept


def living(monkeypatch: pytest.MonkeyPatch, *jobs: str) -> None:
    monkeypatch.setattr(ray, "get", lambda *_, **__: dict.fromkeys(jobs, ""))


def theirs(store: dict[bytes, bytes], **more: Any) -> None:
    claim = {"job": "theirs", "host": "ci-7", "started": "10:00", **more}
    store[room.KEY] = json.dumps(claim).encode()


def claim(wait_s: float = 0) -> list[str]:
    said: list[str] = []
    claim_cluster(CLUSTER, "11:00", wait_s, said.append)
    return said


def test_a_free_cluster_is_claimed_and_released(store: dict[bytes, bytes]) -> None:
    assert claim() == []
    assert json.loads(store[room.KEY])["job"] == "mine"
    assert claim() == []  # once more by the same driver
    release_cluster()
    assert store == {}


def test_a_living_trial_is_named(store: dict[bytes, bytes]) -> None:
    theirs(store)
    with pytest.raises(OtherTrial) as refused:
        claim()
    assert str(refused.value) == (
        "another trial runs on this cluster, started on ci-7 at 10:00: wait for it with"
        " --wait-for-room 30m"
    )
    release_cluster()  # only our own
    assert json.loads(store[room.KEY])["job"] == "theirs"


def test_a_dead_trials_claim_is_taken_over(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(store)
    living(monkeypatch, "mine")
    assert claim() == []
    assert json.loads(store[room.KEY])["job"] == "mine"


def test_it_waits_and_says_so_once(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(store)
    turns = iter([{"theirs": ""}, {"theirs": ""}, {}])
    monkeypatch.setattr(ray, "get", lambda *_, **__: next(turns))
    assert len(claim(60)) == 1


def test_of_two_that_took_a_dead_claim_over_the_later_one_holds_it(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read the same dead claim; the other writes while this one settles."""
    theirs(store)
    living(monkeypatch, "mine", "third")
    monkeypatch.setattr(room.time, "sleep", lambda _: theirs(store, job="third"))
    with pytest.raises(OtherTrial, match="has just begun here"):
        claim()
    assert json.loads(store[room.KEY])["job"] == "third"


def test_between_two_questions_it_rests(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(store)
    rests: list[float] = []
    monkeypatch.setattr(room, "CLAIM_POLL_S", 5.0)

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 3:
            store.clear()

    monkeypatch.setattr(room.time, "sleep", rest)
    claim(60)
    assert rests == [5.0] * 3


def test_it_waits_no_longer_than_asked(store: dict[bytes, bytes]) -> None:
    theirs(store)
    with pytest.raises(OtherTrial, match="it has not ended in time"):
        claim(0.05)


def test_a_trial_that_cannot_be_asked_for_is_as_alive(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> None:
        raise ray.exceptions.GetTimeoutError("no answer")

    theirs(store)
    monkeypatch.setattr(ray, "get", silent)
    with pytest.raises(OtherTrial):
        claim()


@pytest.mark.parametrize("value", [b"no json", b"[]", b"{}", b'{"job": 3}', b"\xff"])
def test_a_claim_of_another_form_is_none(
    store: dict[bytes, bytes], value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store[room.KEY] = value
    assert claim() == []


def test_names_of_the_other_are_cleaned(store: dict[bytes, bytes]) -> None:
    theirs(store, host="ci\x1b[2J\n::error::x", started=None)
    with pytest.raises(OtherTrial) as refused:
        claim()
    assert "\x1b" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "at unknown" in str(refused.value)


def test_of_two_that_find_a_dead_claim_one_holds_it(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower one sees that the claim it asked about is another by now."""
    theirs(store)

    def slow_answer(*_: object, **__: object) -> dict[str, str]:
        theirs(store, job="third")
        return {"mine": "", "third": ""}

    monkeypatch.setattr(ray, "get", slow_answer)
    with pytest.raises(OtherTrial, match="has just begun here"):
        claim()
    assert json.loads(store[room.KEY])["job"] == "third"
