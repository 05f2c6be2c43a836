"""What a launched job says of its ranks, which the LAUNCH probe reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch

from probes.launch.training import announced_ranks
from reference_trainer.distributed import identify_gpu
from reference_trainer.launch.launchers import (
    _parse_settings,
    _print_result,
    print_rendezvous,
)
from reference_trainer.rank_environment import read_variables


def test_a_job_says_of_each_rank_where_it_is_and_what_it_trained_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    monkeypatch.setenv("STAGE", "a b")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    monkeypatch.setenv("TRAINING_JOB", "myjob")
    place = SimpleNamespace(node="id0", host="n0", pid=7)
    gang: Any = SimpleNamespace(places=[place], run=lambda function, *args, **_: [function(*args)])
    print_rendezvous("STAGE", gang, 1)
    steps = [{"step": 6, "loss": 2.0, "local_loss": 2.5, "ids": [0, 1, 5]}]
    last = {"rank": 0, "host": "n0", "device": "cuda:0", "gpu": "u0", "digest": "d" * 64,
            "steps": steps, "start_step": 5, "variables": {"STAGE": "a b"}, "master": "10.0.0.1",
            "start_digest": "s" * 64, "validation": {"crc32": "c", "loss": 3.0},
            "export": {"sha256": "e" * 64}}  # fmt: skip
    _print_result([last], 1)
    [row] = announced_ranks(capsys.readouterr().out)
    expected = {"node": "id0", "host": "n0", "pid": "7", "TRAINING_JOB": "myjob", "RANK": "0",
                "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0",
                "device": "cuda:0", "gpu": "u0", "STAGE": "a b",
                "master": "10.0.0.1", "start": "s" * 16, "end": "d" * 16, "losses": "2.5",
                "samples": "0-1,5", "validation": "c", "validation_loss": "3",
                "exported": "e" * 16}  # fmt: skip
    assert {name: row.get(name) for name in expected} == expected
    assert "MASTER_PORT" not in row
    assert (row["NCCL_P2P_DISABLE"], "NCCL_PROTO" in row) == ("1", False)
    assert read_variables()["MASTER_PORT"] is None


def test_settings_are_names_with_values() -> None:
    assert _parse_settings(("A=1", "B==eth0", "C=")) == {"A": "1", "B": "=eth0", "C": ""}
    for wrong in ("A", "=1"):
        with pytest.raises(click.UsageError, match="--set must be NAME=VALUE"):
            _parse_settings((wrong,))


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
