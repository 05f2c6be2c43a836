"""The run that comes back: whole, or refused; nothing is written elsewhere."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import itertools
import shutil
import tarfile
import tempfile
import tracemalloc
from pathlib import Path

import pytest

from probes.submit import parts
from probes.submit.bring_back import (
    Archive,
    BringBack,
    ForeignRun,
    NoRun,
    read_about,
    unpack,
    whole_parts,
)
from probes.submit.follow import JobsApi, SubmissionState, SubmitError
from probes.submit.parts import PART_BYTES

ID = "seatrial-submit-0123456789ab"


@pytest.fixture
def submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on the cluster's disk, of some parts."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "head"))
    run = tmp_path / "head" / ID / "work" / "runs" / "2026-atlas"
    (run / "evidence").mkdir(parents=True)
    (run / "record.json").write_text("{}")
    (run / "evidence" / "a.log").write_bytes(bytes(range(256)) * 100)
    (run / "evidence" / "link").symlink_to("/etc/hosts")
    return run


class Cluster(BringBack):
    """Runs `parts.py` here, in place of a job; `spoil` changes what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(JobsApi("http://x"), ID, SubmissionState("SUCCEEDED"))
        self.capsys, self.spoiled, self.asked = capsys, 0, 0

    def _print_job(self, words: str) -> str:
        self.asked += 1
        parts.main(ID, *words.split())
        log = self.capsys.readouterr().out
        if self.spoiled:
            self.spoiled -= 1
            about, *lines = log.splitlines()
            log = "\n".join([about, *lines[:-1], *(line[:-8] + "AAAA" for line in lines[-1:])])
        return log


@pytest.fixture
def cluster(
    submission: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    monkeypatch.setattr(parts, "PART_BYTES", 100)
    monkeypatch.setattr("probes.submit.bring_back.PARTS_OF_A_JOB", 3)
    return Cluster(capsys)


def test_a_run_comes_back_as_it_was(cluster: Cluster, submission: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "runs" / "here"
    cluster.run_to(target)
    assert cluster.asked > 1
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert found == {"record.json", "evidence/a.log"}
    for name in found:
        assert (target / name).read_bytes() == (submission / name).read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["here"]
    for _ in range(2):  # again: it has gone
        cluster.remove()
        assert not (submission.parents[2]).exists()


def test_a_damaged_part_is_asked_for_again(cluster: Cluster, tmp_path: Path) -> None:
    cluster.spoiled = 1
    cluster.run_to(tmp_path / "here")
    assert (tmp_path / "here" / "record.json").exists()


def test_each_part_may_come_damaged_twice(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, turns = cluster._ask, itertools.cycle([False, False, True])

    def lose(first: int, count: int) -> tuple[Archive, list[bytes]]:
        about, found = ask(first, count)
        return about, found if next(turns) else []

    monkeypatch.setattr(cluster, "_ask", lose)
    cluster.run_to(tmp_path / "here")
    assert cluster.asked > 3
    assert (tmp_path / "here" / "record.json").exists()


def test_parts_that_stay_damaged_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.spoiled = 1000
    with pytest.raises(SubmitError, match="arrived damaged 3 times"):
        cluster.run_to(tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_copy_that_takes_too_long_is_given_up(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16384 parts, one a job, and each job with its own limit, would take weeks."""
    monkeypatch.setattr("probes.submit.bring_back.COPY_S", -1.0)
    with pytest.raises(SubmitError, match="could not be copied completely in"):
        cluster.run_to(tmp_path / "here")
    assert cluster.asked == 1
    assert not (tmp_path / "here").exists()


def test_a_run_that_changes_under_way_is_refused(
    cluster: Cluster, submission: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = cluster._ask

    def change(first: int, count: int) -> tuple[Archive, list[bytes]]:
        answer = ask(first, count)
        (submission.parents[2] / "run.tar.gz").unlink()
        (submission / "record.json").write_text(f"{first}")
        return answer

    monkeypatch.setattr(cluster, "_ask", change)
    with pytest.raises(SubmitError, match="changed on the cluster"):
        cluster.run_to(tmp_path / "here")


def test_a_submission_without_a_run_has_none(
    cluster: Cluster, submission: Path, tmp_path: Path
) -> None:
    shutil.rmtree(submission.parents[2])
    with pytest.raises(NoRun):
        cluster.run_to(tmp_path / "here")


NO_RUN = ["", "{}", "[1]", '{"name": "a", "parts": "x"}', '{"name": "a", "parts": 1e999}',
          '{"a": %s}' % ("[" * 200_000)]  # fmt: skip


@pytest.mark.parametrize("log", ["", *(f"seatrial-archive {text}" for text in NO_RUN)])
def test_an_answer_without_a_run_is_refused(log: str) -> None:
    with pytest.raises(SubmitError, match="is not a run of seatrial"):
        read_about(log)


OF_A = hashlib.sha256(b"a").hexdigest()


@pytest.mark.parametrize(
    "line",
    [
        "seatrial-part 1 aa",
        "seatrial-part 0 aa !!",
        f"seatrial-part 1 {OF_A} YQ==",
        f"seatrial-part 0 {OF_A} !YQ==",
    ],
)
def test_a_line_that_is_no_part_ends_the_parts(line: str) -> None:
    assert list(whole_parts(f"{line}\n", 0)) == []


def packed(member: tarfile.TarInfo, content: bytes = b"") -> io.BytesIO:
    buffer = io.BytesIO()
    member.size = len(content)
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(member, io.BytesIO(content))
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize(
    "name",
    [
        "run/../../evil",
        "/run/evil",
        "evil",
        "../evil",
        "run/a/../../../evil",
        "run/\x1b[2Jevil",
        "run/a\nb",
        "run/\u202eevil",
    ],
)
def test_an_archive_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    target = tmp_path / "in" / "run"
    target.parent.mkdir()
    with pytest.raises(SubmitError, match="not a file of a run"):
        unpack(packed(tarfile.TarInfo(name), b"x"), "run", target)
    assert [*target.parent.iterdir()] == []
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_an_archive_with_more_than_files_is_refused(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("run/link")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(SubmitError, match="not a file of a run"):
        unpack(packed(member), "run", tmp_path / "run")
    assert [*tmp_path.iterdir()] == []


def test_a_name_with_a_nul_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("run/a")
    member.pax_headers = {"path": "run/a\0b"}
    with pytest.raises(SubmitError, match="not a file of a run"):
        unpack(packed(member, b"x"), "run", tmp_path / "run")
    assert [*tmp_path.iterdir()] == []


def test_a_torn_archive_is_no_fault_of_this_disk(tmp_path: Path) -> None:
    whole = packed(tarfile.TarInfo("run/a"), bytes(range(256)) * 4000).getvalue()
    for content in (whole[: len(whole) // 2], whole[:60] + b"xx" + whole[62:]):
        with pytest.raises(SubmitError, match="cannot be unpacked"):
            unpack(io.BytesIO(content), "run", tmp_path / "run")
    assert [*tmp_path.iterdir()] == []


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def pax(**headers: str) -> bytes:
    member = tarfile.TarInfo("run/a")
    member.pax_headers = headers
    return member.tobuf(tarfile.PAX_FORMAT)


def sparse() -> bytes:
    member = tarfile.TarInfo("run/a")
    member.size = 512
    facts = {"major": "1", "minor": "0", "realsize": str(1 << 30), "name": "run/a"}
    member.pax_headers = {f"GNU.sparse.{key}": value for key, value in facts.items()}
    return member.tobuf(tarfile.PAX_FORMAT) + b"1\n0\n0\n".ljust(512, b"\0")


LARGE = 64 << 20  # bytes of a header: 1 GiB fits into 1 MB as well
HOSTILE = {
    **{
        f"a large header {kind.decode()}": header("x", LARGE, kind) + bytes(LARGE) + header("run/a")
        for kind in (b"x", b"g", b"L", b"K")
    },
    "many headers": (header("x", 6, b"x") + b"6 a=b\n".ljust(512, b"\0")) * 3000 + header("run/a"),
    "a time without end": pax(mtime="inf"),
    "a time that is none": pax(mtime="nan"),
    "a file with holes": sparse(),
    "a file and a folder of one name": header("run/a") + header("run/a/b"),
    "a folder and a file of one name": header("run/a/b") + header("run/a"),
    "a name that no disk takes": pax(path="run/" + "a" * 300),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_no_run_and_takes_no_memory(name: str, tmp_path: Path) -> None:
    packed = io.BytesIO(gzip.compress(HOSTILE[name] + bytes(1024)))
    tracemalloc.start()
    try:
        with pytest.raises(ForeignRun, match="the packed run"):
            unpack(packed, "run", tmp_path / "run")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert [*tmp_path.iterdir()] == []


def test_names_that_are_long_and_files_of_any_size_are_unpacked(tmp_path: Path) -> None:
    """A sound archive has headers of its own for long names and for fractions of seconds."""
    run = tmp_path / "run"
    for number, size in enumerate((0, 1, 511, 512, 513, 1 << 20, 3 << 20)):
        path = run / f"evidence/{number}-{'n' * 180}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * size)
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", format=form) as archive:
            archive.add(run, "run")
        buffer.seek(0)
        unpack(buffer, "run", tmp_path / f"here{form}")
        for path in run.rglob("*"):
            if path.is_file():
                found = tmp_path / f"here{form}" / path.relative_to(run)
                assert found.read_bytes() == path.read_bytes()


def test_a_path_may_be_as_long_as_a_name_on_a_disk_and_no_longer(tmp_path: Path) -> None:
    longest = "run/" + "n" * 251
    unpack(packed(tarfile.TarInfo(longest), b"x"), "run", tmp_path / "run")
    assert (tmp_path / longest).read_bytes() == b"x"
    with pytest.raises(ForeignRun, match="not a file of a run"):
        unpack(packed(tarfile.TarInfo(f"{longest}n"), b"x"), "run", tmp_path / "other")


def test_a_header_without_content_is_no_fault(tmp_path: Path) -> None:
    content = header("x", 0, b"x") + header("run/a") + bytes(1024)
    unpack(io.BytesIO(gzip.compress(content)), "run", tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["a"]


def test_more_files_than_a_run_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.submit.bring_back.MAX_FILES", 2)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in "abc":
            archive.addfile(tarfile.TarInfo(f"run/{name}"))
    buffer.seek(0)
    with pytest.raises(SubmitError, match="more than 4 GiB or 2 files: not a seatrial run"):
        unpack(buffer, "run", tmp_path / "run")


def test_ctrl_c_and_a_target_that_is_taken_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "theirs").touch()
    with pytest.raises(OSError, match="not empty"):
        unpack(packed(tarfile.TarInfo("run/a"), b"x"), "run", tmp_path / "run")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("probes.submit.bring_back._write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        unpack(packed(tarfile.TarInfo("run/a"), b"x"), "run", tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["theirs"]


@pytest.mark.parametrize("given", ["out", "."])
def test_a_run_comes_to_a_folder_that_is_there_and_empty(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a mount of a container, which nothing can replace."""
    (tmp_path / "out").mkdir()
    before = (tmp_path / "out").stat().st_ino
    monkeypatch.chdir(tmp_path / ("out" if given == "." else "."))
    unpack(packed(tarfile.TarInfo("run/a"), b"x"), "run", Path(given).absolute())
    assert (tmp_path / "out").stat().st_ino == before
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {"a": b"x"}


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises((SubmitError, OSError)):
        unpack(io.BytesIO(b"no archive"), "run", tmp_path / "run")
    assert [*tmp_path.iterdir()] == []


def test_more_than_a_run_can_have_is_refused() -> None:
    most = 4 * 2**30 // (256 * 1024)  # 4 GiB
    assert read_about(f'seatrial-archive {{"name": "a", "parts": {most}}}\n').parts == most
    found = f"parts of the packed run: {most + 1}. Expected: 0 to {most} "
    with pytest.raises(SubmitError, match=found):
        read_about(f'seatrial-archive {{"name": "a", "parts": {most + 1}}}\n')
    for size, whole in ((PART_BYTES, 1), (PART_BYTES + 1, 0)):
        part = base64.b64encode(bytes(size)).decode()
        sha256 = hashlib.sha256(bytes(size)).hexdigest()
        assert len([*whole_parts(f"seatrial-part 0 {sha256} {part}\n", 0)]) == whole


def test_the_packed_run_is_for_its_user_alone(submission: Path) -> None:
    parts.main(ID, "0", "1")
    assert (submission.parents[2] / "run.tar.gz").stat().st_mode & 0o777 == 0o600
