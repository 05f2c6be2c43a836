"""`seatrial doctor` prints what was found, what it means, and what to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from probes import doctor
from probes import doctor as nodes
from probes.cli.main import main
from probes.cluster import cluster as cluster_module
from probes.cluster.address import ClusterUnreachable
from probes.doctor import FAIL, UNPROVEN, Answer

SOUND = [Answer("nodes", "4 nodes, 32 GPUs")]


def diagnosed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: list[Answer], *words: str
) -> Any:
    closed: list[bool] = []
    joined = SimpleNamespace(
        emulated=False, rehearsal="accelerators are emulated", address="10.0.0.1:6379",
        close=lambda: closed.append(True),
    )  # fmt: skip
    monkeypatch.setattr(cluster_module, "connect", lambda spec: joined)
    monkeypatch.setattr(nodes, "ask_cluster", lambda cluster, terms: answers)
    monkeypatch.setattr(doctor, "why_no_other_user", lambda *, own_guide: "")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["doctor", *words])
    assert closed == [True]
    return result


def test_a_sound_cluster_ends_with_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = diagnosed(monkeypatch, tmp_path, SOUND, "--contract", "lab", "--nodes", "4")
    assert result.exit_code == 0, result.output
    assert "10.0.0.1:6379; a rehearsal: accelerators are emulated" in result.output
    assert "ok   nodes" in result.output
    assert result.output.endswith("nothing was found that would prevent an accepted run\n")


def test_what_stands_in_the_way_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = [
        *SOUND,
        Answer("room", "1 GPU on \x1b[31mn0 is held", UNPROVEN, ("GANG",), "Wait for it"),
        Answer("software", "torch: 2.12 on n1", FAIL, ("HOSTS",), "Install one version"),
    ]
    result = diagnosed(monkeypatch, tmp_path, answers, "--contract", "lab")
    assert result.exit_code == 20
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "Wait for it. Otherwise GANG would be UNPROVEN" in lines
    assert lines[-3:] == [
        "HOSTS would fail here", "GANG would be UNPROVEN here", "1 problem to fix, 1 note"
    ]  # fmt: skip
    assert max(map(len, result.output.splitlines())) <= 80
    assert "\x1b" not in result.output, "what a node says is escaped"


def test_a_cluster_that_is_not_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: str) -> None:
        raise ClusterUnreachable("no Ray at 10.0.0.1:6379")

    monkeypatch.setattr(cluster_module, "connect", refuse)
    result = CliRunner().invoke(main, ["doctor", "--contract", "lab"])
    assert result.exit_code == 4
    assert "no Ray at 10.0.0.1:6379" in result.output
    assert "ok   packages" in result.output, "what was found before is not lost"


def test_without_a_contract_nothing_will_be_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = diagnosed(monkeypatch, tmp_path, SOUND)
    assert result.exit_code == 20
    text = " ".join(result.output.split())
    assert "limits are derived from the cluster, and the run cannot be accepted" in text
    assert "Otherwise HOSTS, FABRIC, SCALING, RESTART, GANG, LAUNCH cannot be accepted" in text
    assert "HOSTS, FABRIC, SCALING, RESTART, GANG, LAUNCH would" not in text, "some can pass"


def test_another_version_of_ray_ends_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: str) -> None:
        raise cluster_module.VersionMismatch("the cluster has Ray 2.40, this process 2.60")

    monkeypatch.setattr(cluster_module, "connect", refuse)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 20
    assert "the cluster has Ray 2.40" in result.output
    text = " ".join(result.output.split())
    assert "HOSTS, FABRIC, SCALING, RESTART, GANG, LAUNCH would fail here" in text
