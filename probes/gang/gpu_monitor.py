"""On real GPUs: which of them processes use, looked at on each node while gangs compete.

Ray counts what was asked for, NVML sees what is used; what differs will be given away twice.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from probes.cluster.cluster import Cluster
from probes.cluster.node_affinity import pinned
from probes.cluster.node_facts import gpus, gpus_in_use, nvml_ready

PAUSE = 0.2  # s from one look to the next: NVML takes some ms for each GPU
STALE = 2.0  # s after which what was seen counts no more: NVML hangs where a GPU is lost
Uses = dict[str, list[int]]  # UUID of a GPU that is in use, and the ids of its processes


class GpuEye:
    """One node's GPUs, looked at in a thread of its own.  A Ray actor."""

    def __init__(self, counted: int) -> None:
        self._counted = counted  # by Ray
        self._at, self._uses = time.monotonic(), dict[str, list[int]]()
        self._blind = "NVML has not answered yet"
        threading.Thread(target=self._watch, daemon=True).start()

    def uses(self) -> Uses | str:
        """What is in use by the last look; words where NVML does not tell."""
        old = time.monotonic() - self._at
        return self._blind or (f"NVML hangs since {old:.0f} s" if old > STALE else self._uses)

    def _watch(self) -> None:
        nvml_ready()  # or each look would start the driver anew, where it does not persist
        others: str | None = None
        while True:
            try:
                others = self._others(len(gpus())) if others is None else others
                self._uses, self._blind = gpus_in_use(), others
            except Exception as error:  # noqa: BLE001  (whatever it is, the probe must be told)
                self._blind = f"NVML: {error}"
            self._at = time.monotonic()
            time.sleep(PAUSE)

    def _others(self, seen: int) -> str:
        """That some of the machine's GPUs are not this cluster's: nobody knows which."""
        return f"NVML sees {seen} GPUs, Ray {self._counted}" if seen > self._counted else ""


class Squatter:
    """Uses a GPU that it never asked Ray for.  A Ray actor of no GPUs; needs torch."""

    def sit(self, uuid: str) -> None:
        """Have a context and some memory on this GPU of its node."""
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        import torch

        self._memory = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")


class GpuEyes:
    """The probe's end: an eye on each node that has GPUs."""

    def __init__(self, cluster: Cluster) -> None:
        self._eyes = {
            node["name"]: pinned(GpuEye, node["id"]).remote(int(node["resources"]["GPU"]))
            for node in cluster.nodes
            if node["resources"].get("GPU")
        }
        self._asked: dict[Any, str] = {}
        self._known: dict[str, Uses | str] = {}
        self._heard = dict.fromkeys(self._eyes, time.monotonic())
        self._last = 0.0

    def look(self) -> dict[str, Uses | str] | None:
        """The last that is known of each node, by name; waits for nobody.  None: too soon."""
        import ray

        now = time.monotonic()
        if now < self._last + PAUSE:
            return None
        self._last = now
        for node in set(self._eyes) - set(self._asked.values()):
            self._asked[self._eyes[node].uses.remote()] = node
        done, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for call in done:
            node = self._asked.pop(call)
            self._heard[node] = now
            try:
                self._known[node] = ray.get(call)
            except ray.exceptions.RayError as error:
                self._known[node] = f"its observer died: {type(error).__name__}"
        if not self._known:
            return None  # nobody has started yet
        silent = {node for node, heard in self._heard.items() if now - heard > STALE}
        return {
            node: f"it does not answer for {STALE:g} s" if node in silent else self._known[node]
            for node in self._eyes
            if node in silent or node in self._known
        }

    def close(self) -> None:
        """End the eyes."""
        import ray

        for eye in self._eyes.values():
            ray.kill(eye)
