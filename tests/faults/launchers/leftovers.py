"""What a run has left on the lab: groups, actors, processes, files.  It must be nothing."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.support.paths import REPO

LEFTOVERS = REPO / "tests" / "lab" / "held_resources.py"
OURS = ("ray::", "job_driver.py", "cleanup.py", "embedded.py", "pytest", "reference_trainer")

RAYS_OWN = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


def leftovers(node: Node) -> dict[str, Any]:
    """What Ray still holds: placement groups, actors, accelerators that are not free."""
    said = node.run(sys.executable, str(LEFTOVERS)).splitlines()
    # Ray's core may log a line of its own beside ours while nodes die.
    return dict(json.loads(next(line for line in reversed(said) if line.startswith("{"))))


def processes(lab: Lab) -> list[str]:
    """Command lines of our processes on any node; Ray's own and the observer's are not ours."""
    found = []
    for node in lab.nodes:
        for pid in node.group.pids():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            line = b" ".join(words).decode("utf-8", "replace")
            rays_own = line.startswith(RAYS_OWN) or "site-packages/ray/" in line
            if any(word in line for word in OURS) and not rays_own:
                found.append(f"{node.name}: {line[:120]}")
    return found


def files(lab: Lab) -> list[str]:
    """Our temporary files, on the shared folder and in any node's /tmp."""
    found = [str(path) for path in (lab.home / "shared").glob(".seatrial*")]
    for node in lab.nodes:
        found += node.run(
            "sh", "-c", "ls -d /tmp/*seatrial* /tmp/sea-* 2>/dev/null || true"
        ).split()
    return found


def nothing_left(lab: Lab, seconds: float = 15) -> None:
    """Assert that all is gone within `seconds`; says what is left otherwise."""
    deadline = time.monotonic() + seconds
    while True:
        ray, ours, temporary = leftovers(lab.nodes[0]), processes(lab), files(lab)
        if not (ray["groups"] or ray["actors"] or ray["gpus"] or ours or temporary):
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left after {seconds:.0f} s: {ray} {ours} {temporary}")
        time.sleep(0.5)  # each look takes as long
