"""The fabrics that people have: what a sound and a broken one shows, by each shipped contract.

SYNTHETIC: counters in trees of /sys/class and NCCL's log, by the documented formats.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.network_facts import counter_growth, join_fabric, read_counters
from probes.contract.contract import load, shipped_contracts
from probes.fabric import judge
from probes.fabric.judge import explain_without_pairs
from probes.fabric.transport import RankLogs
from reports.measurement import Verdict
from tests.probes.fabric.test_library_report import NAMES, gang, written
from tests.recordings.generate.nccl_logs import Job
from tests.support.controls import MemoryRecorder, recorder
from tests.support.sweep_results import sweep_result
from tests.support.sysfs_trees import GIB, TREES, Port, Tree

MORE_TREES = {
    "GB200": Tree(tuple(Port(f"mlx5_{i}", GIB) for i in range(4)), {"eth0": 2_000_000}),
    "A3 Mega": Tree((), {"eth0": 2_000_000, **{f"eth{i}": GIB for i in range(1, 9)}}),
}
# contract: (what a node has, the network in NCCL's log, bytes that it sends)
FABRICS = {
    "h100-ndr400": ("mlx5 InfiniBand", "IB", 8 * GIB),
    "h200-ndr400": ("mlx5 InfiniBand", "IB", 8 * GIB),
    "b200-ndr400": ("mlx5 InfiniBand", "IB", 8 * GIB),
    "h100-roce400": ("mlx5 RoCE", "IB", 8 * GIB),
    "p5-efa": ("EFA", "AWS Libfabric", 32 * GIB),
    "a3-ultra": ("mlx5 RoCE", "gIB", 8 * GIB),
    "a3-mega-tcpxo": ("A3 Mega", "FasTrak", 8 * GIB),
    "gb200-nvl72": ("GB200", "IB", 4 * GIB),
}
every_fabric = pytest.mark.parametrize("name", FABRICS)
NODES = ["n0", "n1"]


def test_each_shipped_contract_of_gpus_is_tried() -> None:
    real = {name for name in shipped_contracts() if load(name).cluster.accelerators == "real"}
    assert real - {"ethernet", "l40s-ethernet", "h100-one-node"} == {*FABRICS}


@every_fabric
def test_a_limit_without_a_published_figure_says_that_it_is_not_calibrated(name: str) -> None:
    figures = [key for key in load(name).limits["FABRIC"] if "busbw" in key or "inside" in key]
    published = {"busbw"} if name in ("h100-ndr400", "h200-ndr400") else set()
    for key in figures:
        because = load(name).limits["FABRIC"][key].because
        assert ("not yet calibrated on hardware" in because) is (key not in published), key


def judged(
    name: str,
    tmp_path: Path,
    log: str = "",
    astray: dict[str, int] | None = None,
    explain: bool = True,
) -> MemoryRecorder:
    """Judge the transport of two nodes of this fabric; n1 may send `astray` instead."""
    tree, network, total = FABRICS[name]
    contract = load(name)
    fabric = contract.cluster.fabric
    counted = read_counters(*{**TREES, **MORE_TREES}[tree].write(tmp_path))
    grown = counter_growth(dict.fromkeys(counted, 0), counted)
    sent = {node: join_fabric(grown, fabric) for node in NODES}
    if astray is not None:
        sent["n1"] = join_fabric(astray, fabric)
    job = Job(hosts=2, gpus=2, network=lambda host: log if log and host else network)
    library = written(tmp_path / "logs", job).report(gang(), NAMES, fabric)
    run = replace(sweep_result(100, size=round(total / 15), library=library), sent=sent)
    measure = recorder("FABRIC", contract)
    judge.judge_transport(run, fabric, measure)
    if explain:
        rig: Any = SimpleNamespace(terms=contract.cluster, measure=measure)
        explain_without_pairs(rig, run, [])
    return measure


def verdicts(measure: MemoryRecorder) -> dict[str, set[Verdict | None]]:
    found: dict[str, set[Verdict | None]] = {}
    for one in measure.result("finished", 1.0).measurements:
        found.setdefault(one.name, set()).add(one.verdict)
    return found


@every_fabric
def test_a_sound_fabric_passes_and_both_sources_name_it(name: str, tmp_path: Path) -> None:
    measure = judged(name, tmp_path)
    found = verdicts(measure)
    for one in ("network", "agreeing_sources", "fabric_share", "share_on_other_networks"):
        assert found[one] == {Verdict.PASS}, one
    result = measure.result("finished", 1.0)
    assert [one.code for one in result.findings] == []
    assert {one.value for one in result.measurements if one.name == "network"} == {
        load(name).cluster.fabric
    }


@every_fabric
def test_a_node_that_falls_back_to_sockets_is_named(name: str, tmp_path: Path) -> None:
    """Its bytes leave over the management interface, and its own log says so."""
    total = FABRICS[name][2]
    measure = judged(name, tmp_path, log="Socket", astray={"eth0": total, "eth1": 0})
    found = verdicts(measure)
    assert Verdict.FAIL in found["fabric_share"]
    assert Verdict.FAIL in found["share_on_other_networks"]
    findings = measure.result("finished", 1.0).findings
    wrong = [one for one in findings if one.code == "FAB-WRONG-INTERFACE"]
    assert [one.suspects for one in wrong] == [["n1"]]


@every_fabric
def test_counters_that_contradict_the_log_prove_nothing(name: str, tmp_path: Path) -> None:
    astray = {"eth0": FABRICS[name][2], "eth1": 0}
    measure = judged(name, tmp_path, astray=astray, explain=False)
    assert verdicts(measure)["agreeing_sources"] == {Verdict.UNPROVEN}


@every_fabric
def test_bytes_that_no_device_counts_prove_nothing_and_accuse_nobody(
    name: str, tmp_path: Path
) -> None:
    """Past the kernel, or over NVLink between nodes: the interfaces see rendezvous alone."""
    measure = judged(name, tmp_path, astray={"eth0": 2_000_000, "eth1": 0})
    assert Verdict.PASS not in verdicts(measure)["agreeing_sources"]
    findings = measure.result("finished", 1.0).findings
    assert [one.code for one in findings if one.code == "FAB-WRONG-INTERFACE"] == []


def test_interfaces_of_a_fabric_are_one_device_unless_one_cannot_be_read() -> None:
    sent = {"eth0": 1, "eth1": 10, "eth2": 20}
    assert join_fabric(sent, "eth1,eth2") == {"eth1,eth2": 30, "eth0": 1}
    assert join_fabric({**sent, "eth2": None}, "eth1,eth2") == {"eth1,eth2": None, "eth0": 1}
    assert join_fabric(sent, "eth1") == join_fabric(sent, None) == join_fabric(sent, "rdma") == sent
    assert join_fabric({"eth0": 1}, "eth1,eth2") == {"eth0": 1}  # the node has none of them


def test_tcpx_in_the_log_is_the_fabric_only_where_interfaces_are_agreed(tmp_path: Path) -> None:
    job = Job(hosts=2, gpus=2, network=lambda _: "GPUDirectTCPX_v7")
    logs: RankLogs = written(tmp_path, job)
    assert logs.report(gang(), NAMES, "eth1,eth2").transports == dict.fromkeys(NODES, "eth1,eth2")
    assert logs.report(gang(), NAMES, "rdma").transports == dict.fromkeys(NODES, "rdma")
