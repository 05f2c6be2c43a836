"""Control of GPU health: NVML reports a sick GPU, in a worker of a node, by the same queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probes.acceptance.measure import Recorder, Trial
from probes.cluster.cluster import Cluster
from probes.cluster.facts.gpu_health import read_gpu_health
from probes.cluster.nvml import INVALID_ARGUMENT, UNKNOWN, import_nvml, read_gpus
from probes.hosts.closing import judge_gpu_changes
from probes.hosts.gpu_checks import WHOLE_NODE, Fleet
from probes.hosts.gpu_health import judge_node_health
from probes.hosts.gpu_wear import judge_wear
from probes.hosts.xids import judge_xids, read_planted_xid

Facts = Mapping[str, Any]
Answers = Mapping[str, Callable[..., Any]]
NODE_REBOOT, HARDWARE_THERMAL, PROHIBITED, IN_PROGRESS = 2, 0x40, 2, 2  # codes of nvml.h
LINKS = 18  # NVLinks of an H100; the first of the sick GPU is inactive


def _ask_for_reboot(nvml: Any, _: Any) -> Any:
    values = (nvml.c_nvmlFieldValue_t * 1)()
    values[0].value.uiVal = NODE_REBOOT
    return values


def _keep_links(nvml: Any, link: int) -> int:
    if link >= LINKS:
        raise nvml.NVMLError(INVALID_ARGUMENT)
    return 1


def _lose_first_link(nvml: Any, link: int) -> int:
    return _keep_links(nvml, link) if link else 0


def _register_for_ever(_: Any, info: Any) -> None:
    info._obj.state = IN_PROGRESS  # `info` is ctypes.byref of the structure


def _lose_time(nvml: Any, _: Any) -> Any:
    status = nvml.c_nvmlViolationTime_t()
    status.violationTime = 2**62  # ns: more than any run lasts
    return status


def _recover_links(nvml: Any, fields: Sequence[tuple[int, int]]) -> Any:
    """Answer as a Blackwell, which counts recoveries of its NVLinks in a field."""
    recoveries = getattr(nvml, "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", None)
    values = (nvml.c_nvmlFieldValue_t * len(fields))()
    for value, (field, _) in zip(values, fields, strict=True):
        value.value.ullVal = 2**31 if field == recoveries else 0
    return values


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
    "nvmlDeviceGetNvLinkState": _lose_first_link,
    "nvmlDeviceGetGpuFabricInfoV": _register_for_ever,
    "nvmlDeviceGetMigMode": lambda nvml: [0, 0],  # MIG trains links of an A100 off
    "nvmlDeviceGetComputeMode": lambda nvml: PROHIBITED,
    "nvmlDeviceGetPersistenceMode": _fail,
}


# What it answers for a GPU whose counters have gained much since the run began.
WORN_ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetPcieReplayCounter": lambda nvml: 2**31,
    "nvmlDeviceGetViolationStatus": _lose_time,
    "nvmlDeviceGetNvLinkState": _keep_links,
    "nvmlDeviceGetNvLinkErrorCounter": lambda nvml, *_: 2**31,
    "nvmlDeviceGetFieldValues": _recover_links,
    "nvmlDeviceGetTotalEccErrors": lambda nvml, *_: 2**31,
}
# Calls that some boards lack: the sick GPU lacks them too, so that the control takes its real way.
ASKED_FIRST = {"nvmlDeviceGetNvLinkErrorCounter"}


class SickNvml:
    """NVML's module; for the GPU `index` it gives other answers."""

    def __init__(self, nvml: Any, index: int, answers: Answers = SICK_ANSWERS) -> None:
        self._nvml, self._index, self._answers, self._sick = nvml, index, answers, None

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._nvml, name)
        if name == "nvmlDeviceGetHandleByIndex":
            return self._get_handle
        if name not in self._answers:
            return call

        def answer(gpu: Any, *arguments: Any) -> Any:
            if gpu is not self._sick:
                return call(gpu, *arguments)
            if name in ASKED_FIRST:
                call(gpu, *arguments)  # raises where the board lacks it
            return self._answers[name](self._nvml, *arguments)

        return answer

    def _get_handle(self, index: int) -> Any:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        if index == self._index:
            self._sick = handle
        return handle


class ShortNvml:
    """NVML's module, which no longer lists the last GPU."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._nvml, name)
        return (lambda: call() - 1) if name == "nvmlDeviceGetCount" else call


def read_sick_health(index: int) -> dict[str, Any]:
    """Read this node's GPU health; the GPU `index` answers as a sick one."""
    return read_gpu_health(SickNvml(import_nvml(), index))


def read_worn_health(index: int) -> dict[str, Any]:
    """Read this node's GPU health; the counters of the GPU `index` are very high."""
    return read_gpu_health(SickNvml(import_nvml(), index, WORN_ANSWERS))


def read_fewer_gpus(_: int) -> list[dict[str, Any]]:
    """List this node's GPUs without the last."""
    gpus: list[dict[str, Any]] = read_gpus(nvml=ShortNvml(import_nvml()))["gpus"]
    return gpus


def control_sick_gpu(
    cluster: Cluster, facts: Sequence[Facts], victim: Facts, measure: Recorder, name: str
) -> None:
    """Check that each fault that NVML may report of a GPU is detected, on the node that has it."""
    text = "NVML on {} reports GPU {} as sick in each way"
    if told := _ask_victim(cluster, read_sick_health, victim, measure, name, text):
        fault, index, health = told
        sick = {**victim, "gpu_health": health}
        others = [fact for fact in facts if fact["node"] != victim["node"]]
        trial = measure.trial()
        judge_node_health(sick, Fleet.of([*others, sick]), trial)
        # A GPU of a smaller node may have any number of links: it is compared with others.
        without = set() if len(health["boards"]) >= WHOLE_NODE else {"nvlinks_down"}
        measure.control(name, fault, trial, located=names_gpu(trial, index), without=without)


def control_worn_gpu(
    cluster: Cluster, before: Sequence[Facts], victim: Facts, measure: Recorder
) -> None:
    """Check that counters that gained much are detected, on the GPU that has them."""
    text = "NVML on {} reports time lost to heat and many errors of GPU {}"
    if told := _ask_victim(cluster, read_worn_health, victim, measure, "worn GPU", text):
        fault, index, health = told
        trial = measure.trial()
        judge_wear(before, [{**victim, "gpu_health": health}], trial)
        measure.control("worn GPU", fault, trial, located=names_gpu(trial, index))


def control_vanished_gpu(
    cluster: Cluster, before: Sequence[Facts], victim: Facts, measure: Recorder
) -> None:
    """Check that a GPU that NVML no longer lists is detected."""
    text = "NVML on {} no longer lists GPU {}"
    if told := _ask_victim(cluster, read_fewer_gpus, victim, measure, "vanished GPU", text):
        fault, _, gpus = told
        trial = measure.trial()
        judge_gpu_changes(before, [{**victim, "gpus": gpus}], trial)
        measure.control("vanished GPU", fault, trial)


def control_fallen_gpu(cluster: Cluster, victim: Facts, measure: Recorder) -> None:
    """Check that an Xid of a GPU is heard and detected."""
    text = "NVML on {} reports Xid 79 of GPU {}"
    if told := _ask_victim(cluster, read_planted_xid, victim, measure, "fallen GPU", text):
        fault, index, heard = told
        trial = measure.trial()
        judge_xids({victim["name"]: heard}, {}, [], trial)
        measure.control("fallen GPU", fault, trial, located=names_gpu(trial, index))


def _ask_victim(
    cluster: Cluster,
    read: Callable[[int], Any],
    victim: Facts,
    measure: Recorder,
    name: str,
    text: str,
) -> tuple[str, int, Any] | None:
    """Ask the victim with a fault of its last GPU: (fault, its index, answer); None without one."""
    boards = victim["gpu_health"]["boards"]
    index = boards[-1]["index"] if boards else 0
    fault = text.format(victim["name"], index)
    told = cluster.on_each_node(read, each={victim["node"]: index})
    if victim["node"] in told:
        return fault, index, told[victim["node"]]
    measure.control(name, fault, None, saw=f"{victim['name']} does not answer")
    return None


def names_gpu(trial: Trial, index: int) -> bool:
    """Return whether each finding names the GPU."""
    return all(f"GPU {index} " in one.statement for one in trial.findings)
