"""Why a group hangs: who is elsewhere, who began fewer collectives, and who may be asked what."""

from __future__ import annotations

import gzip
import re
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from probes.fabric import hangs as no_start
from probes.fabric.hangs import explain_start_failure, ranks_behind_finding
from probes.fabric.reach import ReachabilityResult
from probes.fabric.stack_dump import RankState, read_rank_state, summary
from probes.fabric.sweep import check_ops, init_seconds, run_sweep
from probes.fabric.transport import RankLogs, TransportReport
from probes.findings import finding
from probes.nccl.log import Log
from probes.nccl.report import NcclReport, judge_log
from reference_trainer.launch.gang import Gang, GangError, WorkerLost
from reference_trainer.launch.worker import Worker
from reports.record import Finding
from scaling.collectives.sweep import process_group, sweep

WHO = {rank: f"rank {rank} on node{rank}" for rank in range(4)}


def came(at: str, group: int = 0, begun: int = 3, name: str = "gloo:all_reduce") -> RankState:
    """A rank's answer."""
    entry = {"collective_seq_id": begun, "profiling_name": name}
    return {"at": at, "stack": [at], "group": group, "begun": begun, "ended": 2, "entries": [entry]}


def entry(
    number: int, group: int = 0, retired: bool = True, p2p: bool = False, name: str = "default_pg"
) -> dict[str, Any]:
    """As torch 2.13 dumps one."""
    return {
        "collective_seq_id": number, "is_p2p": p2p, "pg_id": group, "retired": retired,
        "profiling_name": "gloo:all_reduce", "input_sizes": [[4]], "state": "scheduled",
        "process_group": ["0", name], "time_created_ns": 1, "timeout_ms": 8000,
    }  # fmt: skip


def test_the_recorders_dump_in_short() -> None:
    told = summary({"entries": [entry(1), entry(2), entry(1, group=1), entry(2, 1, retired=False)]})
    assert (told["group"], told["begun"], told["ended"]) == (1, 2, 1)
    assert [one["collective_seq_id"] for one in told["entries"]] == [1, 2, 1, 2]
    assert summary({"entries": [entry(1, p2p=True)]}) == summary({}) == {}
    # A group of some ranks has numbers of its own, which say nothing of who waits for whom.
    assert summary({"entries": [entry(3), entry(9, group=2, name="some")]})["begun"] == 3


def test_where_a_rank_hangs_is_told_by_another_thread() -> None:
    def waits() -> None:
        time.sleep(5)

    rank = Worker.__new__(Worker)  # its listening to signals is the main thread's
    thread = threading.Thread(target=rank.run, args=({}, waits, ()), daemon=True)
    assert read_rank_state()["at"] == ""
    thread.start()
    deadline = time.monotonic() + 5
    found = read_rank_state()
    while not found["at"].endswith(" waits") and time.monotonic() < deadline:
        time.sleep(0.01)  # it sets its environment first
        found = read_rank_state()
    assert re.fullmatch(r"test_hang_diagnosis.py:\d+ waits", found["at"])


@pytest.mark.parametrize(
    ("found", "suspects"),
    [
        ([came("a")] * 4, []),
        ([came("a"), came("a"), came("b"), came("a")], [2]),
        ([came("a"), came("b"), came("a"), came("b")], []),  # no majority
        ([came("a"), came("a", begun=2), came("a"), came("a")], [1]),
        ([came("a"), came("a"), came("a"), came("a", group=-1, begun=0)], [3]),
        # What the recorder knows goes before where they are.
        ([came("a"), came("b", begun=4), came("a"), came("a")], [0, 2, 3]),
        ([], []),
    ],
)
def test_who_the_others_wait_for(found: list[RankState], suspects: list[int]) -> None:
    told = ranks_behind_finding(dict(enumerate(found)), WHO, "connect: it took too long")
    assert [s for one in told for s in one.suspects] == [WHO[rank] for rank in suspects]
    assert {one.code for one in told} == ({"INIT-HANG"} if suspects else set())


class Asked:
    """Stands in for cluster, gang, logs and ledger; notes what is asked, in order."""

    def __init__(self, silent: list[int], word: TransportReport) -> None:
        self.cluster = self
        self.node_names = {f"id{rank}": f"node{rank}" for rank in range(4)}
        self.places = [SimpleNamespace(node=f"id{rank}") for rank in range(4)]
        self.jobs = [[0, 1, 2, 3]]
        self.order: list[str] = []
        self.found: list[Finding] = []
        self.kept: dict[str, Any] = {}
        self._silent, self._word = silent, word

    def ask(self, function: Any) -> dict[int, RankState]:
        self.order.append(function.__name__)
        return {rank: came("all_reduce", begun=3 - (rank == 2)) for rank in range(4)}

    def silent(self) -> list[int]:
        return self._silent

    def report(self, *_: object) -> TransportReport:
        return self._word

    def on_each_node(self, function: Any) -> dict[str, str]:
        self.order.append(function.__name__)
        return dict.fromkeys(self.node_names, "RAS says this")

    def gang(self) -> Any:
        self.order.append("a fresh gang")
        raise GangError("no room")

    def remove(self) -> None:
        self.order.append("removed")

    def explain(self, *found: list[Finding]) -> None:
        self.found += [one for each in found for one in each]

    @property
    def finding_codes(self) -> set[str]:
        return {one.code for one in self.found}

    def keep(self, name: str, content: Any, **_: object) -> str:
        self.kept[name] = content
        return f"evidence/{name}"

    def covered(self, _: str) -> None:
        pass


def explain(asked: Asked, fabric: str, error: GangError) -> None:
    """Explain an error of this gang, which stands for the cluster, logs and recorder too."""
    terms, names = SimpleNamespace(fabric=fabric), asked.node_names
    rig: Any = SimpleNamespace(gang=asked, node_names=names, terms=terms, measure=asked)
    logs: Any = asked
    explain_start_failure(rig, error, logs)


def told_why(
    error: GangError,
    silent: tuple[int, ...] = (),
    word: TransportReport | None = None,
    jobs: list[list[int]] | None = None,
    fabric: str = "fab0",
    told: Iterable[Finding] = (),
) -> Asked:
    """What is done and said after this error, beside what was said before."""
    asked = Asked([*silent], word or TransportReport())
    asked.found += told
    asked.jobs = jobs or asked.jobs
    explain(asked, fabric, error)
    return asked


def test_after_a_deadline_the_ranks_are_asked_then_ras_then_the_network() -> None:
    asked = told_why(
        GangError("ranks 0, 1 of 4 did not answer within 90 s while running `connect`")
    )
    assert asked.order == ["read_rank_state", "ras_status", "removed", "a fresh gang"]
    (found,) = asked.found
    assert (found.code, found.suspects) == ("INIT-HANG", ["rank 2 on node2"])
    assert "wait in `all_reduce` (collective number 3), but rank 2" in found.statement
    assert asked.kept["init.json"]["ranks"]["rank 2 on node2"]["begun"] == 2
    assert asked.kept["ras-node0.txt"] == "RAS says this"


def test_where_a_rank_failed_by_itself_ras_is_not_asked() -> None:
    asked = told_why(WorkerLost("connect: rank 1 failed: no such interface", [], 0.0, [1]))
    assert "ras_status" not in asked.order
    (found,) = asked.found
    assert (found.code, found.suspects) == ("FAB-NO-START", ["rank 1 on node1"])
    assert "no such interface" in asked.found[0].statement


def test_a_rank_that_says_nothing_goes_before_all_else() -> None:
    asked = told_why(GangError("connect: late"), silent=(1,))
    assert [(one.code, one.suspects) for one in asked.found] == [
        ("INIT-MISSING-RANK", ["rank 1", "node1"])
    ]


def test_what_the_log_says_of_the_road_does_not_hide_the_rank_that_hangs() -> None:
    log = NcclReport(
        **{**vars(judge_log(Log())), "findings": [finding("FAB-NO-GDR", "no GPUDirect", [])]}
    )
    seen = finding("FAB-NO-GDR", "no GPUDirect", [], evidence=["nccl.a.1.log:3"])
    seen_log = NcclReport(**{**vars(log), "findings": [seen]})
    texts = {f"nccl.a.{pid}.log": gzip.compress(b"a line") for pid in (1, 2)}
    word = TransportReport(report=seen_log, logs=texts)
    asked = told_why(GangError("connect: late"), word=word, fabric="rdma")
    assert [one.code for one in asked.found] == ["INIT-HANG", "FAB-NO-GDR"]
    assert asked.kept["nccl.a.1.log"] == "a line"
    assert "nccl.a.2.log" not in asked.kept, "no finding names it"
    assert asked.found[1].evidence == ["evidence/nccl.a.1.log:3"]
    asked = told_why(
        GangError("late"), word=TransportReport(report=log), fabric="rdma", told=log.findings
    )
    assert [one.code for one in asked.found] == ["FAB-NO-GDR", "INIT-HANG"]  # each said once


def test_ranks_of_several_jobs_do_not_wait_for_each_other() -> None:
    asked = told_why(GangError("listen: late"), jobs=[[0], [1], [2], [3]])
    assert [one.code for one in asked.found] == ["FAB-NO-START"]


def test_who_reaches_whom_is_tried_on_the_interface_that_was_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str | None] = []

    def reachability(_: Any, __: Any, interface: str | None) -> ReachabilityResult:
        tried.append(interface)
        return ReachabilityResult(["node0", "node1", "node2"], [("node0", "node1")], {})

    class Fresh(Asked):
        def gang(self) -> Any:
            return self

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(no_start, "check_reach", reachability)
    for word in (TransportReport(interface="docker0"), TransportReport()):
        asked: Any = Fresh([], word)
        lost = WorkerLost("a rank failed", [], 0.0)
        explain(asked, "fab0", lost)
        assert [one.code for one in asked.found] == ["FAB-NO-START", "FAB-PAIR-BLOCKED"]
    assert tried == ["docker0", "fab0"]


def test_ranks_are_told_by_their_place_in_the_gang_and_not_in_the_call() -> None:
    gang = Gang(16)
    gang.jobs, calls = [[0], [8], [3, 1]], [object() for _ in range(4)]
    gang._calls = calls
    assert gang._owners(calls, [1, 2]) == [8, 3]
    assert gang._owners(calls[:], [1, 2]) == [1, 2]  # calls of another kind: one for each worker


@pytest.mark.parametrize("ranks", [2, 8192])
def test_a_sweep_may_take_what_its_start_may_and_more(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Ranks:
        size = ranks

        def run(self, function: Any, *_: Any, timeout: float, **__: Any) -> list[Any]:
            if function is not sweep:
                return []
            waited.append(timeout)
            raise GangError("it took too long")

    gang: Any = Ranks()
    for look in (
        partial(run_sweep, gang, {}, RankLogs.__new__(RankLogs)),
        partial(check_ops, gang, 1),
    ):
        with pytest.raises(GangError):
            look()
    assert len(waited) == 2
    assert min(waited) >= init_seconds(ranks) + 50
    assert max(waited) < init_seconds(ranks) + 100  # whatever hangs is seen in a minute or two
    given: list[timedelta] = []
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setattr(dist, "init_process_group", lambda _, timeout, **__: given.append(timeout))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with process_group("gloo"):
        assert given[0].total_seconds() > max(waited)  # who gave up cannot be asked where it was
