"""Ranks that outlive their run: told by host, process and start time, counted, and ended."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.ask import Answers
from probes.faults import process_faults
from probes.faults.process_faults import (
    describe_orphans,
    find_orphans,
    kill_running,
    rank_processes,
    start_ticks,
)
from probes.restart.judge import judge_orphans
from reference_trainer.launch.supervisor import Attempt
from reference_trainer.launch.worker import RankLocation
from tests.support.controls import recorder

pytestmark = pytest.mark.alone

HERE = socket.gethostname()


def test_who_still_runs_is_told_and_ended(child: subprocess.Popen[bytes]) -> None:
    born = start_ticks(child.pid)
    mark = (HERE, child.pid, born)
    others = [(HERE, child.pid, born + 1), ("elsewhere", child.pid, born), (HERE, 2**22 + 1, 7)]
    assert kill_running(others, 0.3) == (HERE, [])
    assert child.poll() is None
    assert kill_running([mark, *others], 0) == (HERE, [mark])
    child.wait(timeout=10)
    assert kill_running([mark], 0.3) == (HERE, [])


def test_who_ends_in_time_is_not_told() -> None:
    process = subprocess.Popen(["sleep", "0.5"])
    mark = (HERE, process.pid, start_ticks(process.pid))
    began = time.monotonic()
    assert kill_running([mark], 10) == (HERE, [])
    assert time.monotonic() - began < 8
    process.wait()


def test_a_run_says_where_its_ranks_are(tmp_path: Path) -> None:
    lives = [
        {"event": "start", "host": "n1", "pid": 7, "born": 70, "rank": 1},
        {"event": "begin", "step": 1},
        {"event": "start", "host": "n2", "pid": 9, "born": 90, "rank": 1},
        {"event": "start", "host": "mac", "pid": 9, "born": None, "rank": 1},
    ]
    journal = tmp_path / "run-1" / "out" / "metrics.rank1.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text("".join(json.dumps(line) + "\n" for line in lives))
    assert rank_processes(tmp_path) == {("n1", 7, 70): 1, ("n2", 9, 90): 1}


MARK = ("node1", 4711, 90)


@pytest.mark.parametrize(
    ("running", "unasked", "known", "value", "codes"),
    [
        ({}, [], {MARK: 3}, 0, []),
        ({MARK: 3}, [], {MARK: 3}, 1, ["RESTART-LEAK"]),
        ({MARK: 3}, ["node7"], {MARK: 3}, 1, ["RESTART-LEAK"]),
        ({}, ["node7"], {MARK: 3}, None, []),
        ({}, [], {}, None, []),  # nobody said where it runs
    ],
)
def test_what_is_known_to_run_is_told_whoever_could_not_be_asked(
    running: dict[Any, int],
    unasked: list[str],
    known: dict[Any, int],
    value: int | None,
    codes: list[str],
) -> None:
    measure = recorder("RESTART")
    judge_orphans(running, unasked, known, measure)
    result = measure.result("finished", 1.0)
    assert [(one.name, one.value) for one in result.measurements] == [("still_running", value)]
    assert [one.code for one in result.findings] == codes
    assert [one.suspects for one in result.findings] == [["rank 3", "node1"]] * len(codes)


@pytest.mark.parametrize(
    ("unasked", "known", "reason"),
    [
        (["node7", "node9"], {MARK: 3}, "node7, node9 did not answer"),
        ([], {}, "no rank logged its node"),
    ],
)
def test_why_it_is_not_known_whether_a_rank_still_runs_is_said(
    unasked: list[str], known: dict[Any, int], reason: str
) -> None:
    measure = recorder("RESTART")
    judge_orphans({}, unasked, known, measure)
    assert measure.worst("still_running").value_text == f"not measured ({reason})"


def test_where_ranks_were_to_be_is_known_without_their_journal(tmp_path: Path) -> None:
    def place(pid: int, born: int | None) -> RankLocation:
        return RankLocation(node="id", address="10.0.0.1", host="n1", pid=pid, gpus=[], born=born)

    attempts = [
        Attempt(places=[place(1, 10), place(2, 20)], started=0.0),
        Attempt(places=[place(1, 10), place(3, None)], started=0.0),
    ]
    assert rank_processes(tmp_path, attempts) == {("n1", 1, 10): 0, ("n1", 2, 20): 1}
    assert rank_processes(None, []) == {}


# The nodes that are asked.

FIRST, SECOND, HEADS = ("node1", 11, 90), ("node2", 22, 90), ("head", 33, 90)
KNOWN = {SECOND: 1, FIRST: 0, HEADS: 2}
Answer = tuple[str, list[tuple[str, int, int]]]


def ask(
    monkeypatch: pytest.MonkeyPatch, *answers: Answer, nodes: str = "ab", head: Answer | None = None
) -> tuple[dict[Any, int], list[str]]:
    """Ask the participating `nodes`; node "h" is the head, whose answer may be lost."""

    def ask_nodes(function: Any, each: Any) -> Answers:
        (node,) = each
        assert node not in nodes, "a node that was asked"
        return Answers(values={node: head} if head else {})

    monkeypatch.setattr(process_faults, "ask_nodes", ask_nodes)
    cluster: Any = SimpleNamespace(
        head_node_id="h",
        nodes=[{"id": id} for id in nodes],
        on_each_node=lambda *_: dict(zip(nodes, answers, strict=False)),
    )
    return find_orphans(cluster, KNOWN)


def test_each_process_is_listed_once_with_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two raylets of one host may both see it."""
    answers = ("node1", [FIRST]), ("node2", [SECOND]), ("node1", [FIRST]), ("head", [])
    found = ask(monkeypatch, *answers, nodes="abch")
    assert found == ({FIRST: 0, SECOND: 1}, [])


def test_hosts_without_an_answer_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, nodes="abh") == ({}, ["head", "node1", "node2"])
    assert ask(monkeypatch, ("node1", []), nodes="abh") == ({}, ["head", "node2"])


def test_the_head_is_asked_though_it_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ("node1", []), ("node2", [])
    assert ask(monkeypatch, *answers, head=("head", [HEADS])) == ({HEADS: 2}, [])
    assert ask(monkeypatch, *answers, head=None) == ({}, ["head"])


def test_a_process_is_described_by_rank_host_and_number() -> None:
    text = "rank 2 on head, process 33; rank 0 on node1, process 11"
    assert describe_orphans({HEADS: 2, FIRST: 0}) == text
