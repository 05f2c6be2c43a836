"""Collects the facts of the node that it runs on."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import util
from pathlib import Path
from typing import Any

from probes.cluster import system_facts
from probes.cluster.gpu_health import read_gpus_and_health
from probes.cluster.network_facts import read_names
from probes.cluster.system_facts import BOOT_ID, RDMA_SYSFS, SHARED_MEMORY, read_text
from probes.cluster.variables import withhold_all
from probes.findings import MAX_NAMES, join_names
from reference_trainer.process_group import joins_no_group
from reference_trainer.rank_environment import ipv4_addresses
from reports.groups import group_pairs
from reports.sanitize import last_line
from reports.version import version_of

CUDA_LINE = re.compile(r"^cuda\b[^=\n]*= *'([\d.]+)'", re.MULTILINE)  # of torch/version.py
# Drivers of Mellanox NICs give their version only in OFED's own build, not in the kernel's.
OFED_VERSION = "/sys/module/mlx5_core/version"
BLOCK_SYSFS = "/sys/block"
SECTOR_BYTES = 512  # unit of /sys/block/*/size, whatever the disk's own sectors are


def cuda_version(torch_folder: str | None = None) -> str:
    """Read the CUDA version that torch was built with; "" for a CPU build, or without torch.

    torch is not imported: that takes seconds.
    """
    if torch_folder is None:
        spec = util.find_spec("torch")
        if spec is None or not spec.origin:
            return ""
        torch_folder = str(Path(spec.origin).parent)
    match = CUDA_LINE.search(read_text(Path(torch_folder, "version.py")))
    return match[1] if match else ""


def ofed_version(path: str = OFED_VERSION) -> str:
    """Read the version of OFED's mlx5 driver; "" for the kernel's own driver, or none."""
    return read_text(Path(path))


def nic_firmware(root: str = RDMA_SYSFS) -> list[dict[str, str]]:
    """Read of each RDMA device its board, its firmware and its NUMA node; "" for none."""
    return [
        {
            "device": device.name,
            "board": read_text(device / "board_id") or read_text(device / "hca_type"),
            "firmware": read_text(device / "fw_ver"),
            "numa": read_text(device / "device" / "numa_node"),
        }
        for device in sorted(Path(root).glob("*"))
    ]


def disk_gib(root: str = BLOCK_SYSFS) -> float | None:
    """Read the size of all local disks together, GiB; None if no disk can be read.

    A disk has a device of its own.  A loop device, a partition, RAID and memory have none.  A disk
    that is seen by several paths counts once.
    """
    sizes: dict[str, int] = {}
    for disk in sorted(Path(root).glob("*")):
        # A removable medium, or one path to a disk that is listed as well.
        no_disk = "1" in (read_text(disk / "removable"), read_text(disk / "hidden"))
        if (disk / "device").exists() and not no_disk:
            id = read_text(disk / "wwid") or read_text(disk / "device" / "wwid") or disk.name
            text = read_text(disk / "size")
            sizes |= {id: int(text)} if text.isdigit() else {}
    return round(sum(sizes.values()) * SECTOR_BYTES / 2**30, 2) if sizes else None


OS_RELEASE = "/etc/os-release"
OS_NAME = re.compile(r'^PRETTY_NAME="?([^"\n]*)"?$', re.MULTILINE)
METADATA_FOLDER = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-.*)?\.(dist|egg)-info")


def read_image(extra: Sequence[str] = ()) -> dict[str, Any]:
    """Read {"os": name, "packages": their count, "digest": of their names and versions}.

    Packages are those that a worker can import.  Folders of `extra` are searched as well.
    """
    packages = list_packages(extra)
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()
    match = OS_NAME.search(read_text(Path(OS_RELEASE)))
    return {"os": match[1] if match else "", "packages": len(packages), "digest": digest}


def list_packages(extra: Sequence[str] = ()) -> list[str]:
    """List the packages on sys.path, as `name version`.

    Names of metadata folders are read, and not their files: that is ten times faster.
    """
    found = set()
    for folder in (*sys.path, *extra):
        for path in Path(folder or ".").glob("*-info"):
            if match := METADATA_FOLDER.fullmatch(path.name):
                name = re.sub(r"[-_.]+", "-", match["name"]).lower()  # as PEP 503 spells it
                found.add(f"{name} {match['version']}")
    return sorted(found)


VARIABLE_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "FI_", "UCX_", "OMP_")


# Of one that does not answer only `node`, Ray's id, and `name`, which the cluster adds, are known.
Facts = Mapping[str, Any]


def node_facts() -> dict[str, Any]:
    """Read this node's facts: names, versions, interfaces, RDMA ports, GPUs, limits, environment.

    Keys are stable: HOSTS compares `software` across nodes, FABRIC reads `interfaces`.
    It runs in a Ray worker.  A worker inherits its CPUs and its cgroup from the raylet, so `cpus`
    and `ram_gib` are what a job's ranks get, and not what the machine has.
    """
    import ray

    address, gpus = ray.util.get_node_ip_address(), read_gpus_and_health()
    return {
        "node": ray.get_runtime_context().get_node_id(),
        "address": address,  # in Ray
        "host": socket.gethostname(),
        "software": software_versions(),
        "interfaces": read_interfaces(),
        "rdma": rdma_ports(),
        "nics": nic_firmware(),
        # Why a device cannot be opened.
        "rdma_access": system_facts.read_rdma_access(),
        "peer_memory": system_facts.read_peer_memory(),
        "image": read_image(),
        "nvml": gpus["nvml"],
        "gpus": gpus["gpus"],
        "gpu_health": gpus["gpu_health"],
        "amd_driver": Path("/dev/kfd").exists(),  # whether AMD's compute driver is there
        "names": read_names(socket.gethostname(), address, os.environ),
        "boot_id": read_text(Path(BOOT_ID)),
        "shm_gib": _size_gib(SHARED_MEMORY),
        "cpus": usable_cpus(),
        "ram_gib": usable_memory_gib(),
        "disk_gib": disk_gib(),
        "system": system_facts.read_node_system(),
        "environment": job_variables(os.environ),
    }


def job_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of VARIABLE_PREFIXES: value, or that it is set; see `withhold`."""
    names = sorted(name for name in environment if name.startswith(VARIABLE_PREFIXES))
    return withhold_all({name: environment[name] for name in names})


def add_silent(facts: Sequence[Facts], nodes: Sequence[Mapping[str, Any]]) -> list[Facts]:
    """Add an entry without facts for each node that did not answer: nothing is proven there."""
    answered = {fact["node"] for fact in facts}
    silent = [node for node in nodes if node["id"] not in answered]
    return [*facts, *({"node": node["id"], "name": node["name"]} for node in silent)]


def software_versions() -> dict[str, str]:
    """Read the versions that must be equal on all nodes and the driver; "" for an absent part."""
    return {
        "python": platform.python_version(),
        "ray": version_of("ray", ""),
        "torch": version_of("torch", ""),
        "driver": _driver_version(),
        "cuda": cuda_version(),
        "kernel": platform.release(),
        "ofed": ofed_version(),
    }


DRIVER = Path("/proc/driver/nvidia/version")  # which nvidia-smi itself reads


def _driver_version() -> str:
    """Read the NVIDIA kernel driver version."""
    # An unreadable file raises OSError: it does not mean "no driver".
    text = DRIVER.read_text(errors="replace") if DRIVER.exists() else ""
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else ""


@joins_no_group
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


def usable_cpus(root: str = "/", cpus: int | None = None) -> float:
    """Count the CPUs that this process may use: those it may run on, and the quota of its cgroups.

    `root` stands in for the file system, and `cpus` for the CPUs that it may run on.
    """
    counts: list[float] = [cpus or min(os.cpu_count() or 1, len(os.sched_getaffinity(0)))]
    for group in _own_cgroups("cpu", root):
        quota, _, period = read_text(group / "cpu.max").partition(" ")  # cgroup v2
        if not period:  # v1
            quota = read_text(group / "cpu.cfs_quota_us")
            period = read_text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # no limit: "max", "-1", or no file
            counts.append(int(quota) / int(period))
    return min(counts)


def usable_memory_gib(root: str = "/") -> float | None:
    """Read how much memory (GiB) this process may use: the machine's, or less by its cgroups."""
    text = read_text(Path(root, "proc/meminfo"))
    match = re.search(r"^MemTotal:\s+(\d+) kB$", text, re.MULTILINE)
    if not match:
        return None
    groups = _own_cgroups("memory", root)
    files = [group / name for group in groups for name in ("memory.max", "memory.limit_in_bytes")]
    limits = [int(text) for file in files if (text := read_text(file)).isdigit()]
    return round(min([int(match[1]) * 2**10, *limits]) / 2**30, 2)


def _own_cgroups(controller: str, root: str) -> list[Path]:
    """List the cgroups of this process, below `root`; none where the kernel has none."""
    proc, cgroups = (str(Path(root, name)) for name in ("proc", "sys/fs/cgroup"))
    with suppress(OSError):  # a kernel without cgroups limits nothing
        return [*system_facts.find_cgroups(controller, "self", proc, cgroups)]
    return []


def _size_gib(path: str) -> float:
    size = os.statvfs(path)
    return round(size.f_blocks * size.f_frsize / 2**30, 2)


OWN_HOST = "the host that runs seatrial"
GPU_PARTS = ("driver", "cuda")  # a head node often has no GPU
SYSTEM_PARTS = ("kernel", "ofed")  # of the machine: they are compared apart, see hosts/inventory.py


def software_differences(facts: Sequence[Facts], driver: dict[str, str]) -> dict[str, list[str]]:
    """Describe each part whose version differs in one sentence, which leads to the suspects.

    Suspects are the nodes without the version that more than half of the nodes and the driver have.
    Where there is no such version, none is suspected, and all are named.
    The driver's own NVIDIA driver and CUDA are left out: a head node often has none.  The driver's
    torch may be another build of the same version, as 2.13.0+cpu: no rank runs there.
    """
    found = {}
    for part in (part for part in driver if part not in SYSTEM_PARTS):
        versions = group_pairs((one["software"][part] or "none", one["name"]) for one in facts)
        usual = next((of for of in versions if len(versions[of]) > len(facts) / 2), "none")
        if part not in GPU_PARTS:
            own = driver[part] or "none"
            if part == "torch":
                own = next((of for of in versions if _public(of) == _public(own)), own)
            versions.setdefault(own, []).append(OWN_HOST)
            usual = usual if usual == own else "none"
        if len(versions) > 1:
            odd = [fact["name"] for fact in facts if (fact["software"][part] or "none") != usual]
            suspects = odd if usual != "none" else []
            most = MAX_NAMES if suspects else len(facts) + 1
            by_rarity = sorted(versions.items(), key=lambda item: len(item[1]))
            texts = (f"{version} on {join_names(names, most)}" for version, names in by_rarity)
            found[f"{part}: {'; '.join(texts)}"] = suspects
    return found


def _public(version: str) -> str:
    """Strip the build, which follows a plus, from a version."""
    return version.partition("+")[0]


# Ray assigns a GPU to a worker by one of these: NVIDIA's, and AMD's two.
ASSIGNMENT = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# Where it is true Ray does not, and a job chooses: images of verl, vLLM and OpenRLHF set it.
NO_ASSIGNMENT = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
# The CUDA runtime's own answer: torch.cuda.device_count() asks NVML, which is a separate source.
SCRIPT = "import torch; print(getattr(torch._C, '_cuda_getDeviceCount', int)())"
COUNT_SECONDS = 60  # torch from a cold network file system; the calling task has 90 s


def leaves_choice() -> bool:
    """Return whether Ray lets a worker see all GPUs of its node."""
    return os.environ.get(NO_ASSIGNMENT, "").lower() in ("1", "true")


def count_torch_devices() -> dict[str, int | str]:
    """Count {"all", "assigned"}, or return why not as {"error"}.  Runs in a worker with one GPU.

    Where Ray assigns none by its environment, the job does ("assigned by" is "job").
    """
    everything = {key: value for key, value in os.environ.items() if key not in ASSIGNMENT}
    counts: dict[str, int | str] = {}
    with ThreadPoolExecutor() as pool:
        of_all = pool.submit(_count_devices, everything)
        assigned = _count_devices(os.environ)
    for name, count in (("all", of_all.result()), ("assigned", assigned)):
        counts["error" if isinstance(count, str) else name] = count
    if leaves_choice() and "assigned" in counts:
        del counts["assigned"]
        counts["assigned by"] = "job"
    return counts


def _count_devices(environment: Mapping[str, str]) -> int | str:
    """Count torch's devices in a process with these variables; return why not as text."""
    words, limit = [sys.executable, "-c", SCRIPT], COUNT_SECONDS
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"torch did not start within {limit} s"
    if done.returncode:
        return last_line(done.stderr, "torch did not start")
    return int(done.stdout.split()[-1])


BLOCK = 2**20  # bytes that are read at each place
# Bytes from one place to the next.  140 GB of weights make 0.5 GB to read: a second or two.
STRIDE = 2**28
# Files of one path, and seconds for all paths of a node: a model has some dozens of files.  A task
# on a node may take longer.
MAX_FILES = 10_000
SECONDS = 60.0
SKIPPED = ".lock"  # files of a download that differ by node; hidden ones do as well


def read_model_files(paths: Sequence[str], seconds: float = SECONDS) -> dict[str, dict[str, Any]]:
    """Read {path: {"files": {name: "size digest"}, "error", "unknown"}}.

    A name is relative to the path; that of a single file is ".".  `error` is what a job would see
    as well, and `unknown` why not all files were read.
    """
    deadline = time.monotonic() + seconds
    return {path: _read_path(Path(path), deadline) for path in paths}


def _read_path(path: Path, deadline: float) -> dict[str, Any]:
    files: dict[str, str] = {}
    error = unknown = ""
    try:
        for name, file in _list_files(path):
            if time.monotonic() > deadline or len(files) == MAX_FILES:
                limits = f"limits: {MAX_FILES} files, {SECONDS:.0f} s"
                unknown = f"only {len(files)} files of {path} were read ({limits})"
                break
            files[name] = digest_file(file)
    except OSError as problem:
        error = str(problem.strerror or problem)
    if not files and not unknown:
        error = error or "no file found"
    return {"files": files, "error": error, "unknown": unknown}


def _list_files(path: Path) -> Iterator[tuple[str, Path]]:
    """Find the files of a folder, or the file itself.  Raises OSError where one is unreadable."""
    if not path.is_dir():
        yield ".", path
        return
    for folder, folders, names in os.walk(path, onerror=_raise_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(SKIPPED):
                file = Path(folder, name)
                yield str(file.relative_to(path)), file


def _raise_error(error: OSError) -> None:
    raise error


NO_MODEL = "is not a regular file, or is in /dev, /proc or /sys"
KERNELS = ("/dev", "/proc", "/sys")  # their files are made up, and reading one may change something


def digest_file(file: Path) -> str:
    """Return size and digest: of BLOCK bytes at each STRIDE, and of the last BLOCK bytes.

    Raises OSError for what is no regular file.
    """
    digest = hashlib.sha256()
    with _open_model(file) as opened:
        size = os.fstat(opened).st_size
        for place in (*range(0, size, STRIDE), max(0, size - BLOCK)):
            digest.update(os.pread(opened, BLOCK, place))
    return f"{size} {digest.hexdigest()[:16]}"


@contextmanager
def _open_model(file: Path) -> Iterator[int]:
    """Open a regular file and yield its handle.  Raises OSError for anything else, unopened."""
    real = os.path.realpath(file)
    if not _is_model_file(real):
        raise OSError(f"{file.name} {NO_MODEL}")
    # It may have been exchanged meanwhile: a FIFO would wait for a writer.
    opened = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(f"{file.name} {NO_MODEL}")
        yield opened
    finally:
        os.close(opened)


def _is_model_file(path: str) -> bool:
    """Return whether a path without links, as in SHARED_MEMORY, may be read as a file of a model.

    Raises OSError if it does not exist.
    """
    made_up = f"{path}/".startswith(tuple(f"{folder}/" for folder in KERNELS))
    is_file = stat.S_ISREG(os.stat(path).st_mode)
    return is_file and (not made_up or path.startswith(f"{SHARED_MEMORY}/"))


def read_changed_file(path: str) -> dict[str, dict[str, Any]]:
    """Read a model as `read_model_files`, with one byte of one file changed, for a control.

    The other files are links to the model's own.  The changed file is a sparse one in the folder
    for temporary files, where no room is used.  Raises OSError if there is no file.
    """
    with tempfile.TemporaryDirectory() as folder:
        changed = False
        for index, (name, file) in enumerate(_list_files(Path(path))):
            link = Path(folder, name if name != "." else "model")
            link.parent.mkdir(parents=True, exist_ok=True)
            if index == 0:
                _write_changed(file, link)
                changed = True
            else:
                link.symlink_to(file.absolute())
        if not changed:
            raise OSError(f"{path} has no file")
        whole = folder if Path(path).is_dir() else str(link)
        return {path: read_model_files([whole])[whole]}


def _write_changed(source: Path, target: Path) -> None:
    with _open_model(source) as opened:
        block = bytearray(os.pread(opened, BLOCK, 0)) or bytearray(1)
        size = os.fstat(opened).st_size
    block[0] ^= 1
    target.write_bytes(block)
    os.truncate(target, max(size, 1))
