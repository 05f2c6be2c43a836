"""What is made of NVML's answers.  NVML is a stand-in here: names and codes are nvml.h's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster import nvml
from probes.cluster.ray_internals import import_pynvml
from tests.support.paths import REPO
from tests.support.simulated_driver import wait_until


class StandInError(Exception):
    """As pynvml's: with the code as `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"text of {value}")
        self.value = value


def test_the_codes_are_those_of_the_library() -> None:
    real = import_pynvml()
    names = (
        *("INVALID_ARGUMENT", "NOT_SUPPORTED", "NOT_FOUND", "DRIVER_NOT_LOADED", "NO_PERMISSION"),
        *("TIMEOUT", "UNKNOWN", "LIBRARY_NOT_FOUND", "FUNCTION_NOT_FOUND", "GPU_IS_LOST"),
    )
    ours = {name: getattr(nvml, name) for name in names}
    assert ours == {name: getattr(real, f"NVML_ERROR_{name}") for name in names}
    assert nvml.DRIVER_MISMATCH == real.NVML_ERROR_LIB_RM_VERSION_MISMATCH


class StandInNvml:
    """As pynvml, for `count` GPUs; `fail["Name", 1] = 15` has a call fail, for GPU 1 or for all."""

    NVMLError = StandInError
    nvmlMemory_v2 = 2

    def __init__(self, count: int = 2) -> None:
        self.count, self.fail = count, dict[tuple[str, Any], int]()
        self.mig: dict[int, dict[int, str]] = {}  # instances of a GPU in MIG mode, by place
        self.used = {2: 4 * 2**20, None: 600 * 2**20}  # of an idle H100, by form of the question
        self.pids: dict[Any, list[int]] = {}
        self.starts = 0

    def _ask(self, call: str, gpu: Any = None) -> None:
        for key in ((call, gpu), (call, None)):
            if key in self.fail:
                raise StandInError(self.fail[key])

    def nvmlInit(self) -> None:
        self._ask("Init")
        self.starts += 1

    def nvmlShutdown(self) -> None:
        self.starts -= 1
        self._ask("Shutdown")

    def nvmlDeviceGetCount(self) -> int:
        self._ask("Count")
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self._ask("Handle", index)
        return index

    def nvmlDeviceGetUUID(self, gpu: Any) -> bytes:
        self._ask("UUID", gpu)
        return (gpu if isinstance(gpu, str) else f"GPU-{gpu}").encode()

    def nvmlDeviceGetName(self, gpu: Any) -> str:
        self._ask("Name", gpu)
        return "NVIDIA H100 MIG 1g.10gb" if isinstance(gpu, str) else "NVIDIA H100"

    def nvmlDeviceGetMemoryInfo(self, gpu: Any, version: int | None = None) -> Any:
        self._ask("Memory" if version is None else "Memory_v2", gpu)
        return SimpleNamespace(total=80 * 2**30, used=self.used[version])

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Any) -> list[Any]:
        self._ask("Processes", gpu)
        return [SimpleNamespace(pid=pid) for pid in self.pids.get(gpu, [])]

    def nvmlDeviceGetMigMode(self, gpu: int) -> list[int]:
        self._ask("MigMode", gpu)
        return [int(gpu in self.mig), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: int, place: int) -> str:
        if place not in self.mig[gpu]:
            raise StandInError(6)
        return self.mig[gpu][place]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> StandInNvml:
    made = StandInNvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)  # type: ignore[arg-type]
    return made


H100 = {"name": "NVIDIA H100", "memory_gib": 80.0}


def test_each_gpu_is_told(fake: StandInNvml) -> None:
    assert nvml.read_gpus() == {
        "nvml": {"library": True, "error": None},
        "gpus": [{"index": i, "uuid": f"GPU-{i}", **H100} for i in range(2)],
    }
    assert fake.starts == 0, "each start needs its own shutdown"


@pytest.mark.parametrize(
    ("call", "known"),
    [
        ("Handle", {"uuid": "", "name": "", "memory_gib": None}),
        ("UUID", {"uuid": "", "name": "", "memory_gib": None}),
        ("Name", {"uuid": "GPU-1", "name": "", "memory_gib": None}),
        ("Memory_v2", {"uuid": "GPU-1", "name": "NVIDIA H100", "memory_gib": None}),
    ],
)
@pytest.mark.parametrize("code", [15, 4, 999])
def test_a_gpu_that_cannot_be_asked_takes_no_other_away(
    fake: StandInNvml, call: str, known: dict[str, Any], code: int
) -> None:
    fake.count, fake.fail[call, 1] = 3, code
    told = nvml.read_gpus()
    assert told["nvml"] == {"library": True, "error": None}
    assert [gpu["uuid"] for gpu in told["gpus"] if "error" not in gpu] == ["GPU-0", "GPU-2"]
    assert told["gpus"][1] == {
        "index": 1, "error": {"code": code, "text": f"text of {code}"}, **known,
    }  # fmt: skip


@pytest.mark.parametrize("call", ["Init", "Count"])
@pytest.mark.parametrize("code", [9, 18, 999])
def test_an_nvml_that_does_not_answer_is_told_with_its_code(
    fake: StandInNvml, call: str, code: int
) -> None:
    fake.fail[call, None] = code
    error = {"code": code, "text": f"text of {code}"}
    assert nvml.read_gpus() == {"nvml": {"library": True, "error": error}, "gpus": []}


def test_no_library_is_no_error_of_a_driver(fake: StandInNvml) -> None:
    fake.fail["Init", None] = 12
    assert nvml.read_gpus()["nvml"]["library"] is False

    def not_found() -> None:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    fake.nvmlInit = not_found  # type: ignore[method-assign]
    assert nvml.read_gpus()["nvml"]["library"] is False


def test_what_a_board_does_not_support_is_no_error(fake: StandInNvml) -> None:
    fake.fail |= {("Memory_v2", 0): 3, ("Memory_v2", 1): 13, ("Memory", 1): 3, ("MigMode", 0): 3}
    fake.fail["Name", 1] = 3
    assert nvml.list_gpus() == [
        {"index": 0, "uuid": "GPU-0", **H100},
        {"index": 1, "uuid": "GPU-1", "name": "", "memory_gib": None},
    ]


def test_a_gpu_in_mig_mode_counts_as_its_instances(fake: StandInNvml) -> None:
    fake.mig[1] = {0: "MIG-a", 4: "MIG-b"}
    fake.pids["MIG-b"] = [7]
    told = nvml.list_gpus()
    assert [(gpu["index"], gpu.get("mig"), gpu["uuid"]) for gpu in told] == [
        (0, None, "GPU-0"),
        (1, 0, "MIG-a"),
        (1, 4, "MIG-b"),
    ]
    assert told[2]["name"] == "NVIDIA H100 MIG 1g.10gb"
    assert nvml.gpus_in_use() == {"MIG-b": [7]}


def test_an_nvml_that_hangs_is_an_error_and_no_silent_node(
    fake: StandInNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(fake, "nvmlDeviceGetCount", go_on.wait)
    told = nvml.read_gpus(0.1)
    go_on.set()
    assert told["nvml"]["error"]["code"] == nvml.TIMEOUT
    assert "did not answer within 0.1 s" in told["nvml"]["error"]["text"]


def test_an_nvml_that_hangs_does_not_keep_its_process_alive() -> None:
    program = (
        "import time; from probes.cluster.nvml import ask_in_time; "
        "ask_in_time(lambda: time.sleep(600), 0.1)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=REPO, timeout=60, check=True)


def test_nvml_stays_started_for_many_questions(fake: StandInNvml) -> None:
    nvml.start_nvml()
    nvml.list_gpus()
    assert fake.starts == 1
    fake.fail["Init", None] = 9
    nvml.start_nvml()  # without a driver there is nothing to keep


def test_an_error_of_the_asking_is_told_as_what_it_is(
    fake: StandInNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(gpu: int) -> str:
        raise AttributeError("an old pynvml has no such name")

    monkeypatch.setattr(fake, "nvmlDeviceGetName", broken)
    error = {"code": 999, "text": "AttributeError: an old pynvml has no such name"}
    assert nvml.read_gpus(30)["nvml"] == {"library": True, "error": error}


def test_an_old_pynvml_of_the_node_gives_way_to_rays(
    fake: StandInNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nvml.import_nvml() is fake
    monkeypatch.setitem(sys.modules, "pynvml", types.ModuleType("pynvml"))
    assert nvml.import_nvml().__name__.startswith("ray.")


def test_memory_is_read_to_the_digits_that_the_report_shows_and_orders_repeat(
    fake: StandInNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a GPU would have less than an order that was copied from the report."""
    memory = SimpleNamespace(total=85_520_809_984, used=0)
    monkeypatch.setattr(fake, "nvmlDeviceGetMemoryInfo", lambda *_, **__: memory)
    assert [gpu["memory_gib"] for gpu in nvml.list_gpus()] == [79.65, 79.65]


def test_gpus_in_use(fake: StandInNvml) -> None:
    fake.pids[1] = [77]
    assert nvml.gpus_in_use() == {"GPU-1": [77]}
    fake.used[2] = 500 * 2**20  # in a container: memory without a process
    assert nvml.gpus_in_use() == {"GPU-0": [], "GPU-1": [77]}


@pytest.fixture
def mps_server() -> Iterator[int]:
    """The id of a process that is called as the server of MPS is."""
    program = [f"/usr/bin/{nvml.MPS_SERVER}", "60"]
    with subprocess.Popen(program, executable=shutil.which("sleep")) as process:
        named = Path(f"/proc/{process.pid}/cmdline")
        wait_until(lambda: bool(named.read_bytes()))  # filled in a moment after exec
        yield process.pid
        process.kill()


def test_the_server_of_mps_is_no_use_of_a_gpu(fake: StandInNvml, mps_server: int) -> None:
    fake.pids[1], fake.used[2] = [mps_server], 40 * 2**20
    assert nvml.gpus_in_use() == {}


def test_a_client_of_mps_is_a_use_of_its_gpu(fake: StandInNvml, mps_server: int) -> None:
    fake.pids = {0: [mps_server], 1: [mps_server, os.getpid()]}
    assert nvml.gpus_in_use() == {"GPU-1": [os.getpid()]}
    fake.pids, fake.used[2] = {1: [mps_server]}, 500 * 2**20  # a client that NVML does not name
    assert nvml.gpus_in_use()["GPU-1"] == []


def test_use_is_told_by_the_first_form_or_by_processes_alone(fake: StandInNvml) -> None:
    fake.fail["Memory_v2", None], fake.pids[1] = 3, [77]
    assert nvml.gpus_in_use() == {"GPU-1": [77]}
    fake.used[None] = 1200 * 2**20  # the reserve, and the context of a process
    assert nvml.gpus_in_use() == {"GPU-0": [], "GPU-1": [77]}
    fake.fail["Memory", None] = 3
    assert nvml.gpus_in_use() == {"GPU-1": [77]}


def fails_count(fake: StandInNvml) -> None:
    fake.count = 0


def fails_init(fake: StandInNvml) -> None:
    fake.fail["Init", None] = 18


def fails_one(fake: StandInNvml) -> None:
    fake.fail["Handle", 1] = 999


def fails_all(fake: StandInNvml) -> None:
    fake.fail["Handle", None] = 15


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (fails_count, "NVML sees no GPU"),
        (fails_init, "text of 18"),
        (fails_one, "GPU 1: text of 999"),
        (fails_all, "NVML sees no GPU"),
    ],
)
def test_use_is_not_told_where_a_gpu_cannot_be_asked(
    fake: StandInNvml, break_it: Callable[[StandInNvml], None], words: str
) -> None:
    break_it(fake)
    with pytest.raises(RuntimeError, match=words):
        nvml.gpus_in_use()


def test_a_lost_gpu_runs_nothing(fake: StandInNvml) -> None:
    fake.fail["Handle", 1], fake.pids[0] = 15, [7]
    assert nvml.gpus_in_use() == {"GPU-0": [7]}
