"""What one node looks like to a job: read inside a Ray worker on that node.

Only the standard library, Ray and (where there is a GPU) NVML; pure parsers are testable apart.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from reports.redact import redact

RDMA_SYSFS = "/sys/class/infiniband"
IN_USE_BYTES = 200 * 2**20  # a CUDA context takes more, and an idle GPU far less
VARIABLE_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "FI_", "UCX_", "OMP_")


def node_facts() -> dict[str, Any]:
    """Inventory of this node: names, versions, interfaces, RDMA ports, GPUs, limits, environment.

    Keys are stable: HOSTS compares `software` across nodes, FABRIC reads `interfaces`.
    """
    import ray

    return {
        "node": ray.get_runtime_context().get_node_id(),
        "address": ray.util.get_node_ip_address(),
        "host": socket.gethostname(),
        "software": software_versions(),
        "interfaces": read_interfaces(),
        "rdma": rdma_ports(),
        "gpus": list_gpus(),
        "shm_gib": _size_gib("/dev/shm"),
        "cpus": os.cpu_count(),
        "environment": redact(
            {k: v for k, v in sorted(os.environ.items()) if k.startswith(VARIABLE_PREFIXES)}
        ),
    }


def software_versions() -> dict[str, str]:
    """Versions that must be equal on all nodes and on the driver; "" where a part is absent."""
    return {
        "python": platform.python_version(),
        "ray": _package_version("ray"),
        "torch": _package_version("torch"),
        "driver": _driver_version(),
    }


def _package_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _driver_version() -> str:
    """NVIDIA kernel driver version, from the file that nvidia-smi itself reads."""
    path = Path("/proc/driver/nvidia/version")
    text = (
        path.read_text(errors="replace") if path.exists() else ""
    )  # unreadable is not "no driver"
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else ""


def read_interfaces() -> dict[str, dict[str, Any]]:
    """Network devices: IPv4 address, state, MTU, speed in Mbit/s (None: unknown), virtual."""
    addresses = _ipv4_addresses()
    return {
        path.name: {
            "address": addresses.get(path.name),
            "state": read_text(path / "operstate"),
            "mtu": int(read_text(path / "mtu") or 0),
            "speed": _link_speed(path),
            "virtual": not (path / "device").exists(),
        }
        for path in sorted(Path("/sys/class/net").iterdir())
    }


def _link_speed(path: Path) -> int | None:
    """Link speed in Mbit/s; a virtual device's is made up by its driver, so it is unknown."""
    text = read_text(path / "speed")
    known = text.lstrip("-").isdigit() and int(text) > 0 and (path / "device").exists()
    return int(text) if known else None


def _ipv4_addresses() -> dict[str, str]:
    """First IPv4 address of each interface, asked of the kernel (SIOCGIFADDR)."""
    import fcntl
    import struct

    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                reply = fcntl.ioctl(sock.fileno(), 0x8915, struct.pack("256s", name[:15].encode()))
                addresses[name] = socket.inet_ntoa(reply[20:24])
    return addresses


def rdma_ports(root: str = RDMA_SYSFS) -> list[dict[str, str]]:
    """InfiniBand and RoCE ports with rate, link layer and state, from sysfs."""
    return [
        {
            "device": port.parts[-3],
            "port": port.name,
            **{name: read_text(port / name) for name in ("rate", "link_layer", "state")},
        }
        for port in sorted(Path(root).glob("*/ports/*"))
    ]


def list_gpus() -> list[dict[str, str]]:
    """Name and UUID of each NVIDIA GPU that NVML sees; empty without a driver."""
    return _of_each_gpu(
        lambda nvml, gpu: {
            "name": _to_text(nvml.nvmlDeviceGetName(gpu)),
            "uuid": _to_text(nvml.nvmlDeviceGetUUID(gpu)),
        }
    )


def gpus_in_use() -> dict[str, list[int]]:
    """UUID of each GPU whose memory a process holds, and the ids of its compute processes.

    In a container NVML names no process: there memory tells.  Raises RuntimeError where NVML sees
    no GPU: that would be no answer.
    """
    rows = _of_each_gpu(
        lambda nvml, gpu: (
            _to_text(nvml.nvmlDeviceGetUUID(gpu)),
            [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
            nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2).used,
        )
    )
    if not rows:
        raise RuntimeError("NVML sees no GPU here")
    return {uuid: pids for uuid, pids, used in rows if pids or used > IN_USE_BYTES}


def start_nvml() -> Any:
    """NVML, started; None without a driver.  Each start wants its own shutdown."""
    try:
        import pynvml
    except ImportError:  # the nodes need nothing but Ray and torch, and Ray brings its own copy
        from ray._private.thirdparty import pynvml
    try:
        pynvml.nvmlInit()
    except (OSError, pynvml.NVMLError):
        return None
    return pynvml


def _of_each_gpu(ask: Callable[[Any, Any], Any]) -> list[Any]:
    """What NVML answers of each GPU; empty without a driver."""
    nvml = start_nvml()
    if nvml is None:
        return []
    try:
        count = nvml.nvmlDeviceGetCount()
        return [ask(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    finally:
        nvml.nvmlShutdown()


def _to_text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _size_gib(path: str) -> float:
    size = os.statvfs(path)
    return round(size.f_blocks * size.f_frsize / 2**30, 2)


def read_text(path: Path) -> str:
    """Read a file of the kernel's or the system's, without the blanks around; "" if unreadable."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def file_contains(path: str, token: str) -> bool:
    """Whether this node reads `token` in the file `path`: is the folder really shared?"""
    return read_text(Path(path)) == token
