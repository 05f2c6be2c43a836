"""Runs system tools, and turns each of their failures into one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
COMPILER = {"cc": "gcc libc6-dev"}


class LabError(RuntimeError):
    """Raised by the lab with one sentence: what was expected, what was found, what to do."""


def sh(*command: str, quiet: bool = False, text: str | None = None, seconds: float = 60) -> str:
    """Run a tool and return its standard output.

    `quiet` accepts a failure, to remove things that may be absent. Raises LabError otherwise.
    """
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(command)}` did not end within {seconds:.0f} s") from None
    if done.returncode and not quiet:
        raise LabError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def require_machine(compiler: bool = False) -> None:
    """Raise LabError unless this is Linux, we are root, and the tools are installed."""
    hint = "; without it use `pytest probes --cluster local:4`, which needs none of this"
    if not sys.platform.startswith("linux"):
        raise LabError(f"the lab needs Linux namespaces, this is {sys.platform}{hint}")
    if os.geteuid() != 0:
        raise LabError(f"the lab needs root to make network namespaces, you are not root{hint}")
    tools = {**TOOLS, **(COMPILER if compiler else {})}
    missing = sorted({package for tool, package in tools.items() if not shutil.which(tool)})
    if missing:
        raise LabError(f"the lab needs `apt-get install {' '.join(missing)}`{hint}")
    try:
        sh("unshare", "-n", "true")
    except LabError as refused:
        raise LabError(f"this machine refuses network namespaces ({refused}){hint}") from None
