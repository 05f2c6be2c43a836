"""How much of a machine a job has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probes.cluster import node_facts
from probes.cluster.node_facts import software_versions, usable_cpus, usable_memory_gib


def test_the_parts_that_must_be_alike() -> None:
    versions = software_versions()
    assert list(versions) == ["python", "ray", "torch", "driver", "cuda", "kernel", "ofed"]
    assert all(versions[part] for part in ("python", "ray", "torch", "kernel"))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124  Release", "570.124"),
        ("nothing", ""),
    ],
)
def test_the_drivers_version(
    text: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_facts, "DRIVER", tmp_path / "version")
    assert software_versions()["driver"] == ""
    (tmp_path / "version").write_text(f"{text}\nGCC version:  gcc version 12.2.0\n")
    assert software_versions()["driver"] == (version or "12.2.0")


def write_files(root: Path, files: dict[str, str]) -> str:
    """Write a file system: a machine of 16 GiB, and a process in the cgroup of a job's step."""
    machine = {
        "proc/meminfo": f"MemTotal:       {16 * 2**20} kB\nMemFree:        1000 kB",
        "proc/self/cgroup": "5:cpu,cpuacct:/job/step\n4:memory:/job/step\n0::/job/step",
    }
    for name, text in (machine | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return str(root)


V2, V1 = "sys/fs/cgroup/", "sys/fs/cgroup/cpu/"


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 8),
        ({V2 + "cpu.max": "max 100000"}, 8),
        ({V2 + "cpu.max": "250000 100000"}, 2.5),  # a container, which sees no path
        ({V2 + "cpu.max": "9900000 100000"}, 8),
        ({V2 + "job/step/cpu.max": "100000 100000"}, 1),
        ({V2 + "job/cpu.max": "200000 100000", V2 + "job/step/cpu.max": "max 100000"}, 2),
        ({V2 + "other/cpu.max": "100000 100000"}, 8),  # another job's
        ({V1 + "cpu.cfs_quota_us": "-1", V1 + "cpu.cfs_period_us": "100000"}, 8),
        ({V1 + "cpu.cfs_quota_us": "400000", V1 + "cpu.cfs_period_us": "100000"}, 4),
        ({V1 + "job/step/cpu.cfs_quota_us": "5000",
          V1 + "job/step/cpu.cfs_period_us": "10000"}, 0.5),
        ({V1 + "job/cpu.cfs_quota_us": "30000", V1 + "job/cpu.cfs_period_us": "10000",
          V1 + "job/step/cpu.cfs_quota_us": "-1"}, 3),
    ],
)  # fmt: skip
def test_the_quota_of_each_cgroup_counts(
    tmp_path: Path, files: dict[str, str], cpus: float
) -> None:
    assert usable_cpus(write_files(tmp_path, files), cpus=8) == cpus


ASK_ON_ONE = """
import os
from probes.cluster.node_facts import usable_cpus
print(usable_cpus(ROOT))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(usable_cpus(ROOT))
"""


def test_only_cpus_that_a_process_may_run_on_count(tmp_path: Path) -> None:
    """As in a step of Slurm with one core: all that it starts has this one."""
    code = ASK_ON_ONE.replace("ROOT", repr(write_files(tmp_path, {})))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(os.sched_getaffinity(0))), "1"]


@pytest.mark.parametrize(
    ("files", "gib"),
    [
        ({}, 16.0),
        ({V2 + "memory.max": "max"}, 16.0),
        ({V2 + "memory.max": str(4 * 2**30)}, 4.0),
        ({V2 + "job/memory.max": str(3 * 2**30), V2 + "job/step/memory.max": "max"}, 3.0),
        ({V2 + "memory/memory.limit_in_bytes": str(2**63 - 4096)}, 16.0),
        ({V2 + "memory/memory.limit_in_bytes": str(2**30)}, 1.0),
        ({V2 + "memory/job/step/memory.limit_in_bytes": str(2**29)}, 0.5),
        ({V2 + "memory/other/memory.limit_in_bytes": str(2**29)}, 16.0),
    ],
)
def test_the_memory_limit_of_each_cgroup_counts(
    tmp_path: Path, files: dict[str, str], gib: float
) -> None:
    assert usable_memory_gib(write_files(tmp_path, files)) == gib


def test_a_kernel_without_cgroups_has_the_machines_cpus_and_memory(tmp_path: Path) -> None:
    root = write_files(tmp_path, {})
    (tmp_path / "proc/self/cgroup").unlink()
    assert (usable_cpus(root, cpus=8), usable_memory_gib(root)) == (8, 16.0)


def test_memory_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert usable_memory_gib(str(tmp_path)) is None
