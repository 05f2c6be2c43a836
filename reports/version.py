"""Identifies this seatrial by its version, its commit, and a hash of its files."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1]
PACKAGES = ("probes", "reference_trainer", "reports", "scaling", "seatrial")
RENDERERS = ("pydantic", "jinja2", "markupsafe", "pandas", "matplotlib")
COMMIT = "seatrial/COMMIT"  # in a checkout it has a placeholder
SUFFIXES = {".py", ".toml", ".j2", ".js", ".css", ".md", ".txt"}
GIT_SECONDS = 10  # git is slow on a network file system


@functools.cache  # the running files do not change
def suite_version() -> dict[str, str]:
    """Return the version, commit, source hash and libraries of this seatrial, by key.

    `seatrial` is the version. `seatrial_commit` ends with `+` if tracked files differ from the
    commit. Both are `unknown` if they cannot be found. `seatrial_sources` is a hash of the files,
    `seatrial_libraries` names what renders and checks a record.
    """
    return {
        "seatrial": own_version(),
        "seatrial_commit": find_commit() or "unknown",
        "seatrial_sources": _hash_sources(),
        "seatrial_libraries": _list_libraries(),
    }


def version_line() -> str:
    """Return one line with version, commit and source hash, where nothing else is installed."""
    commit = find_commit()
    at = f"commit {commit[:12]}{commit[40:]}" if commit else "commit unknown"
    return f"seatrial {own_version()}, {at}, sources {_hash_sources()}"


def own_version() -> str:
    """Return the version of this seatrial; `unknown` if it is not installed."""
    return version_of("seatrial", "unknown")


def version_of(package: str, absent: str) -> str:
    """Return the version of an installed package; `absent` for one that is not."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return absent


def find_commit() -> str:
    """Return the commit of this seatrial; "" if it is not known.  A `+` marks changed files."""
    return find_checkout_commit() or _built_commit() or _installed_commit()


def find_checkout_commit() -> str:
    """Return the commit of a checkout; "" if the sources are in no checkout, or git fails."""
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


def _built_commit() -> str:
    """Return the commit that setup.py, or git archive, wrote into the package; "" if none did."""
    with suppress(OSError, ValueError):
        text = (SOURCES / COMMIT).read_text().strip()
        return text if re.fullmatch(r"[0-9a-f]{40}\+?", text) else ""
    return ""


def _installed_commit() -> str:
    """Return the commit that pip installed; "" if pip recorded none."""
    with suppress(metadata.PackageNotFoundError, ValueError, AttributeError):
        info = json.loads(metadata.distribution("seatrial").read_text("direct_url.json") or "{}")
        return str(info.get("vcs_info", {}).get("commit_id") or "")
    return ""


def _hash_sources() -> str:
    """Return 16 hex digits of the hash of the source files of the packages, by path."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((SOURCES / package).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _list_libraries() -> str:
    """List library and Python versions; another version may render a record differently."""
    found = [f"{name} {version_of(name, 'none')}" for name in RENDERERS]
    return ", ".join([*found, f"python {sys.version_info.major}.{sys.version_info.minor}"])


def same_version(versions: dict[str, str]) -> bool:
    """Return whether exactly this seatrial, with these libraries, wrote a run of `versions`."""
    ours = suite_version()
    return all(versions.get(key) == ours[key] for key in ("seatrial_sources", "seatrial_libraries"))


def describe_version(versions: dict[str, str]) -> str:
    """Write version and commit as `0.1.0 @ 3fa2c1d0b7e5`, as far as they are recorded."""
    commit = versions.get("seatrial_commit", "")
    return versions.get("seatrial", "") + (f" @ {commit[:12]}" if commit else "")
