"""A head that sends what it likes (a stand-in), and `seatrial submit` as a process of its own."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probes.submit.parts import ABOUT, PART, PART_BYTES
from tests.probes.submit.test_jobs_api import head
from tests.support.paths import REPO
from tests.support.submit_client import furnish

ENDED = {"status": "SUCCEEDED", "driver_exit_code": 0}
NAME = "2026-atlas"  # of each run
PROGRAM = "from probes.cli.main import main; main()"
Pack = Callable[[str], bytes]  # the archive of a submission's run, by its id


@contextmanager
def sending(
    pack: Pack | None, job: Mapping[str, Any] = ENDED, name: str = NAME
) -> Iterator[tuple[str, list[str]]]:
    """Serve the Jobs API of a head whose submissions end as `job`; yield (address, requests).

    Without `pack` no run comes back.  It is called once for each submission.
    """
    packed: dict[str, bytes] = {}

    def answer(method: str, path: str) -> tuple[int, Any]:
        if path == "/api/version":
            return 200, {"ray_version": "2.60.0"}
        if path.startswith("/api/packages") or method != "GET":
            return 200, {}
        id, is_parts, _ = path.split("/")[3].partition("-parts-")
        if not path.endswith("/logs"):
            return 200, ENDED if is_parts else job
        if not is_parts:
            return 200, {"logs": f"x\nseatrial-submission {id}\ncluster   atlas\n"}
        if pack and id not in packed:
            packed[id] = pack(id)
        return 200, {"logs": parts_of(packed[id], name) if pack else parts_of(b"", "")}

    with head(answer) as served:
        yield served


def parts_of(content: bytes, name: str) -> str:
    """Return what `parts.py` prints of an archive, all of its parts."""
    found = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
    about = {"name": name, "parts": len(found), "sha256": hashlib.sha256(content).hexdigest()}
    lines = [f"{ABOUT} {json.dumps(about)}"]
    for number, part in enumerate(found):
        text = base64.b64encode(part).decode()
        lines.append(f"{PART} {number} {hashlib.sha256(part).hexdigest()} {text}")
    return "\n".join(lines) + "\n"


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Pack files of a run, by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{NAME}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def pack_folder(run: Path) -> bytes:
    """Pack a run folder."""
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    return pack_files({name: path.read_bytes() for name, path in files.items()})


class Client:
    """A machine that submits: `alone` it has click and nothing else, else all that we need."""

    def __init__(self, folder: Path, *, alone: bool = True) -> None:
        self.folder, self.alone = folder, alone
        self.packages = furnish(folder / "packages") if alone else REPO
        (folder / "work").mkdir(parents=True)

    def submit(
        self, address: str, *words: str, seconds: float = 60, **variables: str
    ) -> tuple[int, str]:
        """Run `seatrial submit`; return its exit code, as a shell sees it, and what it printed."""
        isolated = ["-S"] if self.alone else []
        command = [sys.executable, *isolated, "-c", PROGRAM, "submit", "--address", address]
        done = subprocess.run(
            [*command, *words],
            cwd=self.folder / "work",
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(self.packages),
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOME": str(self.folder),
                "RAY_AUTH_MODE": "disabled",
                **variables,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout
