"""An invented cluster, 8 nodes of 8 H100 on 8 x 400 Gbit/s, and what its probes saw when healthy.

The numbers are made up, but have the shape and the size of real ones.
"""

from __future__ import annotations

import math
from datetime import date
from typing import Any

from probes.contract.contract import load
from reports.record import ContractFacts, ProbeResult, RunRecord, Waiver
from tests.recordings.generate import gang_contention as contests
from tests.recordings.load import control, evidence, measured, owing
from tests.support.pairs import cells_of

NODES = [f"atlas{n:02d}" for n in range(1, 9)]
RING = "a ring all-reduce moves 2(n-1)/n x S per node; headers add 5 %"
LINE_RATE = "85 % of 8 rails x 400 Gbit/s = 400 GB/s"
FILES = {
    "evidence/allreduce.txt": "#      bytes     time_us   busbw_GBps  min    max\n"
    + "\n".join(
        f"{2**p:>12}  {50 + 2**p / 2.1e5:>10.1f}  {376 / (1 + 2 ** (24 - p)):>10.1f}"
        for p in range(20, 34)
    )
    + "\n",
    "evidence/nccl-rank0.log": "\n".join(
        [f"{NODES[0]}:4121:4180 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0"]
        + [
            f"{NODES[0]}:4121:4202 [0] NCCL INFO Channel {c:02d}/0 : 0[0] -> 8[0] "
            f"[send] via NET/IB/{c % 8}/GDRDMA"
            for c in range(48)
        ]
    )
    + "\n",
    "evidence/launch.txt": "$ ssh trial@atlas01\n$ git clone /shared/start && cd start\n"
    "$ ray job submit --working-dir . -- python train.py\nJob 'raysubmit_x' succeeded\n",
}


def contract(required: bool = True) -> ContractFacts:
    """Six criteria, all required."""
    return ContractFacts(
        name="h100-ndr400",
        sha256="3f9a1c0e7b5d2c44a1f0e6d98b7a65c4f3e2d1c0b9a8f7e6d5c4b3a291807f6e",
        title="Acceptance of atlas, lot 1",
        criteria=load("h100-ndr400").facts().criteria,
        max_marginal=load("h100-ndr400").max_marginal,
    )


def cluster() -> dict[str, Any]:
    """Facts of the cluster, as the plugin collects them."""
    node = {"gpus": 8, "gpu": "NVIDIA H100 80GB HBM3", "driver": "570.86.15", "nics": 8}
    return {
        "name": "atlas",
        "address": "ray://10.20.0.1:10001",
        "fabric": "8 x 400 Gbit/s InfiniBand NDR",
        "nodes": [
            {"name": name, **node, "kernel": "6.8.0-51-generic", "memory": "2.0 TiB"}
            for name in NODES
        ],
        "env": {"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "eth0", "HF_TOKEN": "hf_abcdef"},
    }


def record() -> RunRecord:
    """A healthy run: accepted, with one marginal criterion."""
    run = RunRecord(
        id="2026-11-20T221703Z-atlas",
        started="2026-11-20T22:17:03.120Z",
        finished="2026-11-20T22:26:14.870Z",
        state="finished",
        command="pytest probes --cluster ray://10.20.0.1:10001 --contract h100-ndr400",
        tier="quick",
        cluster=cluster(),
        contract=contract(),
        versions={"seatrial": "0.1.0", "ray": "2.51.1", "torch": "2.9.0", "nccl": "2.28.3"},
        results=[hosts(), fabric(), scaling(), gang(), launch(), restart()],
    )
    return owing(run)


def hosts() -> ProbeResult:
    """64 GPUs of one kind, none with errors."""
    ordered = "order 2026-114, position 1"
    seen = [measured("gpus", 8, "GPUs", node, low=8, high=8, because=ordered) for node in NODES]
    seen.append(measured("nodes", len(NODES), "nodes", low=8, high=8, because=ordered))
    seen.append(measured("differences", 0, "differences", high=0, because="one job, one stack"))
    return ProbeResult(
        probe="probes/hosts/test_hosts.py::test_nodes_are_what_was_ordered",
        criterion="HOSTS",
        claim="Every node has the GPUs, links and drivers that were ordered, and no errors.",
        state="finished",
        seconds=41.0,
        measurements=seen,
        controls=[control("one fewer", "an order for 9 GPUs a node", "8 of 9 on every node")],
        coverage="8 of 8 nodes, 64 of 64 GPUs",
    )


def sweep(top: float, half: float = 24.0, first: int = 20, last: int = 33) -> dict[str, Any]:
    """A bandwidth curve that reaches `top` and has half of it at 2**half bytes."""
    speeds = [top / (1 + 2 ** (half - power)) for power in range(first, last + 1)]
    return {
        "sizes": [2**power for power in range(first, last + 1)],
        "busbw": [round(speed, 3) for speed in speeds],
        "low": [round(speed * 0.97, 3) for speed in speeds],
        "high": [round(speed * 1.02, 3) for speed in speeds],
    }


def fabric(top: float = 376.0) -> ProbeResult:
    """All-reduce over 64 GPUs, and who says that it went over RDMA."""
    limit: dict[str, Any] = {"low": 340, "marginal_low": 368, "because": LINE_RATE}
    wrong = {key: sweep(4.9)[key] for key in ("sizes", "busbw")}
    return ProbeResult(
        probe="probes/fabric/test_fabric.py::test_allreduce_runs_at_line_rate",
        criterion="FABRIC",
        claim="All-reduce over every GPU moves data as fast as the fabric allows.",
        state="finished",
        seconds=74.0,
        measurements=[
            measured("busbw", top, "GB/s", spread=4.1, samples=20, **limit),
            measured("network", "rdma", one_of=["rdma"], because="RDMA was agreed"),
            measured(
                "wrong_elements", 0, "elements", high=0, because="a fast wrong answer is a failure"
            ),
            measured("fabric_share", 0.998, "ratio", low=0.97, high=1.12, because=RING),
            measured("latency", 31.5, "us"),
        ],
        controls=[control("wrong network", "NCCL_IB_DISABLE=1", "busbw 4.9 GB/s, NET/Socket")],
        evidence=[
            evidence(FILES, "evidence/allreduce.txt", "table", "all-reduce sweep, 64 GPUs"),
            evidence(FILES, "evidence/nccl-rank0.log", "log", "NCCL log of rank 0"),
        ],
        series={
            "busbw": {**sweep(top), "limit": 340, "line_rate": 400, "control": wrong},
            "bytes": sent_bytes("rdma", NODES),
            "pairs": {"nodes": NODES, "cells": cells_of(pairs())},
        },
        coverage="64 of 64 GPUs, 28 of 28 node pairs",
    )


def sent_bytes(network: str, nodes: list[str], on_fabric: float = 0.998) -> dict[str, Any]:
    """Shares of the bytes that each node had to send, on the fabric and elsewhere."""
    shares = {"on_fabric": [on_fabric] * len(nodes), "elsewhere": [0.0004] * len(nodes)}
    return {"fabric": network, "nodes": nodes, **shares}


def pairs(slow: tuple[int, int] | None = None, dead: int | None = None) -> list[list[Any]]:
    """Bandwidth of every pair: none on the diagonal, 0 of a node that is not reached."""
    return [
        [
            None
            if a == b
            else 0.0
            if dead in (a, b)
            else 61.0
            if slow and {a, b} == set(slow)
            else round(372 + 4 * math.sin(a * 7 + b * 7), 1)
            for b in range(8)
        ]
        for a in range(8)
    ]


def scaling() -> ProbeResult:
    """Efficiency in the marginal band at 8 nodes, with every lost percent named."""
    agreed = "contract, section 4: 90 % at 8 nodes"
    return ProbeResult(
        probe="probes/scaling/test_scaling.py::test_job_scales",
        criterion="SCALING",
        claim="Eight nodes do eight times the work of one, and every lost percent is explained.",
        state="finished",
        seconds=168.0,
        measurements=[
            measured(
                "efficiency",
                0.914,
                "ratio",
                on="8 nodes",
                low=0.9,
                marginal_low=0.93,
                because=agreed,
                spread=0.006,
                samples=3,
            ),
            measured("residual", 3e-9, "ratio", high=1e-6, because="terms must sum to the step"),
        ],
        controls=[control("slow rank", "rank 5 sleeps 80 ms a step", "efficiency 0.71")],
        series={
            "efficiency": {
                "nodes": [1, 2, 4, 8],
                "efficiency": [1, 0.978, 0.951, 0.914],
                "low": [None, 0.971, 0.944, 0.907],
                "high": [None, 0.984, 0.957, 0.92],
                "limit": 0.9,
                "tokens_per_second": [91200, 178390, 346920, 666850],
                "over": "over 3 runs",
                "tokens_per_gpu_step": [16384, 16384, 16384, 16384],
                "predicted": {
                    "nodes": [16, 64, 256, 1024],
                    "efficiency": [0.899, 0.874, 0.842, 0.801],
                    "low": [0.885, 0.848, 0.803, 0.748],
                    "high": [0.912, 0.899, 0.878, 0.851],
                },
            },
            "lost": {
                "nodes": [2, 4, 8],
                "lost": [0.022, 0.049, 0.086],
                "parts": [
                    [
                        {
                            "share": 0.019,
                            "said": "waiting for collectives (as long as without training)",
                        },
                        {"share": 0.003, "said": "normal variation of steps"},
                    ],
                    [
                        {
                            "share": 0.041,
                            "said": "waiting for collectives (as long as without training)",
                        },
                        {"share": 0.006, "said": "waiting for node3's data"},
                        {"share": 0.002, "said": "normal variation of steps"},
                    ],
                    [
                        {
                            "share": 0.066,
                            "said": "waiting for collectives (as long as without training)",
                        },
                        {"share": 0.014, "said": "waiting for node3's data"},
                        {"share": 0.006, "said": "normal variation of steps"},
                    ],
                ],
                "sentences": [
                    "at 2 nodes, 2.2 % of a step is lost: "
                    "1.9 % waiting for collectives (as long as without training), "
                    "0.3 % normal variation of steps",
                    "at 4 nodes, 4.9 % of a step is lost: "
                    "4.1 % waiting for collectives (as long as without training), "
                    "0.6 % waiting for node3's data, 0.2 % normal variation of steps",
                    "at 8 nodes, 8.6 % of a step is lost: "
                    "6.6 % waiting for collectives (as long as without training), "
                    "1.4 % waiting for node3's data, 0.6 % normal variation of steps",
                ],
            },
            "terms": {
                "nodes": [1, 2, 4, 8],
                "terms": {
                    "data": [0.011, 0.012, 0.016, 0.031],
                    "forward": [0.402, 0.402, 0.403, 0.403],
                    "backward": [0.811, 0.813, 0.814, 0.816],
                    "all-reduce": [0.0, 0.021, 0.043, 0.104],
                    "optimizer": [0.052, 0.029, 0.017, 0.011],
                    "unattributed": [0.009, 0.01, 0.012, 0.017],
                },
                "loss": {"all-reduce": 0.066, "data": 0.014, "unattributed": 0.006},
            },
        },
        coverage="rungs 1, 2, 4, 8; one placement each",
    )


def gang(partial: bool = False) -> ProbeResult:
    """Two jobs of 48 GPUs on 64: one runs, the other holds nothing until the first ends."""
    half = measured(
        "partially_held",
        27 if partial else 0,
        "samples",
        high=0,
        because="a gang holds all of its GPUs or none",
    )
    return ProbeResult(
        probe="probes/gang/test_gang.py::test_gangs_hold_all_or_nothing",
        criterion="GANG",
        claim="Each of two competing jobs has its full allocation or holds nothing.",
        state="finished",
        seconds=66.0,
        measurements=[
            half,
            measured("placement_delay", 0.41, "s", high=5, because="Ray retries every 1 s"),
            measured("never_placed", 0, "gangs", high=0, because="both must get their turn"),
        ],
        controls=[control("no gang", "48 workers without a placement group", "16 of 48 held")],
        series={"gang": contests.two_gangs(NODES, 8, partial)},
        coverage="64 of 64 GPUs, 190 samples 0.5 s apart",
    )


def launch() -> ProbeResult:
    """A fresh user, the documented path, no help."""
    return ProbeResult(
        probe="probes/launch/test_launch.py::test_documented_path",
        criterion="LAUNCH",
        claim="An ordinary user follows the documented path, literally, and the job runs.",
        state="finished",
        seconds=108.0,
        measurements=[
            measured("time_to_first_step", 108, "s", high=300, because="contract, section 6"),
            measured("wrong_ranks", 0, "ranks", high=0, because="each rank must be right"),
        ],
        controls=[control("typo", "one step of the path left out", "job not found, exit 1")],
        evidence=[evidence(FILES, "evidence/launch.txt", "command", "transcript of the path")],
        coverage="user trial (uid 20117), 64 GPUs",
    )


def loss_curve(steps: range, shift: float = 0.0) -> list[list[float]]:
    """A falling loss with a little texture, the same at the same step."""
    return [
        [step, round(2.1 + 8.2 * math.exp(-step / 28) + 0.05 * math.sin(step * 1.7) + shift, 6)]
        for step in steps
    ]


def restart(shift: float = 0.0) -> ProbeResult:
    """Killed at step 73, resumed from 60, equal from there on."""
    return ProbeResult(
        probe="probes/restart/test_restart.py::test_killed_run_resumes",
        criterion="RESTART",
        claim="A run killed mid-training resumes by itself and equals one never killed.",
        state="finished",
        seconds=86.0,
        measurements=[
            measured(
                "unequal_steps",
                60 if shift else 0,
                "steps",
                high=0,
                because="same data, same state, same arithmetic",
            ),
            measured("recovery_time", 11.6, "s", high=120, because="a person is no faster"),
            measured("steps_lost", 13, "steps", high=20, because="a checkpoint every 20 steps"),
            measured("faults_injected", 1, "processes", low=1, high=1, because="it must be real"),
        ],
        controls=[
            control(
                "data restarts",
                "resume without the data position",
                "loss differs by 0.31 at step 61",
            )
        ],
        series={
            "loss": {
                "reference": loss_curve(range(1, 121)),
                "resumed": loss_curve(range(1, 74)) + loss_curve(range(61, 121), shift),
                "killed_at": 73,
                "resumed_from": 60,
            }
        },
        coverage="one worker of 64 killed; head node not killed",
    )


def waiver(criterion: str, until: date, id: str = "W-3") -> Waiver:
    """A waiver someone signed."""
    return Waiver(
        id=id,
        criterion=criterion,
        reason="spine upgrade on the 28th",
        name="R. Okafor",
        until=until,
    )
