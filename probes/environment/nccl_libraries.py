"""Finds the libnccl files that a job on this node could load, and their versions.

Two versions, within reach of one process or on different nodes, can make NCCL stop at start.  Or
the job loads another library than the inspected one.  A libnccl that is linked into torch itself
(some source builds) is no file and is not found here.  Uses only the standard library.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from probes.cluster.facts.system_files import read_text

LIBRARY_FILE = re.compile(r"libnccl\.so(?:\.\d+)*$")
VERSIONED_FILE = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)$")
# The banner of src/init.cc; in the wheel of 2.27.5 it is at 1.7 MiB of 410 MiB.
BANNER = re.compile(rb"NCCL version (\d+\.\d+\.\d+)\+cuda")
CHUNK_BYTES = 4 * 2**20  # bytes read at once: files have hundreds of MiB
MAX_READ_BYTES = 64 * 2**20  # bytes searched: far more than the banner's position
MAX_FOLDERS = 256  # that are searched of one search path
SYSTEM_FOLDERS = (
    "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/local/cuda/lib64",
)  # fmt: skip


def find_libraries(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Find each libnccl file once: real `path`, `version` ("" if unknown), and how it was `found`.

    `found` is "mapped", "LD_PRELOAD", "torch", "LD_LIBRARY_PATH" or "loader", in the order in which
    the loader would use them.  torch's wheels have an RPATH, which the loader tries before
    LD_LIBRARY_PATH (ld.so(8)).  So the first entry is the most likely.
    """
    by_path: dict[str, dict[str, str]] = {}
    for source, path in _candidate_paths(environment):
        real = os.path.realpath(path)
        if real not in by_path and os.path.isfile(real):
            by_path[real] = {"path": real, "version": version_of(real), "found": source}
    return list(by_path.values())


def _candidate_paths(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for path in mapped_paths(read_text(Path("/proc/self/maps"))):
        yield "mapped", path
    for path in re.split(r"[\s:]+", environment.get("LD_PRELOAD", "")):
        if LIBRARY_FILE.search(path):
            yield "LD_PRELOAD", path
    wheels = [os.path.join(folder, "nvidia", "nccl", "lib") for folder in sys.path]
    env_dirs = re.split("[:;]", environment.get("LD_LIBRARY_PATH", ""))
    sys_dirs = [os.path.join(sys.prefix, "lib"), *SYSTEM_FOLDERS, *_loader_folders()]
    for source, folders in (("torch", wheels), ("LD_LIBRARY_PATH", env_dirs), ("loader", sys_dirs)):
        for folder in [f for f in folders if f][:MAX_FOLDERS]:
            # The loader searches only the soname; libnccl.so is for code that calls dlopen itself.
            yield source, os.path.join(folder, "libnccl.so.2")
            yield source, os.path.join(folder, "libnccl.so")


def mapped_paths(maps: str) -> list[str]:
    """Return the paths of libnccl in a text of the form of /proc/PID/maps, each once."""
    paths = [line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/")]
    paths = [path.removesuffix(" (deleted)") for path in paths]
    return list(dict.fromkeys(path for path in paths if LIBRARY_FILE.search(path)))


def version_of(path: str) -> str:
    """Read the version ("2.28.9") from the file name, else from a banner in the first 64 MiB."""
    if match := VERSIONED_FILE.search(path):
        return match[1]
    try:
        with open(path, "rb") as file:
            return _read_banner(iter(lambda: file.read(CHUNK_BYTES), b""))
    except OSError:
        return ""


def _read_banner(chunks: Iterator[bytes]) -> str:
    tail = b""
    for count, chunk in enumerate(chunks, 1):
        if match := BANNER.search(tail + chunk):
            return match[1].decode()
        if count * CHUNK_BYTES >= MAX_READ_BYTES:
            break
        tail = chunk[-64:]  # the banner may span two chunks
    return ""


def _loader_folders() -> list[str]:
    """Return the folders named in /etc/ld.so.conf.d, where CUDA's packages put theirs."""
    texts = (read_text(path) for path in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")))
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [line for line in lines if line.startswith("/")]
