"""Another person's job: holds some GPUs, or takes them and gives them back all the time.

python unrelated_job.py SIZE [SECONDS]; answers each line of input with what its gang is now.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any


def take(size: int) -> Any:
    """A gang that is placed."""
    import ray

    group = ray.util.placement_group([{"GPU": 1}] * size)
    assert group.wait(60)
    return group


def come_and_go(size: int, seconds: float) -> None:
    """Hold it for so long, be without for so long, for ever."""
    import ray

    while True:
        group = take(size)
        time.sleep(seconds)
        ray.util.remove_placement_group(group)
        time.sleep(seconds)


def main(size: int, seconds: float = 0.0) -> None:
    """Serve until the input ends."""
    import ray

    ray.init("auto", logging_level="error")
    group = take(size)
    if seconds:
        ray.util.remove_placement_group(group)
        threading.Thread(target=come_and_go, args=(size, seconds), daemon=True).start()
    print("there", flush=True)
    for _ in sys.stdin:
        table = ray.util.placement_group_table(group)
        print(table["state"], len(table["bundles_to_node_id"]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(float, sys.argv[2:3]))
