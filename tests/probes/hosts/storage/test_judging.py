"""Judging what nodes saw of each other's files, how fast they were, and the room for saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes.contract.terms import ClusterTerms
from probes.hosts.storage_judge import (
    QUICK,
    choose_size,
    confirm_slow,
    describe_rate,
    find_shares,
    judge_created,
    judge_exchange,
    judge_replaced,
    judge_room,
    judge_shares,
    judge_traces,
    median_timing,
    together,
)
from probes.hosts.storage_round import StorageRound
from probes.hosts.storage_work import CHUNK
from reports.measurement import Limit
from tests.support.controls import MemoryRecorder, recorder
from tests.support.simulated_storage import agree

NAMES = {f"id{i}": f"n{i}" for i in range(5)}
ROUND = StorageRound(None, "/s", {}, NAMES)
SEEN = {"seconds": 0.1, "problem": ""}
MISSING = {"seconds": None, "problem": "not visible there"}
GIB = 2**30


@pytest.fixture
def measure() -> MemoryRecorder:
    return recorder("HOSTS")


def links(nodes: int, **changes: Any) -> dict[tuple[str, str], Any]:
    """All nodes saw all files, but for changes: `r1w2` is what id1 saw of the file of id2."""
    ids = [f"id{i}" for i in range(nodes)]
    answers: dict[tuple[str, str], Any] = {(r, w): SEEN for r in ids for w in ids if r != w}
    for key, change in changes.items():
        reader, writer = key[1], key[3]
        for link in answers:
            if reader in ("_", link[0][2:]) and writer in ("_", link[1][2:]):
                answers[link] = change
    return answers


def outcome(measure: MemoryRecorder) -> dict[str, Any]:
    verdicts = {m.name: m.verdict for m in measure.result("finished", 1).measurements if m.judged}
    return {name: verdict.value if verdict else None for name, verdict in verdicts.items()}


def explained(measure: MemoryRecorder) -> list[tuple[str, list[str], str]]:
    return [(one.code, one.suspects, one.statement) for one in measure.findings]


@pytest.mark.parametrize(
    ("changes", "apart", "suspects", "says"),
    [
        ({"r1w_": MISSING}, ["id1"], ["n1"],
         "n1 cannot read files of the other nodes in /s: not visible there"),
        ({"r_w2": MISSING}, ["id2"], ["n2"], "Other nodes cannot read the files of n2 in /s"),
        ({"r1w_": MISSING, "r_w1": MISSING}, ["id1"], ["n1"],
         "n1 and the other nodes cannot read each other's files in /s"),
        ({"r1w2": {"seconds": None, "problem": "different content"}}, ["id1", "id2"],
         ["n1", "n2"], "n1 cannot read the file of n2 in /s: different content"),
    ],
)  # fmt: skip
def test_files_that_are_not_seen_are_named(
    measure: MemoryRecorder, changes: Any, apart: list[str], suspects: list[str], says: str
) -> None:
    assert judge_exchange(ROUND, links(4, **changes), measure) == apart
    assert outcome(measure) == {"unseen_files": "FAIL", "seen_after": "UNPROVEN"}
    assert explained(measure) == [("HOST-SHARED", suspects, says)]


def late(seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, "problem": ""}


@pytest.mark.parametrize(
    ("changes", "suspects"),
    [
        ({"r_w1": late(61)}, ["n1"]),
        ({"r1w_": late(61), "r_w1": late(62)}, ["n1"]),
        ({"r0w1": late(61)}, ["n0", "n1"]),
    ],
)
def test_files_that_are_seen_late_are_named(
    measure: MemoryRecorder, changes: Any, suspects: list[str]
) -> None:
    assert judge_exchange(ROUND, links(4, **changes), measure) == []
    assert outcome(measure) == {"unseen_files": "PASS", "seen_after": "FAIL"}
    ((code, names, text),) = explained(measure)
    assert (code, names) == ("HOST-STORAGE-LATE", suspects)
    assert "are seen in /s only after 6" in text


@pytest.mark.near_miss("HOSTS.seen_after", "HOSTS.unseen_files")
def test_files_that_a_cache_of_nfs_hides_for_a_minute_are_sound(measure: MemoryRecorder) -> None:
    assert judge_exchange(ROUND, links(3, r1w_=late(59.9)), measure) == []
    assert outcome(measure) == {"unseen_files": "PASS", "seen_after": "PASS"}
    assert explained(measure) == []


def test_a_late_file_is_named_where_others_are_missing(measure: MemoryRecorder) -> None:
    judge_exchange(ROUND, links(4, r1w_=MISSING, r0w2=late(63)), measure)
    assert outcome(measure) == {"unseen_files": "FAIL", "seen_after": "FAIL"}


def notes(measure: MemoryRecorder) -> dict[str, str]:
    return {one.name: one.note for one in measure.result("finished", 1).measurements}


def test_why_a_delay_is_not_known_is_noted(measure: MemoryRecorder) -> None:
    judge_exchange(ROUND, links(3, r1w2=MISSING), measure)
    assert notes(measure)["seen_after"] == "some files were not seen"
    judge_exchange(ROUND, links(3, r1w_=None), silent := recorder("HOSTS"))
    assert notes(silent)["seen_after"] == notes(silent)["unseen_files"] != ""
    judge_exchange(ROUND, links(4, r1w_=MISSING, r0w2=late(63)), seen := recorder("HOSTS"))
    assert notes(seen)["seen_after"] == ""  # its value says enough


def test_a_silent_reader_proves_nothing_and_hides_nothing(measure: MemoryRecorder) -> None:
    judge_exchange(ROUND, links(3, r1w_=None), measure)
    assert outcome(measure) == {"unseen_files": "UNPROVEN", "seen_after": "UNPROVEN"}
    judge_exchange(ROUND, links(4, r1w_=None, r_w2=MISSING), other := recorder("HOSTS"))
    assert outcome(other)["unseen_files"] == "FAIL"
    judge_exchange(ROUND, {}, empty := recorder("HOSTS"))
    assert outcome(empty) == {"unseen_files": "UNPROVEN", "seen_after": "UNPROVEN"}


# Races.


def created(*parts: list[int] | None) -> dict[str, Any]:
    """What nodes created; None: that failed."""
    answers: dict[str, Any] = {}
    for i, numbers in enumerate(parts):
        answers[f"id{i}"] = {"created": {"error": "it fails"} if numbers is None else {
            "mine": numbers}}  # fmt: skip
    return answers


ALL = [*range(32)]


@pytest.mark.parametrize(
    ("parts", "verdict", "suspects"),
    [
        ((ALL, [], []), "PASS", None),
        ((ALL[:5], ALL[5:20], ALL[20:]), "PASS", None),
        ((ALL[:5], ALL[5:20], ALL[20:31]), "FAIL", []),  # no node created the last
        ((ALL, [3], []), "FAIL", ["n0", "n1"]),
        ((ALL, [3], [4]), "FAIL", ["n0"]),
        ((ALL, None, []), "UNPROVEN", None),
        ((ALL[:9], None, []), "UNPROVEN", None),
        ((ALL, None, [7]), "FAIL", ["n0", "n2"]),
        ((ALL,), "UNPROVEN", None),
        ((), "UNPROVEN", None),
    ],
)
def test_each_file_has_one_creator(
    measure: MemoryRecorder, parts: Any, verdict: str, suspects: list[str] | None
) -> None:
    among = [f"id{i}" for i in range(len(parts))]
    judge_created(ROUND, created(*parts), among, measure)
    assert outcome(measure) == {"double_creations": verdict}
    assert [names for _, names, _ in explained(measure)] == ([] if suspects is None else [suspects])


def test_a_silent_creator_is_named_in_the_note(measure: MemoryRecorder) -> None:
    judge_created(ROUND, created(ALL, []), ["id0", "id1", "id2"], measure)
    (one,) = measure.result("finished", 1).measurements
    assert (one.value, one.note) == (None, "n2 did not answer")


def test_the_reasons_of_three_nodes_are_given_at_most(measure: MemoryRecorder) -> None:
    judge_created(ROUND, created(None, None, None, None, ALL), [*NAMES], measure)
    (one,) = measure.result("finished", 1).measurements
    assert one.note == "n0: it fails, n1: it fails, n2: it fails and 1 more"


def replaced(*parts: dict[str, Any]) -> dict[str, Any]:
    return {f"id{i}": {"replaced": part} for i, part in enumerate(parts)}


WRITER = {"versions": 80}


def reader(reads: int = 90, gaps: int = 0, stale: int = 0) -> dict[str, int]:
    return {"reads": reads, "gaps": gaps, "stale": stale}


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ((WRITER, reader(), reader(stale=3)), "PASS"),
        ((WRITER, reader(gaps=1), reader()), "FAIL"),
        ((WRITER, reader(reads=0), reader()), "UNPROVEN"),
        ((WRITER, reader(reads=0), reader(gaps=2)), "FAIL"),
        ((WRITER, {"error": "it fails"}, reader()), "UNPROVEN"),
        (({"error": "it fails"}, reader(), reader()), "UNPROVEN"),
    ],
)
def test_readers_find_whole_versions(measure: MemoryRecorder, parts: Any, verdict: str) -> None:
    judge_replaced(ROUND, replaced(*parts), ["id0", "id1", "id2"], measure)
    assert outcome(measure) == {"rename_gaps": verdict}
    assert all(code == "HOST-STORAGE-RENAME" for code, _, _ in explained(measure))
    assert bool(explained(measure)) == (verdict == "FAIL")


def test_gaps_are_named_with_their_readers(measure: MemoryRecorder) -> None:
    parts = (WRITER, reader(10, 2), reader(20, 0), reader(30, 3))
    judge_replaced(ROUND, replaced(*parts), [*NAMES][:4], measure)
    ((_, suspects, text),) = explained(measure)
    assert suspects == ["n1", "n3"]
    assert "5 of 60 reads found no complete file. Nodes concerned: n1, n3" in text


UPDATES = Limit(high=1, unit="updates", because="agreed")


@pytest.mark.parametrize(
    ("locked", "number", "verdict", "note", "codes"),
    [
        (({"times": 5}, {"times": 5}), 10, "PASS", "", []),
        (({"times": 1}, {"times": 0}), 1, "PASS", "", []),
        (({"times": 5}, {"times": 5}), 9, "PASS", "", []),  # the contract lets one be lost
        (({"times": 5}, {"times": 5}), 8, "FAIL", "", ["HOST-STORAGE-LOCK"]),
        (({"times": 5}, {"error": "No locks"}), 5, "UNPROVEN", "No locks", []),
        (({"times": 0}, {"times": 0}), 0, "UNPROVEN", "the nodes did not finish this test", []),
        # One node has no rival.
        (({"times": 5},), 5, "UNPROVEN", "the nodes did not finish this test", []),
    ],
)
def test_updates_under_the_lock_are_counted(
    locked: Any, number: int, verdict: str, note: str, codes: list[str]
) -> None:
    answers = {f"id{i}": {"locked": part} for i, part in enumerate(locked)}
    measure = recorder("HOSTS", agree(lost_updates=UPDATES))
    judge_traces(ROUND, {**answers, "": {"number": number}}, measure)
    assert outcome(measure) == {"lost_updates": verdict}
    (one,) = [m for m in measure.result("finished", 1).measurements if m.judged]
    assert one.note == note
    assert [code for code, _, _ in explained(measure)] == codes


# Speed.


def timing(seconds: float, done: int = 100) -> dict[str, Any]:
    return {"done": done, "seconds": seconds, "error": "" if done else "it fails"}


def test_a_share_is_of_the_typical_speed_of_the_others() -> None:
    shares = find_shares({"id0": timing(10), "id1": timing(10), "id2": timing(41)}, 100)
    assert shares == {"id0": 1.0, "id1": 1.0, "id2": pytest.approx(10.25 / 41)}
    assert find_shares({"id0": timing(10)}, 100) == {}


@pytest.mark.near_miss("HOSTS.shard_write")
def test_a_node_that_is_the_server_makes_no_other_slow(measure: MemoryRecorder) -> None:
    rows = {"id0": timing(0.01), "id1": timing(10), "id2": timing(11)}
    shares = find_shares(rows, 100)
    assert shares == {"id0": 1.0, "id1": 1.0, "id2": pytest.approx(10.25 / 11)}
    judge_shares(ROUND, "write", shares, rows, rows, measure)
    assert outcome(measure) == {"shard_write": "PASS"}


def test_a_node_that_was_cut_short_counts_as_if_it_had_gone_on() -> None:
    rows = {"id0": timing(10), "id1": timing(10), "id2": timing(10, done=20), "id3": timing(1, 0)}
    shares = find_shares(rows, 100)
    assert shares["id2"] == pytest.approx(10.25 / 50)
    assert "id3" not in shares


@pytest.mark.near_miss("HOSTS.shard_write")
@pytest.mark.parametrize("slow", [0.3, 0.69])
def test_a_difference_that_a_busy_node_makes_is_none(measure: MemoryRecorder, slow: float) -> None:
    rows = {"id0": timing(0.1), "id1": timing(0.1), "id2": timing(slow)}
    judge_shares(ROUND, "write", find_shares(rows, 100), rows, rows, measure)
    assert outcome(measure) == {"shard_write": "PASS"}
    assert explained(measure) == []


def test_a_slow_node_is_named_with_both_speeds(measure: MemoryRecorder) -> None:
    rows = {
        "id0": timing(1, 10**8), "id1": timing(1, 10**8), "id2": timing(10, 10**8),
        "id3": timing(1, 10**8),
    }  # fmt: skip
    judge_shares(ROUND, "read", find_shares(rows, 10**8), rows, rows, measure)
    ((code, suspects, text),) = explained(measure)
    assert (code, suspects) == ("HOST-STORAGE-SLOW", ["n2"])
    assert text == (
        "n2 reads a shard in /s at 12.5 % of the other nodes' speed (10 MB/s, the others 100 MB/s)"
    )


def test_a_node_without_a_timing_proves_nothing(measure: MemoryRecorder) -> None:
    rows = {"id0": timing(1), "id1": timing(1, 0)}
    judge_shares(ROUND, "random", find_shares(rows, 100), rows, [*NAMES][:3], measure)
    found = measure.result("finished", 1).measurements
    assert [one.value for one in found] == [None] * 3
    assert [one.note for one in found][1:] == ["it fails", "the node did not answer"]


def test_slow_nodes_try_again_with_as_many_of_the_fastest() -> None:
    rows = {f"id{i}": timing(1 + i / 10) for i in range(4)} | {"id4": timing(30)}
    asked: list[list[str]] = []

    def repeat(ids: list[str]) -> Any:
        asked.append(ids)
        return {"id4": timing(4), ids[1]: timing(1)}

    shares = confirm_slow(rows, 100, lambda share: share < 0.5, repeat)
    assert [len(ids) for ids in asked] == [2]
    assert asked[0][0] == "id4"
    assert shares["id4"] == pytest.approx(1.25 / 4)
    assert {shares[f"id{i}"] for i in range(3)} == {1.0}
    assert confirm_slow(rows, 100, lambda share: share < 0.5, lambda ids: {})["id4"] < 0.1
    fast = confirm_slow(rows, 100, lambda _: False, lambda ids: pytest.fail("not asked"))
    assert fast == find_shares(rows, 100)


def test_nodes_that_are_all_slow_try_again_once_each() -> None:
    rows = {f"id{i}": timing(1) for i in range(3)}
    asked: list[str] = []
    confirm_slow(rows, 100, lambda _: True, lambda ids: asked.extend(ids) or {})
    assert asked == ["id0", "id1", "id2"]


def test_the_usual_timing_is_that_in_the_middle_of_the_others() -> None:
    rows = {f"id{i}": timing(seconds) for i, seconds in enumerate((40, 30, 20, 10))}
    assert median_timing(rows, "id0") == rows["id2"]
    assert median_timing(rows, "id3") == rows["id1"]
    assert median_timing({**rows, "id1": timing(30, 0)}, "id3") == rows["id0"]  # the slower of two


def test_speeds_are_described_in_their_units() -> None:
    assert describe_rate("write", timing(2, 10**9)) == "500 MB/s"
    assert describe_rate("random", timing(2, 500)) == "250 reads/s"
    assert together({"id0": timing(2, 10**9), "id1": timing(4, 10**9)}) == 0.5
    assert together({}) is None


# Room.


def opened(**rooms: dict[str, Any]) -> dict[str, Any]:
    usual = {"size_gib": 1000.0, "free_gib": 500.0, "free_files": None}
    return {id: {"error": "", "room": {**usual, **room}} for id, room in rooms.items()}


@pytest.mark.parametrize(
    ("rooms", "verdict"),
    [
        ({"id0": {}, "id1": {}}, "PASS"),
        ({"id0": {"free_gib": 280.0}, "id1": {}}, "PASS"),  # 3.006 saves
        ({"id0": {"free_gib": 279.0}, "id1": {}}, "FAIL"),
        ({"id0": {"free_files": 26}, "id1": {}}, "FAIL"),  # 3 saves take 27
        ({"id0": {"free_files": 27}, "id1": {}}, "PASS"),
        ({"id0": {"size_gib": 0.0, "free_gib": 0.0}}, "UNPROVEN"),
        ({}, "UNPROVEN"),
    ],
)
def test_saves_of_the_agreed_size_must_fit(
    measure: MemoryRecorder, rooms: Any, verdict: str
) -> None:
    judge_room(replace(ROUND, opened=opened(**rooms)), 8, 100.0, measure)
    assert outcome(measure) == {"checkpoint_room": verdict}
    assert [names for _, names, _ in explained(measure)] == ([["n0"]] if verdict == "FAIL" else [])


def test_without_an_agreed_size_the_room_only_informs(measure: MemoryRecorder) -> None:
    assert judge_room(replace(ROUND, opened=opened(id0={})), 8, None, measure) is None
    assert outcome(measure) == {}
    unread = replace(ROUND, opened={"id0": {"room": {"error": "gone"}}})
    assert judge_room(unread, 8, None, measure) is None


def test_a_longer_tier_writes_a_shard_of_the_agreed_save_within_bounds() -> None:
    def shard(rooms: Any, nodes: int = 4, tier: str = "standard", **terms: Any) -> int:
        return choose_size(tier, ClusterTerms(**terms), nodes, rooms).shard_bytes

    large = opened(id0={"free_gib": 500.0})
    assert shard(large, tier="quick", save_gb=100) == QUICK.shard_bytes == 4 * CHUNK
    assert shard(large) == 64 * CHUNK
    assert shard(large, save_gb=1) == 10**9 // 4 // CHUNK * CHUNK
    assert shard(large, save_gb=1000) == 256 * CHUNK
    assert shard(large, nodes=1000, save_gb=1) == 4 * CHUNK
    assert shard(opened(id0={"free_gib": 1.0}), save_gb=100) == GIB // 8
    assert shard({}, save_gb=100) == 256 * CHUNK
    unknown = opened(id0={"size_gib": 0.0, "free_gib": 0.0})
    assert shard(unknown, save_gb=100) == 256 * CHUNK
