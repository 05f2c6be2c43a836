"""The shared folder that all nodes use at once: the whole probe, over simulated nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from probes.hosts import storage_round
from probes.hosts.storage_round import (
    APPENDED,
    CREATED,
    Race,
    StorageRound,
    append_lines,
    count_traces,
    create_files,
)
from probes.hosts.storage_work import CHUNK, Place, Size
from reports.measurement import Limit, Verdict
from tests.support.simulated_hosts import findings, not_passed, verdicts
from tests.support.simulated_storage import (
    SHARED,
    SHARING,
    SPEEDS,
    SimulatedStorage,
    agree,
    run_storage,
    statements,
)


def view_of(cluster: SimulatedStorage, node: str) -> Path:
    """Give a node a folder of its own."""
    own = cluster.root / f"own-{node}"
    own.mkdir()
    cluster.views[node] = own
    return own


def left_over(cluster: SimulatedStorage) -> list[Path]:
    return [*cluster.root.rglob(".seatrial-*")]


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in (*SHARING, *SPEEDS, "failed_shards")))
def test_a_sound_folder_passes_and_every_control_is_caught(cluster: SimulatedStorage) -> None:
    result = run_storage(cluster)
    each = {f"{name} n{i}" for name in SPEEDS for i in range(3)}
    shared = {f"{name} {SHARED}" for name in (*SHARING, "failed_shards")}
    assert verdicts(result) == dict.fromkeys(each | shared, Verdict.PASS)
    assert findings(result) == []
    assert {one.name: (one.caught, one.proves) for one in result.controls} == {
        "lost files": (True, ["unseen_files"]),
        "careless node": (True, ["double_creations", "rename_gaps"]),
        "no folder": (True, ["failed_shards"]),
        "slow node": (True, [*SPEEDS]),
    }
    assert result.coverage == f"3 of 3 nodes used {SHARED} at once"
    assert left_over(cluster) == cluster.kept == []
    assert set(cluster.shared_mounts) == {"id0", "id1", "id2"}


def test_what_informs_is_noted(cluster: SimulatedStorage) -> None:
    notes = {m.name: m.value for m in run_storage(cluster).measurements if not m.judged}
    assert notes["lost_lines"] == notes["lost_updates"] == notes["stale_handles"] == 0
    for name in ("write_rate", "read_rate", "free_room", "small_speed", "slowest_small_speed"):
        assert notes[name] > 0, name
    for kind in ("write", "read", "random"):
        assert 0 < notes[f"slowest_{kind}_speed"] <= notes[f"{kind}_speed"]


@pytest.mark.near_miss("HOSTS.failed_shards")
@pytest.mark.parametrize("nodes", [1, 3])
def test_without_a_shared_folder_each_node_uses_its_own(root: Path, nodes: int) -> None:
    cluster = SimulatedStorage(root, nodes)
    result = run_storage(cluster, shared=None)
    assert verdicts(result) == {"failed_shards the temporary folder": Verdict.PASS}
    assert [one.name for one in result.controls] == ["no folder"]
    assert result.verdict is Verdict.PASS
    assert result.coverage.startswith("the contract names no shared folder")
    assert left_over(cluster) == []


def test_one_node_compares_with_no_other(root: Path) -> None:
    result = run_storage(SimulatedStorage(root, 1), save_gb=0.001)
    assert verdicts(result) == {
        f"failed_shards {SHARED}": Verdict.PASS,
        f"checkpoint_room {SHARED}": Verdict.PASS,
    }
    assert result.verdict is Verdict.PASS


def test_of_many_nodes_some_use_one_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_round, "REPLACE_S", 0.05)
    cluster = SimulatedStorage(root, 20)
    with StorageRound.start(cluster, SHARED) as storage:
        ids = storage.members
        assert len(ids) == 20
        answers = storage.race(ids)
        careless = storage.race(ids, ids[1])
    few = [id for id in ids if "replaced" in answers[id]]
    assert few == ids[::2]
    created = sorted(number for id in ids for number in answers[id]["created"]["mine"])
    assert created == [*range(storage_round.CREATED)]
    assert answers[""] == {"lines": 10 * 50, "number": 10 * 5}
    assert [id for id in ids if "replaced" in careless[id]] == sorted([*few, ids[1]])
    assert "versions" in careless[ids[1]]["replaced"]
    assert careless[""]["number"] < 11 * 5
    assert storage.covered(ids).endswith("at once; 10 replaced, extended and locked one file")
    assert left_over(cluster) == cluster.kept == []


def test_a_node_reads_the_shards_of_others_as_long_as_they_are(cluster: SimulatedStorage) -> None:
    size = Size(2 * CHUNK, 32, 5)
    with StorageRound.start(cluster, SHARED) as storage:
        storage.sharing = storage.members[:2]
        assert storage.plan_work("read", "id0", size).owner == "id1"
        assert storage.plan_work("read", "id1", size).owner == "id0"
        storage.sharing = storage.members
        owners = {storage.plan_work(kind, "id0", size).owner for kind in ("read", "random")}
        assert owners == {"id1", "id2"}  # random reads are of one that is not in memory
        storage.written = {"id0": CHUNK, "id1": CHUNK}  # they were cut short
        assert storage.plan_work("read", "id0", size).shard_bytes == CHUNK
        assert storage.plan_work("write", "id0", size).shard_bytes == 2 * CHUNK


def test_others_read_as_much_as_each_node_wrote(cluster: SimulatedStorage) -> None:
    size = Size(2 * CHUNK, 32, 5)
    with StorageRound.start(cluster, SHARED) as storage:
        storage.sharing = storage.members
        storage.work("write", storage.members, size)
        assert storage.written == dict.fromkeys(storage.members, 2 * CHUNK)
        storage.work("read", storage.members, dataclasses.replace(size, shard_bytes=CHUNK))
        assert storage.plan_work("read", "id0", size).shard_bytes == 2 * CHUNK


def test_a_node_with_a_folder_of_its_own_is_named_once(cluster: SimulatedStorage) -> None:
    own = view_of(cluster, "id1")
    result = run_storage(cluster)
    assert not_passed(result)[f"unseen_files {SHARED}"] == "FAIL"
    assert findings(result) == [("HOST-SHARED", ["n1"])]
    assert statements(result) == [
        f"n1 and the other nodes cannot read each other's files in {SHARED}"
    ]
    assert verdicts(result)[f"double_creations {SHARED}"] is Verdict.PASS  # of the other two
    assert result.coverage.startswith("2 of 3 nodes used")
    assert left_over(cluster) == [*own.iterdir()] == []


def test_two_nodes_that_share_nothing_prove_nothing_more(root: Path) -> None:
    cluster = SimulatedStorage(root, 2)
    view_of(cluster, "id1")
    result = run_storage(cluster)
    failed = not_passed(result)
    assert failed[f"unseen_files {SHARED}"] == "FAIL"
    for name in ("seen_after", "double_creations", "rename_gaps"):
        assert failed[f"{name} {SHARED}"] == "UNPROVEN"
    assert [sorted(suspects) for _, suspects in findings(result)] == [["n0", "n1"]] * 2


def test_a_node_that_cannot_write_is_named(cluster: SimulatedStorage) -> None:
    cluster.views["id2"] = cluster.root / "nowhere"
    result = run_storage(cluster)
    assert not_passed(result) == {f"failed_shards {SHARED}": "FAIL"}
    assert findings(result) == [("HOST-STORAGE-ERROR", ["n2"])]
    assert statements(result)[0] == (
        f"n2 cannot write or read files in {SHARED}: No such file or directory"
    )


def test_a_full_disk_is_named_and_no_reader_of_its_shard(cluster: SimulatedStorage) -> None:
    cluster.answers["id1", "do_work"] = {
        "done": 0, "seconds": 0.1, "error": "No space left on device"
    }  # fmt: skip
    result = run_storage(cluster)
    assert not_passed(result)[f"failed_shards {SHARED}"] == "FAIL"
    assert findings(result) == [("HOST-STORAGE-FULL", ["n1"])]


def test_where_no_node_can_write_all_are_named_in_one_finding(cluster: SimulatedStorage) -> None:
    cluster.views = dict.fromkeys(cluster.views, cluster.root / "nowhere")
    result = run_storage(cluster)
    assert findings(result) == [("HOST-STORAGE-ERROR", ["n0", "n1", "n2"])]
    failed = not_passed(result)
    assert failed[f"failed_shards {SHARED}"] == "FAIL"
    assert set(failed) >= {f"{name} {SHARED}" for name in SHARING}


@pytest.mark.parametrize(
    ("function", "unproven"),
    [
        ("open_place", {"failed_shards"}),
        ("read_others", {"unseen_files", "seen_after"}),
        ("run_races", {"double_creations", "rename_gaps"}),
        ("do_work", {"failed_shards"}),
    ],
)
def test_a_node_that_does_not_answer_proves_nothing(
    cluster: SimulatedStorage, function: str, unproven: set[str]
) -> None:
    cluster.silent.add(("id1", function))
    result = run_storage(cluster)
    failed = not_passed(result)
    assert {failed.get(f"{name} {SHARED}") for name in unproven} == {"UNPROVEN"}
    assert "FAIL" not in failed.values()
    assert result.verdict is Verdict.UNPROVEN
    notes = [m.note for m in result.measurements if m.judged and m.value is None]
    assert all(notes)


def test_a_control_whose_node_is_silent_is_not_caught(cluster: SimulatedStorage) -> None:
    cluster.silent.add(("id2", "do_all_work"))
    result = run_storage(cluster)
    caught = {one.name: one.caught for one in result.controls}
    assert caught.pop("slow node") is None
    assert set(caught.values()) == {True}


def test_controls_say_what_they_planted_and_where(cluster: SimulatedStorage) -> None:
    result = run_storage(cluster, save_gb=0.001)
    assert {one.name: one.fault for one in result.controls} == {
        "lost files": "n2 looks for the other nodes' files in an empty folder",
        "careless node": "n2 creates files without O_EXCL, and writes a file in place",
        "no folder": "n2 writes its shard to /proc",
        "slow node": "n2 pauses while it writes and reads",
        "larger saves": "each save is as large as the free room",
    }
    assert {one.caught for one in result.controls} == {True}


def test_controls_that_cannot_be_planted_say_why(root: Path) -> None:
    cluster = SimulatedStorage(root, 3)
    for id in ("id1", "id2"):
        view_of(cluster, id)
    cluster.silent.add(("id2", "do_work"))
    result = run_storage(cluster)
    saw = {one.name: one.saw for one in result.controls if one.caught is None}
    assert saw == {
        "lost files": "no two nodes share the folder",
        "careless node": "no two nodes share the folder",
        "no folder": "n2 does not answer",
        "slow node": "no two nodes wrote and read there",
    }
    cluster = SimulatedStorage(root / "share", 3)
    cluster.silent.add(("id2", "do_all_work"))
    result = run_storage(cluster)
    assert {one.name: one.saw for one in result.controls if one.caught is None} == {
        "slow node": "n2 does not answer"
    }


def test_what_nodes_did_is_kept_as_evidence(cluster: SimulatedStorage) -> None:
    kept: dict[str, Any] = {}
    with patch("probes.check.recorder.Recorder.keep", lambda _, name, content, caption:
               kept.update({name: content})):  # fmt: skip
        run_storage(cluster)
    assert set(kept["mounts.json"]) == {"id0", "id1", "id2"}
    assert set(kept["storage.json"]) == {"write", "read", "small"}


# Files that several nodes use.


def race_of(folder: Path, careful: bool = True) -> Race:
    """Let one node race alone."""
    race = Race(Place(str(folder), "token", "id0"), (), "id0", careful=careful)
    race.place.folder.mkdir()
    return race


def test_what_nodes_create_at_once_is_for_their_user_alone(tmp_path: Path) -> None:
    race = race_of(tmp_path)
    assert create_files(race)["mine"] == [*range(CREATED)]
    assert {file.stat().st_mode & 0o777 for file in race.place.folder.iterdir()} == {0o600}


@pytest.mark.parametrize(("careful", "left"), [(True, APPENDED), (False, 1)])
def test_a_careless_node_loses_lines_even_where_no_other_appends(
    tmp_path: Path, careful: bool, left: int
) -> None:
    race = race_of(tmp_path, careful)
    assert append_lines(race) == {"lines": APPENDED}
    assert count_traces(race)["lines"] == left


def test_lines_that_ran_into_each_other_are_lost(tmp_path: Path) -> None:
    race = race_of(tmp_path)
    race.path("lines").write_text("id0 1\nid0 1\nid1 1id0 2\nid1\nid0 \x00\n\nid1 2\n")
    assert count_traces(race)["lines"] == 2


def careless(name: str, value: Any) -> Any:
    """Make a node break the rules, as on a file system that does not keep them."""
    return dataclasses.replace(value, careful=False) if name == "run_races" else value


def test_a_file_that_two_nodes_create_is_named_and_who(cluster: SimulatedStorage) -> None:
    cluster.changes["id1"] = careless
    result = run_storage(cluster)
    assert not_passed(result)[f"double_creations {SHARED}"] == "FAIL"
    assert ["n1" in suspects for code, suspects in findings(result) if "EXCL" in code] == [True]


def test_a_file_that_is_not_replaced_at_once_is_named(cluster: SimulatedStorage) -> None:
    cluster.changes["id0"] = careless  # the writer
    result = run_storage(cluster)
    assert not_passed(result)[f"rename_gaps {SHARED}"] == "FAIL"
    assert ("HOST-STORAGE-RENAME", ["n1", "n2"]) in findings(result)


LOSSES = {
    name: Limit(high=0, unit=unit, because="agreed")
    for name, unit in (("lost_lines", "lines"), ("lost_updates", "updates"))
}


@pytest.mark.near_miss("HOSTS.lost_lines", "HOSTS.lost_updates")
def test_locks_and_appended_lines_are_judged_where_that_is_agreed(
    cluster: SimulatedStorage,
) -> None:
    result = run_storage(cluster, contract=agree(**LOSSES))
    assert {verdicts(result)[f"{name} {SHARED}"] for name in LOSSES} == {Verdict.PASS}
    (control,) = [one for one in result.controls if one.name == "careless node"]
    assert control.proves == ["double_creations", "rename_gaps", *LOSSES]


def test_lines_and_updates_that_are_lost_are_named(cluster: SimulatedStorage) -> None:
    cluster.changes["id2"] = careless
    result = run_storage(cluster, contract=agree(**LOSSES))
    failed = not_passed(result)
    assert {failed[f"{name} {SHARED}"] for name in LOSSES} == {"FAIL"}
    codes = {code for code, _ in findings(result)}
    assert codes >= {"HOST-STORAGE-APPEND", "HOST-STORAGE-LOCK"}


def test_what_is_lost_without_an_agreement_only_informs(cluster: SimulatedStorage) -> None:
    cluster.answers["id0", "count_traces"] = {"lines": 7, "number": 3}
    result = run_storage(cluster)
    assert result.verdict is Verdict.PASS
    notes = {m.name: m.value for m in result.measurements if not m.judged}
    assert (notes["lost_lines"], notes["lost_updates"]) == (3 * 50 - 7, 3 * 5 - 3)
