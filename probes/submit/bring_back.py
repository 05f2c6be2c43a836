"""Brings the run folder of a submission back, part by part, each with its hash."""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from probes.submit.follow import ConnectionLost, JobsApi, SubmissionState, SubmitError, UnknownJob
from probes.submit.package import package_name, zip_files
from probes.submit.parts import ABOUT, PART, PART_BYTES
from reports.run_folder.event_log import MAX_FILES
from reports.sanitize import one_line

PARTS_OF_A_JOB = 32  # 8 MiB: what one answer of the dashboard holds
JOB_S = 120.0  # bounds a job that prints parts
COPY_S = 3600.0  # bounds all of them: a run has some MiB, and 4 GiB need 10 Mbit/s
POLL_S = 0.5
LOOK_S = 1.0  # how often Ray looks at each job, and may write the end of a removed one
AWAY = 3  # looks in a row without a job: it does not come back
TRIES = 3  # for a part whose hash is wrong
MAX_RUN = 4 * 2**30  # bytes of a run folder: more is no run of ours
REMOVE_S = 10.0  # in which the cluster's copy is removed: a later submission removes what is left
MAX_HEADERS = 64 << 10  # bytes before a file in an archive: ours have under 3 KiB
MAX_ABOUT = 1000  # characters about the archive: a name, a number and a hash
MAX_NAME = 255  # bytes of a path in a run, with the run's own name: ours have under 180
# Of an archive that is torn, or was not written by us: names that clash, times.
UNREADABLE = (
    *(tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError, zlib.error),
    *(gzip.BadGzipFile, FileExistsError, NotADirectoryError, IsADirectoryError),
)
PYTHON = 'python=$(command -v python || command -v python3); exec "$python"'  # of the node's PATH


@dataclass(frozen=True)
class Archive:
    """What the cluster says of the packed run; `name` is "" if there is none."""

    name: str
    parts: int = 0
    sha256: str = ""


class ForeignRun(SubmitError):
    """What the cluster sends is no run of the suite: asking again would not help."""


class NoRun(SubmitError):
    """The cluster holds no run of this submission."""


class BringBack:
    """Copies the run of one submission from the node where its suite ran."""

    def __init__(self, api: JobsApi, id: str, state: SubmissionState) -> None:
        self._api, self._id, self._host = api, id, state.host
        self._package, self._job_s = "", JOB_S
        self._where = f"node {self._host}" if self._host else "the cluster"
        self._jobs: list[str] = []  # that printed parts

    def run_to(self, target: Path) -> None:
        """Copy the run to the folder `target`, which must not exist, or must be empty.

        Raises NoRun, SubmitError where what came is not what was sent, and ConnectionLost.
        """
        target = target.absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=_beside(target)) as packed:
            about = self._copy(packed)
            packed.seek(0)
            unpack(packed, about.name, target)

    def name(self) -> str:
        """Return the name of the run on the cluster.  Raises NoRun."""
        return self._ask(0, 0)[0].name

    def remove(self) -> None:
        """Remove the submission from the cluster's disk, and our jobs from Ray's list.

        What that does not do in seconds is left to a later submission.
        """
        self._api.patience_s, self._job_s = REMOVE_S, REMOVE_S
        with contextlib.suppress(SubmitError, ConnectionLost):
            self._print_job("remove")
        self._forget_jobs()

    def _forget_jobs(self) -> None:
        """Remove the jobs that printed parts from Ray's list, until they stay away.

        Ray writes a job that was removed once more, if it had not seen its end before.
        """
        deadline, away = time.monotonic() + REMOVE_S, 0
        while away < AWAY:
            time.sleep(LOOK_S)  # in which Ray sees what ended, or writes it again
            away += 1
            for job in self._jobs:
                if time.monotonic() > deadline:
                    return
                try:
                    self._api.forget(job)
                except UnknownJob:
                    continue
                except (SubmitError, ConnectionLost):
                    pass
                away = 0

    def _copy(self, packed: IO[bytes]) -> Archive:
        """Copy all parts, and check the whole."""
        first, digest, tries = 0, hashlib.sha256(), 0
        about, parts = self._ask(0, PARTS_OF_A_JOB)
        deadline = time.monotonic() + COPY_S
        while True:
            if time.monotonic() > deadline:
                hours = f"{COPY_S / 3600:.0f} h"
                raise SubmitError(f"run {about.name} could not be copied completely in {hours}")
            if not parts and first < about.parts:
                tries += 1
                if tries == TRIES:
                    what = f"part {first} of run {about.name}"
                    raise SubmitError(f"{what} arrived damaged {TRIES} times")
            for part in parts:
                packed.write(part)
                digest.update(part)
                first, tries = first + 1, 0
            if first >= about.parts:
                break
            again, parts = self._ask(first, PARTS_OF_A_JOB)
            if again != about:
                raise SubmitError(f"run {about.name} changed on the cluster while it was copied")
        if digest.hexdigest() != about.sha256:
            raise SubmitError(f"run {about.name} arrived damaged: its sha256 is wrong")
        return about

    def _ask(self, first: int, count: int) -> tuple[Archive, list[bytes]]:
        """Ask for parts; return those that came whole, in order, up to the first that did not."""
        log = self._print_job(f"{first} {count}")
        return read_about(log), [*whole_parts(log, first)]

    def _print_job(self, words: str) -> str:
        """Run `parts.py` on the node of the suite; return what it printed."""
        if not self._package:
            content = zip_files({"parts.py": Path(__file__).with_name("parts.py").read_bytes()})
            self._package = self._api.upload(package_name(content), content)
        job = f"{self._id}-parts-{uuid.uuid4().hex[:8]}"
        entrypoint = f"{PYTHON} parts.py {self._id} {words}"
        self._jobs.append(job)
        where = {"entrypoint_resources": {f"node:{self._host}": 0.001}} if self._host else {}
        self._api.submit(job, entrypoint, self._package, **where)
        deadline = time.monotonic() + self._job_s
        while not (state := self._api.insist(lambda: self._api.state(job))).ended:
            if time.monotonic() > deadline:
                self._api.stop(job)
                what = f"the job that reads the run on {self._where}"
                raise SubmitError(f"{what} did not end in {self._job_s:.0f} s")
            time.sleep(POLL_S)
        log = self._api.insist(lambda: self._api.log(job))
        if state.status != "SUCCEEDED":
            raise SubmitError(f"the run cannot be read on {self._where}: {state.message}")
        return log


def read_about(log: str) -> Archive:
    """Read the line about the archive.  Raises NoRun, or SubmitError where there is no such."""
    found = re.search(rf"^{ABOUT} (\{{.{{,{MAX_ABOUT}}}\}})$", log, re.MULTILINE)
    try:
        about = json.loads(found[1]) if found else {}
        archive = Archive(str(about["name"]), int(about.get("parts", 0)), str(about.get("sha256")))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise ForeignRun("the cluster's answer is not a run of seatrial") from None
    most = MAX_RUN // PART_BYTES
    if not 0 <= archive.parts <= most:
        because = f"the largest run that is copied has {MAX_RUN >> 30} GiB"
        expected = f"Expected: 0 to {most} ({because})"
        raise ForeignRun(f"parts of the packed run: {archive.parts}. {expected}")
    if not archive.name:
        raise NoRun("the cluster has no run of this submission")
    return archive


def whole_parts(log: str, first: int) -> Iterator[bytes]:
    """Yield the parts in the log from `first` on, up to one that is missing or damaged."""
    for line in re.findall(rf"^{PART} .*$", log, re.MULTILINE):
        try:
            _, number, sha256, text = line.split()
            part = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            return
        is_next = number == str(first) and len(part) <= PART_BYTES
        if not is_next or hashlib.sha256(part).hexdigest() != sha256:
            return
        yield part
        first += 1


class _Unpacked:
    """The bytes of an archive, unpacked as they are read; no more than `left`.

    tarfile reads a header of any size at once, into memory.
    """

    def __init__(self, packed: IO[bytes]) -> None:
        self._file = gzip.GzipFile(fileobj=packed, mode="rb")
        self.left = MAX_HEADERS

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes.  Raises ForeignRun for more than may come here."""
        self._take(size if size >= 0 else MAX_RUN)
        return self._file.read(size)

    def seek(self, place: int) -> int:
        """Skip what lies between two files.  Raises ForeignRun for more than may lie there."""
        self._take(abs(place - self._file.tell()))
        return self._file.seek(place)

    def tell(self) -> int:
        """Return how many bytes lie before the next one."""
        return self._file.tell()

    def _take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            most = f"{MAX_HEADERS >> 10} KiB before a file"
            raise ForeignRun(f"the packed run has more than {most}: not a run of seatrial")


def unpack(packed: IO[bytes], name: str, target: Path) -> None:
    """Unpack the run `name` to `target`; nothing is written elsewhere.

    Raises ForeignRun where the archive is torn, or holds anything but plain files and folders of
    the run, and OSError where this disk takes no run.
    """
    partial = Path(tempfile.mkdtemp(prefix=".seatrial-", dir=_beside(target)))
    try:
        unpacked = _Unpacked(packed)
        with tarfile.open(fileobj=cast(IO[bytes], unpacked), mode="r:") as archive:
            size = 0
            for number, member in enumerate(archive):
                parts = _parts_of(member, name)
                size += member.size
                if size > MAX_RUN or number >= MAX_FILES:
                    most = f"4 GiB or {MAX_FILES} files"
                    raise ForeignRun(f"the packed run has more than {most}: not a seatrial run")
                unpacked.left = member.size
                _write(archive, member, partial.joinpath(*parts))
                unpacked.left = MAX_HEADERS
        if partial.parent != target:
            partial.rename(target)  # at once: a run folder is whole, or is not there
        else:  # it may be a mount point, which cannot be replaced
            if len([*target.iterdir()]) > 1:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(target))
            for path in partial.iterdir():
                path.rename(target / path.name)
    except UNREADABLE as error:
        raise ForeignRun(f"the packed run cannot be unpacked: {error}") from None
    finally:  # also after Ctrl-C
        shutil.rmtree(partial, ignore_errors=True)


def _parts_of(member: tarfile.TarInfo, name: str) -> tuple[str, ...]:
    """Return the path of a member below the run `name`.  Raises ForeignRun."""
    parts = Path(member.name).parts
    plain = (member.isfile() or member.isdir()) and not member.issparse()
    plain = plain and one_line(member.name) == member.name and member.size >= 0
    plain = plain and len(os.fsencode(member.name)) <= MAX_NAME
    if not plain or not parts or parts[0] != name or {"..", "/"} & {*parts}:
        raise ForeignRun(f"the packed run has {member.name!r:.80}, which is not a file of a run")
    return parts[1:]


def _beside(target: Path) -> Path:
    """Return where a run is unpacked: the target itself, if it is an empty folder already."""
    return target if target.is_dir() else target.parent


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member) or io.BytesIO()
    with source, path.open("wb") as file:
        shutil.copyfileobj(source, file)
    path.chmod(member.mode & 0o777 & ~_umask())
    os.utime(path, (member.mtime, member.mtime))


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now
