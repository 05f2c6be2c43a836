"""Asks NVML about a GPU while it works: an idle PCIe link is slower, and so is an idle clock."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

from probes.cluster.nvml import UNKNOWN_CALL

# NVML's maximum is what both the GPU and its slot can do.
QUESTIONS: dict[str, Callable[[Any, Any], int]] = {
    "generation": lambda nvml, gpu: int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
    "most_generation": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
    "width": lambda nvml, gpu: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
    "most_width": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
    "sm_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
    "most_sm_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)),
}


def watch_link(
    nvml: Any, gpu: Any, work: Callable[[], None], wait: Callable[[], None], seconds: float
) -> dict[str, int]:
    """Ask NVML about the GPU while it works: the best link, and the median clock, in MHz.

    `work` gives the GPU some milliseconds of work and returns at once; `wait` waits for its end.
    What the GPU or its driver does not support is left out.  Raises NVMLError for other errors.
    """
    answers = defaultdict[str, list[int]](list)
    began = time.perf_counter()
    while not answers or time.perf_counter() - began < seconds:
        work()
        for name, question in QUESTIONS.items():
            try:
                answers[name].append(question(nvml, gpu))
            except nvml.NVMLError as error:
                if error.value not in UNKNOWN_CALL:
                    raise
        wait()
    return {
        name: int(median(values)) if name == "sm_mhz" else max(values)
        for name, values in answers.items()
        if values
    }
