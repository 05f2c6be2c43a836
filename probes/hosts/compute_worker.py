"""The work that a rank gives its GPU: products, sums, copies; by torch or by stand-ins."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.gpus import watch_link
from probes.cluster.node_facts import leaves_choice
from probes.cluster.nvml import import_nvml, to_text
from reports.version import version_of

MIB = 2**20
PCI_DEVICES = "/sys/bus/pci/devices"
CPU_INFO = "/proc/cpuinfo"
# Packages that bring cuBLAS: another one may round otherwise.
CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
# Variables of cuBLAS and torch, read at their start: all workers then use the same kernels.
SAME_SUMS = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTORCH_TUNABLEOP_ENABLED": "0",
    "TORCH_BLAS_PREFER_CUBLASLT": "0",
}
VISIBLE = "CUDA_VISIBLE_DEVICES"
FP8_CAPABILITY = (8, 9)  # first GPUs with fp8 tensor cores: Ada; then Hopper


@dataclass(frozen=True)
class WorkSizes:
    """Sizes of the work: rows of square matrices, bytes of copies, and calls between two waits.

    `gemm` is timed; `sums` is the matrix whose sums are compared on the host.
    """

    dtype: str
    gemm: int
    sums: int
    repeats: int  # of the sums
    copy_bytes: int
    host_bytes: int
    calls: int


# A GEMM of 8192 rows fills every GPU (1.1 TFLOP: 2 ms of an H100).  Copies are far larger than the
# caches.  Waits come every few ms, so that they cost nothing.
GPU_SIZES = WorkSizes("bfloat16", 8192, 4096, 8, 1024 * MIB, 256 * MIB, 4)
# Calls of about 1 ms on one thread: nodes of a rehearsal share cores.
CPU_SIZES = WorkSizes("float32", 256, 256, 2, 8 * MIB, 2 * MIB, 1)
NO_GPU = "torch finds no GPU that it can use"
CPU_BUILD = "is a build without GPU support"  # of torch: pip takes it from PyTorch's index for CPUs


class WorkDevice:
    """Device of this worker, whose GPU Ray numbers `assigned`.

    Raises RuntimeError if the worker owns no GPU that torch can use.
    """

    def __init__(self, on_gpu: bool, assigned: str = "") -> None:
        if on_gpu:
            os.environ |= SAME_SUMS
            if leaves_choice():  # as Ray does elsewhere, before torch finds the GPUs
                os.environ[VISIBLE] = assigned.strip()
        import torch

        self.torch, self.on_gpu = torch, on_gpu
        self.sizes = GPU_SIZES if on_gpu else CPU_SIZES
        self.dtype = getattr(torch, self.sizes.dtype)
        torch.set_num_threads(1)  # sums on a CPU depend on the number of threads
        if on_gpu:
            if not torch.cuda.is_available():
                build = torch.version.cuda or torch.version.hip
                raise RuntimeError(NO_GPU if build else f"torch {torch.__version__} {CPU_BUILD}")
            # Sums of several parts are then added in float32.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self.device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")

    def wait_for_work(self) -> None:
        """Wait until all calls so far have been computed."""
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def make_random(self, *shape: int) -> Any:
        """Make normally distributed values: the power that a GEMM takes depends on its data."""
        return self.torch.randn(*shape, device=self.device, dtype=self.torch.float32).to(self.dtype)

    def make_bytes(self, size: int) -> Any:
        """Make so many bytes on the device."""
        return self.torch.ones(size, dtype=self.torch.uint8, device=self.device)

    def has_fp8(self) -> bool:
        """Return whether the device has fp8 arithmetic, and torch a call for it."""
        return (
            self.on_gpu
            and hasattr(self.torch, "_scaled_mm")
            and self.torch.version.hip is None
            and self.torch.cuda.get_device_capability(0) >= FP8_CAPABILITY
        )

    def describe(self) -> dict[str, Any]:
        """Describe the device: model, UUID ("" if it has none), and `build`.

        Two devices of one build give the same sums, to the last bit.
        """
        torch = self.torch
        if not self.on_gpu:
            model = cpu_model()
            build = [model, torch.backends.cpu.get_cpu_capability(), torch.__version__]
            return {"model": model, "uuid": "", "build": build}
        board = torch.cuda.get_device_properties(0)
        kind = [f"{board.multi_processor_count} units", f"{board.major}.{board.minor}"]
        versions = [torch.__version__, str(torch.version.cuda or torch.version.hip)]
        build = [board.name, *kind, *versions, *package_versions(CUBLAS)]
        slice_of_gpu = os.environ.get(VISIBLE, "")  # its UUID may be that of all slices
        uuid = slice_of_gpu if slice_of_gpu.startswith("MIG-") else gpu_uuid(board)
        return {"model": board.name, "uuid": uuid, "build": build}


def gpu_uuid(board: Any) -> str:
    """Return the UUID as NVML writes it, from torch's properties; "" where torch has none."""
    text = str(getattr(board, "uuid", ""))
    if not text.strip("0-"):  # some drivers write zeros for a board that has none
        return ""
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def package_versions(packages: Sequence[str]) -> list[str]:
    """List the versions of the packages that are installed, as `name 1.2`."""
    return [f"{package} {found}" for package in packages if (found := version_of(package, ""))]


def cpu_model(path: str = CPU_INFO) -> str:
    """Read the name of the CPU; "CPU" where the kernel gives none."""
    match = re.search(r"(?m)^model name\s*:\s*(\S.*)$", Path(path).read_text(errors="replace"))
    return match[1].strip() if match else "CPU"


def bind_to_slot(slot: str, root: str = PCI_DEVICES) -> list[int]:
    """Run on the CPUs that are near to a PCI slot: pinned memory is then near to it as well.

    `slot` is as NVML writes it, 00000000:1B:00.0.  Returns these CPUs; [] where they are not known
    or not allowed, and nothing changes.
    """
    domain, _, place = slot.lower().partition(":")
    with contextlib.suppress(OSError, ValueError):
        near = parse_cpu_list((Path(root) / f"{domain[-4:]}:{place}/local_cpulist").read_text())
        if chosen := near & os.sched_getaffinity(0):
            os.sched_setaffinity(0, chosen)
        return sorted(chosen)
    return []


def parse_cpu_list(text: str) -> set[int]:
    """Parse the kernel's list of CPUs, as `0-3,8`."""
    cpus = set[int]()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


TERA, GIGA = 1e12, 1e9
LAUNCHES = 1000  # of an empty piece of work, for the cost of one


@dataclass(frozen=True)
class TimedCall:
    """One call of work, and how much it does, in the unit of its rate times seconds."""

    name: str
    call: Callable[[], Any]
    amount: float


def build_operations(device: WorkDevice) -> list[TimedCall]:
    """Build the operations of a device: rates are in TFLOP/s and GB/s.

    A copy on the device reads and writes: both count.
    """
    sizes, torch = device.sizes, device.torch
    left, right = (device.make_random(sizes.gemm, sizes.gemm) for _ in range(2))
    product = torch.empty_like(left)
    source, target = device.make_bytes(sizes.copy_bytes), device.make_bytes(sizes.copy_bytes)
    near = device.make_bytes(sizes.host_bytes)
    # Those of the host are pinned for a GPU, so that it copies them.
    host = torch.ones(sizes.host_bytes, dtype=torch.uint8, pin_memory=device.on_gpu)
    flop = 2 * sizes.gemm**3 / TERA
    moved, sent = 2 * sizes.copy_bytes / GIGA, sizes.host_bytes / GIGA
    operations = [
        TimedCall("gemm", lambda: torch.mm(left, right, out=product), flop),
        TimedCall("hbm", lambda: target.copy_(source), moved),
        TimedCall("h2d", lambda: near.copy_(host, non_blocking=True), sent),
        TimedCall("d2h", lambda: host.copy_(near, non_blocking=True), sent),
    ]
    if device.has_fp8():
        operations.append(TimedCall("fp8", _fp8_call(device, left, right), flop))
    return operations


def _fp8_call(device: WorkDevice, left: Any, right: Any) -> Callable[[], Any]:
    """Build a GEMM in fp8.  Its right matrix must be stored by columns."""
    torch = device.torch
    kind = torch.float8_e4m3fn
    scale = torch.ones((), dtype=torch.float32, device=device.device)
    left, right = left.to(kind), right.t().contiguous().to(kind).t()
    options = {"scale_a": scale, "scale_b": scale, "out_dtype": torch.bfloat16}
    return lambda: torch._scaled_mm(left, right, **options)


def measure_rate(device: WorkDevice, operation: TimedCall, seconds: float, extra: int = 1) -> float:
    """Measure the rate of an operation for about so many seconds.

    `extra` is for a control: each call is made so often, and counts once.
    """
    device.wait_for_work()
    done, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        for _ in range(device.sizes.calls):
            for _ in range(extra):
                operation.call()
        device.wait_for_work()
        done += device.sizes.calls
    return done * operation.amount / elapsed


def measure_rates(
    device: WorkDevice, operations: list[TimedCall], rounds: int, seconds: float, extra: int = 1
) -> dict[str, list[float]]:
    """Measure each operation so many times, in turn: a disturbance meets all of them."""
    rates: dict[str, list[float]] = {operation.name: [] for operation in operations}
    for _ in range(rounds):
        for operation in operations:
            rates[operation.name].append(measure_rate(device, operation, seconds, extra))
    return rates


def measure_launch(device: WorkDevice) -> float:
    """Measure the time in us to launch a small piece of work."""
    one = device.torch.zeros(1, device=device.device)
    device.wait_for_work()
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        one.add_(1)
    device.wait_for_work()
    return (time.perf_counter() - began) / LAUNCHES * 1e6


def usable_operations(device: WorkDevice, operations: list[TimedCall]) -> Iterator[TimedCall]:
    """Yield the operations that run once.  Only fp8 may fail: torch's call for it is not stable."""
    for operation in operations:
        try:
            operation.call()
            device.wait_for_work()
        except Exception:  # torch raises many kinds
            if operation.name != "fp8":
                raise
        else:
            yield operation


SEED = 20240229  # any number; all devices must have the same
MOST_SUM = 61  # of the inner product: times 2 x 2 it stays below 256
FACTORS = (-2, -1, 1, 2)
ELEMENT, SHAPE = "element", "shape"  # faults of a control: one input element, one column too few


def balanced_factors(size: int) -> tuple[list[int], list[int], int]:
    """Draw two vectors, and their inner product: not 0, and at most MOST_SUM."""
    draw = random.Random(SEED)
    left, right = ([draw.choice(FACTORS) for _ in range(size)] for _ in range(2))
    total = sum(a * b for a, b in zip(left, right, strict=True))
    for k in range(size):
        if 0 < abs(total) <= MOST_SUM:
            break
        if left[k] * right[k] * total >= 0:
            total -= 2 * left[k] * right[k]
            right[k] = -right[k]
    return left, right, total


def build_known(torch: Any, size: int) -> tuple[Any, Any, Any]:
    """Build two matrices and their product, in float32: each element has another sum of products.

    Row i of the left one is `rows[i]` times a vector, column j of the right one `columns[j]` times
    another.  So the product is known without a GEMM, and no device computes the answer.
    """
    draw = random.Random(SEED + 1)
    rows, columns = ([draw.choice(FACTORS) for _ in range(size)] for _ in range(2))
    inner_left, inner_right, total = balanced_factors(size)
    vectors = (rows, columns, inner_left, inner_right)
    down, across, left, right = (torch.tensor(one, dtype=torch.float32) for one in vectors)
    return torch.outer(down, left), torch.outer(right, across), torch.outer(down, across) * total


def count_wrong_sums(device: WorkDevice, plant: str = "") -> int:
    """Count the wrong elements of a GEMM with a known answer; compared on the host.

    `plant` is for a control: it changes an input element, or takes a column away.
    """
    left, right, expected = build_known(device.torch, device.sizes.sums)
    products = multiply(device, left, right, plant)
    return max(int((found.float() != expected).sum()) for found in products)


def hash_products(device: WorkDevice, plant: str = "") -> list[str]:
    """Multiply the same normal numbers several times; return the hash of each product's bits."""
    torch, size = device.torch, device.sizes.sums
    draw = torch.Generator().manual_seed(SEED)  # of the host: the same numbers everywhere
    left, right = (torch.randn(size, size, generator=draw) for _ in range(2))
    return [hash_bits(product) for product in multiply(device, left, right, plant)]


def multiply(device: WorkDevice, left: Any, right: Any, plant: str) -> Iterator[Any]:
    """Multiply the matrices again and again; yield each product, on the host."""
    if plant == SHAPE:
        left = left[:, 1:]
    elif plant == ELEMENT:
        left[-1, -1] += 1
    left, right = (one.to(device.device, device.dtype) for one in (left, right))
    for _ in range(device.sizes.repeats):
        yield device.torch.mm(left, right).cpu()


def hash_bits(values: Any) -> str:
    """Hash the bits of a tensor on the host."""
    values = values.contiguous()
    size = values.numel() * values.element_size()
    return hashlib.sha256((ctypes.c_char * size).from_address(values.data_ptr())).hexdigest()


COPY_BYTES = 256 * 2**20  # over NVLink about a millisecond
COPIES = 5  # of a pair: their mean counts, after one that opens the path


def measure_peer_copies() -> dict[str, Any]:
    """Copy between all GPUs of this worker: {"gbs": rows by source, "direct": same shape}.

    `direct` is whether the GPUs reach each other's memory without the host.
    """
    import torch

    gpus = range(torch.cuda.device_count())
    buffers = [
        torch.ones(COPY_BYTES, dtype=torch.uint8, device=torch.device("cuda", gpu)) for gpu in gpus
    ]

    def ask_pairs(ask: Callable[[int, int], Any]) -> list[list[Any]]:
        return [[None if at == to else ask(at, to) for to in gpus] for at in gpus]

    direct = ask_pairs(torch.cuda.can_device_access_peer)
    return {"gbs": ask_pairs(partial(_copy_rate, torch, buffers)), "direct": direct}


def _copy_rate(torch: Any, buffers: list[Any], source: int, target: int) -> float:
    """Measure the copies from one GPU to another, in GB/s."""
    arrived = torch.empty_like(buffers[target])

    def copy(times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            arrived.copy_(buffers[source], non_blocking=True)
        for gpu in (source, target):
            torch.cuda.synchronize(gpu)
        return time.perf_counter() - began

    copy(1)
    return float(COPIES * COPY_BYTES / copy(COPIES) / 1e9)


def note_peer_copies(cluster: Cluster, measure: Recorder) -> None:
    """Note the slowest pair of GPUs of each node, and keep all pairs as evidence."""
    counts = {node["id"]: int(node["resources"].get("GPU", 0)) for node in cluster.nodes}
    answers: dict[str, Any] = {}
    for gpus in dict.fromkeys(count for count in counts.values() if count > 1):
        nodes = [node for node in cluster.nodes if counts[node["id"]] == gpus]
        answers |= cluster.on_each_node(measure_peer_copies, nodes=nodes, gpus=gpus)
    if not answers:
        return
    by_name = {cluster.node_names[id]: answer for id, answer in answers.items()}
    measure.keep("peer_copies.json", by_name, caption="GB/s between the GPUs of each node")
    for name, answer in by_name.items():
        rates = [rate for row in answer["gbs"] for rate in row if rate is not None]
        if rates:
            measure.note("slowest_peer_copy", min(rates), "GB/s", on=name)


T = TypeVar("T")


class AcceleratorWorker:
    """Actor that owns one accelerator.

    Answers have `error` "" or the last line of what torch raised: a GPU that fails is an answer.
    """

    def prepare(self, on_gpu: bool) -> dict[str, Any]:
        """Open the device, and describe it; `number` is Ray's number of the accelerator.

        Raises ImportError without torch.
        """
        import ray

        numbers = ray.get_runtime_context().get_accelerator_ids().get("GPU") or ["0"]
        about: dict[str, Any] = {"number": str(numbers[0]), "error": ""}
        try:
            self.device = WorkDevice(on_gpu, about["number"])
            about |= self.device.describe()
            bind_to_slot(self.read_slot(about["uuid"]))
            self.operations = list(usable_operations(self.device, build_operations(self.device)))
            return about
        except ImportError:  # without torch nothing is proven
            raise
        except Exception as error:  # noqa: BLE001 - torch raises many kinds, and each is an answer
            return {**about, "error": describe_failure(error)}

    def check_sums(self, plant: str = "") -> dict[str, Any]:
        """Compute both GEMMs that are compared: {"error", "wrong", "hashes"}."""

        def compute() -> dict[str, Any]:
            wrong = count_wrong_sums(self.device, plant)
            return {"wrong": wrong, "hashes": hash_products(self.device, plant)}

        return answer_or_error(compute, wrong=None, hashes=[])

    def measure_speed(
        self, rounds: int, seconds: float, extra: int = 1, only: Collection[str] = ()
    ) -> dict[str, Any]:
        """Measure all rates, or `only` these: {"error", "rates", "launch_us", "celsius"}."""
        chosen = [one for one in self.operations if not only or one.name in only]

        def measure() -> dict[str, Any]:
            rates = measure_rates(self.device, chosen, rounds, seconds, extra)
            launch_us, celsius = measure_launch(self.device), self.read_celsius()
            return {"rates": rates, "launch_us": launch_us, "celsius": celsius}

        return answer_or_error(measure, rates={}, launch_us=None, celsius=None)

    def read_link(self, seconds: float, plant: Mapping[str, int]) -> dict[str, Any]:
        """Read the GPU's PCIe link and clock while it works: {"error", "link"}, see `watch_link`.

        `plant` is for a control: false answers of NVML.
        """
        uuid, nvml = self.device.describe()["uuid"], import_nvml()

        def watch() -> dict[str, Any]:
            nvml.nvmlInit()
            gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
            if uuid.startswith("MIG-"):
                gpu = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu)
            link = watch_link(nvml, gpu, self.load_link, self.device.wait_for_work, seconds)
            return {"link": {**link, **plant}}

        return answer_or_error(watch, link={})

    def load_link(self) -> None:
        """Let the GPU compute and copy from the host, for some milliseconds; do not wait."""
        loads = [one for one in self.operations if one.name in ("gemm", "h2d")]
        for _ in range(self.device.sizes.calls):
            for operation in loads:
                operation.call()

    def read_celsius(self) -> float | None:
        """Read the temperature of the GPU; None where NVML gives none."""
        return ask_board(
            self.device.describe()["uuid"],
            lambda nvml, gpu: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
        )

    def read_slot(self, uuid: str) -> str:
        """Read the PCI slot of the GPU, as NVML writes it; "" where NVML gives none."""
        found = ask_board(uuid, lambda nvml, gpu: to_text(nvml.nvmlDeviceGetPciInfo(gpu).busId))
        return found or ""


def ask_board(uuid: str, question: Callable[[Any, Any], T]) -> T | None:
    """Ask NVML about the GPU with this UUID; None without a UUID, or if NVML does not answer.

    NVML stays started until this process ends: a start may take seconds.
    """
    if not uuid:
        return None
    nvml = import_nvml()
    with contextlib.suppress(OSError, nvml.NVMLError):
        nvml.nvmlInit()
        return question(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    return None


def answer_or_error(step: Callable[[], dict[str, Any]], **failed: Any) -> dict[str, Any]:
    """Take a step; return its answer with `error` "", or why it failed with what is then known."""
    try:
        return {"error": "", **step()}
    except Exception as error:  # noqa: BLE001 - torch and NVML raise many kinds, each an answer
        return {"error": describe_failure(error), **failed}


def describe_failure(error: BaseException) -> str:
    """Describe an error in one line: CUDA's have advice in further lines."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
