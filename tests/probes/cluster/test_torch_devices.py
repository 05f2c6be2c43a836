"""What torch sees, with and without the GPU that Ray gave.  torch is a stand-in here."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.cluster import node_facts
from probes.cluster.node_facts import count_torch_devices

# Sees 8 devices, or those of the variable that Ray sets.
STAND_IN = """
import os
class _C:
    @staticmethod
    def _cuda_getDeviceCount():
        named = [os.environ[k] for k in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
                 if k in os.environ]
        return len([d for d in named[0].split(",") if d]) if named else 8
"""


def stand_in(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_all_devices_and_those_that_were_assigned(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(STAND_IN, tmp_path, monkeypatch)
    assert count_torch_devices() == {"all": 8, "assigned": 8}
    monkeypatch.setenv(variable, "3")
    assert count_torch_devices() == {"all": 8, "assigned": 1}


@pytest.mark.parametrize(("value", "by"), [("1", "job"), ("true", "job"), ("0", ""), ("", "")])
def test_where_ray_hides_no_gpu_the_job_chooses_its_own(
    value: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(STAND_IN, tmp_path, monkeypatch)
    monkeypatch.setenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", value)
    wanted = {"all": 8, "assigned by": by} if by else {"all": 8, "assigned": 8}
    assert count_torch_devices() == wanted


def test_a_torch_that_does_not_start_is_an_error_and_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in("raise ImportError('libcudart.so.12: cannot open')", tmp_path, monkeypatch)
    assert count_torch_devices() == {"error": "ImportError: libcudart.so.12: cannot open"}


def test_a_torch_that_never_starts_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(
        "import os, time\nopen(f'{os.getpid()}.pid', 'w')\ntime.sleep(60)", tmp_path, monkeypatch
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(node_facts, "COUNT_SECONDS", 4)  # a busy machine starts Python in that time
    assert count_torch_devices() == {"error": "torch did not start within 4 s"}
    started = [int(file.stem) for file in tmp_path.glob("*.pid")]
    assert started
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def test_a_torch_without_cuda_sees_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in("class _C: pass", tmp_path, monkeypatch)
    assert count_torch_devices() == {"all": 0, "assigned": 0}
