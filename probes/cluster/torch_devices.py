"""Counts the devices that torch sees on a node: all, and those of a worker that owns one GPU.

Each count has a process of its own: a process keeps its first answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

# Ray assigns a GPU to a worker by one of these: NVIDIA's, and AMD's two.
ASSIGNMENT = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# The CUDA runtime's own answer: torch.cuda.device_count() asks NVML, which is a separate source.
SCRIPT = "import torch; print(getattr(torch._C, '_cuda_getDeviceCount', int)())"
COUNT_SECONDS = 60  # torch from a cold network file system; the calling task has 90 s


def count_torch_devices() -> dict[str, int | str]:
    """Count {"all", "assigned"}, or return why not as {"error"}.  Runs in a worker with one GPU."""
    everything = {key: value for key, value in os.environ.items() if key not in ASSIGNMENT}
    started = {"all": _start_count(everything), "assigned": _start_count(os.environ)}
    counts: dict[str, int | str] = {}
    for name, process in started.items():
        try:
            stdout, stderr = process.communicate(timeout=COUNT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            counts["error"] = f"torch did not start within {COUNT_SECONDS} s"
            continue
        if process.returncode:
            counts["error"] = (stderr.strip().splitlines() or ["torch did not start"])[-1]
        else:
            counts[name] = int(stdout.split()[-1])
    return counts


def _start_count(environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
