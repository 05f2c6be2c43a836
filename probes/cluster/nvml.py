"""Reads a node's GPUs from NVML.  A GPU that does not answer does not hide the others.

A GPU in MIG mode counts as its instances.  NVML is nvidia-ml-py's pynvml, or the copy that Ray
brings: the nodes need nothing but Ray and torch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from probes.cluster.ray_internals import import_pynvml
from probes.cluster.system_facts import read_text

# Codes of nvml.h, nvmlReturn_t.
INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED = 2, 3, 6, 9
NO_PERMISSION, TIMEOUT, UNKNOWN = 4, 10, 999
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, DRIVER_MISMATCH = 12, 13, 15, 18
# Errors of a call that the board or an older driver does not know: that is no fault of the board.
UNKNOWN_CALL = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)

IN_USE_BYTES = 200 * 2**20  # a CUDA context takes more, and an idle GPU far less
# Version 1 of the query also counts the driver's own reserve: some 600 MiB on an H100.
IN_USE_BYTES_V1 = 2**30
MPS_SERVER = "nvidia-cuda-mps-server"  # on each GPU, as long as MPS is on
# Bounds an NVML that hangs, as it may with a lost GPU.  Without persistence mode, starting eight
# GPUs takes up to 20 s, and the calling task has 90 s.
NVML_SECONDS = 45

GpuEntry = dict[str, Any]
Question = Callable[[Any, Any], Iterable[tuple[str, Any]]]  # NVML and a GPU -> names and answers


def read_gpus(seconds: float = NVML_SECONDS, nvml: Any = None) -> dict[str, Any]:
    """Read {"nvml": {"library", "error"}, "gpus": [...]} within `seconds`.

    `error` is None, or {"code", "text"} if NVML itself does not answer.  A GPU has index, uuid,
    name and memory_gib (None: this kind does not report it).  A MIG instance also has its number as
    `mig`.  A GPU that could not be queried has an `error` of its own.  `nvml` is as in `ask_nvml`.
    """
    return ask_in_time(lambda: ask_nvml(identify_gpus, nvml), seconds)


def ask_in_time(question: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return the answer of `ask_nvml`, or after `seconds` the error TIMEOUT: NVML may hang."""
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as error:  # noqa: BLE001 - reported with the node's facts, not as a time-out
            answers.append(_failed(True, UNKNOWN, f"{type(error).__name__}: {error}"))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    if answers:
        return answers[0]
    return _failed(True, TIMEOUT, f"NVML did not answer within {seconds:g} s")


def list_gpus() -> list[GpuEntry]:
    """List the GPUs of `read_gpus`; empty if NVML does not answer."""
    return ask_nvml(identify_gpus)["gpus"]


def gpus_in_use() -> dict[str, list[int]]:
    """Map the UUID of each GPU that is in use to its compute processes; MPS's server is none.

    In a container NVML names no process, so the memory in use also decides.  A lost GPU runs
    nothing and is left out.  Raises RuntimeError if another GPU cannot be queried, or if NVML sees
    none.
    """
    nvml = import_nvml()
    try:
        with _started(nvml):
            gpus = _ask_each_gpu(nvml, _ask_use)
    except (OSError, nvml.NVMLError) as error:
        raise RuntimeError(f"NVML: {error}") from None
    gpus = [gpu for gpu in gpus if gpu.get("error", {}).get("code") != GPU_IS_LOST]
    for gpu in gpus:
        if "error" in gpu:
            raise RuntimeError(f"NVML: GPU {gpu['index']}: {gpu['error']['text']}")
    if not gpus:
        raise RuntimeError("NVML sees no GPU here")
    return {gpu["uuid"]: gpu["pids"] for gpu in gpus if gpu["pids"] or gpu["occupied"]}


class NvmlWith:
    """NVML's module, which gives other answers to some calls, by name; for a control."""

    def __init__(self, nvml: Any, calls: Mapping[str, Callable[..., Any]]) -> None:
        self._nvml, self._calls = nvml, calls

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._nvml, name)  # raises where this copy of the module lacks it
        return self._calls.get(name, call)


def start_nvml() -> None:
    """Start NVML and leave it started: otherwise each query starts a non-persistent driver."""
    nvml = import_nvml()
    with contextlib.suppress(OSError, nvml.NVMLError):
        nvml.nvmlInit()


def import_nvml() -> Any:
    """Import the node's pynvml, or Ray's own copy if there is none or it is too old."""
    with contextlib.suppress(ImportError):
        import pynvml

        if hasattr(pynvml, "nvmlMemory_v2"):
            return pynvml
    return import_pynvml()


def ask_nvml(question: Callable[[Any], list[GpuEntry]], nvml: Any = None) -> dict[str, Any]:
    """Start NVML and ask it; return {"nvml", "gpus"} as in `read_gpus`.

    `nvml` replaces the module, for a control.
    """
    nvml = nvml or import_nvml()
    try:
        with _started(nvml):
            gpus = question(nvml)
    except OSError as error:
        return _failed(False, LIBRARY_NOT_FOUND, str(error))
    except nvml.NVMLError as error:
        return _failed(error.value != LIBRARY_NOT_FOUND, error.value, str(error))
    return {"nvml": {"library": True, "error": None}, "gpus": gpus}


def identify_gpus(nvml: Any) -> list[GpuEntry]:
    """List each GPU's identity, as `gpus` of `read_gpus`, from an NVML that is started."""
    unknown = {"uuid": "", "name": "", "memory_gib": None}
    return [{**unknown, **gpu} for gpu in _ask_each_gpu(nvml, _ask_identity)]


def _failed(library: bool, code: int, text: str) -> dict[str, Any]:
    return {"nvml": {"library": library, "error": {"code": code, "text": text}}, "gpus": []}


@contextlib.contextmanager
def _started(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        with contextlib.suppress(nvml.NVMLError):  # the answers remain valid
            nvml.nvmlShutdown()


def _ask_each_gpu(nvml: Any, question: Question) -> list[GpuEntry]:
    """Ask every GPU; an entry has its answers, and `error` if one is missing."""
    entries: list[GpuEntry] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handles = _gpu_handles(nvml, index)
        except nvml.NVMLError as error:
            entries.append({"index": index, "error": describe_error(error)})
            continue
        entries += [_ask_gpu(nvml, question, gpu, entry) for entry, gpu in handles]
    return entries


def _gpu_handles(nvml: Any, index: int) -> list[tuple[GpuEntry, Any]]:
    """List (entry, handle) of the GPU with this index; in MIG mode, of its instances."""
    board = nvml.nvmlDeviceGetHandleByIndex(index)
    mode = _try_call(nvml, UNKNOWN_CALL, nvml.nvmlDeviceGetMigMode, board)  # (current, pending)
    if not mode or not mode[0]:
        return [({"index": index}, board)]
    places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(board))
    handle_of = nvml.nvmlDeviceGetMigDeviceHandleByIndex
    handles = [(place, _try_call(nvml, (NOT_FOUND,), handle_of, board, place)) for place in places]
    return [({"index": index, "mig": place}, gpu) for place, gpu in handles if gpu is not None]


def _ask_gpu(nvml: Any, question: Question, gpu: Any, entry: GpuEntry) -> GpuEntry:
    try:
        for name, answer in question(nvml, gpu):
            entry[name] = answer
    except nvml.NVMLError as error:
        entry["error"] = describe_error(error)
    return entry


def _ask_identity(nvml: Any, gpu: Any) -> Iterator[tuple[str, Any]]:
    for name, call in (("uuid", nvml.nvmlDeviceGetUUID), ("name", nvml.nvmlDeviceGetName)):
        yield name, to_text(_try_call(nvml, (NOT_SUPPORTED,), call, gpu))
    memory, _ = _read_memory(nvml, gpu)
    yield "memory_gib", round(memory.total / 2**30, 2) if memory else None


def _ask_use(nvml: Any, gpu: Any) -> Iterator[tuple[str, Any]]:
    yield "uuid", to_text(nvml.nvmlDeviceGetUUID(gpu))
    pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
    yield "pids", [pid for pid in pids if not _is_mps_server(pid)]
    memory, idle_bytes = _read_memory(nvml, gpu)
    yield "occupied", memory is not None and memory.used > idle_bytes


def _is_mps_server(pid: int) -> bool:
    """Return whether a process is MPS's server, which computes nothing: its clients do."""
    return Path(read_text(Path("/proc", str(pid), "cmdline")).partition("\0")[0]).name == MPS_SERVER


def _read_memory(nvml: Any, gpu: Any) -> tuple[Any, int]:
    """Read NVML's memory info, and the bytes in use that an idle GPU stays below.

    Returns (None, 0) if the memory is unknown.
    """
    for version, idle_bytes in ((nvml.nvmlMemory_v2, IN_USE_BYTES), (None, IN_USE_BYTES_V1)):
        ask = nvml.nvmlDeviceGetMemoryInfo
        if memory := _try_call(nvml, UNKNOWN_CALL, ask, gpu, version=version):
            return memory, idle_bytes
    return None, 0


def _try_call(nvml: Any, expected: tuple[int, ...], call: Any, *args: Any, **more: Any) -> Any:
    """Call NVML; return None if it answers with one of the `expected` codes."""
    try:
        return call(*args, **more)
    except nvml.NVMLError as error:
        if error.value not in expected:
            raise
        return None


def describe_error(error: Any) -> dict[str, Any]:
    """Return {"code", "text"} of an NVMLError."""
    return {"code": error.value, "text": str(error)}


def to_text(value: str | bytes | None) -> str:
    """Decode a text of NVML; old copies of pynvml return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
