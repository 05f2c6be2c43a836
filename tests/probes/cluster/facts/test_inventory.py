"""What is read of a node's versions, network cards and disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.cluster.node_facts import cuda_version, disk_gib, nic_firmware, ofed_version


def write(path: Path, text: str) -> None:
    """Write a file below folders that may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda = '12.4'", "12.4"),
        ("cuda: Optional[str] = None", ""),
        ("not_cuda = '12.4'", ""),
        ("", ""),
    ],
)
def test_the_cuda_of_torch(line: str, version: str, tmp_path: Path) -> None:
    text = f"__version__ = '2.13.0'\n{line}\nhip: Optional[str] = '6.2'\n"
    write(tmp_path / "version.py", text)
    assert cuda_version(str(tmp_path)) == version


def test_without_torch_there_is_no_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_version(str(tmp_path)) == ""
    monkeypatch.setattr("probes.cluster.node_facts.util.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "version.py", "cuda = '12.4'\n")  # a file that only lies there
    assert cuda_version() == ""


def test_the_cuda_of_the_torch_that_is_installed() -> None:
    import torch

    assert cuda_version() == (torch.version.cuda or "")


def test_the_version_of_ofed(tmp_path: Path) -> None:
    write(tmp_path / "version", "24.10-2.1.8\n")
    assert ofed_version(str(tmp_path / "version")) == "24.10-2.1.8"
    assert ofed_version(str(tmp_path / "none")) == ""


def test_the_firmware_of_each_card(tmp_path: Path) -> None:
    for device, board, firmware in (("mlx5_1", "MT_0000000838", "28.43.2026"), ("mlx5_0", "", "")):
        write(tmp_path / device / "board_id", board)
        write(tmp_path / device / "fw_ver", firmware)
    write(tmp_path / "mlx5_0" / "hca_type", "MT4129\n")
    write(tmp_path / "efa_0" / "node_type", "4: <unknown>")
    write(tmp_path / "mlx5_0" / "device" / "numa_node", "1\n")
    assert nic_firmware(str(tmp_path)) == [
        {"device": "efa_0", "board": "", "firmware": "", "numa": ""},
        {"device": "mlx5_0", "board": "MT4129", "firmware": "", "numa": "1"},
        {"device": "mlx5_1", "board": "MT_0000000838", "firmware": "28.43.2026", "numa": ""},
    ]
    assert nic_firmware(str(tmp_path / "none")) == []


def disk(root: Path, name: str, sectors: str, removable: str = "0", device: bool = True) -> None:
    """Make a disk as sysfs shows it."""
    write(root / name / "size", sectors)
    write(root / name / "removable", removable)
    if device:
        (root / name / "device").mkdir()


def test_the_size_of_all_disks(tmp_path: Path) -> None:
    assert disk_gib(str(tmp_path)) is None
    disk(tmp_path, "loop0", "8388608", device=False)
    disk(tmp_path, "sdb", "8388608", removable="1")  # a stick
    assert disk_gib(str(tmp_path)) is None
    disk(tmp_path, "nvme0n1", "7501476528")  # 3.84 TB
    disk(tmp_path, "nvme1n1", "7501476528")
    assert disk_gib(str(tmp_path)) == 7153.97
    disk(tmp_path, "sda", "unknown")
    assert disk_gib(str(tmp_path)) == 7153.97
