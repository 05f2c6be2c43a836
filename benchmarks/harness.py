"""A benchmark's part that runs on node 0 of a lab."""

from __future__ import annotations

import subprocess
import sys

from tests.lab.lab import Lab
from tests.lab.node import REPO


def on_node(lab: Lab, module: str, *words: str, seconds: float) -> str:
    """What `python -m module words...` prints there.  RuntimeError where it fails."""
    node = lab.nodes[0]
    done = subprocess.run(
        node.command(sys.executable, "-m", module, *words, cwd=str(REPO)),
        env={**node.environment(), "PYTHONPATH": str(REPO)},
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout
