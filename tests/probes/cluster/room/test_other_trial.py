"""One trial at a time: who claims, who waits, and whose claim has ended with its driver."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.experimental import internal_kv

from probes.cluster import room
from probes.cluster.cluster import Cluster
from probes.cluster.room import OtherTrial, claim_cluster, end_claim, live_jobs, release_cluster

CLUSTER = SimpleNamespace(head_node_id="id0", kind="ray", address="10.0.0.1:6379")


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


def job(command: str = "python -m probes run") -> dict[str, Any]:
    return {"Entrypoint": command, "DriverIPAddress": "10.0.0.7", "DriverPid": 4321}


def living(monkeypatch: pytest.MonkeyPatch, *jobs: str) -> None:
    monkeypatch.setattr(ray, "get", lambda *_, **__: dict.fromkeys(jobs, job()))


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
        "another run of seatrial uses this cluster, started on ci-7 at 10:00 (job theirs, process"
        " 4321 on 10.0.0.7: python -m probes run): wait for it with --wait-for-room 30m. If that"
        " job is not a run of seatrial, remove its lock with `seatrial cleanup --unclaim theirs`"
    )
    release_cluster()  # only our own
    assert json.loads(store[room.KEY])["job"] == "theirs"


def test_the_way_on_leads_to_the_same_cluster(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(store)
    monkeypatch.setattr(CLUSTER, "kind", "client")
    monkeypatch.setattr(CLUSTER, "address", "ray://h:1")
    with pytest.raises(OtherTrial, match="`seatrial cleanup --unclaim theirs --cluster ray://h:1`"):
        claim()


def test_a_dead_trials_claim_is_taken_over(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(store)
    living(monkeypatch, "mine")
    assert claim() == []
    assert json.loads(store[room.KEY])["job"] == "mine"


def test_who_does_not_wait_is_refused_at_once(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s")

    theirs(store)
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: 7.0, sleep=sleep))
    with pytest.raises(OtherTrial, match="wait for it with --wait-for-room 30m"):
        claim()


def test_a_claim_that_has_just_ended_is_not_one_to_end(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        room, "_try_claim", lambda *_: "another trial has just started on this cluster"
    )
    with pytest.raises(OtherTrial) as refused:
        claim()
    assert str(refused.value) == (
        "another trial has just started on this cluster: wait for it with --wait-for-room 30m"
    )


def test_it_waits_and_says_so_once(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(store)
    turns = iter([{"theirs": job()}, {"theirs": job()}, {}])
    monkeypatch.setattr(ray, "get", lambda *_, **__: next(turns))
    assert len(claim(60)) == 1


def test_of_two_that_took_a_dead_claim_over_the_later_one_holds_it(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read the same dead claim; the other writes while this one settles."""
    theirs(store)
    living(monkeypatch, "mine", "third")
    monkeypatch.setattr(room.time, "sleep", lambda _: theirs(store, job="third"))
    with pytest.raises(OtherTrial, match="has just started on this cluster"):
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
    with pytest.raises(OtherTrial, match="it did not end within --wait-for-room"):
        claim(0.05)


def test_a_trial_that_cannot_be_asked_for_is_as_alive(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> None:
        raise ray.exceptions.GetTimeoutError("no answer")

    theirs(store)
    monkeypatch.setattr(ray, "get", silent)
    with pytest.raises(OtherTrial, match=r"\(job theirs: Ray does not report whether it still"):
        claim()


@pytest.mark.parametrize(
    "value",
    [
        b"no json", b"[]", b"{}", b'{"job": 3}', b"\xff", b'{"job": []}', b'{"job": {"a": 1}}',
        b"[" * 4000, b"[" * 200_000, b'{"job": "theirs", "host": "' + b"x" * 1_000_000 + b'"}',
    ],
)  # fmt: skip
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
        return {"mine": job(), "third": job()}

    monkeypatch.setattr(ray, "get", slow_answer)
    with pytest.raises(OtherTrial, match="has just started on this cluster"):
        claim()
    assert json.loads(store[room.KEY])["job"] == "third"


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)])
def test_a_claim_has_a_greatest_size(store: dict[bytes, bytes], more: int, is_read: bool) -> None:
    theirs(store)
    store[room.KEY] = store[room.KEY].ljust(room.MAX_CLAIM + more)
    if is_read:
        with pytest.raises(OtherTrial):
            claim()
    else:
        assert claim() == []


@pytest.mark.parametrize(
    "command",
    ["/x/ray/dashboard/agent.py", "ray::DashboardAgent", "python /x/ray/dashboard/modules/a"],
)
def test_rays_own_jobs_hold_no_claim(
    store: dict[bytes, bytes], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They live as long as the cluster: whoever names one would block all trials."""
    theirs(store)
    monkeypatch.setattr(ray, "get", lambda *_, **__: {"mine": job(), "theirs": job(command)})
    assert claim() == []
    assert json.loads(store[room.KEY])["job"] == "mine"


def test_a_claim_with_long_words_is_one_short_line(
    store: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(store, host="h" * 900, started="s" * 900)
    command = "python x.py --password hunter2horse " + "y" * 900
    monkeypatch.setattr(ray, "get", lambda *_, **__: {"theirs": job(command)})
    with pytest.raises(OtherTrial) as refused:
        claim()
    assert len(str(refused.value)) < 600
    assert "hunter2horse" not in str(refused.value)


def test_the_claim_of_a_job_that_is_no_trial_is_ended(store: dict[bytes, bytes]) -> None:
    """Any user of a cluster can write a claim that names a job which never ends."""
    theirs(store)
    end_claim("theirs")
    assert store == {}
    assert claim() == []


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ("another", "the lock of job theirs, started on ci-7 at 10:00"),
        ("", "the lock of job theirs, started on ci-7 at 10:00"),
        ("theirs", "no lock"),
    ],
)
def test_no_other_claim_is_ended(store: dict[bytes, bytes], job: str, says: str) -> None:
    """Between two looks another trial may have begun."""
    if says != "no lock":
        theirs(store)
    before = dict(store)
    with pytest.raises(OtherTrial, match=f"job {job} has no lock on this cluster. Found: {says}"):
        end_claim(job)
    assert store == before


def test_jobs_that_live_have_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import state

    jobs = [{"JobID": "01", "IsDead": False, **job()}, {"JobID": "02", "IsDead": True, **job()}]
    monkeypatch.setattr(state, "jobs", lambda: jobs)
    assert live_jobs() == {"01": jobs[0]}


@pytest.mark.parametrize("kind", ["local", "ray", "client"])
def test_each_kind_of_cluster_is_claimed(kind: str, store: dict[bytes, bytes]) -> None:
    """An embedded cluster, too: RAY_ADDRESS leads another trial there."""
    joined = Cluster.__new__(Cluster)
    joined.kind = kind
    joined.claim("11:00", 0, print)
    assert json.loads(store[room.KEY])["job"] == "mine"
    joined.release()
    assert store == {}
