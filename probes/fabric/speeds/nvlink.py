"""Measures all-reduce over NVLink between nodes, where GPUs of several nodes share it (NVL72).

The sweep of the fabric has this NVLink off: else no byte would cross the network under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probes.acceptance.measure import Recorder
from probes.fabric.bad_nodes import FabricRig
from probes.fabric.library_report import RankLogs
from probes.fabric.sweep import SweepResult, gang_env, run_sweep
from reference_trainer.launch.gang import GangError
from reports.measurement import Limit

MODELS = ("GB200", "GB300")  # of which up to 72 GPUs share NVLink over nodes


def has_nvlink_between(facts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all nodes have GPUs that reach other nodes by NVLink."""
    return len(facts) > 1 and all(
        fact["gpus"] and all(any(model in gpu["name"] for model in MODELS) for gpu in fact["gpus"])
        for fact in facts
    )


def measure_nvlink(rig: FabricRig, logs: RankLogs) -> None:
    """Sweep all-reduce with NVLink between nodes, and the algorithm that NCCL chooses.

    It takes new ranks, because NCCL reads its environment once per process.
    """
    cluster, measure = logs.cluster, rig.measure
    if not cluster.on_gpu or not has_nvlink_between(cluster.facts):
        return
    measure.progress("fabric: NVLink between nodes")
    own_choice: dict[str, str | None] = {"NCCL_MNNVL_ENABLE": None, "NCCL_ALGO": None}
    rig.gang.remove()
    try:
        with cluster.gang(environment={**gang_env(logs), **own_choice}) as gang:
            run = run_sweep(gang, cluster.node_names, logs, rig.terms.fabric)
    except GangError as error:
        record_nvlink(None, str(error), rig.limits, measure)
        return
    record_nvlink(run, "", rig.limits, measure)


def record_nvlink(
    run: SweepResult | None,
    problem: str,
    limits: Callable[[str], Limit | None],
    measure: Recorder,
) -> None:
    """Judge the bandwidth by the agreed figure, or note it; bytes on the network prove none.

    Without a run, `problem` is the reason.
    """
    value, noise = None, dict[str, Any]()
    if run:
        crossed = [node for node in run.sent if run.is_counted(node)]
        devices = ", ".join(sorted({run.main_devices[node] for node in crossed}))
        problem = f"bytes between nodes took {devices}, not NVLink" if crossed else ""
        row = run.plateau
        value = None if crossed else row["busbw"]
        noise = {"spread": row["spread"], "samples": row["samples"]} if value else {}
    if limits("nvlink_busbw"):
        measure("nvlink_busbw", value, on="NVLink between nodes", note=problem, **noise)
    else:
        measure.note("nvlink_busbw", value, "GB/s", on="NVLink between nodes")
    measure.covered(problem or "all-reduce over NVLink between nodes")
