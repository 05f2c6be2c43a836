"""What one node looks like to a job: read inside a Ray worker on that node.

Only the standard library, Ray and (where there is a GPU) NVML; pure parsers are testable apart.
"""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from reports.redact import redact_environment

RDMA_PORTS = "/sys/class/infiniband"
CONTEXT_BYTES = 200 * 2**20  # a CUDA context takes more, and an idle GPU far less
PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "FI_", "UCX_", "OMP_")


def node_facts() -> dict[str, Any]:
    """Inventory of this node: names, versions, interfaces, RDMA ports, GPUs, limits, environment.

    Keys are stable: HOSTS compares `software` across nodes, FABRIC reads `interfaces`.
    """
    import ray

    return {
        "node": ray.get_runtime_context().get_node_id(),
        "address": ray.util.get_node_ip_address(),
        "host": socket.gethostname(),
        "software": software(),
        "interfaces": interfaces(),
        "rdma": rdma_ports(),
        "gpus": gpus(),
        "shm_gib": _gib("/dev/shm"),
        "cpus": os.cpu_count(),
        "environment": redact_environment(
            {k: v for k, v in sorted(os.environ.items()) if k.startswith(PREFIXES)}
        ),
    }


def software() -> dict[str, str]:
    """Versions that must be equal on all nodes and on the driver; "" where a part is absent."""
    return {
        "python": platform.python_version(),
        "ray": _version("ray"),
        "torch": _version("torch"),
        "driver": _driver(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _driver() -> str:
    """NVIDIA kernel driver version, from the file that nvidia-smi itself reads."""
    path = Path("/proc/driver/nvidia/version")
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", path.read_text()) if path.exists() else None
    return match.group(1) if match else ""


def interfaces() -> dict[str, dict[str, Any]]:
    """Network devices: IPv4 address, state, MTU, speed in Mbit/s (None: unknown), virtual."""
    found = {}
    addresses = _addresses()
    for path in sorted(Path("/sys/class/net").iterdir()):
        found[path.name] = {
            "address": addresses.get(path.name),
            "state": _read(path / "operstate"),
            "mtu": int(_read(path / "mtu") or 0),
            "speed": _speed(path),
            "virtual": not (path / "device").exists(),
        }
    return found


def _speed(path: Path) -> int | None:
    """Link speed in Mbit/s; a virtual device's is made up by its driver, so it is unknown."""
    text = _read(path / "speed")
    known = text.lstrip("-").isdigit() and int(text) > 0 and (path / "device").exists()
    return int(text) if known else None


def _addresses() -> dict[str, str]:
    """First IPv4 address of each interface, asked of the kernel (SIOCGIFADDR)."""
    import fcntl
    import struct

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(sock.fileno(), 0x8915, struct.pack("256s", name[:15].encode()))
            except OSError:  # the interface has no IPv4 address
                continue
            found[name] = socket.inet_ntoa(reply[20:24])
    return found


def rdma_ports(root: str = RDMA_PORTS) -> list[dict[str, str]]:
    """InfiniBand and RoCE ports with rate, link layer and state, from sysfs."""
    ports = sorted(Path(root).glob("*/ports/*"))
    return [
        {
            "device": port.parts[-3],
            "port": port.name,
            "rate": _read(port / "rate"),
            "link_layer": _read(port / "link_layer"),
            "state": _read(port / "state"),
        }
        for port in ports
    ]


def gpus() -> list[dict[str, str]]:
    """Name and UUID of each NVIDIA GPU that NVML sees; empty without a driver."""
    return _of_each_gpu(
        lambda nvml, gpu: {
            "name": _text(nvml.nvmlDeviceGetName(gpu)),
            "uuid": _text(nvml.nvmlDeviceGetUUID(gpu)),
        }
    )


def gpus_in_use() -> dict[str, list[int]]:
    """UUID of each GPU whose memory a process holds, and the ids of its compute processes.

    In a container NVML names no process: there memory tells.  Raises RuntimeError where NVML sees
    no GPU: that would be no answer.
    """
    found = _of_each_gpu(
        lambda nvml, gpu: (
            _text(nvml.nvmlDeviceGetUUID(gpu)),
            [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
            nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2).used,
        )
    )
    if not found:
        raise RuntimeError("NVML sees no GPU here")
    return {uuid: pids for uuid, pids, used in found if pids or used > CONTEXT_BYTES}


def nvml_ready() -> Any:
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
    nvml = nvml_ready()
    if nvml is None:
        return []
    try:
        count = nvml.nvmlDeviceGetCount()
        return [ask(nvml, nvml.nvmlDeviceGetHandleByIndex(at)) for at in range(count)]
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _gib(path: str) -> float:
    size = os.statvfs(path)
    return round(size.f_blocks * size.f_frsize / 2**30, 2)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def sees(path: str, token: str) -> bool:
    """Whether this node reads `token` in the file `path`: is the folder really shared?"""
    return _read(Path(path)) == token
