"""A healthy run on the lab: 4 emulated nodes on one machine, 1 Gbit/s fabric, no RDMA."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from probes.contract.contract import load
from reports.record import ContractFacts, ProbeResult, RunRecord
from tests.recordings.generate import gang_contention as contests
from tests.recordings.generate import h100_cluster as atlas
from tests.recordings.load import control, evidence, measured, owing

NODES = [f"node{n}" for n in range(4)]
WHY_NOT = "the lab has no RDMA device: its gradients take TCP"
FILES = {
    "evidence/proc-net-dev.txt": "node   fab0_tx_bytes  eth0_tx_bytes\n"
    + "\n".join(f"node{n}      402653184         181223" for n in range(4))
    + "\n",
}


def record() -> RunRecord:
    """All five provable criteria pass."""
    run = RunRecord(
        id="2026-11-20T090512Z-lab",
        started="2026-11-20T09:05:12.004Z",
        finished="2026-11-20T09:12:44.310Z",
        state="finished",
        command="pytest probes --cluster auto --contract lab",
        tier="quick",
        cluster=cluster(),
        rehearsal="4 emulated nodes on one machine; scheduling is real, arithmetic is on the CPU",
        contract=contract(),
        versions={"seatrial": "0.1.0", "ray": "2.51.1", "torch": "2.9.0", "python": "3.11.9"},
        results=results(),
    )
    return owing(run)


def cluster() -> dict[str, Any]:
    """Facts of the lab: one node differs from the others in nothing but its name."""
    node = {"gpus": 1, "gpu": "emulated", "cpu_quota": "20 %", "kernel": "6.1.0"}
    return {
        "name": "lab",
        "fabric": "fab0, 1 Gbit/s token bucket",
        "nodes": [
            {"name": name, "fabric_address": f"10.77.0.{n + 1}", **node}
            for n, name in enumerate(NODES)
        ],
    }


def contract() -> ContractFacts:
    """FABRIC is not required: this kind of cluster cannot prove it."""
    criteria = [
        one.model_copy(update={"required": False, "not_provable": WHY_NOT})
        if one.id == "FABRIC"
        else one
        for one in load("lab").facts().criteria
    ]
    return ContractFacts(name="lab", sha256="9d" * 32, rehearsal=True, criteria=criteria)


def results() -> list[ProbeResult]:
    """The probes of atlas at the size of the lab."""
    return [
        smaller(
            atlas.hosts(),
            [
                measured("gpus", 1, "GPUs", node, low=1, high=1, because="--num-gpus 1")
                for node in NODES
            ]
            + [measured("nodes", 4, "nodes", low=4, high=4, because="[cluster] nodes")],
            "4 of 4 nodes, 4 emulated GPUs",
        ),
        fabric(),
        scaling(),
        gang(),
        smaller(
            atlas.launch(),
            [
                measured("time_to_first_step", 21.4, "s", high=120, because="lab contract"),
            ],
            "user trial (uid 20117)",
            evidence=[],
        ),
        smaller(atlas.restart(), atlas.restart().measurements, "one worker of 4 killed"),
    ]


def smaller(
    result: ProbeResult, measurements: list[Any], coverage: str, **changes: Any
) -> ProbeResult:
    """A result of atlas with the measurements of the lab."""
    update = {"measurements": measurements, "coverage": coverage, "seconds": 52.0, **changes}
    return result.model_copy(update=update)


def fabric() -> ProbeResult:
    """94 to 99 % of 1 Gbit/s over the fabric; the control takes the management network."""
    because = "85 % of fab0's 1 Gbit/s, less headers: 0.1195 GB/s by iperf3"
    curve = atlas.sweep(0.1184, half=18.0, first=14, last=26)
    wrong = atlas.sweep(0.0231, half=16.0, first=14, last=26)
    return smaller(
        atlas.fabric(),
        [
            measured(
                "busbw", 0.1184, "GB/s", low=0.1016, because=because, spread=0.0004, samples=5
            ),
            measured("fabric_share", 0.9995, "ratio", low=0.97, high=1.12, because=atlas.RING),
            measured(
                "wrong_elements", 0, "elements", high=0, because="a fast wrong answer is a failure"
            ),
        ],
        "4 of 4 nodes, 6 of 6 pairs",
        controls=[control("wrong network", "workers bound to eth0", "busbw 0.0231 GB/s on eth0")],
        evidence=[evidence(FILES, "evidence/proc-net-dev.txt", "table", "bytes per interface")],
        series={
            "busbw": {
                **curve,
                "limit": 0.1016,
                "line_rate": 0.1195,
                "control": {key: wrong[key] for key in ("sizes", "busbw")},
            },
            "bytes": atlas.sent_bytes("fab0", NODES, 0.9995),
            "pairs": {
                "nodes": NODES,
                "cells": [
                    [a, b, round(0.1180 + 0.0003 * ((a + b) % 3), 4)]
                    for a, b in permutations(range(4), 2)
                ],
            },
        },
    )


def scaling() -> ProbeResult:
    """A paced step: 0.4 s of emulated compute, so that 4 nodes really scale on two cores."""
    return smaller(
        atlas.scaling(),
        [
            measured(
                "efficiency",
                0.952,
                "ratio",
                on="4 nodes",
                low=0.85,
                because="lab contract",
                spread=0.011,
                samples=3,
            ),
            measured("residual", 2e-9, "ratio", high=1e-6, because="terms must sum to the step"),
        ],
        "rungs 1, 2, 4; compute padded to 0.4 s a step",
        series={
            "efficiency": {
                "nodes": [1, 2, 4],
                "efficiency": [1, 0.981, 0.952],
                "low": [None, 0.974, 0.941],
                "high": [None, 0.988, 0.961],
                "limit": 0.85,
                "tokens_per_second": [2560, 5022, 9748],
                "tokens_per_gpu_step": 1024,
            },
            "lost": {
                "nodes": [2, 4],
                "lost": [0.019, 0.048],
                "parts": [
                    [
                        {
                            "share": 0.017,
                            "said": "waiting for collectives (as long as without training)",
                        },
                        {"share": 0.002, "said": "normal variation of steps"},
                    ],
                    [
                        {
                            "share": 0.039,
                            "said": "waiting for collectives (as long as without training)",
                        },
                        {"share": 0.009, "said": "normal variation of steps"},
                    ],
                ],
                "sentences": [
                    "at 2 nodes, 1.9 % of a step is lost: "
                    "1.7 % waiting for collectives (as long as without training), "
                    "0.2 % normal variation of steps",
                    "at 4 nodes, 4.8 % of a step is lost: "
                    "3.9 % waiting for collectives (as long as without training), "
                    "0.9 % normal variation of steps",
                ],
            },
            "terms": {
                "nodes": [1, 2, 4],
                "terms": {
                    "data": [0.002, 0.002, 0.003],
                    "forward": [0.13, 0.13, 0.13],
                    "backward": [0.26, 0.26, 0.26],
                    "communication": [0.0, 0.006, 0.015],
                    "optimizer": [0.006, 0.006, 0.006],
                    "unattributed": [0.002, 0.003, 0.004],
                },
            },
        },
    )


def gang() -> ProbeResult:
    """Two jobs of 3 GPUs on 4, in the same rhythm as on atlas."""
    return smaller(
        atlas.gang(),
        atlas.gang().measurements,
        "4 of 4 GPUs, 190 samples",
        series={"gang": contests.two_gangs(NODES, 1)},
        controls=[
            control("no gang", "3 workers without a placement group", "1 of 3 held for 14 s")
        ],
    )
