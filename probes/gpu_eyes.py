"""On real GPUs: which of them processes use, looked at on each node while gangs compete.

Ray counts what was asked for, NVML sees what is used; what differs will be given away twice.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from probes.cluster import Cluster
from probes.facts import gpus_in_use
from probes.pinned import pinned

PAUSE = 0.2  # s from one look to the next: NVML takes some ms for each GPU
Uses = dict[str, list[int]]  # UUID of a GPU that is in use, and the ids of its processes


class GpuEye:
    """One node's GPUs, looked at in a thread of its own.  A Ray actor."""

    def __init__(self) -> None:
        self._uses: Uses | str = "it has not looked yet"
        threading.Thread(target=self._watch, daemon=True).start()

    def uses(self) -> Uses | str:
        """What is in use by the last look; words where NVML does not tell."""
        return self._uses

    def _watch(self) -> None:
        while True:
            try:
                self._uses = gpus_in_use()
            except Exception as error:  # noqa: BLE001  (whatever it is, the probe must be told)
                self._uses = f"NVML: {error}"
            time.sleep(PAUSE)


class Squatter:
    """Uses a GPU that it never asked Ray for.  A Ray actor of no GPUs; needs torch."""

    def sit(self) -> None:
        """Have a context and some memory on the node's first GPU."""
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # Ray hides them all from who asked for none
        import torch

        self._memory = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")


class GpuEyes:
    """The probe's end: an eye on each node that has GPUs."""

    def __init__(self, cluster: Cluster) -> None:
        with_gpus = [node for node in cluster.nodes if node["resources"].get("GPU")]
        self._eyes = {node["name"]: pinned(GpuEye, node["id"]).remote() for node in with_gpus}
        self._asked: dict[Any, str] = {}
        self._known: dict[str, Uses | str] = dict.fromkeys(self._eyes, "it does not answer")

    def look(self) -> dict[str, Uses | str]:
        """The last that is known of each node, by name; waits for nobody."""
        import ray

        for node in set(self._eyes) - set(self._asked.values()):
            self._asked[self._eyes[node].uses.remote()] = node
        done, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for call in done:
            node = self._asked.pop(call)
            try:
                self._known[node] = ray.get(call)
            except ray.exceptions.RayError as error:
                self._known[node] = f"its observer died: {type(error).__name__}"
        return dict(self._known)

    def close(self) -> None:
        """End the eyes."""
        import ray

        for eye in self._eyes.values():
            ray.kill(eye)
