"""What ranks on a few cores cost each other, with nothing sent between them.  Root on Linux.

`python -m benchmarks.crowding` starts a lab of 8.  Steps as SCALING's, sharded as among 1 to 8
ranks that run at the same time: each for itself, and in step, as collectives keep them.  How much
longer the latter take is the machine's doing, not the network's.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from typing import Any
from unittest.mock import patch

from benchmarks.spread import spread
from reference_trainer.config import TrainConfig
from scaling.decompose import mean_seconds, steps_of
from scaling.ladder import WARM_UP, hushed
from tests.lab.lab import Lab
from tests.lab.node import REPO

RANKS, RUNS, STEPS = (1, 2, 4, 8), 5, 16
CONFIG = TrainConfig(steps=STEPS, pace_s=0.4, digest=False)


def in_step(size: int, config: TrainConfig) -> dict[str, Any]:
    """One of `size` ranks that send nothing, and wait for each other before each clipping."""
    import torch.distributed as dist

    from reference_trainer.world import World

    address, first = os.environ["MASTER_ADDR"], os.environ["RANK"] == "0"
    store = dist.TCPStore(address, int(os.environ["MASTER_PORT"]), size, first)
    numbers = itertools.count()

    def mean(self: World, values: Any) -> Any:
        meeting = f"meeting {next(numbers)}"
        store.add(meeting, 1)
        while store.add(meeting, 0) < size:
            time.sleep(0.0005)
        return values.detach().float().clone()

    with patch.object(World, "mean", mean):
        result = hushed(size, config)
    store.add("left", 1)
    while first and store.add("left", 0) < size:  # it holds the store for the others
        time.sleep(0.01)
    return result


def inside() -> dict[str, dict[int, list[float]]]:
    """Run on node 0: seconds of a step by way and number of ranks, of each run."""
    from probes.cluster import connect

    cluster = connect("auto")
    found: dict[str, dict[int, list[float]]] = {"alone": {}, "in step": {}}
    with closing(cluster), cluster.gang() as gang:
        for _, size in itertools.product(range(RUNS), RANKS):
            ranks = list(range(size))
            for way, work, groups in (
                ("alone", hushed, [[rank] for rank in ranks]),
                ("in step", in_step, [ranks]),
            ):
                results = gang.run(work, size, CONFIG, groups=groups, timeout=120)
                steps = [steps_of(result["spans"])[WARM_UP:] for result in results]
                found[way].setdefault(size, []).append(mean_seconds(steps))
    return found


def main() -> None:
    """The table."""
    lab = Lab("crowding")
    lab.up(8)
    try:
        node = lab.nodes[0]
        done = subprocess.run(
            node.command(sys.executable, "-m", "benchmarks.crowding", "inside", cwd=str(REPO)),
            env={**node.environment(), "PYTHONPATH": str(REPO)},
            capture_output=True, text=True, timeout=1200, check=False,
        )  # fmt: skip
    finally:
        lab.down()
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    for size in map(str, RANKS):
        alone, together = found["alone"][size], found["in step"][size]
        more = [(b - a) * 1e3 for a, b in zip(alone, together, strict=True)]
        print(
            f"{size} ranks: a step alone {spread(alone)} s, in step {spread(together)} s, "
            f"more: {spread(more)} ms"
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["inside"]:
        print(json.dumps(inside()))
    else:
        main()
