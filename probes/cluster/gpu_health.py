"""Reads from NVML what the driver knows about the health of a node's GPUs.

All queries only read, and an ordinary user may make them.  A board is asked as a whole, also in MIG
mode.  NVML's manual explains each query: docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from probes.cluster.nvml import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
    NVML_SECONDS,
    UNKNOWN_CALL,
    GpuEntry,
    ask_in_time,
    ask_nvml,
    describe_error,
    identify_gpus,
    to_text,
)
from probes.cluster.system_facts import read_text

UNCORRECTED, SINCE_DRIVER_LOADED, IN_LIFETIME = 1, 0, 1  # nvmlMemoryErrorType_t, counter types
THERMAL = 1  # nvmlPerfPolicyType_t: how long heat has slowed the clocks, in ns
SUCCESS = 0
# Addresses of the kernel are as 0000:9b:00.0; NVML's domain has four digits more.
PCI_SYSFS, PCI_LENGTH = "/sys/bus/pci/devices", 12

Query = Callable[[Any, Any], Any]  # NVML and a GPU's handle -> the answer


def read_gpu_health(nvml: Any = None, seconds: float = NVML_SECONDS) -> dict[str, Any]:
    """Read {"error": None, "boards": [...], "clock": s} within `seconds`.

    `error` is as in `read_gpus`, and `clock` counts seconds since the node's start.

    A board has `index`, `uuid`, `slot` (PCI address) and the answers of QUERIES by name.
    `unsupported` lists the queries that the board or its driver does not know.  `failed` maps a
    query, or "GPU" for all of them, to {"code", "text"}.  `nvml` replaces the module in a control.
    """
    answer = ask_in_time(lambda: ask_nvml(_read_boards, nvml), seconds)
    error = answer["nvml"]["error"]
    return {"error": error, "boards": answer["gpus"], "clock": time.monotonic()}


def read_gpus_and_health(seconds: float = NVML_SECONDS) -> dict[str, Any]:
    """Read `nvml` and `gpus` as `read_gpus`, and `gpu_health`, in one start of NVML.

    A second start may last as long as the first, where persistence mode is off.
    """

    def ask(nvml: Any) -> list[dict[str, Any]]:
        return [{"gpus": identify_gpus(nvml), "boards": _read_boards(nvml)}]

    answer = ask_in_time(lambda: ask_nvml(ask), seconds)
    (both,) = answer["gpus"] or [{"gpus": [], "boards": []}]
    nvml = answer["nvml"]
    health = {"error": nvml["error"], "boards": both["boards"], "clock": time.monotonic()}
    return {"nvml": nvml, "gpus": both["gpus"], "gpu_health": health}


def _read_boards(nvml: Any) -> list[GpuEntry]:
    return [_read_board(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]


def _read_board(nvml: Any, index: int) -> GpuEntry:
    board: GpuEntry = {"index": index, "uuid": "", "slot": "", "unsupported": [], "failed": {}}
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        board["failed"]["GPU"] = describe_error(error)
        return board
    for name, query in QUERIES.items():
        try:
            board[name] = query(nvml, gpu)
        except nvml.NVMLError as error:
            if error.value in UNKNOWN_CALL:
                board["unsupported"].append(name)
            elif error.value != NO_PERMISSION:  # a container may ask less: then it is not known
                board["failed"][name] = describe_error(error)
        except AttributeError:  # an old copy of pynvml lacks the call
            board["unsupported"].append(name)
    return board


def _near_cpus(nvml: Any, gpu: Any) -> str:
    """Read the NUMA node of the GPU's slot; "" where it is not known."""
    slot = to_text(nvml.nvmlDeviceGetPciInfo(gpu).busId).lower()
    return read_text(Path(PCI_SYSFS, slot[-PCI_LENGTH:], "numa_node"))


def _recovery_action(nvml: Any, gpu: Any) -> int:
    return int(_field(nvml, gpu, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION).uiVal)


def _field(nvml: Any, gpu: Any, id: int, scope: int = 0) -> Any:
    """Read the value of a field; `scope` is the link that it is asked of."""
    (field,) = nvml.nvmlDeviceGetFieldValues(gpu, [(id, scope)])
    if field.nvmlReturn == INVALID_ARGUMENT:  # an older driver does not know the field
        raise nvml.NVMLError(NOT_SUPPORTED)
    if field.nvmlReturn != SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    return field.value


def _uncorrected_errors(counter: int) -> Query:
    """Build a query of how many errors memory could not correct, by one of NVML's counters."""
    return lambda nvml, gpu: int(nvml.nvmlDeviceGetTotalEccErrors(gpu, UNCORRECTED, counter))


def _sram_threshold(nvml: Any, gpu: Any) -> bool:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status))
    return bool(status.bThresholdExceeded)


def _remapped_rows(nvml: Any, gpu: Any) -> dict[str, int]:
    names = ("correctable", "uncorrectable", "pending", "failed")
    return dict(zip(names, nvml.nvmlDeviceGetRemappedRows(gpu), strict=True))


def _slowdown_reasons(nvml: Any, gpu: Any) -> int:
    call = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    try:
        return int((call or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(gpu))
    except nvml.NVMLError as error:
        if error.value != FUNCTION_NOT_FOUND:  # drivers before R535 have the older name
            raise
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def _nvlinks(nvml: Any, gpu: Any) -> dict[str, int]:
    states = dict(_link_states(nvml, gpu))
    if not states:
        raise nvml.NVMLError(NOT_SUPPORTED)
    return {"active": sum(states.values()), "all": len(states)}


def _nvlink_errors(nvml: Any, gpu: Any) -> int:
    """Count the replays and recoveries of the active links since their counters began.

    A board without links has none.  Whether a board lacks links is another question: `nvlinks`.
    """
    return sum(_link_errors(nvml, gpu, link) for link, on in _link_states(nvml, gpu) if on)


def _link_errors(nvml: Any, gpu: Any, link: int) -> int:
    kinds = (nvml.NVML_NVLINK_ERROR_DL_REPLAY, nvml.NVML_NVLINK_ERROR_DL_RECOVERY)
    try:
        return sum(int(nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, kind)) for kind in kinds)
    except nvml.NVMLError as error:
        if error.value not in UNKNOWN_CALL:
            raise
    # Blackwell counts recoveries in a field, and does not support the call.
    return int(_field(nvml, gpu, nvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, link).ullVal)


def _link_states(nvml: Any, gpu: Any) -> Iterator[tuple[int, int]]:
    """Yield (link, 1 if it is active) of each link that the board has."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            yield link, int(nvml.nvmlDeviceGetNvLinkState(gpu, link))
        except nvml.NVMLError as error:
            if error.value not in (*UNKNOWN_CALL, INVALID_ARGUMENT):  # the board has no such link
                raise


def _fabric(nvml: Any, gpu: Any) -> dict[str, Any]:
    """Ask for version 2, which has the health mask, and of an older driver version 1."""
    try:
        info = nvml.c_nvmlGpuFabricInfo_v2_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
    except nvml.NVMLError as error:
        if error.value != FUNCTION_NOT_FOUND:
            raise
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(gpu, ctypes.byref(info))
    return {
        "state": int(info.state),
        "status": int(info.status),
        "health": int(getattr(info, "healthMask", 0)),
        "cluster": bytes(info.clusterUuid).hex(),
        "clique": int(info.cliqueId),
    }


QUERIES: dict[str, Query] = {
    "uuid": lambda nvml, gpu: to_text(nvml.nvmlDeviceGetUUID(gpu)),
    "name": lambda nvml, gpu: to_text(nvml.nvmlDeviceGetName(gpu)),
    "slot": lambda nvml, gpu: to_text(nvml.nvmlDeviceGetPciInfo(gpu).busId),
    "recovery_action": _recovery_action,
    "ecc": lambda nvml, gpu: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
    # pynvml returns this one value as a list.
    "ecc_default": lambda nvml, gpu: bool(nvml.nvmlDeviceGetDefaultEccMode(gpu)[0]),
    "uncorrected_errors": _uncorrected_errors(SINCE_DRIVER_LOADED),
    "lifetime_errors": _uncorrected_errors(IN_LIFETIME),
    "sram_threshold": _sram_threshold,
    "remapped_rows": _remapped_rows,
    "retired_pending": lambda nvml, gpu: bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu)),
    "slowdown_reasons": _slowdown_reasons,
    "power_limit_mw": lambda nvml, gpu: int(nvml.nvmlDeviceGetEnforcedPowerLimit(gpu)),
    "power_default_mw": lambda nvml, gpu: int(nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu)),
    "pcie_width": lambda nvml, gpu: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
    "pcie_max_width": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
    "pcie_replays": lambda nvml, gpu: int(nvml.nvmlDeviceGetPcieReplayCounter(gpu)),
    "heat_ns": lambda nvml, gpu: int(nvml.nvmlDeviceGetViolationStatus(gpu, THERMAL).violationTime),
    "mig": lambda nvml, gpu: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
    "nvlinks": _nvlinks,
    "nvlink_errors": _nvlink_errors,
    "fabric": _fabric,
    "compute_mode": lambda nvml, gpu: int(nvml.nvmlDeviceGetComputeMode(gpu)),
    "vbios": lambda nvml, gpu: to_text(nvml.nvmlDeviceGetVbiosVersion(gpu)),
    # Of the SMs, that an operator has set for applications.
    "clock_mhz": lambda nvml, gpu: int(
        nvml.nvmlDeviceGetApplicationsClock(gpu, nvml.NVML_CLOCK_SM)
    ),
    "numa": _near_cpus,
    "persistence": lambda nvml, gpu: bool(nvml.nvmlDeviceGetPersistenceMode(gpu)),
}
