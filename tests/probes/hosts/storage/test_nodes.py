"""What a node does in the shared folder: files that others read, shards, races, removal."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.hosts import storage_round, storage_work
from probes.hosts import storage_work as shards
from probes.hosts.storage_judge import read_rooms
from probes.hosts.storage_round import (
    Race,
    append_lines,
    count_traces,
    read_versions,
    run_races,
    spread_nodes,
    take_lock,
)
from probes.hosts.storage_work import (
    BLOCK,
    CHUNK,
    NEVER_SEEN,
    OTHER_CONTENT,
    OTHER_DATA,
    Place,
    Size,
    Work,
    close_place,
    do_all_work,
    do_work,
    make_text,
    open_place,
    poll,
    read_others,
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(str(tmp_path), ".seatrial-t", "id0")
    assert open_place(place)["error"] == ""
    yield place
    shutil.rmtree(place.folder, ignore_errors=True)  # ends the process that watches it


def test_a_place_is_made_once_and_removed_with_all_that_is_in_it(place: Place) -> None:
    other = Place(place.parent, place.name, "id1")
    answer = open_place(other)
    assert answer["error"] == ""
    assert answer["room"]["free_gib"] > 0
    assert {file.name for file in place.folder.iterdir()} == {"from-id0", "from-id1"}
    assert place.folder.stat().st_mode & 0o777 == 0o700
    close_place(place)
    close_place(other)
    assert not place.folder.exists()


def test_what_a_dead_driver_left_the_node_removes(tmp_path: Path) -> None:
    place = Place(str(tmp_path), ".seatrial-dead", "id0")
    open_place(place, seconds=1)
    assert poll(lambda _: not place.folder.exists(), 20)


def test_a_place_that_cannot_be_made_gives_its_reason(tmp_path: Path) -> None:
    answer = open_place(Place(str(tmp_path / "none"), ".seatrial-t", "id0"))
    assert answer["error"] == "No such file or directory"
    assert answer["room"]["error"]


def test_a_file_that_storage_does_not_take_gives_its_reason(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS says that it is full only when the data must be on disk."""

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    assert open_place(place)["error"] == "No space left on device"


def test_only_rooms_that_could_be_read_are_known() -> None:
    opened = {"id0": {"room": {"free_gib": 2.0}}, "id1": {"room": {"error": "gone"}}}
    assert read_rooms(opened) == {"id0": {"free_gib": 2.0}}


def test_files_of_others_are_read_as_soon_as_they_are_there(place: Place) -> None:
    other = Place(place.parent, place.name, "id1")
    timer = threading.Timer(0.2, open_place, (other,))
    timer.start()
    start = time.monotonic()
    answers = read_others(6, (place, ["id0", "id1"]))
    assert time.monotonic() - start < 5  # it does not wait on
    timer.join()
    assert [answers[id]["problem"] for id in ("id0", "id1")] == ["", ""]
    assert answers["id0"]["seconds"] < 0.2 <= answers["id1"]["seconds"]


def test_a_file_that_is_missing_or_another_is_named(place: Place) -> None:
    (place.folder / "from-id1").write_text(make_text(place, "id2"))
    (place.folder / "from-id3").mkdir()
    (place.folder / "from-id4").symlink_to("gone")  # it went away after it was listed
    answers = read_others(0.05, (place, ["id1", "id2", "id3", "id4"]))
    assert {id: one["problem"] for id, one in answers.items()} == {
        "id1": OTHER_CONTENT,
        "id2": NEVER_SEEN,
        "id3": "Is a directory",
        "id4": NEVER_SEEN,
    }
    assert {one["seconds"] for one in answers.values()} == {None}
    assert read_others(0.05, (Place("/nowhere", "x", "id0"), ["id1"])) == {
        "id1": {"seconds": None, "problem": NEVER_SEEN}
    }


def test_waiting_ends() -> None:
    looks: list[float] = []
    start = time.monotonic()
    assert not poll(lambda seconds: bool(looks.append(seconds)), 0.1)
    assert 0.1 <= time.monotonic() - start < 5
    assert looks[0] < 0.05 < looks[-1]
    assert len(looks) < 20  # it pauses between them
    assert poll(lambda _: True, 0)


def test_a_folder_is_looked_at_twice_a_second_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a file would be seen later than it is there."""
    clock, pauses = [0.0], list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    fake = SimpleNamespace(monotonic=lambda: clock[0], sleep=pause)
    monkeypatch.setattr(storage_work, "time", fake)
    assert not poll(lambda _: False, 10)
    assert pauses[0] == 0.01
    assert pauses == sorted(pauses)
    assert max(pauses) == 0.5


def test_a_folder_is_listed_before_a_file_is_written_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache's list of names is then older than the file, and another node must ask for a new."""
    listed, look = list[list[str]](), os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(look(path)) or listed[-1])
    place = Place(str(tmp_path), ".seatrial-t", "id0")
    open_place(place)
    close_place(place)
    assert [] in listed


def test_a_node_does_not_wait_for_ever_for_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_work, "MEET_S", 0.05)
    monkeypatch.setattr(storage_round, "REPLACE_S", 0.05)
    answers = run_races(Race(place, ("id0", "id1"), "id0"))
    assert answers["created"] == {"mine": [*range(storage_round.CREATED)]}
    assert answers["replaced"]["versions"] > 0
    assert answers["appended"] == {"lines": storage_round.APPENDED}
    assert answers["locked"] == {"times": storage_round.LOCKED}
    assert count_traces(Race(place, (), "id0")) == {"lines": 50, "number": 5}
    again = run_races(Race(place, ("id1",), "id0"))
    assert again == {"created": {"mine": []}}


def test_a_folder_that_cannot_be_listed_shows_nobody(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_work(work("write", place))
    looks: list[object] = []

    def fail(path: object) -> list[str]:
        looks.append(path)
        raise OSError("a stale handle")

    monkeypatch.setattr(storage_work.os, "listdir", fail)
    monkeypatch.setattr(storage_work, "MEET_S", 0.1)
    monkeypatch.setattr(storage_work, "SEEN_S", 0.1)
    storage_work.meet_others(place, "step", ["id1"])
    met = len(looks)
    storage_work.wait_for_shard(work("read", place))
    assert met > 1
    assert len(looks) > met + 1


def test_nodes_that_race_wait_for_each_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_round, "REPLACE_S", 0.05)
    other = Place(place.parent, place.name, "id1")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run_races, Race(place, ("id0", "id1"), "id0"))
        while not [*place.folder.glob("*-id0")]:  # the first node has come; it ends with the race
            assert not first.done()
            time.sleep(0.01)  # between two looks; `first` ends after MEET_S, and the assert with it
        time.sleep(0.3)  # far longer than a node that does not wait needs to create its files
        assert not (place.folder / "once-0").exists()
        second = pool.submit(run_races, Race(other, ("id0", "id1"), "id0"))
    created = [one.result()["created"]["mine"] for one in (first, second)]
    assert sorted(created[0] + created[1]) == [*range(storage_round.CREATED)]


def test_a_careless_node_overwrites_the_number_under_the_lock(place: Place) -> None:
    race = Race(place, ("id0",), "id0")
    assert take_lock(race) == {"times": storage_round.LOCKED}
    assert count_traces(race)["number"] == storage_round.LOCKED
    assert take_lock(dataclasses.replace(race, careful=False)) == {"times": storage_round.LOCKED}
    assert count_traces(race)["number"] == 1


def test_a_number_that_cannot_be_read_is_none(place: Place) -> None:
    race = Race(place, ("id0",), "id0")
    race.path("lock").write_text("")
    assert count_traces(race)["number"] == 0


def test_files_are_closed_again(place: Place) -> None:
    race = Race(place, ("id0",), "id0")
    do_work(work("write", place))
    before = next_descriptor()
    append_lines(race)
    take_lock(race)
    assert do_work(work("random", place, count=1))["error"] == ""
    assert next_descriptor() == before


def next_descriptor() -> int:
    """The number that the next file gets that is opened: the lowest that is free."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def test_a_race_in_a_folder_that_is_gone_gives_its_reason(place: Place) -> None:
    close_place(place)
    answers = run_races(Race(place, ("id0",), "id0"))
    assert {one["error"] for one in answers.values()} == {"No such file or directory"}
    assert count_traces(Race(place, (), "id0")) == {"lines": 0, "number": 0}


@pytest.mark.parametrize(
    ("text", "gap"),
    [("00000007\n" * 512, 0), ("00000007\n" * 511, 1), ("", 1),
     ("00000007\n" * 500 + "00000008\n" * 12, 1)],
)  # fmt: skip
def test_a_version_that_is_not_whole_is_a_gap(
    place: Place, monkeypatch: pytest.MonkeyPatch, text: str, gap: int
) -> None:
    monkeypatch.setattr(storage_round, "REPLACE_S", 0.02)
    path = place.folder / "newest"
    path.write_text(text)
    counts = read_versions(path)
    assert counts["reads"] > 0
    assert counts["gaps"] == gap * counts["reads"]


def test_a_file_that_is_away_is_a_gap_and_a_stale_handle_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_round, "REPLACE_S", 0.02)
    monkeypatch.setattr(storage_round, "FIRST_S", 0.02)
    path = place.folder / "newest"
    assert read_versions(path) == {"reads": 0, "gaps": 0, "stale": 0}
    path.symlink_to("nowhere")
    counts = read_versions(path)
    assert counts["gaps"] == counts["reads"] > 0
    for number, kept in ((116, True), (5, False)):  # ESTALE, EIO

        def read_text(*_: Any, number: int = number, **__: Any) -> str:
            raise OSError(number, "it fails")

        monkeypatch.setattr(Path, "read_text", read_text)
        if kept:
            counts = read_versions(path)
            assert counts["stale"] == counts["reads"] > counts["gaps"] == 0
        else:
            with pytest.raises(OSError, match="it fails"):
                read_versions(path)


# Shards.


def work(kind: str, place: Place, **changes: Any) -> Work:
    values = {"owner": "id0", "count": 2 * CHUNK, "shard_bytes": 2 * CHUNK, **changes}
    return Work(kind, place, **values)


def test_a_shard_is_written_and_read(place: Place) -> None:
    written, read = do_all_work([work("write", place), work("read", place)])
    assert written["error"] == read["error"] == ""
    assert written["done"] == read["done"] == 2 * CHUNK == work("read", place).shard.stat().st_size
    assert 0 < read["seconds"] < 60
    blocks = do_work(work("random", place, count=20))
    assert (blocks["done"], blocks["error"]) == (20, "")
    small = do_work(work("small", place, count=7))
    assert (small["done"], small["error"]) == (7, "")
    assert {file.name for file in place.folder.iterdir()} == {"from-id0", "shard-id0"}


@pytest.mark.parametrize("kind", ["write", "read", "random", "small"])
def test_the_seconds_of_work_are_those_that_pass(place: Place, kind: str) -> None:
    do_work(work("write", place))
    start = time.monotonic()
    answer = do_work(work(kind, place, count=3))
    assert 0 < answer["seconds"] <= time.monotonic() - start


def test_a_shard_is_on_disk_in_parts_and_at_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SYNC_CHUNKS", 2)
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    do_work(work("write", place, shard_bytes=5 * CHUNK))
    assert sizes == [2 * CHUNK, 4 * CHUNK, 5 * CHUNK]


@pytest.mark.parametrize("kind", ["read", "random"])
def test_a_shard_is_read_from_storage_and_not_from_memory(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    do_work(work("write", place))
    forgotten: list[tuple[int, ...]] = []
    # macOS has neither.
    monkeypatch.setattr(os, "POSIX_FADV_DONTNEED", 4, raising=False)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *how: forgotten.append(how), raising=False)
    do_work(work(kind, place, count=1))
    assert forgotten == [(0, 0, 4)]


def test_a_chunk_is_as_large_as_torchs_writes_and_a_block_holds_4096_tokens() -> None:
    assert CHUNK == 4 * 1024 * 1024
    assert BLOCK == 4096 * 4


def test_the_smallest_shard_is_one_chunk(place: Place) -> None:
    assert do_work(work("write", place, shard_bytes=100))["done"] == CHUNK
    assert do_work(work("read", place, shard_bytes=100))["done"] == CHUNK


def test_each_node_reads_other_parts_all_over_the_shard(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_work(work("write", place))
    offsets: list[int] = []

    def read(file: int, count: int, offset: int) -> bytes:
        offsets.append(offset)
        return bytes(count)

    monkeypatch.setattr(os, "pread", read)
    for node in ("id0", "id1"):
        do_work(work("random", Place(place.parent, place.name, node), count=50))
    first, second = offsets[:50], offsets[50:]
    assert min(first) < CHUNK / 2
    assert 3 * CHUNK / 2 < max(first) <= 2 * CHUNK - BLOCK
    assert sorted(first) != sorted(second)
    assert {offset % BLOCK for offset in offsets} == {0}


def test_small_files_are_looked_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = os.stat

    def fail(path: Any, **options: Any) -> os.stat_result:
        if "small-" in str(path):
            raise OSError(5, "Input/output error")
        return look_up(path, **options)

    monkeypatch.setattr(os, "stat", fail)
    assert do_work(work("small", place, count=2))["error"] == "Input/output error"


def test_pauses_take_time(place: Place) -> None:
    for kind, count in (("write", CHUNK), ("read", CHUNK), ("random", 1)):
        assert do_work(work(kind, place, count=count, pause_s=0.05))["seconds"] >= 0.05


@pytest.mark.parametrize("damage", ["other", "cut", "empty"])
def test_a_shard_that_is_not_what_was_written_is_named(
    place: Place, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SEEN_S", 0.1)
    do_work(work("write", place))
    shard = work("read", place).shard
    data = bytearray(shard.read_bytes())
    if damage == "other":
        data[CHUNK] ^= 1
    shard.write_bytes({"other": data, "cut": data[:-1], "empty": b""}[damage])
    assert do_work(work("read", place))["error"] == OTHER_DATA


def test_the_shard_of_another_node_is_not_taken_for_the_right_one(place: Place) -> None:
    do_work(work("write", place))
    (place.folder / "shard-id1").write_bytes(work("read", place).shard.read_bytes())
    assert do_work(work("read", place, owner="id1"))["error"] == OTHER_DATA


@pytest.mark.parametrize("kind", ["write", "read", "random", "small"])
def test_work_that_fails_gives_its_reason(place: Place, kind: str) -> None:
    close_place(place)
    answer = do_work(work(kind, place))
    assert (answer["done"], answer["error"]) == (0, "No such file or directory")


def test_slow_work_is_cut_short(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "STOP_S", 0.02)
    long = {"shard_bytes": 50 * CHUNK, "pause_s": 0.05}
    written = do_work(work("write", place, **long))
    assert 0 < written["done"] < 50 * CHUNK
    assert written["error"] == ""
    there = {**long, "shard_bytes": written["done"]}
    assert 0 < do_work(work("read", place, **there))["done"] <= written["done"]
    assert 0 < do_work(work("random", place, **there | {"count": 400}))["done"] < 400
    monkeypatch.setattr(shards, "STOP_S", 0)
    assert do_work(work("small", place, count=9))["done"] == 1


def test_a_shard_is_read_as_soon_as_all_of_it_is_seen(place: Place) -> None:
    do_work(work("write", place))
    shard = work("read", place).shard
    late = shard.with_name("late")
    shard.rename(late)
    shard.write_bytes(late.read_bytes()[:CHUNK])
    timer = threading.Timer(0.2, late.replace, (shard,))
    timer.start()
    read = do_work(work("read", place))
    timer.join()
    assert (read["done"], read["error"]) == (2 * CHUNK, "")


def test_a_shard_that_is_never_seen_is_not_waited_for_longer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SEEN_S", 0.1)
    for kind in ("read", "random"):
        assert do_work(work(kind, place))["error"] == "No such file or directory"


def test_a_size_counts_each_kind_of_work() -> None:
    size = Size(1000, 20, 3)
    assert [size.count(kind) for kind in ("write", "read", "random", "small")] == [
        *(1000, 1000, 20, 3)
    ]


def test_few_nodes_are_chosen_at_equal_distances() -> None:
    ids = [str(i) for i in range(40)]
    assert spread_nodes(ids[:16], 16) == ids[:16]
    assert spread_nodes(ids, 16) == ids[::3]
    assert spread_nodes([], 16) == []
