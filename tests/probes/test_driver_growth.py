"""What the driver does for each node or rank grows with their number, and not with its square."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import list_pairs, map_peers
from probes.cluster.ray_internals import LiveActors
from probes.fabric.reach import ReachabilityResult, find_unreachable
from probes.gang.observer import Observer, read_ranks
from reference_trainer.launch.gang import Gang
from reference_trainer.launch.worker import RankLocation
from reports.run_folder.store import Store

FEW, MANY, GPUS = 512, 4096, 8  # nodes; GPUs of a node
MAX_LINE = 4 << 20  # bytes of a line of the event log
# Eight times the nodes take eight times as long, and a square 64 times.  Caches of the processor
# that no longer hold all of it may double the time of each.
MOST_GROWTH = 2.5 * MANY / FEW
LEAST_S = 0.002  # below it, the clock measures noise
Made = Callable[[int, Path, pytest.MonkeyPatch], Callable[[], Any]]


def names(nodes: int) -> list[str]:
    return [f"node{number:04}.example.com" for number in range(nodes)]


def node_table(nodes: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """All that the cluster says of its nodes, from Ray's table."""
    rows = [
        {
            "NodeID": f"{number:056x}",
            "NodeManagerHostname": name,
            "NodeManagerAddress": f"10.0.{number // 250}.{number % 250}",
            "Alive": True,
            "Resources": {"GPU": float(GPUS), "CPU": 96.0},
        }
        for number, name in enumerate(names(nodes))
    ]
    monkeypatch.setattr(ray, "nodes", lambda: rows)
    monkeypatch.setattr("probes.cluster.cluster.read_draining", dict)
    cluster = object.__new__(Cluster)
    cluster.kind = "ray"
    return lambda: (cluster.size, cluster.gpus_by_node, cluster.bystanders, cluster.node_names)


def call_of_a_gang(nodes: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A call of all ranks, each with its variables and an argument of its own."""
    gang, called = Gang(nodes * GPUS), SimpleNamespace(remote=lambda *_: None)
    gang.places = [
        RankLocation(node=name, address="10.0.0.1", host=name, pid=gpu, gpus=[str(gpu)])
        for name in names(nodes)
        for gpu in range(GPUS)
    ]
    gang._workers = [SimpleNamespace(run=called)] * gang.size
    monkeypatch.setattr(gang, "_find_ports", lambda jobs, *_: [29500] * len(jobs))
    each = [[rank] for rank in range(gang.size)]
    return lambda: gang.begin(print, each=each)


def reach_of_nodes(nodes: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Who connects to whom over the fabric, and one node that none reaches."""

    def test_and_judge() -> None:
        listed = names(nodes)
        assert len(map_peers(listed)) == nodes
        failing = [pair for pair in list_pairs(listed) if listed[3] in pair]
        (found,) = find_unreachable(ReachabilityResult(listed, failing, {}))
        assert found.suspects == [listed[3]]

    return test_and_judge


def first_events(nodes: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """The start of a record, with facts of each node; no line is long."""
    facts = [{"name": name, "interfaces": {"ib0": {"mtu": 4092}}} for name in names(nodes)]
    times = iter(range(100))

    def write() -> None:
        path = folder / f"{nodes}-{next(times)}"
        store = Store(path)
        store.start(b"", id="run", tier="quick", cluster={"nodes": facts})
        store.close()
        lines = (path / "events.jsonl").read_bytes().split(b"\n")
        assert max(map(len, lines)) < MAX_LINE

    return write


def look_at_gangs(nodes: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A sample of a gang that has three quarters of all GPUs, with an actor on each."""
    from ray.core.generated.gcs_pb2 import ActorTableData

    ids, job = [f"{number:056x}" for number in range(nodes)], "01000000"
    actors = []
    for node in ids:
        actor = ActorTableData(class_name="Holder", job_id=bytes.fromhex(job))
        actor.state, actor.address.node_id = ActorTableData.ALIVE, bytes.fromhex(node)
        for number in range(GPUS * 3 // 4):
            actor.actor_id = bytes.fromhex(f"{node[-8:]}{number:08x}")
            actors.append(actor.SerializeToString())
    accessor = SimpleNamespace(get_actor_table=lambda *_: actors)
    monkeypatch.setattr("probes.cluster.ray_internals.gcs_accessor", lambda: accessor)
    observer, live = object.__new__(Observer), LiveActors()
    observer.prefix, observer.node_names = "t-", dict(zip(ids, names(nodes), strict=True))
    observer.jobs, observer.single_actors, observer.gang_sizes = {job: "A"}, {}, {}
    held = [id for id in ids for _ in range(GPUS * 3 // 4)]
    raw = {"t": 0.0, "took": 0.0, "free": dict.fromkeys(ids, 2),
           "groups": {"t-A-1": ["CREATED", len(held), held, False]}}  # fmt: skip

    def look() -> None:
        sample = observer._with_names({**raw, "actors": read_ranks(live, [job])})
        assert sample["actors"] == {"A": len(held)}
        assert sample["gangs"]["A-1"]["placed"] == len(held)

    look()  # each entry is parsed once
    return look


def cpu_seconds(call: Callable[[], Any]) -> float:
    """CPU time of a call; the least of three, since other work may slow it down."""
    taken = []
    for _ in range(3):
        begun = time.thread_time()
        call()
        taken.append(time.thread_time() - begun)
    return min(taken)


PATHS = [node_table, call_of_a_gang, reach_of_nodes, first_events, look_at_gangs]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_a_path_of_the_driver_grows_with_the_nodes(
    path: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_seconds(path(64, tmp_path, monkeypatch))  # imports, and what is filled once
    few = cpu_seconds(path(FEW, tmp_path, monkeypatch))
    many = cpu_seconds(path(MANY, tmp_path, monkeypatch))
    assert many < MOST_GROWTH * max(few, LEAST_S), f"{FEW}: {few:.3f} s, {MANY}: {many:.3f} s"


def test_an_entry_of_an_actor_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is parsed anew where it changes, and left out once it is gone, or of no asked job."""
    from ray.core.generated.gcs_pb2 import ActorTableData

    parsed: list[bytes] = []
    real = ActorTableData.FromString

    def parse(entry: bytes) -> Any:
        parsed.append(entry)
        return real(entry)

    def entry(name: str, state: int) -> bytes:
        return ActorTableData(class_name=name, state=state).SerializeToString()

    alive, dead = ActorTableData.ALIVE, ActorTableData.DEAD
    table = {"01000000": [entry("a", alive), entry("b", alive)], "02000000": [entry("c", alive)]}
    accessor = SimpleNamespace(get_actor_table=lambda job, _: table[job.hex()])
    monkeypatch.setattr("probes.cluster.ray_internals.gcs_accessor", lambda: accessor)
    monkeypatch.setattr(ActorTableData, "FromString", parse, raising=False)
    live = LiveActors()

    def read(*jobs: str) -> list[str]:
        return [actor.class_name for actor in live.snapshot(jobs)]

    assert read("01000000") == ["a", "b"]
    assert read("01000000", "02000000") == ["a", "b", "c"]
    table["01000000"] = [entry("b", alive), entry("d", dead)]
    assert read("01000000", "02000000") == ["b", "c"]
    assert len(parsed) == 4
    assert read() == []
