"""What a worker computes on its device.  Torch is real; a GPU is a stand-in."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch

from probes.hosts import compute_worker
from probes.hosts import compute_worker as devices
from probes.hosts import compute_worker as sums
from probes.hosts import compute_worker as worker
from probes.hosts.compute_worker import (
    COPY_BYTES,
    CPU_SIZES,
    GPU_SIZES,
    AcceleratorWorker,
    WorkDevice,
    measure_peer_copies,
)
from tests.support.cuda_standin import UUID, StandInTorch

SMALL = dataclasses.replace(
    GPU_SIZES, gemm=64, sums=64, repeats=3, copy_bytes=4096, host_bytes=1024, calls=2
)


@pytest.fixture(autouse=True)
def same_process() -> Iterator[None]:
    """Leave the process as it was: its threads of torch, and its environment."""
    threads = torch.get_num_threads()
    with patch.dict(os.environ):
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> StandInTorch:
    """Torch with one GPU that is the CPU, and small sizes."""
    stand_in = StandInTorch()
    monkeypatch.setitem(sys.modules, "torch", stand_in)  # type: ignore[arg-type]
    monkeypatch.setattr(devices, "GPU_SIZES", SMALL)
    return stand_in


@pytest.fixture
def ray_context(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The accelerators that Ray gave to this worker."""
    import ray

    ids: dict[str, list[str]] = {}
    context = SimpleNamespace(get_accelerator_ids=lambda: ids)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return ids


@pytest.mark.parametrize("size", [SMALL.sums, CPU_SIZES.sums, GPU_SIZES.sums])
def test_the_known_product_is_exact_in_every_type(size: int) -> None:
    left, right, expected = sums.build_known(torch, min(size, 512))
    _, _, total = sums.balanced_factors(size)
    assert 0 < abs(total) <= sums.MOST_SUM
    assert 0 < expected.abs().max() <= 256
    assert expected.abs().min() > 0
    assert left.abs().max() <= 4
    assert right.abs().max() <= 4
    assert torch.equal((left.double() @ right.double()).float(), expected)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal((left.to(dtype) @ right.to(dtype)).float(), expected)


def test_a_cpu_adds_rightly_and_the_same_each_time() -> None:
    device = WorkDevice(False)
    assert sums.count_wrong_sums(device) == 0
    first, *others = sums.hash_products(device)
    assert set(others) == {first}
    assert len(first) == 64
    assert sums.hash_products(WorkDevice(False))[0] == first


def test_a_cpu_computes_on_one_thread() -> None:
    torch.set_num_threads(2)
    WorkDevice(False)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("sizes", [CPU_SIZES, GPU_SIZES])
def test_each_row_of_a_matrix_begins_on_a_cache_line(sizes: devices.WorkSizes) -> None:
    """Tensor cores need 16 bytes; a row that is not aligned would be slower."""
    bytes_each = getattr(torch, sizes.dtype).itemsize
    assert sizes.gemm * bytes_each % 64 == sizes.sums * bytes_each % 64 == 0


def test_one_changed_element_makes_a_row_wrong_and_other_bits() -> None:
    device = WorkDevice(False)
    assert sums.count_wrong_sums(device, sums.ELEMENT) == CPU_SIZES.sums
    assert sums.hash_products(device, sums.ELEMENT) != sums.hash_products(device)


@pytest.mark.parametrize("bad", [float("nan"), 1.0])
def test_a_wrong_element_of_one_repeat_is_counted(
    bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, usual, calls = WorkDevice(False), torch.mm, []

    def multiply(left: Any, right: Any) -> Any:
        calls.append(left)
        product = usual(left, right)
        if len(calls) == 1:
            product[5, 7] += bad
        return product

    monkeypatch.setattr(torch, "mm", multiply)
    assert sums.count_wrong_sums(device) == 1
    calls.clear()
    assert len(set(sums.hash_products(device))) == 2


def test_copies_of_a_gpu_are_far_larger_than_its_caches() -> None:
    assert min(GPU_SIZES.copy_bytes, GPU_SIZES.host_bytes) >= 2 * 126 << 20  # twice a B200's L2


def test_a_gpu_computes_in_bfloat16_and_pins_memory(gpu: StandInTorch) -> None:
    device = WorkDevice(True)
    assert device.dtype == torch.bfloat16
    assert gpu.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False
    assert os.environ.items() >= devices.SAME_SUMS.items()
    assert sums.count_wrong_sums(device) == 0
    assert sums.count_wrong_sums(device, sums.ELEMENT) == SMALL.sums
    assert len(set(sums.hash_products(device))) == 1
    built = list(compute_worker.usable_operations(device, compute_worker.build_operations(device)))
    assert [one.name for one in built] == ["gemm", "hbm", "h2d", "d2h", "fp8"]
    assert gpu.pinned == [SMALL.host_bytes]
    amounts = {one.name: one.amount for one in built}
    assert amounts["gemm"] == amounts["fp8"] == 2 * 64**3 / 1e12
    assert amounts["hbm"] == 2 * 4096 / 1e9
    assert amounts["h2d"] == amounts["d2h"] == 1024 / 1e9
    assert len(gpu.waits) == len(built)


def test_fp8_is_left_out_where_it_is_not_there(
    gpu: StandInTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(stand_in: StandInTorch) -> list[str]:
        monkeypatch.setitem(sys.modules, "torch", stand_in)  # type: ignore[arg-type]
        device = WorkDevice(True)
        built = compute_worker.build_operations(device)
        return [one.name for one in compute_worker.usable_operations(device, built)]

    four = ["gemm", "hbm", "h2d", "d2h"]
    assert names(StandInTorch(capability=(8, 0))) == four
    assert names(StandInTorch(capability=(8, 9))) == [*four, "fp8"]
    amd, refuses = StandInTorch(), StandInTorch()
    amd.version.hip = "6.4"
    assert names(amd) == four
    monkeypatch.setattr(refuses, "_scaled_mm", lambda *_, **__: 1 / 0)
    assert names(refuses) == four


def test_another_operation_that_fails_is_an_error() -> None:
    device = WorkDevice(False)
    broken = compute_worker.TimedCall("hbm", lambda: 1 / 0, 1.0)
    with pytest.raises(ZeroDivisionError):
        list(compute_worker.usable_operations(device, [broken]))


def test_a_worker_without_a_gpu_does_not_compute_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", StandInTorch(gpus=0))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="finds no GPU"):
        WorkDevice(True)


def test_a_rate_is_work_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(compute_worker.time, "perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += 0.25

    device = WorkDevice(False)
    slow = compute_worker.TimedCall("gemm", work, 10.0)
    assert compute_worker.measure_rate(device, slow, 1.0) == 40.0
    assert compute_worker.measure_rate(device, slow, 1.0, extra=4) == 10.0
    assert compute_worker.measure_rates(device, [slow], 3, 0.1) == {"gemm": [40.0] * 3}


def test_a_launch_is_timed_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([1.0, 1.5])
    monkeypatch.setattr(compute_worker.time, "perf_counter", lambda: next(ticks))
    assert compute_worker.measure_launch(WorkDevice(False)) == 500.0


def test_a_worker_describes_a_cpu(ray_context: dict[str, list[str]]) -> None:
    ray_context["GPU"] = ["3"]
    one = AcceleratorWorker()
    about = one.prepare(False)
    model = devices.cpu_model()
    assert (about["number"], about["error"], about["uuid"]) == ("3", "", "")
    assert about["model"] == model
    assert about["build"] == [model, torch.backends.cpu.get_cpu_capability(), torch.__version__]
    assert one.check_sums() == {"error": "", "wrong": 0, "hashes": one.check_sums()["hashes"]}
    speed = one.measure_speed(2, 0.001)
    assert {name: len(rates) for name, rates in speed["rates"].items()} == dict.fromkeys(
        ("gemm", "hbm", "h2d", "d2h"), 2
    )
    assert all(rate > 0 for rates in speed["rates"].values() for rate in rates)
    assert speed["launch_us"] > 0
    assert one.measure_speed(1, 0.001, 1, ("hbm",))["rates"].keys() == {"hbm"}
    assert (speed["error"], speed["celsius"]) == ("", None)


def test_a_worker_describes_a_gpu(
    gpu: StandInTorch, ray_context: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Nvml:
        NVMLError = RuntimeError
        NVML_TEMPERATURE_GPU = 0

        def nvmlInit(self) -> None:
            asked.append("init")

        def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
            return uuid

        def nvmlDeviceGetTemperature(self, gpu: str, sensor: int) -> int:
            assert (gpu, sensor) == (f"GPU-{UUID}", 0)
            return 67

        def nvmlDeviceGetPciInfo(self, gpu: str) -> Any:
            return SimpleNamespace(busId=b"00000000:1B:00.0")

    monkeypatch.setattr(worker, "import_nvml", Nvml)
    monkeypatch.setattr(worker, "bind_to_slot", asked.append)
    one = AcceleratorWorker()
    about = one.prepare(True)
    assert (about["number"], about["error"], about["uuid"]) == ("0", "", f"GPU-{UUID}")
    board = "NVIDIA H100 80GB HBM3"
    assert about["build"][:5] == [board, "132 units", "9.0", torch.__version__, "13.0"]
    assert "00000000:1B:00.0" in asked
    assert one.measure_speed(1, 0.001)["celsius"] == 67.0


@pytest.mark.parametrize(("uuid", "asked"), [("GPU-1", "GPU-1"), ("MIG-1", "board of MIG-1")])
def test_a_worker_asks_the_board_for_its_link(
    uuid: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a GPU in MIG mode has no link of its own."""
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda gpu: f"board of {gpu}",
    )
    boards, calls = [], list[str]()

    def watch(nvml: Any, gpu: str, work: Any, wait: Any, seconds: float) -> dict[str, int]:
        boards.append((gpu, seconds))
        work()
        wait()
        return {"generation": 5, "width": 16}

    monkeypatch.setattr(worker, "import_nvml", lambda: nvml)
    monkeypatch.setattr(worker, "watch_link", watch)
    one = AcceleratorWorker()
    one.device = cast(
        Any,
        SimpleNamespace(
            describe=lambda: {"uuid": uuid},
            sizes=SimpleNamespace(calls=2),
            wait_for_work=partial(calls.append, "wait"),
        ),
    )
    one.operations = [
        compute_worker.TimedCall(name, partial(calls.append, name), 1.0)
        for name in ("gemm", "hbm", "h2d", "d2h")
    ]
    assert one.read_link(0.5, {}) == {"error": "", "link": {"generation": 5, "width": 16}}
    assert one.read_link(0.5, {"generation": 1})["link"] == {"generation": 1, "width": 16}
    assert boards == [(asked, 0.5)] * 2
    assert calls == ["gemm", "h2d", "gemm", "h2d", "wait"] * 2


def test_a_link_that_cannot_be_read_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setattr(worker, "import_nvml", lambda: SimpleNamespace(nvmlInit=fail))
    one = AcceleratorWorker()
    one.device = cast(Any, SimpleNamespace(describe=lambda: {"uuid": "GPU-1"}))
    assert one.read_link(0.5, {}) == {"error": "Driver Not Loaded", "link": {}}


def test_an_error_of_torch_is_an_answer(ray_context: dict[str, list[str]]) -> None:
    one = AcceleratorWorker()
    one.prepare(False)
    answer = one.check_sums(sums.SHAPE)
    assert "shapes cannot be multiplied" in answer["error"]
    assert (answer["wrong"], answer["hashes"]) == (None, [])
    one.operations = [compute_worker.TimedCall("gemm", lambda: 1 / 0, 1.0)]
    failed = {"error": "division by zero", "rates": {}, "launch_us": None, "celsius": None}
    assert one.measure_speed(1, 0.001) == failed


def test_a_worker_that_cannot_open_its_device_says_why(
    ray_context: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", StandInTorch(gpus=0))  # type: ignore[arg-type]
    about = AcceleratorWorker().prepare(True)
    assert about == {"number": "0", "error": "torch finds no GPU that it can use"}


def test_a_torch_that_was_built_without_gpus_is_named(
    ray_context: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = StandInTorch(gpus=0)
    torch.version.cuda = None
    torch.__version__ = "2.13.0+cpu"
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]  # a stand-in
    about = AcceleratorWorker().prepare(True)
    assert about["error"] == "torch 2.13.0+cpu is a build without GPU support"
    torch.version.hip = "6.2"  # AMD's build
    assert AcceleratorWorker().prepare(True)["error"] == "torch finds no GPU that it can use"


def test_a_worker_without_torch_gives_no_answer(
    ray_context: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError):
        AcceleratorWorker().prepare(False)


def test_an_error_is_described_in_one_line() -> None:
    cuda = RuntimeError("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA")
    assert worker.describe_failure(cuda) == "CUDA error: unspecified launch failure"
    assert worker.describe_failure(MemoryError()) == "MemoryError"


@pytest.mark.parametrize("error", [OSError, KeyError])
def test_a_board_that_nvml_does_not_know(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nvml:
        NVMLError = KeyError

        def nvmlInit(self) -> None:
            raise error

    monkeypatch.setattr(worker, "import_nvml", Nvml)
    assert worker.ask_board("GPU-1", lambda nvml, board: 1) is None
    assert worker.ask_board("", lambda nvml, board: 1) is None


def test_a_worker_is_near_to_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda who: {0, 1, 2, 3} - {who})
    monkeypatch.setattr(devices.os, "sched_setaffinity", lambda *given: chosen.append(given))
    folder = tmp_path / "0000:1b:00.0"
    folder.mkdir()
    (folder / "local_cpulist").write_text("1-3,8\n")
    assert devices.bind_to_slot("00000000:1B:00.0", str(tmp_path)) == [1, 2, 3]
    (folder / "local_cpulist").write_text("8\n")
    assert devices.bind_to_slot("00000000:1B:00.0", str(tmp_path)) == []
    (folder / "local_cpulist").write_text("\n")
    assert devices.bind_to_slot("00000000:1B:00.0", str(tmp_path)) == []
    assert devices.bind_to_slot("", str(tmp_path)) == []
    assert chosen == [(0, {1, 2, 3})], "0 is this process"


def test_a_cpu_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: AMD EPYC 9654 \nflags: x\n")
    assert devices.cpu_model(str(tmp_path / "cpuinfo")) == "AMD EPYC 9654"
    (tmp_path / "cpuinfo").write_text("processor : 0\n")
    assert devices.cpu_model(str(tmp_path / "cpuinfo")) == "CPU"


@pytest.mark.parametrize(
    ("setting", "assigned", "visible", "seen"),
    [
        ("1", "5", None, "5"),
        ("true", " 1", "0, 1", "1"),  # Ray's name of it is not stripped
        ("1", f"MIG-{UUID}", "MIG-a,MIG-b", f"MIG-{UUID}"),
        ("0", "5", "5", "5"),  # Ray has set it
        ("", "3", "3", "3"),
    ],
)
def test_where_ray_hides_no_gpu_a_worker_takes_the_one_that_ray_gave_it(
    gpu: StandInTorch, monkeypatch: pytest.MonkeyPatch,
    setting: str, assigned: str, visible: str | None, seen: str,
) -> None:  # fmt: skip
    """With verl's or vLLM's setting all GPUs are seen: all workers would compute on the first."""
    monkeypatch.setenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", setting)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    WorkDevice(True, assigned)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_a_slice_has_a_uuid_of_its_own(gpu: StandInTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkDevice(True).describe()["uuid"] == f"GPU-{UUID}"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{UUID}")
    assert WorkDevice(True).describe()["uuid"] == f"MIG-{UUID}"


def test_a_uuid_is_written_as_nvml_writes_it() -> None:
    uuids = [UUID, f"GPU-{UUID}", f"MIG-{UUID}", ""]
    assert devices.gpu_uuid(SimpleNamespace(uuid="00000000-0000-0000-0000-000000000000")) == ""
    found = [devices.gpu_uuid(SimpleNamespace(uuid=uuid)) for uuid in uuids]
    assert found == [f"GPU-{UUID}", f"GPU-{UUID}", f"MIG-{UUID}", ""]
    assert devices.gpu_uuid(SimpleNamespace()) == ""


def test_packages_that_are_there_are_listed() -> None:
    (found,) = devices.package_versions(("pytest", "no-such-package"))
    assert found.startswith("pytest ")


def test_copies_between_all_gpus_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandInTorch(gpus=3)
    monkeypatch.setitem(sys.modules, "torch", stand_in)  # type: ignore[arg-type]
    monkeypatch.setattr("probes.hosts.compute_worker.COPY_BYTES", COPY_BYTES // 2**12)
    looks = itertools.count(0.0, 0.25)  # five copies take a quarter of a second
    monkeypatch.setattr(compute_worker.time, "perf_counter", lambda: next(looks))
    found = measure_peer_copies()
    for source in range(3):
        for target in range(3):
            rate, direct = found["gbs"][source][target], found["direct"][source][target]
            assert (rate is None) == (direct is None) == (source == target)
            assert rate is None or rate == pytest.approx(5 * 2**16 / 0.25 / 1e9)
            assert direct is None or direct == (source < target)
    assert set(stand_in.waits) == {0, 1, 2}
