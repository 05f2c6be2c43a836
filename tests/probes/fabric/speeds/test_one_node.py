"""One node was ordered: the links inside it stand for the fabric, and nothing else is claimed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.check.declarations import Circumstances
from probes.check.owed import owed_by
from probes.contract.contract import Contract, load, parse
from probes.contract.terms import ClusterTerms
from probes.fabric import controls, judge
from probes.fabric import test_fabric as probe
from probes.fabric.controls import control_slow_node
from probes.fabric.judge import FabricRig, judge_own_log
from probes.fabric.node_pairs import InsideSpeeds, judge_inside, measure_inside
from probes.fabric.transport import RankLogs
from reference_trainer.launch.gang import GangError
from reports.measurement import Verdict
from scaling.collectives.node_groups import MESSAGE_BYTES
from scaling.collectives.operations import OPERATIONS
from tests.probes.fabric.test_library_report import Nodes, write
from tests.probes.fabric.test_library_report import gang as logged_gang
from tests.recordings.generate.nccl_logs import Job
from tests.support.controls import MemoryRecorder, recorder
from tests.support.paths import REPO
from tests.support.rank_parts import Each

ORDER = 'schema = 1\ntitle = "t"\n[cluster]\nnodes = 1\ngpus_per_node = 8\n'
INSIDE = '[FABRIC.all_reduce_inside_node]\nat_least = {}\nunit = "GB/s"\nbecause = "NVLink"\n'
ONE = ClusterTerms(nodes=1)


def agreed(at_least: float | None = 300) -> Contract:
    text = ORDER + (INSIDE.format(at_least) if at_least else "")
    return parse(text.encode(), "one.toml")


def inside(speed: float, ranks: int = 8, wrong: int = 0) -> InsideSpeeds:
    return InsideSpeeds({"n0": speed}, {"n0": wrong}, [], {"n0": ranks})


def judged(found: InsideSpeeds, contract: Contract) -> MemoryRecorder:
    measure = recorder("FABRIC", contract)
    judge_inside(found, measure, alone=True)
    return measure


def verdicts(measure: MemoryRecorder) -> dict[str, Verdict | None]:
    return {one.name: one.verdict for one in measure.result("finished", 1.0).measurements}


# What is owed.


def owed(nodes: int = 1, tier: str = "soak", **changes: Any) -> dict[str, set[str]]:
    given: dict[str, Any] = {"terms": ONE, "on_gpu": True, "ranks": 8 * nodes, **changes}
    probes = [*owed_by(Circumstances(tier, nodes=nodes, **given))]
    found: dict[str, set[str]] = {}
    for one in probes:
        found.setdefault(one.criterion, set()).update(one.measures, one.controls)
    return found


def test_one_ordered_node_owes_what_it_can_show() -> None:
    assert owed()["FABRIC"] == {
        *("wrong_elements", "harmful_settings", "all_reduce_inside_node", "log_errors"),
        *("wrong element", "harmful variable", "slow inside the only node"),
    }
    with_rdma = owed(terms=ClusterTerms(nodes=1, fabric="rdma"))
    assert with_rdma["FABRIC"] == owed()["FABRIC"]
    assert "log_errors" not in owed(on_gpu=False)["FABRIC"], "gloo writes no log"
    assert {"mfu", "straggler", "planted delay", "slow base"} <= owed()["SCALING"]
    assert "efficiency" not in owed()["SCALING"]
    assert {"misplaced", "PACK passed off as STRICT_SPREAD"} <= owed()["GANG"]
    assert not {"placed_in_fragments", "SPREAD passed off as STRICT_PACK"} & owed()["GANG"]


@pytest.mark.parametrize(
    "changes",
    [
        {"terms": ClusterTerms()},
        {"terms": ClusterTerms(nodes=8)},
        {"one_host": True},  # local:1
        {"nodes": 2},
    ],
    ids=["no order", "eight ordered", "raylets of one host", "two found"],
)
def test_any_other_order_owes_all_of_it(changes: dict[str, Any]) -> None:
    found = owed(**changes)
    assert {"busbw", "network", "agreeing_sources", "wrong network"} <= found["FABRIC"]
    assert {"efficiency", "planted delay"} <= found["SCALING"]
    assert {"placed_in_fragments", "PACK passed off as STRICT_PACK"} <= found["GANG"]
    assert "slow inside the only node" not in found["FABRIC"]


def test_every_probe_of_one_ordered_node_owes_a_measure_and_a_control() -> None:
    for one in owed_by(Circumstances("soak", ONE, 1, True, ranks=8)):
        assert one.measures, one.probe
        assert one.controls, one.probe


def test_a_measure_with_a_control_here_needs_no_reason_why_it_has_none() -> None:
    (alone,) = (p for p in owed_by(Circumstances("quick", ONE, 1, True, ranks=8)) if is_fabric(p))
    assert {*alone.uncontrolled} == {"log_errors"}
    terms, names = ClusterTerms(fabric="rdma"), frozenset({"FABRIC.all_gather_busbw"})
    several = Circumstances("quick", terms, 8, True, names, ranks=64)
    (many,) = (p for p in owed_by(several) if is_fabric(p))
    assert "all_gather_busbw" in many.uncontrolled
    assert "log_errors" not in many.uncontrolled, "`wrong network` makes it fail"


def is_fabric(one: Any) -> bool:
    return bool(one.criterion == "FABRIC")


# What is judged.


@pytest.mark.parametrize(
    ("speed", "verdict"),
    [
        pytest.param(
            301,
            Verdict.PASS,
            marks=pytest.mark.near_miss("FABRIC.all_reduce_inside_node"),
        ),
        (299, Verdict.FAIL),
        (150, Verdict.FAIL),
        (0, Verdict.FAIL),
    ],
)
def test_the_agreed_speed_inside_the_node_decides(speed: float, verdict: Verdict) -> None:
    measure = judged(inside(speed), agreed())
    assert verdicts(measure) == {
        "wrong_elements": Verdict.PASS,
        "all_reduce_inside_node": verdict,
    }
    found = [(one.code, one.suspects) for one in measure.result("finished", 1.0).findings]
    assert found == ([("FAB-SLOW-INSIDE", ["n0"])] if verdict is Verdict.FAIL else [])


def test_without_an_agreed_speed_nothing_is_proven() -> None:
    assert verdicts(judged(inside(400), agreed(None)))["all_reduce_inside_node"] is Verdict.UNPROVEN


def test_one_rank_has_no_link_inside_its_node() -> None:
    found = InsideSpeeds({}, {}, ["n0"], {})
    assert verdicts(judged(found, agreed())) == {"all_reduce_inside_node": Verdict.UNPROVEN}


def test_wrong_data_fails_however_fast_it_comes() -> None:
    assert verdicts(judged(inside(400, wrong=1), agreed()))["wrong_elements"] is Verdict.FAIL


class Node:
    """Eight ranks of one node with links of this speed; a late rank makes each call longer."""

    def __init__(self, speed: float, delays: bool = True) -> None:
        self.speed, self.delays, self.size = speed, delays, 8

    def run(self, _: Any, *arguments: Any, each: Each, **__: Any) -> Any:
        slow = arguments[1]
        sent = MESSAGE_BYTES["nccl"] * OPERATIONS["all_reduce"].factor(self.size) / 1e9
        late_s = slow[1] if slow and self.delays else 0.0
        return [(sent / (sent / self.speed + late_s), 0)] * self.size


@pytest.mark.parametrize("speed", [301.0, 3000.0, 299.0])
def test_the_control_breaks_the_agreed_speed_however_fast_the_node_is(speed: float) -> None:
    measure = recorder("FABRIC", agreed())
    rig: Any = SimpleNamespace(gang=Node(speed), measure=measure)
    control_slow_node(rig, ["n0"] * 8, inside(speed), "nccl")
    (control,) = measure.result("finished", 1.0).controls
    assert (control.name, control.caught) == ("slow inside the only node", True)
    assert control.proves == ["all_reduce_inside_node"]


def test_a_delay_that_is_lost_on_its_way_is_not_caught() -> None:
    measure = recorder("FABRIC", agreed())
    rig: Any = SimpleNamespace(gang=Node(301.0, delays=False), measure=measure)
    control_slow_node(rig, ["n0"] * 8, inside(301), "nccl")
    assert [one.caught for one in measure.result("finished", 1.0).controls] == [False]


@pytest.mark.parametrize(
    ("found", "at_least", "why"),
    [
        (inside(300), None, "no speed inside the node is agreed"),
        (InsideSpeeds({}, {}, ["n0"], {}), 300, "the node has one rank"),
    ],
)
def test_a_control_that_proves_nothing_says_why(
    found: InsideSpeeds, at_least: float | None, why: str
) -> None:
    measure = recorder("FABRIC", agreed(at_least))
    rig: Any = SimpleNamespace(gang=None, measure=measure)
    control_slow_node(rig, ["n0"], found, "nccl")
    assert [(c.caught, c.saw) for c in measure.result("finished", 1.0).controls] == [(None, why)]


# NCCL's log.

BROKEN = {3: ["misc/cudawrap.cc:33 NCCL WARN Cuda failure 2 'out of memory'"]}


def judged_log(folder: Path, job: Job, on_gpu: bool = True) -> MemoryRecorder:
    nodes: Any = Nodes([folder])
    nodes.on_gpu, logs = on_gpu, RankLogs(nodes)
    write(logs, job, gpus=job.gpus)
    measure = recorder("FABRIC", agreed())
    ranks = logged_gang(job.gpus, job.gpus)
    rig: Any = SimpleNamespace(gang=ranks, node_names={"id0": "n0"}, measure=measure)
    judge_own_log(rig, logs)
    return measure


@pytest.mark.parametrize("version", ["2.21.5", "2.28.9"])
def test_a_sound_log_of_one_node_passes(tmp_path: Path, version: str) -> None:
    measure = judged_log(tmp_path, Job(version, hosts=1, gpus=8))
    assert verdicts(measure) == {"log_errors": Verdict.PASS}


def test_an_error_in_the_log_fails_with_its_finding(tmp_path: Path) -> None:
    measure = judged_log(tmp_path, Job(hosts=1, gpus=8, warn=BROKEN))
    assert verdicts(measure) == {"log_errors": Verdict.FAIL}
    assert measure.result("finished", 1.0).findings


def test_a_rank_without_a_log_proves_nothing(tmp_path: Path) -> None:
    logs = judged_log(tmp_path, Job(hosts=1, gpus=8, absent=[5]))
    assert verdicts(logs) == {"log_errors": Verdict.UNPROVEN}


def test_gloo_writes_no_log(tmp_path: Path) -> None:
    assert verdicts(judged_log(tmp_path, Job(hosts=1, gpus=8), on_gpu=False)) == {}


# The probe as a whole.


@pytest.mark.parametrize(
    ("terms", "kind"),
    [(ClusterTerms(), "ray"), (ClusterTerms(nodes=8), "ray"), (ONE, "local")],
    ids=["no order", "eight ordered", "raylets of one host"],
)
def test_one_node_is_not_enough_unless_it_was_ordered(terms: ClusterTerms, kind: str) -> None:
    cluster = SimpleNamespace(nodes=[{"id": "id0"}], kind=kind, on_gpu=True)
    with pytest.raises(pytest.fail.Exception, match="FABRIC needs 2 nodes"):
        probe.test_allreduce_takes_the_fabric_at_line_rate(
            cluster, terms, "quick", recorder("FABRIC", load("lab"))
        )


RANK = """
import os, pickle, sys
from pathlib import Path
folder = Path(sys.argv[1])
function, arguments, each = pickle.loads((folder / "call").read_bytes())
rank = int(os.environ["RANK"])
(folder / f"answer{rank}").write_bytes(pickle.dumps(function(*arguments, *each[rank])))
"""


class RealRanks:
    """A gang of gloo ranks on this host: each call is a job of torchrun."""

    def __init__(self, folder: Path, size: int = 2) -> None:
        self.folder, self.size = folder, size
        self.places = [SimpleNamespace(node="id0")] * size
        (folder / "rank.py").write_text(RANK)

    def run(
        self, function: Any, *arguments: Any, each: Sequence[Any] | None = None, **_: Any
    ) -> list[Any]:
        call = function, arguments, each or [()] * self.size
        (self.folder / "call").write_bytes(pickle.dumps(call))
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.size)]
        command = [sys.executable, *launch, str(self.folder / "rank.py"), str(self.folder)]
        done = subprocess.run(
            command, cwd=REPO, env=self.environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answers = [self.folder / f"answer{rank}" for rank in range(self.size)]
        return [pickle.loads(one.read_bytes()) for one in answers]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPO), "SEATRIAL_BACKEND": "gloo"}


def test_real_ranks_show_their_speed_and_a_late_one_breaks_the_limit(tmp_path: Path) -> None:
    gang: Any = RealRanks(tmp_path)
    found = measure_inside(gang, ["n0", "n0"])
    measure = recorder("FABRIC", agreed(found.busbw["n0"] / 2))
    judge_inside(found, measure, alone=True)
    assert verdicts(measure) == {
        "wrong_elements": Verdict.PASS,
        "all_reduce_inside_node": Verdict.PASS,
    }
    rig: Any = SimpleNamespace(gang=gang, measure=measure)
    control_slow_node(rig, ["n0", "n0"], found, "gloo")
    assert [one.caught for one in measure.result("finished", 1.0).controls] == [True]


class Flow(Node):
    """Ranks that answer all that the probe asks on one node."""

    def __init__(self, speed: float, fails: str = "") -> None:
        super().__init__(speed)
        self.fails, self.asked = fails, list[str]()
        self.places = [SimpleNamespace(node="id0")] * self.size

    def run(self, function: Any, *arguments: Any, each: Each = (), **_: Any) -> Any:
        self.asked.append(function.__name__)
        if function.__name__ == self.fails:
            raise GangError("rank 3 does not answer")
        if function.__name__ == "group_sweep":
            return super().run(function, *arguments, each=each)
        return [self.size] * self.size


def run_flow(monkeypatch: pytest.MonkeyPatch, gang: Any) -> MemoryRecorder:
    row = {"wrong": 0, "first_wrong": [], "elements": 8}
    wrong = {**row, "wrong": 1, "first_wrong": [(7, 3)]}
    monkeypatch.setattr(judge, "check_ops", lambda *_: {"all_gather": [row]})
    monkeypatch.setattr(controls, "check_ops", lambda *_: {"all_gather": [wrong]})
    monkeypatch.setattr(probe, "explain_start_failure", lambda rig, *_: rig.measure.covered("why"))
    measure = recorder("FABRIC", agreed())
    rig = FabricRig(gang, {"id0": "n0"}, ONE, "quick", None, measure)
    logs: Any = SimpleNamespace(cluster=SimpleNamespace(on_gpu=False))
    probe.run_on_one_node(rig, logs)
    return measure


@pytest.mark.parametrize(("speed", "verdict"), [(0.4, Verdict.FAIL), (301.0, Verdict.PASS)])
def test_the_probe_records_all_that_one_node_owes(
    monkeypatch: pytest.MonkeyPatch, speed: float, verdict: Verdict
) -> None:
    gang = Flow(speed)
    measure = run_flow(monkeypatch, gang)
    assert gang.asked == ["warm_up", "connect", "group_sweep", "group_sweep"]
    assert verdicts(measure) == {
        "wrong_elements": Verdict.PASS,
        "all_reduce_inside_node": verdict,
    }
    result = measure.result("finished", 1.0)
    assert {one.name: one.caught for one in result.controls} == {
        "wrong element": True,
        "slow inside the only node": True,
    }
    assert result.verdict is verdict


@pytest.mark.parametrize("fails", ["warm_up", "connect", "group_sweep"])
def test_ranks_that_fail_leave_one_node_unproven(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    measure = run_flow(monkeypatch, Flow(301.0, fails))
    assert verdicts(measure)["all_reduce_inside_node"] is Verdict.UNPROVEN
    assert (measure.result("finished", 1.0).controls, measure._coverage[-1]) == ([], "why")
