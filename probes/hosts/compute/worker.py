"""The worker of one accelerator: it computes and copies, and says what came out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from probes.cluster.gpus.loaded_link import watch_link
from probes.cluster.nvml import import_nvml, to_text
from probes.hosts.compute.device import WorkDevice, bind_to_slot
from probes.hosts.compute.operations import (
    build_operations,
    measure_launch,
    measure_rates,
    usable_operations,
)
from probes.hosts.compute.sums import count_wrong_sums, hash_products

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
            self.device = WorkDevice(on_gpu)
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
        try:
            wrong = count_wrong_sums(self.device, plant)
            return {"error": "", "wrong": wrong, "hashes": hash_products(self.device, plant)}
        except Exception as error:  # noqa: BLE001 - torch raises many kinds, and each is an answer
            return {"error": describe_failure(error), "wrong": None, "hashes": []}

    def measure_speed(
        self, rounds: int, seconds: float, extra: int = 1, only: Collection[str] = ()
    ) -> dict[str, Any]:
        """Measure all rates, or `only` these: {"error", "rates", "launch_us", "celsius"}."""
        chosen = [one for one in self.operations if not only or one.name in only]
        try:
            rates = measure_rates(self.device, chosen, rounds, seconds, extra)
            launch, celsius = measure_launch(self.device), self.read_celsius()
            return {"error": "", "rates": rates, "launch_us": launch, "celsius": celsius}
        except Exception as error:  # noqa: BLE001 - torch raises many kinds, and each is an answer
            return {
                "error": describe_failure(error),
                "rates": {},
                "launch_us": None,
                "celsius": None,
            }

    def read_link(self, seconds: float, plant: Mapping[str, int]) -> dict[str, Any]:
        """Read the GPU's PCIe link and clock while it works: {"error", "link"}, see `watch_link`.

        `plant` is for a control: false answers of NVML.
        """
        uuid, nvml = self.device.describe()["uuid"], import_nvml()
        try:
            nvml.nvmlInit()
            gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
            if uuid.startswith("MIG-"):
                gpu = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu)
            link = watch_link(nvml, gpu, self.load_link, self.device.wait_for_work, seconds)
            return {"error": "", "link": {**link, **plant}}
        except Exception as error:  # noqa: BLE001 - NVML and torch raise many kinds, each an answer
            return {"error": describe_failure(error), "link": {}}

    def load_link(self) -> None:
        """Let the GPU compute and copy from the host, for some milliseconds; do not wait."""
        loads = [one for one in self.operations if one.name in ("gemm", "h2d")]
        for _ in range(self.device.sizes.calls):
            for operation in loads:
                operation.call()

    def read_celsius(self) -> float | None:
        """Read the temperature of the GPU; None where NVML gives none."""
        uuid = self.device.describe()["uuid"]
        return ask_board(
            uuid,
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


def describe_failure(error: BaseException) -> str:
    """Describe an error in one line: CUDA's have advice in further lines."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
