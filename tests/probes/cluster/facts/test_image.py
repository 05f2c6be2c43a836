"""The image of a node, and its RDMA devices, as a worker reads them."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from probes.cluster import node_facts
from probes.cluster.node_facts import list_packages, read_image
from probes.cluster.system_facts import NO_VERBS, read_peer_memory, read_rdma_access
from probes.hosts.needs import read_other_image


def test_packages_are_those_that_python_itself_finds() -> None:
    known = {one.metadata["Name"].lower().replace("_", "-") for one in metadata.distributions()}
    found = {line.split()[0] for line in list_packages()}
    assert {"ray", "torch", "pytest"} <= found
    assert {name.replace(".", "-") for name in known} - found == set()
    assert f"torch {metadata.version('torch')}" in list_packages()


def test_the_digest_follows_names_and_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    seen = {read_image()["digest"]}
    for name in ("numpy-1.26.4.dist-info", "Zope.Interface-5.0-py3.11.egg-info"):
        (tmp_path / name).mkdir()
        seen.add(read_image()["digest"])
    assert len(seen) == 3
    assert list_packages() == ["numpy 1.26.4", "zope-interface 5.0"]
    assert read_image()["packages"] == 2
    (tmp_path / "numpy-1.26.4.dist-info").rename(tmp_path / "numpy-2.0.dist-info")
    assert list_packages() == ["numpy 2.0", "zope-interface 5.0"]


def test_the_name_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "os-release"
    monkeypatch.setattr(node_facts, "OS_RELEASE", str(file))
    assert read_image()["os"] == ""
    file.write_text('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n')
    assert read_image()["os"] == "Ubuntu 22.04.4 LTS"


def test_two_spellings_of_a_name_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("ruamel_yaml-1.0.dist-info", "ruamel.yaml-1.0.dist-info", "no-version.dist-info"):
        (tmp_path / name).mkdir()
    assert list_packages() == ["ruamel-yaml 1.0"]


def test_the_control_adds_one_package_for_this_time_only() -> None:
    usual, other = read_image(), read_other_image()
    assert other["packages"] == usual["packages"] + 1
    assert other["digest"] != usual["digest"]
    assert read_image() == usual


@pytest.fixture
def rdma(tmp_path: Path) -> tuple[str, str, str]:
    """SYNTHETIC: devices, verbs and sysfs folders of a node with three RDMA devices."""
    for folder in ("dev", "verbs/uverbs0", "verbs/uverbs4", "ib/mlx5_0", "ib/mlx5_1", "ib/mlx5_2"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "verbs/uverbs0/ibdev").write_text("mlx5_1\n")
    (tmp_path / "verbs/uverbs4/ibdev").write_text("mlx5_0\n")
    (tmp_path / "dev/uverbs0").touch()
    return str(tmp_path / "dev"), str(tmp_path / "verbs"), str(tmp_path / "ib")


def test_each_device_is_opened_by_the_file_of_its_name(rdma: tuple[str, str, str]) -> None:
    assert read_rdma_access(*rdma) == {
        "mlx5_0": f"{rdma[0]}/uverbs4: No such file or directory",
        "mlx5_1": "",
        "mlx5_2": NO_VERBS,
    }


def test_a_node_without_rdma_has_no_device(tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    assert read_rdma_access(none, none, none) == {}


def test_peer_memory_by_module_or_by_the_open_driver(tmp_path: Path) -> None:
    driver = tmp_path / "version"
    assert read_peer_memory(str(tmp_path), str(driver)) == ""
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu")
    assert read_peer_memory(str(tmp_path), str(driver)) == ""
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15")
    assert read_peer_memory(str(tmp_path), str(driver)) == "DMA-BUF"
    (tmp_path / "nvidia_peermem").mkdir()
    assert read_peer_memory(str(tmp_path), str(driver)) == "nvidia_peermem"
