"""Monitors which real GPUs processes use, on each node, while gangs compete.

Ray counts what jobs asked for; NVML shows what processes use. If the two differ, Ray will give a
used GPU away a second time.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from probes.cluster.cluster import Cluster
from probes.cluster.node_affinity import on_node
from probes.cluster.nvml import gpus_in_use, list_gpus, start_nvml

PAUSE = 0.2  # s between two samples: NVML needs some ms for each GPU
START_SECONDS = 60.0  # for NVML's first answer: 1 to 2 s per GPU without persistence mode
STALE = 2.0  # s after which a sample is outdated: NVML hangs if a GPU is lost
GpuProcesses = dict[str, list[int]]  # UUID of a GPU in use -> ids of its processes


class GpuMonitor:
    """Ray actor that samples the GPUs of one node in a background thread."""

    def __init__(self, ray_gpus: int) -> None:
        self._ray_gpus = ray_gpus  # that Ray counts on this node
        self._sampled_at, self._uses = time.monotonic(), dict[str, list[int]]()
        self._error = "NVML has not answered yet"
        threading.Thread(target=self._poll, daemon=True).start()

    def uses(self) -> GpuProcesses | str:
        """Return the GPUs in use at the last sample, or a text if NVML has no data."""
        age_s = time.monotonic() - self._sampled_at
        return self._error or (f"NVML hangs since {age_s:.0f} s" if age_s > STALE else self._uses)

    def _poll(self) -> None:
        start_nvml()  # otherwise, without persistence mode, each sample starts the driver
        mismatch: str | None = None
        while True:
            try:
                mismatch = self._count_mismatch(len(list_gpus())) if mismatch is None else mismatch
                self._uses, self._error = gpus_in_use(), mismatch
            except Exception as error:  # noqa: BLE001  (any error must reach the probe)
                self._error = f"NVML: {error}"
            self._sampled_at = time.monotonic()
            time.sleep(PAUSE)

    def _count_mismatch(self, nvml: int) -> str:
        """Return a text if NVML sees more GPUs than Ray: it is unknown which are Ray's."""
        return f"NVML sees {nvml} GPUs, Ray {self._ray_gpus}" if nvml > self._ray_gpus else ""


class UnregisteredGpuUser:
    """Ray actor that owns no GPU and uses one that it never asked Ray for. It needs torch."""

    def allocate(self, uuid: str) -> None:
        """Create a CUDA context and allocate 256 MiB on this GPU of the actor's node."""
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        import torch

        self._memory = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")


class GpuMonitors:
    """The monitors of all nodes that have GPUs, as the probe reads them."""

    def __init__(self, cluster: Cluster) -> None:
        self._monitors = {
            node["name"]: on_node(GpuMonitor, node["id"]).remote(int(node["resources"]["GPU"]))
            for node in cluster.nodes
            if node["resources"].get("GPU")
        }
        self._pending: dict[Any, str] = {}
        self._latest: dict[str, GpuProcesses | str] = {}
        self._answered_at = dict.fromkeys(self._monitors, time.monotonic())
        self._last_poll = 0.0

    def poll(self) -> dict[str, GpuProcesses | str] | None:
        """Return the last known use of each node's GPUs by node name, without waiting.

        None if the last call was less than PAUSE ago, or if no monitor has answered yet.
        """
        import ray

        now = time.monotonic()
        if now < self._last_poll + PAUSE:
            return None
        self._last_poll = now
        for node in set(self._monitors) - set(self._pending.values()):
            self._pending[self._monitors[node].uses.remote()] = node
        done, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        for call in done:
            node = self._pending.pop(call)
            self._answered_at[node] = now
            try:
                self._latest[node] = ray.get(call)
            except ray.exceptions.RayError as error:
                self._latest[node] = f"its observer died: {type(error).__name__}"
        if not self._latest:
            return None  # no monitor has answered yet
        silent = {node for node, last in self._answered_at.items() if now - last > STALE}
        return {
            node: f"it has not answered for {STALE:g} s" if node in silent else self._latest[node]
            for node in self._monitors
            if node in silent or node in self._latest
        }

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until each node has been sampled once, but at most `seconds`.

        For a node that has not answered by then, the samples give the reason.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            looks = self.poll() or {}
            if len(looks) == len(self._monitors) and not any(
                isinstance(use, str) for use in looks.values()
            ):
                return
            time.sleep(PAUSE)

    def close(self) -> None:
        """End the monitors."""
        import ray

        for monitor in self._monitors.values():
            ray.kill(monitor)
