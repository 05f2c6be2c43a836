"""How much of a machine a job has."""

from __future__ import annotations

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
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return str(root)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 2.5),
        ({"cpu.max": "9900000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_a_containers_cpus_count(tmp_path: Path, files: dict[str, str], cpus: float) -> None:
    assert usable_cpus(write_files(tmp_path, files), cpus=8) == cpus


@pytest.mark.parametrize(
    ("files", "gib"),
    [
        ({}, 16.0),
        ({"memory.max": "max"}, 16.0),
        ({"memory.max": str(4 * 2**30)}, 4.0),
        ({"memory/memory.limit_in_bytes": str(2**63 - 4096)}, 16.0),
        ({"memory/memory.limit_in_bytes": str(2**30)}, 1.0),
    ],
)
def test_a_containers_memory_counts(tmp_path: Path, files: dict[str, str], gib: float) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal:       {16 * 2**20} kB\nMemFree:        1000 kB\n")
    assert usable_memory_gib(write_files(tmp_path, files), str(meminfo)) == gib


def test_memory_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert usable_memory_gib(str(tmp_path), str(tmp_path / "nothing")) is None
