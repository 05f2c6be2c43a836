"""The stand-in NVML, asked through either copy of pynvml that probes may find, and torch."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab import nvml
from tests.lab.shell import LabError

ASK = """
import importlib, json, sys
nvml = importlib.import_module(sys.argv[1])
def code_of(call, *arguments):
    try:
        call(*arguments)
    except nvml.NVMLError as error:
        return error.value
def describe(index):
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return error.value
    assert nvml.nvmlDeviceGetIndex(gpu) == index
    uuid = nvml.nvmlDeviceGetUUID(gpu)
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)) == index
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    assert nvml.nvmlDeviceGetMemoryInfo(gpu).total == memory.total
    assert nvml.nvmlDeviceGetComputeRunningProcesses(gpu) == []
    mig = [nvml.nvmlDeviceGetMigMode(gpu), nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)]
    if mig[1]:
        mig.append([nvml.nvmlDeviceGetUUID(one) for one in instances(gpu)])
    return [nvml.nvmlDeviceGetName(gpu), uuid, memory.total >> 20, memory.used >> 20, mig]
def instances(gpu):
    ask = nvml.nvmlDeviceGetMigDeviceHandleByIndex
    return [ask(gpu, place) for place in range(7) if code_of(ask, gpu, place) is None]
if (code := code_of(nvml.nvmlInit)) is not None:
    print(json.dumps(code))
    sys.exit()
gpus = nvml.nvmlDeviceGetCount()
assert code_of(nvml.nvmlDeviceGetHandleByIndex, gpus) == nvml.NVML_ERROR_INVALID_ARGUMENT
assert code_of(nvml.nvmlDeviceGetHandleByUUID, "GPU-") == nvml.NVML_ERROR_NOT_FOUND
print(json.dumps([nvml.nvmlSystemGetDriverVersion(), *map(describe, range(gpus))]))
nvml.nvmlShutdown()
"""
COPIES = ["pynvml", "ray._private.thirdparty.pynvml"]  # nvidia-ml-py's, and the copy in Ray


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("cc"):
        pytest.skip("NOT RUN: needs a C compiler, `apt-get install gcc libc6-dev`")
    folder = tmp_path_factory.mktemp("lab")
    nvml.build_library(folder)
    return folder


@pytest.fixture
def work(home: Path, tmp_path: Path) -> Path:
    """Make the folder of a healthy node with two GPUs."""
    nvml.make_healthy(tmp_path, "unit", 2)
    nvml.show_library(home, tmp_path)
    return tmp_path


def ask(work: Path, copy: str = COPIES[0]) -> Any:
    """Return NVML's answer: the driver's version and each GPU, or the code of a refusal."""
    paths = {
        "LD_LIBRARY_PATH": str(nvml.library_folder(work)),
        "SEATRIAL_LAB_NVML": str(nvml.settings_file(work)),
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK, copy],
        env={**os.environ, **paths}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("copy", COPIES)
def test_a_sound_node_shows_its_gpus(work: Path, copy: str) -> None:
    driver, *gpus = ask(work, copy)
    assert driver == "550.54.15"
    assert [gpu[0] for gpu in gpus] == ["NVIDIA H100 80GB HBM3"] * 2
    assert [gpu[2:] for gpu in gpus] == [[81559, 0, [[0, 0], 0]]] * 2
    first, second = (gpu[1] for gpu in gpus)
    assert len(first) == len("GPU-") + 36
    assert (first[:-1], first[-1], second[-1]) == (second[:-1], "0", "1")


def test_uuids_of_two_nodes_differ(work: Path, home: Path) -> None:
    other = work / "other"
    other.mkdir()
    nvml.make_healthy(other, "unit", 2)
    nvml.show_library(home, other)
    assert {gpu[1] for gpu in ask(work)[1:]}.isdisjoint(gpu[1] for gpu in ask(other)[1:])


@pytest.mark.parametrize("code", [9, 15, 18, 999])
def test_a_node_refuses_with_the_code(work: Path, code: int) -> None:
    nvml.plant(work, f"error={code}")
    assert ask(work) == code


def test_a_fault_of_one_gpu_leaves_the_others(work: Path) -> None:
    nvml.plant(work, "1.error=15")
    nvml.plant(work, "0.name=NVIDIA A100")
    _, first, second = ask(work)
    assert first[0] == "NVIDIA A100"
    assert second == 15


def test_the_later_line_holds_and_a_gpus_own_before_all(work: Path) -> None:
    memory = ("memory_mib=40960", "used_mib=512")
    for what in ("1.uuid=GPU-mine", "gpus=3", "gpus=2", *memory, "mig=1"):
        nvml.plant(work, what)
    _, first, second = ask(work)
    assert first[2:] == [40960, 512, [[1, 1], 7, [first[1].replace("GPU", "MIG")[:-4] + "1000"]]]
    assert second[1] == "GPU-mine"


@pytest.mark.parametrize("what", ["gpus", "gpus=", "fan=3", "a.name=x", "name=a\nerror 18", "=3"])
def test_what_the_library_would_not_read_is_refused(work: Path, what: str) -> None:
    before = nvml.settings_file(work).read_text()
    with pytest.raises(LabError, match="expected KEY=VALUE"):
        nvml.plant(work, what)
    assert nvml.settings_file(work).read_text() == before


def test_without_a_compiler_one_sentence_says_what_to_install(monkeypatch: Any) -> None:
    from tests.lab import shell

    if os.geteuid() != 0:
        pytest.skip("NOT RUN: the lab asks for root first")
    there = shutil.which
    monkeypatch.setattr(shell.shutil, "which", lambda tool: there(tool) if tool != "cc" else None)
    with pytest.raises(LabError, match="apt-get install gcc libc6-dev"):
        shell.require_machine(compiler=True)


def test_torch_counts_what_the_file_says(work: Path) -> None:
    nvml.plant(work, "gpus=7")
    environment = {
        "PYTHONPATH": str(nvml.TORCH),
        "SEATRIAL_LAB_NVML": str(nvml.settings_file(work)),
    }
    script = "import torch; print(torch._C._cuda_getDeviceCount())"
    told = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
    assert int(told) == 7


@pytest.mark.parametrize(
    ("what", "visible", "devices"),
    [("gpus=7", "5", 1), ("gpus=7", "", 0), ("torch=0", "5", 0), ("error=18", None, 0)],
)
def test_the_count_is_bounded_as_cuda_bounds_it(
    work: Path, monkeypatch: pytest.MonkeyPatch, what: str, visible: str | None, devices: int
) -> None:
    nvml.plant(work, what)
    count_devices = runpy.run_path(str(nvml.TORCH / "sitecustomize.py"))["count_devices"]
    monkeypatch.setenv("SEATRIAL_LAB_NVML", str(nvml.settings_file(work)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_devices() == devices
