"""The library's own word: gloo's sockets and NCCL's log (SYNTHETIC, no GPU wrote it)."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.contract.contract import load
from probes.fabric.judge import judge_transport
from probes.fabric.sweep import gang_env
from probes.fabric.transport import RankLogs, TransportReport, gloo_report, keep_logs
from probes.findings import finding
from reference_trainer.launch.worker import RankLocation
from reports.measurement import Verdict
from tests.recordings.generate.nccl_logs import VERSIONS, Job, none, socket
from tests.support.controls import recorder
from tests.support.sweep_results import sweep_result

NAMES = {"id0": "n0", "id1": "n1", "id2": "n2"}


class Ranks:
    """Stands in for a gang: one rank per node, and what each would answer."""

    def __init__(self, answers: list[Any], per_node: int = 1, first: int = 0) -> None:
        self.answers, self.size = answers, len(answers)
        self.places = [
            RankLocation(
                node=f"id{at // per_node}",
                address="10.0.0.1",
                host=f"node{at // per_node}.cluster",
                pid=first + at,
                gpus=["0"],
            )
            for at in range(len(answers))
        ]

    def run(self, *_: object, **__: object) -> list[Any]:
        return self.answers


def interfaces(node: int) -> dict[str, dict[str, object]]:
    return {
        "fab0": {"address": f"10.77.0.{node + 1}", "state": "up"},
        "eth0": {"address": f"10.78.0.{node + 1}", "state": "up"},
        "down0": {"address": None, "state": "down"},
    }


def mesh(node: int, network: int) -> list[tuple[str, str, int, int]]:
    return [
        (f"10.{network}.0.{node + 1}", f"10.{network}.0.{peer + 1}", 40000 + peer, 50000)
        for peer in range(3)
        if peer != node
    ]


def test_sockets_say_which_interface_carries_the_mesh() -> None:
    ranks = Ranks([interfaces(node) for node in range(3)])
    stray = ("10.78.0.1", "10.78.0.2", 1, 2)  # one of Ray's own connections
    ends = [[*mesh(0, 77), stray], mesh(1, 77), mesh(2, 78)]
    word = gloo_report(ranks, NAMES, ends)  # type: ignore[arg-type]
    assert word.transports == {"n0": "fab0", "n1": "fab0", "n2": "eth0"}
    unknown = [("10.99.0.1", f"10.99.0.{peer}", 1, 2) for peer in range(2, 6)]
    word = gloo_report(ranks, NAMES, [[*mesh(0, 77), *unknown], [], []])  # type: ignore[arg-type]
    assert word.transports == {"n0": "fab0"}  # an address of no interface says nothing
    own = [("10.78.0.1", f"10.{network}.0.1", 1, 2) for network in (77, 78)]
    word = gloo_report(ranks, NAMES, [[mesh(0, 77)[0], *own], [], []])  # type: ignore[arg-type]
    assert word.transports == {"n0": "fab0"}  # what does not leave the node says nothing
    silent = gloo_report(ranks, NAMES, [[], [], []])  # type: ignore[arg-type]
    assert silent.transports == {}
    assert silent.problem


class Nodes:
    """Stands in for a cluster: on each node a function sees what that node's ranks wrote."""

    def __init__(self, folders: list[Path]) -> None:
        self.facts: list[dict[str, Any]] = []
        self.folders = {f"id{at}": folder for at, folder in enumerate(folders)}

    def on_each_node(
        self, function: Any, *arguments: Any, each: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {
            id: function(*arguments, *([each[id]] if each else []), folder=str(folder))
            for id, folder in self.folders.items()
            if each is None or id in each
        }


def write(logs: RankLogs, job: Job, gpus: int = 2, first: int = 1000) -> None:
    """What the job's ranks write, each where its NCCL would open a file."""
    name = Path(logs.environment["NCCL_DEBUG_FILE"]).name
    for rank in job.ranks:
        file = name.replace("%h", f"node{rank // gpus}").replace("%p", str(first + rank))
        folder = logs.cluster.folders[f"id{rank // gpus}"]  # type: ignore[attr-defined]
        (folder / file).write_text(job.of(rank))


def written(tmp_path: Path, job: Job) -> RankLogs:
    """Logs of a job where its ranks would have written them."""
    folders = [tmp_path / f"node{at}" for at in range(job.hosts)]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    logs = RankLogs(Nodes(folders))  # type: ignore[arg-type]
    write(logs, job)
    return logs


def gang(ranks: int = 4, per_node: int = 2, first: int = 1000) -> Any:
    """Stands in for one whose ranks are processes from `first` on."""
    return Ranks([None] * ranks, per_node, first)


@pytest.mark.parametrize("version", ["2.21.5", "2.28.9"])
@pytest.mark.parametrize("network", ["IB", "IBext_v8", "NCCL RDMA Plugin v8"])
def test_the_log_says_the_road_of_each_node(version: str, network: str, tmp_path: Path) -> None:
    good = Job(version, hosts=2, gpus=2, network=lambda host: network)
    word = written(tmp_path / "a", good).report(gang(), NAMES)
    assert word.transports == {"n0": "rdma", "n1": "rdma"}
    assert word.report
    assert word.report.exit_code == 0
    assert sorted(word.logs) == [f"nccl.node{r // 2}.{1000 + r}.log" for r in range(4)]
    fallback = Job(version, network=socket, devices=none, interface="eth1")
    word = written(tmp_path / "b", fallback).report(gang(), NAMES)
    assert word.transports == {"n0": "eth1", "n1": "eth1"}
    assert word.interface == "eth1"
    half = Job(
        version,
        network=lambda host: "Socket" if host else network,
        devices=lambda host: 0 if host else 2,
    )
    said = written(tmp_path / "c", half).report(gang(), NAMES).transports
    assert said == {"n0": "rdma", "n1": "eth0"}


def test_what_nccl_writes_later_is_seen_too_and_what_it_wrote_before_counts_once(
    tmp_path: Path,
) -> None:
    logs = written(tmp_path, Job())
    open_files = {path: path.open("a") for path in tmp_path.rglob("*.log")}  # as NCCL keeps them
    first = logs.report(gang(), NAMES).report
    assert first
    broke = (
        "node1:1003:1103 [1] misc/ibvwrap.cc:309 NCCL WARN Call to ibv_modify_qp failed with 110"
    )
    for path, file in open_files.items():
        file.write(f"{broke}\n" if "node1.1003" in path.name else "")
        file.close()
    later = logs.report(gang(), NAMES).report
    assert later
    assert [one.code for one in later.findings] == ["INIT-QP"]
    assert (later.edges, later.ranks) == (first.edges, first.ranks)


def test_a_node_that_connects_to_no_other_is_not_on_rdma(tmp_path: Path) -> None:
    word = written(tmp_path, Job(hosts=1)).report(gang(2), NAMES)
    assert (word.transports, word.problem) == ({}, "no connection between hosts")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("gone", "only 3 of 4 ranks have a log of NCCL"),
        ("empty", "an empty file"),
        ("cut", "cut off in the middle of a line"),
        ("ended", "is incomplete"),
    ],
)
def test_a_rank_whose_log_is_not_whole_proves_no_road(
    fault: str, said: str, tmp_path: Path
) -> None:
    logs = written(tmp_path, Job())  # two ranks on each node: the other one's log is there
    (file,) = tmp_path.rglob("*.node1.1003.log")
    text = file.read_text()
    if fault == "gone":
        file.unlink()
    else:
        ended = text[: text.index("node1:1003", text.index("Init COMPLETE"))]
        file.write_text({"empty": "", "cut": text[:-9], "ended": ended}[fault])
    word = logs.report(gang(), NAMES)
    assert word.transports == {}
    assert said in word.problem
    assert word.report  # what the others say is found all the same


@pytest.mark.parametrize("version", VERSIONS)
def test_whole_logs_of_every_version_say_their_roads(version: str, tmp_path: Path) -> None:
    word = written(tmp_path, Job(version)).report(gang(), NAMES)
    assert (word.transports, word.problem) == ({"n0": "rdma", "n1": "rdma"}, "")


def test_a_later_gang_does_not_read_what_an_earlier_one_wrote(tmp_path: Path) -> None:
    logs = written(tmp_path, Job())
    write(logs, Job(network=socket, devices=none), first=2000)
    assert logs.report(gang(), NAMES).transports == {"n0": "rdma", "n1": "rdma"}
    assert logs.report(gang(first=2000), NAMES).transports == {"n0": "eth0", "n1": "eth0"}
    assert logs.report(gang(2, 1), NAMES).report.ranks == 4  # type: ignore[union-attr]  # two wrote


def test_each_of_many_ranks_has_room_for_what_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    cluster: Any = Nodes([])
    monkeypatch.setattr(cluster, "on_each_node", lambda *words, **each: asked.append(words) or {})
    for ranks in (4, 8192):
        RankLogs(cluster).collect(gang(ranks, 8))
    assert [most for _, _, most in asked] == [16 << 20, 256 << 10]


def test_the_logs_are_gone_from_the_nodes_whatever_happens(tmp_path: Path) -> None:
    logs = written(tmp_path, Job())
    other = tmp_path / "node0" / "seatrial-nccl-other.node0.1.log"
    other.write_text("somebody else's")
    with pytest.raises(RuntimeError), logs:
        raise RuntimeError
    assert list(tmp_path.rglob("*.log")) == [other]
    word = logs.report(gang(), NAMES)
    assert word.transports == {}
    assert word.problem


def test_what_a_killed_driver_left_is_gone_after_a_day(tmp_path: Path) -> None:
    logs = written(tmp_path, Job())
    left = tmp_path / "node0" / "seatrial-nccl-0123456789ab.node0.7.log"
    fresh, kept = left.with_name(left.name.replace("7", "8")), left.with_name("nccl.node0.9.log")
    for path in (left, fresh, kept):
        path.write_text("x")
    os.utime(left, (0, time.time() - 90_000))
    os.utime(kept, (0, 0))
    with logs:
        assert not left.exists()
        write(logs, Job())
    assert sorted(tmp_path.rglob("*.log")) == sorted([fresh, kept])
    if os.getuid() == 0:  # only root can make somebody else's
        left.write_text("x")
        os.utime(left, (0, 0))
        os.chown(left, 12345, 12345)
        with logs:
            assert left.exists()


@pytest.mark.parametrize("only_cited", [False, True])
def test_logs_that_no_finding_names_are_kept_only_if_asked_for(only_cited: bool) -> None:
    cited = finding("NCCL-VERSION", "two versions").model_copy(update={"evidence": ["one.log:7"]})
    logs = {name: gzip.compress(b"NCCL INFO") for name in ("one.log", "two.log")}
    report: Any = SimpleNamespace(findings=[cited])
    kept: list[str] = []

    def keep(name: str, *_: object, **__: object) -> str:
        kept.append(name)
        return f"evidence/{name}"

    measure: Any = SimpleNamespace(keep=keep)
    (found,) = keep_logs(TransportReport(report=report, logs=logs), measure, only_cited=only_cited)
    assert kept == ["one.log", "two.log"][: 1 if only_cited else 2]
    assert found.evidence == ["evidence/one.log:7"]


def test_the_ring_stays_off_nvlink_between_hosts() -> None:
    logs = SimpleNamespace(cluster=SimpleNamespace(on_gpu=True), environment={})
    assert gang_env(cast(RankLogs, logs))["NCCL_MNNVL_ENABLE"] == "0"


@pytest.mark.parametrize(("on_gpu", "backend"), [(True, "nccl"), (False, None)])
def test_real_gpus_use_nccl(on_gpu: bool, backend: str | None) -> None:
    logs = SimpleNamespace(cluster=SimpleNamespace(on_gpu=on_gpu), environment={})
    assert gang_env(cast(RankLogs, logs)).get("SEATRIAL_BACKEND") == backend


H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"


@pytest.mark.parametrize(
    ("gpus", "gdr", "count"),
    [
        (8 * [H100], False, 1),
        pytest.param(8 * [H100], True, 0, marks=pytest.mark.near_miss("FABRIC.log_errors")),
        (8 * [L40S], False, 0),  # g6e
        ([H100], False, 0),  # p5.4xlarge
        ([], False, 0),
    ],
)
def test_on_efa_the_gpus_decide_whether_gpudirect_must_be_there(
    tmp_path: Path, gpus: list[str], gdr: bool, count: int
) -> None:
    job = Job("2.27.5", gdr=gdr, network=lambda host: "AWS Libfabric")
    logs = written(tmp_path, job)
    boards = [{"name": name} for name in gpus]
    logs.cluster.facts.extend({"name": f"n{node}", "gpus": boards} for node in range(2))
    word = logs.report(gang(), NAMES, "rdma")
    measure = recorder("FABRIC", load("p5-efa"))
    judge_transport(sweep_result(300, "rdma", library=word), "rdma", measure)
    result = measure.result("finished", 1.0)
    (errors,) = [one for one in result.measurements if one.name == "log_errors"]
    assert (errors.value, errors.verdict) == (count, Verdict.FAIL if count else Verdict.PASS)
    found = [one for one in result.findings if one.code == "FAB-NO-GDR"]
    assert [one.suspects for one in found] == [["node0", "node1"]] * count


def test_of_two_kinds_of_nodes_on_efa_those_without_gpudirect_are_named(tmp_path: Path) -> None:
    logs = written(tmp_path, Job("2.27.5", gdr=False, network=lambda host: "AWS Libfabric"))
    kinds = {"n0": H100, "n1": L40S}
    logs.cluster.facts.extend({"name": n, "gpus": 4 * [{"name": one}]} for n, one in kinds.items())
    report = logs.report(gang(), NAMES, "rdma").report
    assert report
    assert [(one.code, one.suspects) for one in report.findings] == [("FAB-NO-GDR", ["node0"])]
