"""Reads the facts of one node as a job sees it: in a Ray worker on that node.

It needs only the standard library, Ray and NVML.  The parsers are pure and can be tested
separately.
"""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from probes.cluster.facts.gpu_health import read_gpus_and_health
from probes.cluster.facts.image import read_image
from probes.cluster.facts.inventory import cuda_version, disk_gib, nic_firmware, ofed_version
from probes.cluster.facts.names import read_names
from probes.cluster.facts.rdma_access import read_peer_memory, read_rdma_access
from probes.cluster.facts.system import read_node_system
from probes.cluster.facts.system_files import BOOT_ID, RDMA_SYSFS, read_text
from reference_trainer.rank_environment import ipv4_addresses
from reports.redact import redact

CGROUP = "/sys/fs/cgroup"  # a container sees its own limits there
VARIABLE_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "FI_", "UCX_", "OMP_")


def node_facts() -> dict[str, Any]:
    """Read this node's facts: names, versions, interfaces, RDMA ports, GPUs, limits, environment.

    Keys are stable: HOSTS compares `software` across nodes, FABRIC reads `interfaces`.  `nvml` and
    `gpus` are as in `read_gpus`, and `gpu_health` is as in `read_gpu_health`.  `amd_driver` is
    whether AMD's compute driver is there.  `system` is as in `read_system`, `names` as in
    `read_names`, `image` as in `read_image`, and `rdma_access` as in `read_rdma_access`.
    """
    import ray

    address = ray.util.get_node_ip_address()
    return {
        "node": ray.get_runtime_context().get_node_id(),
        "address": address,
        "host": socket.gethostname(),
        "software": software_versions(),
        "interfaces": read_interfaces(),
        "rdma": rdma_ports(),
        "nics": nic_firmware(),
        "rdma_access": read_rdma_access(),
        "peer_memory": read_peer_memory(),
        "image": read_image(),
        **read_gpus_and_health(),
        "amd_driver": Path("/dev/kfd").exists(),
        "names": read_names(socket.gethostname(), address, os.environ),
        "boot_id": read_text(Path(BOOT_ID)),
        "shm_gib": _size_gib("/dev/shm"),
        "cpus": usable_cpus(),
        "ram_gib": usable_memory_gib(),
        "disk_gib": disk_gib(),
        "system": read_node_system(),
        "environment": redact(
            {k: v for k, v in sorted(os.environ.items()) if k.startswith(VARIABLE_PREFIXES)}
        ),
    }


def add_silent(
    facts: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Add an entry without facts for each node that did not answer: nothing is proven there."""
    answered = {fact["node"] for fact in facts}
    silent = [node for node in nodes if node["id"] not in answered]
    return [*facts, *({"node": node["id"], "name": node["name"]} for node in silent)]


def software_versions() -> dict[str, str]:
    """Read the versions that must be equal on all nodes and the driver; "" for an absent part."""
    return {
        "python": platform.python_version(),
        "ray": _package_version("ray"),
        "torch": _package_version("torch"),
        "driver": _driver_version(),
        "cuda": cuda_version(),
        "kernel": platform.release(),
        "ofed": ofed_version(),
    }


def _package_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _driver_version() -> str:
    """Read the NVIDIA kernel driver version, from the file that nvidia-smi itself reads."""
    path = Path("/proc/driver/nvidia/version")
    # An unreadable file raises OSError: it does not mean "no driver".
    text = path.read_text(errors="replace") if path.exists() else ""
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else ""


def read_interfaces() -> dict[str, dict[str, Any]]:
    """Read the network devices: IPv4 and MAC address, state, MTU, speed (Mbit/s), virtual."""
    addresses = ipv4_addresses()
    return {
        path.name: {
            "address": addresses.get(path.name),
            "mac": read_text(path / "address").lower(),
            "state": read_text(path / "operstate"),
            "mtu": int(read_text(path / "mtu") or 0),
            "speed": _link_speed(path),
            "virtual": not (path / "device").exists(),
        }
        for path in sorted(Path("/sys/class/net").iterdir())
    }


def _link_speed(path: Path) -> int | None:
    """Read the link speed, Mbit/s; None for a virtual device, whose driver makes it up."""
    text = read_text(path / "speed")
    known = text.lstrip("-").isdigit() and int(text) > 0 and (path / "device").exists()
    return int(text) if known else None


def rdma_ports(root: str = RDMA_SYSFS) -> list[dict[str, str]]:
    """Read the InfiniBand and RoCE ports from sysfs: rate, link layer, state, network device."""
    return [
        {
            "device": port.parts[-3],
            "port": port.name,
            **{name: read_text(port / name) for name in ("rate", "link_layer", "state")},
            "netdev": rdma_netdev(port),
        }
        for port in sorted(Path(root).glob("*/ports/*"))
    ]


def rdma_netdev(port: Path) -> str:
    """Name the network device of an RDMA port (its sysfs folder); "" if it has none, as EFA.

    It is that of the port's GIDs (kernel Documentation/ABI/testing/sysfs-class-infiniband),
    otherwise the only device of the card.
    """
    of_gids = (read_text(path) for path in sorted(port.glob("gid_attrs/ndevs/*")))
    of_card = sorted(path.name for path in port.parents[1].glob("device/net/*"))
    return next(filter(None, of_gids), "") or (of_card[0] if len(of_card) == 1 else "")


def usable_cpus(cgroup: str = CGROUP, cpus: int | None = None) -> float | None:
    """Read how many CPUs a job has here: the machine's, or the container's limit if lower."""
    cpus = cpus or os.cpu_count()
    quota, _, period = read_text(Path(cgroup, "cpu.max")).partition(" ")  # cgroup v2
    if not period:  # v1
        quota = read_text(Path(cgroup, "cpu/cpu.cfs_quota_us"))
        period = read_text(Path(cgroup, "cpu/cpu.cfs_period_us"))
    limited = quota.isdigit() and period.isdigit()  # no limit: "max", "-1", or no file
    return min(cpus, int(quota) / int(period)) if cpus and limited else cpus


def usable_memory_gib(cgroup: str = CGROUP, meminfo: str = "/proc/meminfo") -> float | None:
    """Read how much memory (GiB) a job has: the machine's, or the container's limit if lower."""
    match = re.search(r"^MemTotal:\s+(\d+) kB$", read_text(Path(meminfo)), re.MULTILINE)
    if not match:
        return None
    files = ("memory.max", "memory/memory.limit_in_bytes")  # cgroup v2, v1
    limits = [int(text) for name in files if (text := read_text(Path(cgroup, name))).isdigit()]
    return round(min([int(match[1]) * 2**10, *limits]) / 2**30, 2)


def _size_gib(path: str) -> float:
    size = os.statvfs(path)
    return round(size.f_blocks * size.f_frsize / 2**30, 2)
