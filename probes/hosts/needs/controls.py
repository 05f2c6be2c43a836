"""Controls of what jobs load: the last node gets a real fault of each kind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.facts.egress import try_closed_target
from probes.cluster.facts.image import read_image
from probes.cluster.facts.model_files import read_changed_file
from probes.cluster.facts.rdma_access import read_rdma_access
from probes.hosts.needs.images import judge_images
from probes.hosts.needs.models import judge_models
from probes.hosts.needs.rdma_devices import judge_rdma_devices
from probes.hosts.needs.ways_out import judge_ways_out

Facts = Mapping[str, Any]
PACKAGE = "seatrial_control-1.0.dist-info"


def read_other_image() -> dict[str, Any]:
    """Read this node's image with a further package, which is there for this time only."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, PACKAGE).mkdir()
        return read_image([folder])


def read_hidden_devices() -> dict[str, str]:
    """Read the access to the RDMA devices as if their files were not in this worker's /dev."""
    with tempfile.TemporaryDirectory() as folder:
        return read_rdma_access(folder)


def ask_last_node(
    cluster: Cluster, victim: Facts, function: Callable[..., Any], *arguments: Any
) -> tuple[Any, str]:
    """Run a function on the victim's node; return (answer, "") or (None, what was seen)."""
    node = [one for one in cluster.nodes if one["id"] == victim["node"]]
    answers = cluster.on_each_node(function, *arguments, nodes=node)
    if victim["node"] in answers:
        return answers[victim["node"]], ""
    why = cluster.errors.get(victim["node"], "no answer in time")
    return None, f"{victim['name']}: {why}"


def control_other_image(cluster: Cluster, facts: Sequence[Facts], measure: Recorder) -> None:
    """Check that a package which only the last node has is detected."""
    victim = facts[-1]
    fault = f"{victim['name']} has a further Python package"
    image, saw = ask_last_node(cluster, victim, read_other_image)
    if image is None:
        measure.control("other image", fault, None, saw=saw)
        return
    trial = measure.trial()
    judge_images(cluster, [*facts[:-1], {**victim, "image": image}], trial)
    measure.control("other image", fault, trial)


def control_hidden_devices(
    cluster: Cluster, facts: Sequence[Facts], rails: int | None, measure: Recorder
) -> None:
    """Check that RDMA devices whose files are missing are detected."""
    victim = facts[-1]
    fault = f"a worker on {victim['name']} looks for its RDMA devices in an empty folder"
    access, saw = ask_last_node(cluster, victim, read_hidden_devices)
    if not access:
        saw = saw or f"{victim['name']} lists no RDMA device"
        measure.control("hidden devices", fault, None, saw=saw)
        return
    trial = measure.trial()
    judge_rdma_devices([{**victim, "rdma_access": access}], rails, trial)
    measure.control("hidden devices", fault, trial)


def control_closed_target(cluster: Cluster, victim: Facts, measure: Recorder) -> None:
    """Check that a target where nothing listens is detected, as a URL and as a port."""
    fault = f"{victim['name']} connects to a port of its own that is closed"
    problems, saw = ask_last_node(cluster, victim, try_closed_target)
    if problems is None:
        measure.control("closed target", fault, None, saw=saw)
        return
    trial = measure.trial()
    judge_ways_out(list(problems), {victim["name"]: problems}, [], trial)
    measure.control("closed target", fault, trial, located=all(problems.values()))


def control_changed_file(
    cluster: Cluster,
    paths: Sequence[str],
    answers: Mapping[str, Mapping[str, Mapping[str, Any]]],
    victim: Facts,
    measure: Recorder,
) -> None:
    """Check that one changed byte in one file of the first model is detected."""
    path = paths[0]
    fault = f"{victim['name']} reads a copy of {path} with one changed byte"
    changed, saw = ask_last_node(cluster, victim, read_changed_file, path)
    if changed is None:
        measure.control("changed file", fault, None, saw=saw)
        return
    trial = measure.trial()
    judge_models([path], {**answers, victim["name"]: changed}, [], trial)
    measure.control("changed file", fault, trial)
