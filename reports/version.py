"""Which seatrial this is: its version, and the commit or the wheel that it was installed from."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
from importlib import metadata
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1]
PACKAGES = ("probes/", "reports/", "scaling/", "reference_trainer/")  # the same on every machine
GIT_SECONDS = 10  # on a network file system


@functools.cache  # the files that run do not change
def suite_version() -> dict[str, str]:
    """Return `seatrial`, its version, and `seatrial_commit`: `<commit>[+]` or `wheel <hash>`.

    `+` says that files differ from the commit.
    """
    try:
        found = metadata.distribution("seatrial")
    except metadata.PackageNotFoundError:
        return {"seatrial": "unknown", "seatrial_commit": _checkout() or "unknown"}
    commit = _checkout() or _installed_commit(found) or "unknown"
    return {"seatrial": found.version, "seatrial_commit": commit}


def _checkout() -> str:
    """Return the commit of a checkout; "" where the sources lie in none of their own."""
    if not (SOURCES / ".git").exists():
        return ""
    git = ["git", "-C", str(SOURCES)]
    try:
        head, changes = (
            subprocess.run(
                [*git, *words], capture_output=True, text=True, check=True, timeout=GIT_SECONDS
            ).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return head + ("+" if changes else "")


def _installed_commit(found: metadata.Distribution) -> str:
    """Return the commit that pip installed, or the hash of the wheel's list of files."""
    try:
        info = json.loads(found.read_text("direct_url.json") or "{}")
        if commit := info.get("vcs_info", {}).get("commit_id"):
            return str(commit)
    except (ValueError, AttributeError):
        pass
    files = (found.read_text("RECORD") or "").splitlines()
    ours = sorted(line for line in files if line.startswith(PACKAGES) and ".pyc," not in line)
    return f"wheel {hashlib.sha256(chr(10).join(ours).encode()).hexdigest()[:16]}" if ours else ""
