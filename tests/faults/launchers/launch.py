"""The trainer's own launcher, run in the lab as a user would: on node 0, over all nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from probes.launch.training import COORDINATOR
from reference_trainer.config import TrainConfig, cli_options
from tests.lab.lab import Lab
from tests.lab.node import SHARED
from tests.support.paths import REPO

PATIENCE_SECONDS = 240
SWEEP = """
import contextlib, sys, ray
ray.init("auto", log_to_driver=False)
with contextlib.suppress(ValueError):
    ray.kill(ray.get_actor(sys.argv[1], namespace=sys.argv[1]))
"""


@contextmanager
def launched(lab: Lab, name: str, config: TrainConfig, *words: str) -> Iterator[Path]:
    """A job of all nodes, with its folder as the host sees it; waits for its end."""
    inside, home = f"{SHARED}/{name}", lab.home / "shared" / name
    home.mkdir(parents=True)
    config = replace(config, out=f"{inside}/out", checkpoints=f"{inside}/checkpoints")
    head, log = lab.nodes[0], home / "said.txt"
    command = [*["-m", "reference_trainer", "launch", "--name"], name, *words, *cli_options(config)]
    with log.open("w") as said:
        child = subprocess.Popen(
            head.command(sys.executable, *command, cwd=str(REPO)),
            env=head.environment(),
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield home / "out"
        if child.wait(timeout=PATIENCE_SECONDS):
            raise RuntimeError(f"{name} failed: {log.read_text()[-2000:]}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if "ray-train" in words:
            head.run(sys.executable, "-c", SWEEP, COORDINATOR)
