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
from typing import IO

from probes.submit.follow import ConnectionLost, JobsApi, SubmissionState, SubmitError
from probes.submit.package import package_name, zip_files
from probes.submit.parts import ABOUT, PART, PART_BYTES
from reports.run_folder.event_log import MAX_FILES
from reports.sanitize import one_line

PARTS_OF_A_JOB = 32  # 8 MiB: what one answer of the dashboard holds
JOB_S = 120.0  # bounds a job that prints parts
POLL_S = 0.5
FORGET_ROUNDS = 4  # 2 s
TRIES = 3  # for a part whose hash is wrong
MAX_RUN = 4 * 2**30  # bytes of a run folder: more is no run of ours
REMOVE_S = 10.0  # in which the cluster's copy is removed: a later submission removes what is left
PYTHON = 'python=$(command -v python || command -v python3); exec "$python"'  # of the node's PATH


@dataclass(frozen=True)
class Archive:
    """What the cluster says of the packed run; `name` is "" if there is none."""

    name: str
    parts: int = 0
    sha256: str = ""


class NoRun(SubmitError):
    """The cluster holds no run of this submission."""


class BringBack:
    """Copies the run of one submission from the node where its suite ran."""

    def __init__(self, api: JobsApi, id: str, state: SubmissionState) -> None:
        self._api, self._id, self._host = api, id, state.host
        self._package, self._job_s = "", JOB_S
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
        """Remove the jobs that printed parts from Ray's list.

        Ray may write the end of a job once more after it was removed, so they are looked for again.
        """
        deadline = time.monotonic() + REMOVE_S
        for _ in range(FORGET_ROUNDS):
            for job in self._jobs:
                if time.monotonic() > deadline:
                    return
                with contextlib.suppress(SubmitError, ConnectionLost):
                    self._api.forget(job)
            time.sleep(POLL_S)

    def _copy(self, packed: IO[bytes]) -> Archive:
        """Copy all parts, and check the whole."""
        first, digest, tries = 0, hashlib.sha256(), 0
        about, parts = self._ask(0, PARTS_OF_A_JOB)
        while True:
            if not parts and first < about.parts:
                tries += 1
                if tries == TRIES:
                    raise SubmitError(
                        f"part {first} of run {about.name} came damaged {TRIES} times"
                    )
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
            raise SubmitError(f"run {about.name} came damaged: its hash is not the one announced")
        return about

    def _ask(self, first: int, count: int) -> tuple[Archive, list[bytes]]:
        """Ask for parts; return those that came whole, in order, up to the first that did not."""
        log = self._print_job(f"{first} {count}")
        about = read_about(log)
        return about, [*whole_parts(log, first)]

    def _print_job(self, words: str) -> str:
        """Run `parts.py` on the node of the suite; return what it printed."""
        if not self._package:
            source = Path(__file__).with_name("parts.py").read_bytes()
            content = zip_files({"parts.py": source})
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
                raise SubmitError(
                    f"the node of the run ({self._host}) starts no job in {self._job_s:.0f} s"
                )
            time.sleep(POLL_S)
        log = self._api.insist(lambda: self._api.log(job))
        if state.status != "SUCCEEDED":
            raise SubmitError(f"the run cannot be read on {self._host}: {state.message}")
        return log


def read_about(log: str) -> Archive:
    """Read the line about the archive.  Raises NoRun, or SubmitError where there is no such."""
    found = re.search(rf"^{ABOUT} (\{{.*\}})$", log, re.MULTILINE)
    try:
        about = json.loads(found[1]) if found else {}
        archive = Archive(str(about["name"]), int(about.get("parts", 0)), str(about.get("sha256")))
    except (KeyError, TypeError, ValueError):
        raise SubmitError("the cluster answers with no run") from None
    if not 0 <= archive.parts <= MAX_RUN // PART_BYTES:
        raise SubmitError(f"the packed run has {archive.parts} parts: no run of ours")
    if not archive.name:
        raise NoRun("the cluster holds no run of this submission")
    return archive


def whole_parts(log: str, first: int) -> Iterator[bytes]:
    """Yield the parts in the log from `first` on, up to one that is missing or damaged."""
    for line in re.findall(rf"^{PART} .*$", log, re.MULTILINE):
        words = line.split()
        try:
            _, number, sha256, text = words
            part = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            return
        if (
            len(part) > PART_BYTES
            or number != str(first)
            or hashlib.sha256(part).hexdigest() != sha256
        ):
            return
        yield part
        first += 1


def unpack(packed: IO[bytes], name: str, target: Path) -> None:
    """Unpack the run `name` to `target`; nothing is written elsewhere.

    Raises SubmitError where the archive holds anything but plain files and folders of the run.
    """
    partial = Path(tempfile.mkdtemp(prefix=".seatrial-", dir=_beside(target)))
    try:
        with tarfile.open(fileobj=packed, mode="r:gz") as archive:
            size = 0
            for number, member in enumerate(archive):
                parts = Path(member.name).parts
                plain = (member.isfile() or member.isdir()) and one_line(member.name) == member.name
                if not plain or not parts or parts[0] != name or {"..", "/"} & {*parts}:
                    raise SubmitError(f"the packed run holds {member.name!r:.80}: no file of a run")
                size += member.size
                if size > MAX_RUN or number >= MAX_FILES:
                    most = f"4 GiB, or {MAX_FILES} files"
                    raise SubmitError(f"the packed run has more than {most}: no run of ours")
                _write(archive, member, partial.joinpath(*parts[1:]))
        if partial.parent != target:
            partial.rename(target)  # at once: a run folder is whole, or is not there
        else:  # it may be a mount point, which cannot be replaced
            if len([*target.iterdir()]) > 1:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(target))
            for path in partial.iterdir():
                path.rename(target / path.name)
    except (tarfile.TarError, EOFError, ValueError, gzip.BadGzipFile, zlib.error) as error:
        raise SubmitError(f"the packed run cannot be unpacked: {error}") from None
    finally:  # also after Ctrl-C
        shutil.rmtree(partial, ignore_errors=True)


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
