"""Judges what jobs need of nodes: one image, models, ways out, devices and ray://."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import try_closed_target, try_targets
from probes.cluster.node_facts import (
    add_silent,
    list_packages,
    read_changed_file,
    read_image,
    read_model_files,
)
from probes.cluster.system_facts import read_rdma_access
from probes.contract.contract import ClusterTerms
from probes.findings import finding, join_names
from reports.sanitize import last_line

Facts = Mapping[str, Any]
SHOWN_PACKAGES = 4  # packages that differ, in a sentence
MOST_ASKED = 4  # kinds of other images whose packages are compared one by one


def judge_images(cluster: Cluster, facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge how many nodes have another image than most; on a tie all nodes count."""
    images = {fact["name"]: fact.get("image") or {} for fact in facts}
    known = {name: image for name, image in images.items() if image.get("digest")}
    odd = find_odd_images(known)
    unread = [name for name in images if name not in known]
    count = None if (unread or not known) and not odd else len(odd)
    note = f"packages were not read on {join_names(unread)}" if unread else "no node answers"
    measure("image_differences", count, note=note)
    if odd:
        lists = _ask_packages(cluster, facts, odd, known)
        _explain_images(odd, known, lists, measure)


def find_odd_images(images: Mapping[str, Facts]) -> list[str]:
    """Find the nodes whose image is not the most common one; all of them if two are as common."""
    kinds = {name: (image["os"], image["digest"]) for name, image in images.items()}
    common = Counter(kinds.values()).most_common(2)
    if len(common) < 2:
        return []
    is_tied = common[0][1] == common[1][1]
    return [name for name, kind in kinds.items() if is_tied or kind != common[0][0]]


def _ask_packages(
    cluster: Cluster, facts: Sequence[Facts], odd: Sequence[str], images: Mapping[str, Facts]
) -> dict[str, list[str]]:
    """Ask one node of the usual image, and one of each of some others, for their packages."""
    first: dict[str, str] = {}
    for name in sorted(images, key=lambda name: name in odd):  # the usual image first
        first.setdefault(images[name]["digest"], name)
    asked = set(list(first.values())[: MOST_ASKED + 1])
    names = {fact["node"]: fact["name"] for fact in facts}
    nodes = [node for node in cluster.nodes if names.get(node["id"]) in asked]
    answers = cluster.on_each_node(list_packages, nodes=nodes)
    return {images[names[id]]["digest"]: packages for id, packages in answers.items()}


def _explain_images(
    odd: Sequence[str],
    images: Mapping[str, Facts],
    lists: Mapping[str, list[str]],
    measure: Recorder,
) -> None:
    usual_name = next((name for name in images if name not in odd), odd[0])
    usual = images[usual_name]
    groups: dict[str, list[str]] = defaultdict(list)
    for name in odd:
        if text := describe_image(images[name], usual, lists):
            groups[text].append(name)
    for text, names in groups.items():
        statement = f"{join_names(names)}: {text}. Expected: as on {usual_name}"
        measure.explain(finding("HOST-IMAGE", statement, names))


def describe_image(image: Facts, usual: Facts, lists: Mapping[str, list[str]]) -> str:
    """Describe how an image differs from the usual one; "" for not at all."""
    parts = []
    if image["os"] != usual["os"]:
        parts.append(f"{image['os'] or 'no name'} in place of {usual['os'] or 'no name'}")
    if image["digest"] != usual["digest"]:
        here, there = lists.get(image["digest"]), lists.get(usual["digest"])
        if here is None or there is None:
            parts.append(f"other Python packages ({image['packages']})")
        else:
            parts.extend(_describe_packages(here, there))
    return "; ".join(parts)


def _describe_packages(here: Sequence[str], there: Sequence[str]) -> list[str]:
    more, less = sorted(set(here) - set(there)), sorted(set(there) - set(here))
    texts = [f"Python has {join_names(more, SHOWN_PACKAGES)}"] if more else []
    return texts + ([f"Python lacks {join_names(less, SHOWN_PACKAGES)}"] if less else [])


MISSING = ""  # in place of a file's size and digest
SHOWN_FILES = 3  # files in a sentence
# node's name -> path -> {"files", "error", "unknown"} of `read_model_files`
FileAnswers = Mapping[str, Mapping[str, Mapping[str, Any]]]


def judge_models(
    paths: Sequence[str], answers: FileAnswers, silent: Sequence[str], measure: Recorder
) -> None:
    """Judge how many files of each node are missing, or not as on most nodes.

    A path that is missing or unreadable counts as one file.  `silent` nodes prove nothing.
    """
    problems = {path: find_odd_files(path, answers) for path in paths}
    for node in answers:
        unknown = [answers[node][path]["unknown"] for path in paths]
        count = sum(len(problems[path].get(node, ())) for path in paths)
        note = join_names(filter(None, unknown))
        measure("model_differences", None if note and not count else count, on=node, note=note)
    for node in silent:
        measure("model_differences", None, on=node, note="the node does not answer")
    for path in paths:
        groups: dict[str, list[str]] = defaultdict(list)
        for node, texts in problems[path].items():
            groups[join_names(texts, SHOWN_FILES)].append(node)
        for text, nodes in groups.items():
            statement = f"{path} on {join_names(nodes)}: {text}. Expected: the same on every node"
            measure.explain(finding("HOST-MODEL-FILES", statement, nodes, names={"file": path}))


def find_odd_files(path: str, answers: FileAnswers) -> dict[str, list[str]]:
    """Find what is wrong with this path, by node.

    If two versions of a file are as common, it is wrong on all nodes that have it.
    """
    found = {node: paths[path] for node, paths in answers.items()}
    odd: dict[str, list[str]] = defaultdict(list)
    for node, one in found.items():
        if one["error"]:
            odd[node].append(one["error"])
    complete = {n: one["files"] for n, one in found.items() if not one["error"] + one["unknown"]}
    for name in sorted({name for files in complete.values() for name in files}):
        versions = {node: files.get(name, MISSING) for node, files in complete.items()}
        usual = find_usual(versions.values())
        for node, version in versions.items():
            if version != usual:
                odd[node].append(_describe_file(name, version, usual))
    return dict(odd)


def find_usual(versions: Any) -> str | None:
    """Find the most common version; None for a tie.  A file that is there wins over MISSING."""
    counts = Counter(versions)
    most = max(counts.values())
    usual = [version for version, count in counts.items() if count == most]
    there = [version for version in usual if version != MISSING]
    return usual[0] if len(usual) == 1 else there[0] if len(there) == 1 else None


def _describe_file(name: str, version: str, usual: str | None) -> str:
    if version == MISSING:
        return f"{name} is missing"
    if usual is None:
        return f"{name} is not the same on all nodes"
    if usual == MISSING:
        return f"{name} is missing on most nodes"
    size, expected = version.split()[0], usual.split()[0]
    if size != expected:
        return f"{name} has {size} bytes in place of {expected}"
    return f"{name} has other content"


# Seconds for a program to import Ray, connect and run one task on a busy machine.
JOIN_SECONDS = 60.0
# Seconds for the control: Ray's client itself tries for half a minute, which shows no more.
CLOSED_SECONDS = 10.0
PROGRAM = """
import sys, ray
ray.init(sys.argv[1], log_to_driver=False)
@ray.remote(num_cpus=0)
def find_node():
    return ray.get_runtime_context().get_node_id()
print("node", ray.get(find_node.remote()))
"""


def judge_ray_client(cluster: Cluster, port: int, measure: Recorder) -> None:
    """Join through the client's port of the head, and judge that a task ran on this cluster."""
    heads = [node for node in cluster.known_nodes() if node["alive"] and node["head"]]
    if not heads:
        measure("ray_client", None, note="Ray lists no head")
        return
    address = f"ray://{heads[0]['address']}:{port}"
    ids = {node["id"] for node in cluster.known_nodes()}
    _judge_answer(address, *try_client(address, JOIN_SECONDS), ids, measure)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        closed = f"ray://127.0.0.1:{server.getsockname()[1]}"
    trial = measure.trial()
    _judge_answer(closed, *try_client(closed, CLOSED_SECONDS), ids, trial)
    measure.control("closed client", f"a program joins {closed}, where nothing listens", trial)


def _judge_answer(address: str, node: str, problem: str, ids: set[str], measure: Recorder) -> None:
    if node and node not in ids:
        problem = f"the task ran on node {node[:8]} of another cluster"
    measure("ray_client", int(bool(problem)))
    if problem:
        statement = f"A program cannot join through {address}: {problem}"
        host, _, port = address.removeprefix("ray://").rpartition(":")
        names = {"address": host.strip("[]"), "port": port}
        measure.explain(finding("HOST-RAY-CLIENT", statement, names=names))


def try_client(address: str, seconds: float) -> tuple[str, str]:
    """Join and run one task in another process; return (id of its node, problem)."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {seconds:g} s"
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("node ")]
    if found and done.returncode == 0:
        return found[-1], ""
    return "", last_line(done.stderr, f"exit code {done.returncode}")


SHOWN_DEVICES = 3  # devices in a sentence


def judge_rdma_devices(facts: Sequence[Facts], rails: int | None, measure: Recorder) -> None:
    """Judge how many devices each node lacks for its rails, or for one where no number is agreed.

    A pod may list the devices of the whole machine, and be given a part of them.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for fact in facts:
        access = fact.get("rdma_access") or {}
        closed = {device: problem for device, problem in access.items() if problem}
        opened = len(access) - len(closed)
        lacking = max(0, (rails or 1) - opened) if access else None
        measure("rdma_closed", lacking, on=fact["name"], note="no RDMA device is listed")
        if lacking:
            texts = [f"{device}: {problem}" for device, problem in closed.items()]
            groups[
                f"{opened} RDMA devices can be opened; {join_names(texts, SHOWN_DEVICES)}"
            ].append(fact["name"])
    expected = f"{rails} devices, one a rail" if rails else "at least one"
    for text, nodes in groups.items():
        statement = f"{join_names(nodes)}: {text}. Expected: {expected}"
        measure.explain(finding("HOST-RDMA-CLOSED", statement, nodes))


def note_peer_memory(facts: Sequence[Facts], measure: Recorder) -> None:
    """Note by what the NICs reach the memory of GPUs; FABRIC judges whether NCCL does."""
    groups: dict[str, list[str]] = defaultdict(list)
    for fact in facts:
        groups[fact.get("peer_memory") or "neither nvidia_peermem nor DMA-BUF"].append(fact["name"])
    for text, nodes in groups.items():
        measure.note("gpu_peer_memory", text, on=join_names(nodes))


Answers = Mapping[str, Mapping[str, str]]  # node's name -> target -> problem, "" for none


def judge_ways_out(
    targets: Sequence[str], answers: Answers, silent: Sequence[str], measure: Recorder
) -> None:
    """Judge the connections of each node to each target; `silent` nodes prove nothing."""
    for node, problems in answers.items():
        failed = [target for target in targets if problems.get(target, "no answer")]
        measure("egress_closed", len(failed), on=node)
    for node in silent:
        measure("egress_closed", None, on=node, note="the node does not answer")
    for target in targets:
        _explain_target(target, answers, measure)


def _explain_target(target: str, answers: Answers, measure: Recorder) -> None:
    groups: dict[str, list[str]] = defaultdict(list)
    for node, problems in answers.items():
        if problem := problems.get(target, "no answer"):
            groups[problem].append(node)
    for problem, nodes in groups.items():
        where = "each node" if len(nodes) == len(answers) > 1 else join_names(nodes)
        statement = f"{target} from {where}: {problem}. Expected: a connection"
        measure.explain(finding("HOST-EGRESS", statement, nodes, names={"target": target}))


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


def judge_needs(cluster: Cluster, terms: ClusterTerms, measure: Recorder) -> None:
    """Judge the image, the models and ways out that the contract names, and RDMA devices."""
    facts = add_silent(cluster.facts, cluster.nodes)
    if cluster.kind == "local":
        measure.covered("images are not compared: all raylets share one host")
    else:
        _judge_facts(cluster, facts, terms, measure)
    if terms.egress:
        _judge_egress(cluster, terms.egress, measure)
    if terms.ray_client_port:
        judge_ray_client(cluster, terms.ray_client_port, measure)
    if terms.model_files:
        _compare_models(cluster, terms.model_files, measure)


def _judge_facts(
    cluster: Cluster, facts: Sequence[Facts], terms: ClusterTerms, measure: Recorder
) -> None:
    """Judge what the facts of the nodes say; the controls are on the last that answered."""
    if len(facts) > 1:
        judge_images(cluster, facts, measure)
        if cluster.facts:
            control_other_image(cluster, cluster.facts, measure)
    if terms.fabric == "rdma":
        judge_rdma_devices(facts, terms.rails, measure)
        note_peer_memory(cluster.facts, measure)
        if cluster.facts:
            control_hidden_devices(cluster, cluster.facts, terms.rails, measure)


def _ask_all(
    cluster: Cluster, function: Callable[..., Any], what: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Ask each node for `what`; return answers by name, and the names of silent nodes.

    Nodes are in the order of the facts, which is that of addresses.
    """
    answers = cluster.on_each_node(function, what)
    order = {fact["node"]: index for index, fact in enumerate(cluster.facts)}
    nodes = sorted(cluster.nodes, key=lambda node: order.get(node["id"], len(order)))
    known = {node["name"]: answers.get(node["id"]) for node in nodes}
    return (
        {name: answer for name, answer in known.items() if answer is not None},
        [name for name, answer in known.items() if answer is None],
    )


def _find_victim(cluster: Cluster, answers: Mapping[str, Any]) -> dict[str, str] | None:
    """Find the last node that answered, as {"node", "name"}; None if there is none."""
    nodes = [node for node in cluster.nodes if node["name"] in answers]
    return {"node": nodes[-1]["id"], "name": nodes[-1]["name"]} if nodes else None


def _judge_egress(cluster: Cluster, targets: Sequence[str], measure: Recorder) -> None:
    """Connect to the contract's targets from all nodes at the same time, and judge that."""
    answers, silent = _ask_all(cluster, try_targets, targets)
    measure.keep("egress.json", answers, caption="connections out of the cluster, by node")
    judge_ways_out(targets, answers, silent, measure)
    if victim := _find_victim(cluster, answers):
        control_closed_target(cluster, victim, measure)


def _compare_models(cluster: Cluster, paths: Sequence[str], measure: Recorder) -> None:
    """Read the contract's models on all nodes at the same time, and compare them."""
    answers, silent = _ask_all(cluster, read_model_files, paths)
    measure.covered("models: size, and 1 MiB of each 256 MiB of every file")
    judge_models(paths, answers, silent, measure)
    victim = _find_victim(cluster, answers)
    if victim and len(cluster.nodes) > 1:
        control_changed_file(cluster, paths, answers, victim, measure)
