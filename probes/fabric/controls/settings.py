"""Control of the environment lint: a variable that cripples NCCL, on one node."""

from __future__ import annotations

import os
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.environment.collect import read_settings
from probes.fabric.judge import judge_lint

VARIABLE, VALUE = "NCCL_P2P_DISABLE", "1"  # harmful on every node, whatever the fabric


def control_harmful_setting(cluster: Cluster, fabric: str | None, measure: Recorder) -> None:
    """Check that a harmful variable in a worker of one node is found."""
    victim = cluster.nodes[-1]
    fault = f"{VARIABLE}={VALUE} is set on {victim['name']}"
    each = {node["id"]: node["id"] == victim["id"] for node in cluster.nodes}
    found = cluster.on_each_node(read_doctored_settings, each=each)
    if victim["id"] not in found:
        measure.control("harmful variable", fault, None, saw=f"{victim['name']} does not answer")
        return
    trial = measure.trial()
    flags = judge_lint(found, cluster, fabric, trial)
    located = any(flag.variable == VARIABLE and victim["name"] in flag.nodes for flag in flags)
    measure.control("harmful variable", fault, trial, located=located)


def read_doctored_settings(doctored: bool) -> dict[str, Any]:
    """Read this node's NCCL settings, with the control's variable set if `doctored`."""
    if not doctored:
        return read_settings()
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = VALUE
    try:
        return read_settings()
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
