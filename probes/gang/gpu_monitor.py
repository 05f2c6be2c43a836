"""On real GPUs: which of them processes use, looked at on each node while gangs compete.

Ray counts what was asked for, NVML sees what is used; what differs will be given away twice.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from probes.cluster.cluster import Cluster
from probes.cluster.node_affinity import on_node
from probes.cluster.nvml import gpus_in_use, list_gpus, start_nvml

PAUSE = 0.2  # s from one look to the next: NVML takes some ms for each GPU
START_SECONDS = 60.0  # for NVML's first answer: 1 to 2 s a GPU without persistence mode
STALE = 2.0  # s after which what was seen counts no more: NVML hangs where a GPU is lost
GpuProcesses = dict[str, list[int]]  # UUID of a GPU that is in use, and the ids of its processes


class GpuMonitor:
    """One node's GPUs, looked at in a thread of its own.  A Ray actor."""

    def __init__(self, ray_gpus: int) -> None:
        self._ray_gpus = ray_gpus  # by Ray
        self._sampled_at, self._uses = time.monotonic(), dict[str, list[int]]()
        self._error = "NVML has not answered yet"
        threading.Thread(target=self._poll, daemon=True).start()

    def uses(self) -> GpuProcesses | str:
        """What is in use by the last look; words where NVML does not tell."""
        age_s = time.monotonic() - self._sampled_at
        return self._error or (f"NVML hangs since {age_s:.0f} s" if age_s > STALE else self._uses)

    def _poll(self) -> None:
        start_nvml()  # or each look would start the driver anew, where it does not persist
        mismatch: str | None = None
        while True:
            try:
                mismatch = self._count_mismatch(len(list_gpus())) if mismatch is None else mismatch
                self._uses, self._error = gpus_in_use(), mismatch
            except Exception as error:  # noqa: BLE001  (whatever it is, the probe must be told)
                self._error = f"NVML: {error}"
            self._sampled_at = time.monotonic()
            time.sleep(PAUSE)

    def _count_mismatch(self, nvml: int) -> str:
        """That some of the machine's GPUs are not this cluster's: nobody knows which."""
        return f"NVML sees {nvml} GPUs, Ray {self._ray_gpus}" if nvml > self._ray_gpus else ""


class UnregisteredGpuUser:
    """Uses a GPU that it never asked Ray for.  A Ray actor of no GPUs; needs torch."""

    def allocate(self, uuid: str) -> None:
        """Have a context and some memory on this GPU of its node."""
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        import torch

        self._memory = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")


class GpuMonitors:
    """The probe's end: a monitor on each node that has GPUs."""

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
        """The last that is known of each node, by name; waits for nobody.  None: too soon."""
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
            return None  # nobody has started yet
        silent = {node for node, last in self._answered_at.items() if now - last > STALE}
        return {
            node: f"it does not answer for {STALE:g} s" if node in silent else self._latest[node]
            for node in self._monitors
            if node in silent or node in self._latest
        }

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Return when each node has been looked at once, or after so many seconds.

        A node that has not answered by then is told by its samples.
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
