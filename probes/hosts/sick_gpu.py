"""Control of GPU health: NVML reports a sick GPU, in a worker of a node, by the same queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.facts.gpu_health import read_gpu_health
from probes.cluster.nvml import INVALID_ARGUMENT, UNKNOWN, import_nvml
from probes.hosts.gpu_health import add_rates, judge_node_health, usual_links

Facts = Mapping[str, Any]
NODE_REBOOT, HARDWARE_THERMAL, PROHIBITED, IN_PROGRESS = 2, 0x40, 2, 2  # codes of nvml.h
LINKS = 18  # NVLinks of an H100; the first of the sick GPU is inactive


def _ask_for_reboot(nvml: Any, _: Any) -> Any:
    values = (nvml.c_nvmlFieldValue_t * 1)()
    values[0].value.uiVal = NODE_REBOOT
    return values


def _lose_first_link(nvml: Any, link: int) -> int:
    if link >= LINKS:
        raise nvml.NVMLError(INVALID_ARGUMENT)
    return int(link > 0)


def _register_for_ever(_: Any, info: Any) -> None:
    info._obj.state = IN_PROGRESS  # `info` is ctypes.byref of the structure


def _lose_time(nvml: Any, _: Any) -> Any:
    status = nvml.c_nvmlViolationTime_t()
    status.violationTime = 2**62  # ns: more than any run lasts
    return status


def _fail(nvml: Any) -> int:
    raise nvml.NVMLError(UNKNOWN)


# NVML's call -> what it answers for the sick GPU, from the module and the call's other arguments.
SICK_ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetName": lambda nvml: "NVIDIA H100 80GB HBM3",  # a board with all links connected
    "nvmlDeviceGetFieldValues": _ask_for_reboot,
    "nvmlDeviceGetEccMode": lambda nvml: [0, 0],  # off, now and after a reboot
    "nvmlDeviceGetDefaultEccMode": lambda nvml: [1],
    "nvmlDeviceGetTotalEccErrors": lambda nvml, *_: 1,
    "nvmlDeviceGetRemappedRows": lambda nvml: (0, 1, 1, 0),  # a row waits
    "nvmlDeviceGetCurrentClocksEventReasons": lambda nvml: HARDWARE_THERMAL,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda nvml: 700_000,  # mW
    "nvmlDeviceGetEnforcedPowerLimit": lambda nvml: 7_000,  # mW; a contract agrees on more than 1 %
    "nvmlDeviceGetMaxPcieLinkWidth": lambda nvml: 16,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda nvml: 1,
    "nvmlDeviceGetPcieReplayCounter": lambda nvml: 2**31,
    "nvmlDeviceGetViolationStatus": _lose_time,
    "nvmlDeviceGetNvLinkState": _lose_first_link,
    "nvmlDeviceGetGpuFabricInfoV": _register_for_ever,
    "nvmlDeviceGetComputeMode": lambda nvml: PROHIBITED,
    "nvmlDeviceGetPersistenceMode": _fail,
}


class SickNvml:
    """NVML's module; for the GPU `index` it gives SICK_ANSWERS."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self._index, self._sick = nvml, index, None

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._nvml, name)
        if name == "nvmlDeviceGetHandleByIndex":
            return self._get_handle
        if name not in SICK_ANSWERS:
            return call
        return lambda gpu, *arguments: (
            SICK_ANSWERS[name](self._nvml, *arguments)
            if gpu is self._sick
            else call(gpu, *arguments)
        )

    def _get_handle(self, index: int) -> Any:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        if index == self._index:
            self._sick = handle
        return handle


def read_sick_health(index: int) -> dict[str, Any]:
    """Read this node's GPU health; the GPU `index` answers as a sick one."""
    return read_gpu_health(SickNvml(import_nvml(), index))


def control_sick_gpu(
    cluster: Cluster,
    facts: Sequence[Facts],
    measure: Recorder,
    name: str = "sick GPU",
    before: Sequence[Facts] = (),
) -> None:
    """Check that each fault that NVML may report of a GPU is detected, on the node that has it.

    `before` are facts from the start of the run, for what the sick GPU has gained since.
    """
    victim = facts[-1]
    boards = victim["gpu_health"]["boards"]
    index = boards[-1]["index"] if boards else 0
    fault = f"NVML on {victim['name']} reports GPU {index} as sick in each way"
    told = cluster.on_each_node(read_sick_health, each={victim["node"]: index})
    if victim["node"] not in told:
        measure.control(name, fault, None, saw=f"{victim['name']} does not answer")
        return
    (sick,) = add_rates([{**victim, "gpu_health": told[victim["node"]]}], before)
    trial = measure.trial()
    judge_node_health(sick, usual_links([*facts[:-1], sick]), trial)
    without = {"nvlinks_down"} if len(boards) == 1 else set()  # a single GPU may have no links
    measure.control(name, fault, trial, without=without)
