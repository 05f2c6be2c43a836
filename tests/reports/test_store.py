"""A crashed run still has its record, and no run can be made better by running it again."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.acceptance import load_summary, summarize_acceptance
from reports.measurement import Limit, Measurement, Verdict
from reports.run_folder import event_log
from reports.run_folder.event_log import EventReader, UnreadableRun
from reports.run_folder.fold import fold_events
from reports.run_folder.integrity import load
from reports.run_folder.store import Store
from tests.support.small_disk import needs_root, small_disk

PROBE = "probes/fabric/test_fabric.py::test_a"
START = {
    "id": "r",
    "started": "2026-11-20T22:17:03.120Z",
    "command": "pytest probes",
    "tier": "quick",
    "contract": {
        "name": "c",
        "sha256": hashlib.sha256(b"#").hexdigest(),
        "criteria": [{"id": "FABRIC", "title": "RDMA is in use", "how": "all-reduce"}],
    },
    "owed": [{"probe": PROBE, "criterion": "FABRIC", "tier": "quick"}],
}
CONTROL = {"name": "c", "fault": "cable pulled", "caught": True, "saw": "0"}


def measurement(value: Any) -> dict[str, Any]:
    limit = Limit(low=1, because="agreed for this test")
    return Measurement(name="busbw", value=value, limit=limit).model_dump(mode="json")


def probe(store: Store, value: Any) -> None:
    store.event("probe_started", PROBE, criterion="FABRIC")
    store.event("measurement", PROBE, **measurement(value))
    store.event("control", PROBE, **CONTROL)
    store.event("probe_finished", PROBE, state="finished")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = Store(tmp_path / "run")
    opened.start(b"#", **START)
    yield opened
    opened.close()


def test_a_whole_run(store: Store) -> None:
    probe(store, 2.0)
    store.event("run_finished", state="finished", finished="2026-11-20T22:20:03.120Z")
    record = store.save()
    assert summarize_acceptance(record).exit_code == 0
    assert load(store.path) == record
    assert json.loads((store.path / "record.json").read_text()) == record.model_dump(mode="json")


def test_a_run_without_its_end_is_interrupted(store: Store) -> None:
    probe(store, 2.0)
    assert load_summary(store.path).exit_code == 2


def test_a_probe_without_its_end_is_no_proof(store: Store) -> None:
    store.event("probe_started", PROBE, criterion="FABRIC")
    store.event("measurement", PROBE, **measurement(2.0))
    store.event("control", PROBE, **CONTROL)
    store.event("run_finished", state="finished")
    assert load(store.path).verdict("FABRIC") is Verdict.UNPROVEN


@pytest.mark.parametrize("end", ['{"t": "2026', '{"t": 1}', "null", "\x00\x00\x00", '"event"'])
def test_a_torn_last_line_is_dropped(store: Store, end: str) -> None:
    probe(store, 2.0)
    before = load(store.path)
    with (store.path / "events.jsonl").open("a") as log:
        log.write(end)
    assert load(store.path) == before


def test_a_torn_line_in_the_middle_is_not_passed_over(store: Store) -> None:
    with (store.path / "events.jsonl").open("a") as log:
        log.write("{half\n")
    probe(store, 2.0)
    with pytest.raises(UnreadableRun, match="line 2"):
        load(store.path)


def test_trying_again_does_not_wipe_out_a_failure(store: Store) -> None:
    probe(store, 0.5)
    probe(store, 2.0)
    store.event("run_finished", state="finished")
    record = load(store.path)
    assert [result.verdict for result in record.results] == [Verdict.FAIL, Verdict.PASS]
    assert summarize_acceptance(record).exit_code == 1


def test_a_second_start_hides_no_failure_and_does_not_verify(store: Store) -> None:
    probe(store, 0.5)
    store.event("run_started", **START)
    probe(store, 2.0)
    store.event("run_finished", state="finished")
    summary = load_summary(store.path)
    assert [result.verdict for result in summary.record.results] == [Verdict.FAIL, Verdict.PASS]
    assert summary.integrity.problems == ["events.jsonl: line 6 starts a second run"]
    assert summary.exit_code == 4


def test_a_second_start_right_after_the_first_does_not_verify(store: Store) -> None:
    store.event("run_started", **START)
    store.event("run_finished", state="finished")
    assert load_summary(store.path).integrity.problems == [
        "events.jsonl: line 2 starts a second run"
    ]


@pytest.mark.parametrize("count", [0, 1, 256, 257, 700])
def test_the_facts_of_many_nodes_are_in_several_lines(count: int, tmp_path: Path) -> None:
    """Facts of a node are some 10 kB: those of 1,790 nodes did not fit into one line."""
    nodes = [{"name": f"n{number}", "facts": "x" * 9000} for number in range(count)]
    store = Store(tmp_path / "run")
    store.start(b"#", **START, cluster={"name": "atlas", "nodes": nodes})
    store.event("run_finished", state="finished")
    record = store.save()
    store.close()
    assert record.cluster == load(store.path).cluster == {"name": "atlas", "nodes": nodes}
    assert load_summary(store.path).integrity.problems == []
    lines = (store.path / "events.jsonl").read_bytes().splitlines()
    assert len(lines) == 1 + max(1, -(-count // 256))
    assert max(map(len, lines)) < 4 << 20


@pytest.mark.parametrize(
    ("start", "more"),
    [
        ({}, [{"nodes": []}]),
        ({"cluster": {}}, [{"nodes": []}]),
        ({"cluster": {"nodes": []}}, [{"nodes": "n"}]),
        ({"cluster": {"nodes": []}}, [{}]),
    ],
)
def test_further_nodes_of_another_form_are_refused(
    start: dict[str, Any], more: list[dict[str, Any]], tmp_path: Path
) -> None:
    store = Store(tmp_path / "run")
    store.event("run_started", **{**START, **start})
    for data in more:
        store.event("run_nodes", **data)
    store.close()
    with pytest.raises(UnreadableRun, match="run_started or run_nodes has no list of nodes"):
        load(store.path)


def test_nodes_that_come_later_are_refused(store: Store) -> None:
    """So nobody adds a node to a run that was measured without it."""
    probe(store, 2.0)
    store.event("run_nodes", nodes=[{"name": "another"}])
    with pytest.raises(UnreadableRun, match="run_nodes that is not after run_started"):
        load(store.path)


def test_what_json_cannot_hold_is_mended(store: Store) -> None:
    store.event("probe_started", PROBE, criterion="FABRIC")
    store.event("series", PROBE, name="busbw", values=[1.0, math.nan, math.inf, "\ud800"])
    assert load(store.path).results[0].series == {"busbw": [1.0, None, None, "?"]}


def test_evidence_has_a_kind_of_its_own(store: Store) -> None:
    store.event("probe_started", PROBE, criterion="FABRIC")
    entry = store.keep(PROBE, "log.txt", "line\n", kind="log", caption="a log")
    assert load(store.path).results[0].evidence == [entry]
    assert entry.sha256 == hashlib.sha256(b"line\n").hexdigest()


def test_evidence_is_never_overwritten_and_stays_in_its_folder(store: Store) -> None:
    store.event("probe_started", PROBE, criterion="FABRIC")
    names = ["../../a b.txt"] * 3
    paths = [store.keep(PROBE, name, "x", kind="log", caption="").path for name in names]
    assert len(set(paths)) == 3
    assert all(path.startswith("evidence/") and ".." not in path for path in paths)


def test_the_sums_hold(store: Store) -> None:
    probe(store, 2.0)
    store.save()
    store.close()
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=store.path, check=False).returncode == 0


@pytest.mark.parametrize(
    "events",
    [
        [],
        [("probe_started", PROBE, {"criterion": "FABRIC"})],
        [("run_started", "", {})],
        [("run_started", "", {**START, "schema_version": "2.0"})],
        [("run_started", "", {**START, "surprise": 1})],
        [("run_started", "", START), ("measurement", PROBE, measurement(1.0))],
        [("run_started", "", START), ("probe_started", PROBE, {})],
        [("run_started", "", START), ("probe_started", PROBE, {"criterion": "F", "probe": [1]})],
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(events: list[Any]) -> None:
    told = [{"event": kind, "probe": probe, "data": data} for kind, probe, data in events]
    with pytest.raises(UnreadableRun) as refused:
        fold_events(told)
    assert "\n" not in str(refused.value)
    assert str(refused.value)


@pytest.mark.parametrize(("bound", "what"), [("MAX_LINE", "in a line"), ("MAX_LOG", "in the file")])
def test_a_log_of_just_the_size_that_is_allowed_is_read(
    bound: str, what: str, tmp_path: Path, monkeypatch: Any
) -> None:
    line = json.dumps({"event": "series", "data": {"name": "x" * (1 << 20)}}).encode() + b"\n"
    (tmp_path / "events.jsonl").write_bytes(line)
    monkeypatch.setattr(event_log, bound, len(line))
    assert len(list(EventReader(tmp_path))) == 1
    monkeypatch.setattr(event_log, bound, len(line) - 1)
    with pytest.raises(UnreadableRun, match=f"line 1: expected at most 1 MiB {what}, found more"):
        list(EventReader(tmp_path))


@pytest.mark.parametrize(("digits", "read"), [(300, True), (301, False)])
def test_a_whole_number_has_a_longest(digits: int, read: bool, tmp_path: Path) -> None:
    line = f'{{"event": "series", "data": {{"values": {"7" * digits}}}}}\n'
    (tmp_path / "events.jsonl").write_text(line * 2)
    if read:
        assert len(list(EventReader(tmp_path))) == 2
    else:
        with pytest.raises(UnreadableRun, match="line 1 is not a valid JSON event"):
            list(EventReader(tmp_path))


def test_no_folder_no_record(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRun, match="not a run folder"):
        list(EventReader(tmp_path))


def test_a_disk_that_fills_in_the_middle_is_told(store: Store, monkeypatch: Any) -> None:
    """Events are lost and later ones written: the log has no gap, and the run is not accepted."""
    probe(store, 2.0)
    write, full = os.write, [True]

    def write_half(file: int, text: bytes) -> int:
        if not full[0]:
            return write(file, text)
        if len(text) > 40:
            return write(file, text[:40])  # as a disk does that has so many bytes left
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write_half)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            probe(store, 2.0)
    full[0] = False
    store.event("run_finished", state="finished")
    store.save()
    store.close()
    summary = load_summary(store.path)
    assert summary.integrity.problems == []
    assert [one.sentence() for one in summary.record.problems] == [
        "disk error in events.jsonl: 3 events could not be written: No space left on device"
    ]
    assert summary.exit_code == 3


def test_evidence_that_finds_no_room_leaves_nothing(store: Store, monkeypatch: Any) -> None:
    store.event("probe_started", PROBE, criterion="FABRIC")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            store.keep(PROBE, "log.txt", "line\n", kind="log", caption="a log")
    assert list((store.path / "evidence").iterdir()) == []
    store.event("run_finished", state="finished")
    store.close()
    assert load_summary(store.path).integrity.problems == []


def test_a_folder_that_holds_a_run_is_not_written_into(store: Store) -> None:
    with pytest.raises(FileExistsError):
        Store(store.path)


def test_others_cannot_read_a_run(store: Store) -> None:
    modes = {path.stat().st_mode & 0o077 for path in [store.path, *store.path.iterdir()]}
    assert modes == {0}


def test_no_secret_reaches_the_folder(store: Store) -> None:
    """Whatever writes: events, their values, series, and evidence of every kind."""
    secret = "hf_" + "a1B2c3D4" * 4
    store.event("probe_started", PROBE, criterion="FABRIC", claim=f"HF_TOKEN={secret}")
    store.event("series", PROBE, name="x", values=[{"HF_TOKEN": secret}, f"--token {secret}"])
    store.event("finding", PROBE, code="C", statement=f"HF_TOKEN={secret}", remedy="r")
    for kind in ("log", "table", "series"):
        store.keep(
            PROBE, kind, f'{{"HF_TOKEN": "{secret}"}} HF_TOKEN={secret}', kind=kind, caption="c"
        )
    store.event("run_finished", state="finished")
    store.save()
    store.close()
    for path in store.path.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes(), path


def test_a_run_in_a_relative_folder_stays_relative(tmp_path: Path, monkeypatch: Any) -> None:
    """In a lab's node the same absolute path leads over another mount, and a rename fails."""
    monkeypatch.chdir(tmp_path)

    def nowhere() -> str:
        raise FileNotFoundError("no absolute path is asked for")

    monkeypatch.setattr(os, "getcwd", nowhere)
    opened = Store(Path("run"))
    opened.start(b"#", **START)
    probe(opened, 2.0)
    opened.event("run_finished", state="finished")
    opened.save()
    opened.close()
    assert load_summary(Path("run")).exit_code == 0


FINISHED = {"state": "finished", "finished": "2026-11-20T22:20:03.120Z"}


def ended(store: Store) -> Store:
    """Write one probe with evidence, and the end of the run with its sums."""
    probe(store, 2.0)
    store.keep(PROBE, "a.txt", "seen", kind="table", caption="a table")
    store.event("run_finished", **FINISHED)
    store.save()
    store.seal()
    return store


def test_an_event_after_the_end_takes_it_back(store: Store) -> None:
    """A teardown may still record something: the run is sealed again after it."""
    ended(store)
    store.event("run_problem", kind="teardown", where="here", text="it broke")
    assert (store.end_state, load_summary(store.path).exit_code) == ("finished", 3)
    store.event("measurement", PROBE, **measurement(3.0))
    assert store.end_state == ""
    assert load_summary(store.path).exit_code == 2
    store.event("run_finished", **{**FINISHED, "state": "interrupted"})
    record = store.save()
    store.close()
    summary = load_summary(store.path)
    assert (summary.exit_code, summary.integrity.problems) == (2, [])
    assert [one.text for one in record.problems] == ["it broke"]
    assert [m.value for m in record.results[0].measurements] == [2.0, 3.0]


def test_a_line_that_a_signal_cut_off_from_memory_is_no_part_of_the_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the write and what follows it."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("reports.run_folder.store.Line", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.event("probe_started", PROBE, criterion="FABRIC")
    ended(store).close()
    assert load_summary(store.path).exit_code == 0


@pytest.mark.parametrize("late", [False, True], ids=["before the event", "after it"])
def test_evidence_that_a_signal_cut_off_is_whole_or_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Else the folder would seem to have been changed by others."""
    probe(store, 2.0)
    event = Store.event

    def interrupt(*args: Any, **data: Any) -> None:
        if late:
            event(*args, **data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, "event", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.keep(PROBE, "a.txt", "seen", kind="table", caption="a table")
    store.event("run_finished", **FINISHED)
    record = store.save()
    store.close()
    assert load_summary(store.path).integrity.problems == []
    assert len(record.results[0].evidence) == late


DAMAGE: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "moved": lambda run: run.rename(run.with_name("elsewhere")),
    "a file": lambda run: (shutil.rmtree(run), run.write_text("no run")),
    "a link": lambda run: (shutil.rmtree(run), run.symlink_to(run.parent)),
    "no events": lambda run: (run / "events.jsonl").unlink(),
    "fewer events": lambda run: os.truncate(run / "events.jsonl", 9),
    "more events": lambda run: os.system(f"echo {{}} >>{run}/events.jsonl"),
    "a linked folder": lambda run: (
        (run / "evidence").rename(run / "old"), (run / "evidence").symlink_to(run / "old")),
    "other evidence": lambda run: (run / "evidence" / "a.txt").write_text("changed"),
    "more evidence": lambda run: (run / "evidence" / "b.txt").write_text("added"),
}  # fmt: skip
KEEP_EVIDENCE = ("no events", "fewer events", "more events", "more evidence")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_written_again(store: Store, damage: str) -> None:
    ended(store)
    before = store.record()
    DAMAGE[damage](store.path)
    store.write_again("it was seen")
    record = store.save()
    store.close()
    summary = load_summary(store.path)
    assert summary.integrity.problems == []
    assert (summary.exit_code, record.state) == (3, "finished")
    (problem,) = record.problems
    assert problem.sentence().startswith(
        "folder error in run: the run folder was changed during the run: it was seen. "
    )
    kept = damage in KEEP_EVIDENCE
    assert ("Lost evidence files (1): evidence/a.txt" in problem.text) is not kept
    assert len(record.results[0].evidence) == kept
    assert record.results[0].measurements == before.results[0].measurements
    aside = store.path.with_name("run-damaged")
    assert os.path.lexists(aside) is (damage not in ("removed", "moved"))
    assert ("renamed to run-damaged" in problem.text) is os.path.lexists(aside)


def test_what_is_aside_already_stays(store: Store) -> None:
    ended(store)
    for name in ("run-damaged", "run-damaged2"):
        (store.path.parent / name).mkdir()
    store.write_again("it was seen")
    assert (store.path.parent / "run-damaged3" / "events.jsonl").is_file()


def test_a_folder_that_cannot_be_written_again_keeps_the_events(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ended(store).record()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", lambda *_, **__: os.stat("/no/such/place"))
        with pytest.raises(FileNotFoundError):
            store.write_again("it was seen")
    assert store.record() == before
    assert store.end_state == "finished"


def test_a_log_that_cannot_be_closed_is_no_error(store: Store) -> None:
    """As of a file that is gone from NFS, or whose number a probe closed."""
    ended(store)
    shutil.rmtree(store.path)
    os.close(store._log)
    store.write_again("it was seen")
    store.save()
    store.close()
    summary = load_summary(store.path)
    assert (summary.exit_code, summary.integrity.problems) == (3, [])


@needs_root
def test_the_room_that_was_kept_is_for_the_end(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "8m") as small:
        store = Store(Path(small) / "run")
        store.start(b"#", **START)
        store.keep_room()
        os.system(f"head -c 9M /dev/zero >{small}/fill 2>/dev/null")
        with pytest.raises(OSError, match="No space left"):
            probe(store, "x" * 99_999)
        store.free_room()
        ended(store).close()
        summary = load_summary(store.path)
    assert summary.exit_code == 3
    assert "could not be written: No space left" in summary.record.problems[0].text
    assert summary.integrity.problems == []
