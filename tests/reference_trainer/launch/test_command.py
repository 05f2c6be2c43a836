"""What a launched job says of its ranks, which the LAUNCH probe reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probes.launch.ranks import announced_ranks
from reference_trainer.distributed import identify_gpu
from reference_trainer.launch.command import _print_result, print_rendezvous, read_rendezvous
from reference_trainer.launch.launchers import JobResult


def test_a_job_says_of_each_rank_where_it_is_and_what_it_trained_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    place = SimpleNamespace(node="id0", host="n0", pid=7)
    gang: Any = SimpleNamespace(places=[place], run=lambda function, **_: [function()])
    print_rendezvous(gang, 1)
    last = {"rank": 0, "device": "cuda:0", "gpu": "u0", "digest": "d", "steps": [], "start_step": 5}
    result = JobResult(rank0=last, ranks=[last], attempts=1)
    _print_result(SimpleNamespace(size=1), result)  # type: ignore[arg-type]
    [row] = announced_ranks(capsys.readouterr().out)
    expected = {"node": "id0", "host": "n0", "pid": "7", "RANK": "0", "LOCAL_WORLD_SIZE": "1",
                "NODE_RANK": "0", "device": "cuda:0", "gpu": "u0"}  # fmt: skip
    assert {name: row.get(name) for name in expected} == expected
    assert "MASTER_PORT" not in row
    assert read_rendezvous()["MASTER_PORT"] is None


def test_a_gpu_is_named_by_its_uuid_and_a_slice_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = SimpleNamespace(uuid="4a0e")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert identify_gpu(torch.device("cpu")) is None
    assert identify_gpu(torch.device("cuda", 0)) == "4a0e"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-77")
    assert identify_gpu(torch.device("cuda", 0)) == "MIG-77"
