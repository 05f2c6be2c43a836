"""What is read of the health of GPUs, from the stand-in of NVML."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster import gpu_health
from probes.hosts.controls import SICK_ANSWERS, hide_last_gpu, sicken_gpu
from tests.lab import nvml
from tests.support.paths import REPO
from tests.support.simulated_hosts import FABRIC, healthy_board, sick_board, worn_board

# One process asks after each planted line: NVML is asked about 1 GPU, in either copy of pynvml.
ASK = """
import importlib, json, sys
from pathlib import Path
from probes.cluster.gpu_health import read_gpu_health, read_gpus_and_health
from probes.cluster.nvml import read_gpus
from probes.hosts.controls import WORN_ANSWERS, hide_last_gpu, sicken_gpu
from tests.lab import nvml as lab
module, work, plants = importlib.import_module(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
answers = {"": read_gpu_health(module), "sick": read_gpu_health(sicken_gpu(module, 0))}
answers["worn"] = read_gpu_health(sicken_gpu(module, 0, WORN_ANSWERS))
answers["fewer"] = read_gpus(nvml=hide_last_gpu(module))
answers["both"] = read_gpus_and_health()
for plant in plants:
    lab.make_healthy(work, "unit", 1)
    lab.plant(work, plant)
    answers[plant] = read_gpu_health(module)
lab.make_healthy(work, "unit", 1)
lab.plant(work, "nvlink_recoveries=0")
answers["worn Blackwell"] = read_gpu_health(sicken_gpu(module, 0, WORN_ANSWERS))
print(json.dumps(answers))
"""
COPIES = ["pynvml", "ray._private.thirdparty.pynvml"]  # nvidia-ml-py's, and the copy in Ray
ROWS = {"correctable": 0, "uncorrectable": 0, "pending": 0, "failed": 0}
# What is planted, and the one answer that it changes.
PLANTS: dict[str, tuple[str, Any]] = {
    "vbios=96.00.74.00.01": ("vbios", "96.00.74.00.01"),
    "recovery=2": ("recovery_action", 2),
    "ecc=0": ("ecc", False),
    "ecc_default=0": ("ecc_default", False),
    "ecc_errors=12": ("uncorrected_errors", 12),
    "lifetime_errors=3": ("lifetime_errors", 3),
    "sram=1": ("sram_threshold", True),
    "remapped=4": ("remapped_rows", {**ROWS, "uncorrectable": 4}),
    "remap_pending=1": ("remapped_rows", {**ROWS, "pending": 1}),
    "remap_failed=1": ("remapped_rows", {**ROWS, "failed": 1}),
    "slowdown=72": ("slowdown_reasons", 72),
    "power_limit=350": ("power_limit_mw", 350_000),
    "power_default=350": ("power_default_mw", 350_000),
    "pcie_width=8": ("pcie_width", 8),
    "pcie_max_width=8": ("pcie_max_width", 8),
    "pcie_replays=7": ("pcie_replays", 7),
    "heat=3": ("heat_ns", 3_000_000_000),
    "nvlinks=12": ("nvlinks", {"active": 12, "all": 12}),
    "nvlinks_down=2": ("nvlinks", {"active": 16, "all": 18}),
    "nvlink_errors=4": ("nvlink_errors", 4),
    "nvlink_recoveries=5": ("nvlink_errors", 5),  # a Blackwell
    "fabric_state=2": ("fabric", {**FABRIC, "state": 2}),
    "fabric_status=3": ("fabric", {**FABRIC, "status": 3}),
    "fabric_health=17": ("fabric", {**FABRIC, "health": 17}),
    "compute_mode=2": ("compute_mode", 2),
    "persistence=0": ("persistence", False),
    "clock=1410": ("clock_mhz", 1410),
}
UNSUPPORTED = {
    "recovery=unsupported": "recovery_action",
    "ecc=unsupported": "ecc",
    "ecc_errors=unsupported": "uncorrected_errors",
    "sram=unsupported": "sram_threshold",
    "slowdown=unsupported": "slowdown_reasons",
    "nvlinks=unsupported": "nvlinks",
    "nvlinks=0": "nvlinks",
    "nvlink_errors=unsupported": "nvlink_errors",
    "fabric_state=unsupported": "fabric",
}
FAILED = {
    "recovery=failed": "recovery_action",
    "ecc=failed": "ecc",
    "slowdown=failed": "slowdown_reasons",
    "nvlinks=failed": "nvlinks nvlink_errors",
    "fabric_state=failed": "fabric",
    "nvlink_errors=failed": "nvlink_errors",
    "compute_mode=failed": "compute_mode",
}
OTHER = ["compute_mode=denied", "retired_pending=1", "0.error=15", "error=9", "gpus=0"]


@pytest.fixture(scope="module", params=COPIES)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Ask a node with one GPU after each plant; plant -> facts."""
    if not shutil.which("cc"):
        pytest.skip("NOT RUN: needs a C compiler, `apt-get install gcc libc6-dev`")
    home = tmp_path_factory.mktemp("lab")
    nvml.build_library(home)
    work = home / "node"
    work.mkdir()
    nvml.make_healthy(work, "unit", 1)
    nvml.show_library(home, work)
    plants = [*PLANTS, *UNSUPPORTED, *FAILED, *OTHER]
    done = subprocess.run(
        [sys.executable, "-c", ASK, request.param, str(work), *plants],
        env={
            **os.environ,
            "PYTHONPATH": str(REPO),
            "LD_LIBRARY_PATH": str(nvml.library_folder(work)),
            "SEATRIAL_LAB_NVML": str(nvml.settings_file(work)),
        },
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def board(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of the only GPU, without what names it."""
    (only,) = answer["boards"]
    return {name: value for name, value in only.items() if name not in ("uuid", "slot")}


def changes(answers: Any, plant: str) -> dict[str, Any]:
    """Return what a plant changes; None where an answer is missing."""
    sound, now = board(answers[""]), board(answers[plant])
    return {name: now.get(name) for name in {*sound, *now} if now.get(name) != sound.get(name)}


def test_a_healthy_gpu_answers_each_query(answers: Any) -> None:
    simulated = {k: v for k, v in healthy_board(0, 0).items() if k not in ("uuid", "slot")}
    simulated["numa"] = ""  # this host has no such slot
    assert board(answers[""]) == simulated
    assert answers[""]["error"] is None
    (only,) = answers[""]["boards"]
    assert only["uuid"].startswith("GPU-")
    assert only["slot"] == "00000000:10:00.0"


@pytest.mark.parametrize("plant", PLANTS)
def test_each_state_is_read(answers: Any, plant: str) -> None:
    name, value = PLANTS[plant]
    assert changes(answers, plant) == {name: value}


@pytest.mark.parametrize("plant", UNSUPPORTED)
def test_an_unsupported_query_is_no_error(answers: Any, plant: str) -> None:
    name = UNSUPPORTED[plant]
    changed = changes(answers, plant)
    assert changed.pop(name) is None
    assert sorted(changed.pop("unsupported")) == sorted([name, "retired_pending"])
    assert not changed


@pytest.mark.parametrize("plant", FAILED)
def test_a_query_that_fails_is_recorded_with_its_error(answers: Any, plant: str) -> None:
    names = FAILED[plant].split()
    changed = changes(answers, plant)
    assert [changed.pop(name) for name in names] == [None] * len(names)
    errors = changed.pop("failed")
    assert {name: error["code"] for name, error in errors.items()} == dict.fromkeys(names, 999)
    assert not changed


def test_what_is_denied_is_only_missing(answers: Any) -> None:
    assert changes(answers, "compute_mode=denied") == {"compute_mode": None}


def test_an_older_gpu_retires_pages(answers: Any) -> None:
    assert changes(answers, "retired_pending=1") == {"retired_pending": True, "unsupported": []}


def test_a_lost_gpu_keeps_its_error(answers: Any) -> None:
    (only,) = answers["0.error=15"]["boards"]
    assert (only["index"], only["failed"]["GPU"]["code"]) == (0, 15)


def test_a_driver_that_does_not_answer_has_no_boards(answers: Any) -> None:
    assert (answers["error=9"]["error"]["code"], answers["error=9"]["boards"]) == (9, [])
    assert (answers["gpus=0"]["error"], answers["gpus=0"]["boards"]) == (None, [])
    assert answers["gpus=0"]["clock"] > answers[""]["clock"]


def test_a_link_that_is_off_has_no_errors_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_health, "_link_states", lambda *_: [(0, True), (1, False)])
    monkeypatch.setattr(gpu_health, "_link_errors", lambda *given: 2)
    assert gpu_health._nvlink_errors(None, None) == 2


def test_each_handle_of_the_sick_gpu_is_sick() -> None:
    """NVML may give another handle each time that it is asked."""
    nvml: Any = SimpleNamespace(
        nvmlDeviceGetHandleByIndex=lambda index: [index], nvmlDeviceGetCount=lambda: 8,
        nvmlDeviceGetVbiosVersion=lambda gpu: "sound",
    )  # fmt: skip
    name = "nvmlDeviceGetVbiosVersion"
    sick: Any = sicken_gpu(nvml, 1, {name: lambda *_: "sick"})
    first, second, other = (sick.nvmlDeviceGetHandleByIndex(at) for at in (1, 1, 0))
    told = [sick.nvmlDeviceGetVbiosVersion(one) for one in (first, second, other)]
    assert told == ["sick", "sick", "sound"]
    fewer: Any = hide_last_gpu(nvml)
    assert fewer.nvmlDeviceGetCount() == 7


def test_the_sick_gpu_of_the_control_has_each_fault(answers: Any) -> None:
    simulated = sick_board(board(answers[""]))
    worn, sound = board(answers["worn"]), board(answers[""])
    assert {name: v for name, v in worn.items() if sound[name] != v} == worn_board({})
    blackwell = board(answers["worn Blackwell"])
    assert blackwell["nvlink_errors"] == 18 * 2**31, "its only counter is a field"
    assert blackwell["recovery_action"] == 0
    assert answers["fewer"] == {"nvml": {"library": True, "error": None}, "gpus": []}
    sick = board(answers["sick"])
    assert {k: v for k, v in sick.items() if simulated.get(k) != v} == {"lifetime_errors": 1}
    assert simulated.keys() - sick.keys() == {"persistence"}  # this query fails


def test_the_sick_gpu_answers_calls_that_nvml_has() -> None:
    import pynvml

    assert [name for name in SICK_ANSWERS if not hasattr(pynvml, name)] == []


def test_an_nvml_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    def hang(nvml: Any) -> list[Any]:
        time.sleep(5)  # far longer than the reader waits here
        return []

    monkeypatch.setattr(gpu_health, "_read_boards", lambda nvml: hang(nvml))
    health = gpu_health.read_gpu_health(object(), seconds=0.1)
    assert health["boards"] == []
    assert health["error"] is not None


def test_one_start_of_nvml_gives_gpus_and_their_health(answers: Any) -> None:
    both = answers["both"]
    assert both["nvml"] == {"library": True, "error": None}
    assert [gpu["name"] for gpu in both["gpus"]] == ["NVIDIA H100 80GB HBM3"]
    assert both["gpu_health"]["boards"] == answers[""]["boards"]
    assert both["gpu_health"]["error"] is None


def test_without_nvml_there_are_neither_gpus_nor_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gpu_health, "ask_nvml", lambda _: {"nvml": {"error": {"code": 12}}, "gpus": []}
    )
    both = gpu_health.read_gpus_and_health()
    assert (both["gpus"], both["gpu_health"]["boards"]) == ([], [])
    assert both["gpu_health"]["error"] == {"code": 12}


class OldNvml:
    """NVML of a driver before R535, on a board whose modes change with its next reset."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    def nvmlDeviceGetCurrentClocksEventReasons(self, _: Any) -> int:
        raise self.NVMLError(13)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: Any) -> int:
        return 4

    def nvmlDeviceGetEccMode(self, _: Any) -> list[int]:
        return [1, 0]

    def nvmlDeviceGetMigMode(self, _: Any) -> list[int]:
        return [0, 1]


def test_an_older_driver_has_an_older_name_and_a_mode_is_what_it_is_now() -> None:
    asked = {name: gpu_health.QUERIES[name](OldNvml(), None) for name in ("ecc", "mig")}
    assert asked == {"ecc": True, "mig": False}
    assert gpu_health.QUERIES["slowdown_reasons"](OldNvml(), None) == 4


@pytest.mark.parametrize("copy", COPIES)
def test_only_errors_that_were_not_corrected_are_counted_of_now_and_of_the_lifetime(
    copy: str,
) -> None:
    names = pytest.importorskip(copy)
    kind = names.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    counts = {(kind, names.NVML_VOLATILE_ECC): 1, (kind, names.NVML_AGGREGATE_ECC): 2}
    nvml = SimpleNamespace(nvmlDeviceGetTotalEccErrors=lambda gpu, *asked: counts[asked])
    queries = ("uncorrected_errors", "lifetime_errors")
    assert [gpu_health.QUERIES[name](nvml, None) for name in queries] == [1, 2]


class OldFabric(OldNvml):
    """Its driver fills in the first version of the fabric's state, which has no health mask."""

    class c_nvmlGpuFabricInfo_v2_t(ctypes.Structure):
        pass

    class c_nvmlGpuFabricInfo_t(ctypes.Structure):
        _fields_ = (
            ("clusterUuid", ctypes.c_ubyte * 16),
            ("status", ctypes.c_uint),
            ("cliqueId", ctypes.c_uint32),
            ("state", ctypes.c_ubyte),
        )

    def nvmlDeviceGetGpuFabricInfoV(self, _: Any, __: Any) -> None:
        raise self.NVMLError(13)

    def nvmlDeviceGetGpuFabricInfo(self, _: Any, info: Any) -> None:
        told = info._obj
        told.clusterUuid[0], told.status, told.cliqueId, told.state = 171, 0, 2, 3


def test_an_older_driver_tells_the_fabric_without_its_health() -> None:
    assert gpu_health.QUERIES["fabric"](OldFabric(), None) == {
        "state": 3,
        "status": 0,
        "health": 0,
        "cluster": "ab" + 15 * "00",
        "clique": 2,
    }
