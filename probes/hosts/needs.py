"""Judges what jobs need of nodes: one image, models, ways out, devices and ray://."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from probes.check.judging import ask_victim, explain_alike, plant, record_each, silent_names
from probes.check.recorder import Recorder
from probes.cluster import node_facts
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import try_closed_target, try_targets
from probes.cluster.system_facts import read_rdma_access
from probes.contract.contract import ClusterTerms
from probes.environment.lint import find_minority
from probes.findings import finding, join_names
from probes.hosts import criterion as check
from probes.hosts.gpu_health import Facts
from reports.numbers import quantity
from reports.sanitize import last_line

Answers = Mapping[str, Mapping[str, Any]]  # node's name -> target or path -> what was found
SHOWN, SHOWN_PACKAGES = 3, 4  # devices or files, and packages, in a sentence
MOST_ASKED = 4  # kinds of other images whose packages are compared one by one
NO_PEER_MEMORY = "neither nvidia_peermem nor DMA-BUF"
MISSING = ""  # in place of a file's size and digest


def judge_needs(cluster: Cluster, terms: ClusterTerms, measure: Recorder) -> None:
    """Judge the image, the models and ways out that the contract names, and RDMA devices.

    Faults are planted on the last node that answered.
    """
    facts = node_facts.add_silent(cluster.facts, cluster.nodes)
    if cluster.kind == "local":
        measure.covered("images are not compared: all raylets share one host")
    else:
        if len(facts) > 1:
            check_images(cluster, facts, measure)
        if terms.fabric == "rdma":
            check_rdma_devices(cluster, facts, terms.rails, measure)
    if terms.egress:
        check_egress(cluster, terms.egress, measure)
    if terms.ray_client_port:
        judge_ray_client(cluster, terms.ray_client_port, measure)
    if terms.model_files:
        check_models(cluster, terms.model_files, measure)


def _ask_all(
    cluster: Cluster, function: Callable[..., Any], what: Sequence[str]
) -> tuple[dict[str, Any], list[str], dict[str, str] | None]:
    """Ask each node for `what`; return answers by name, silent nodes, and the last that answered.

    Nodes are in the order of the facts, which is that of addresses.
    """
    found = cluster.on_each_node(function, what)
    answers = {id: answer for id, answer in found.items() if answer is not None}
    order = {fact["node"]: index for index, fact in enumerate(cluster.facts)}
    nodes = sorted(cluster.nodes, key=lambda node: order.get(node["id"], len(order)))
    known = {node["name"]: answers[node["id"]] for node in nodes if node["id"] in answers}
    last = [{"node": n["id"], "name": n["name"]} for n in cluster.nodes if n["id"] in answers][-1:]
    return known, silent_names(nodes, answers), last[0] if last else None


# Images.


def check_images(cluster: Cluster, facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge that nodes have one image; plant a package that only the last node has."""
    judge_images(cluster, facts, measure)
    if not cluster.facts:
        return
    *others, victim = cluster.facts
    image, unable = ask_victim(cluster, victim, read_other_image)
    fault = f"{victim['name']} has a Python package that no other node has"
    judge = partial(judge_images, cluster, [*others, {**victim, "image": image}])
    plant(measure, check.OTHER_IMAGE, fault, judge, unable=unable)


def judge_images(cluster: Cluster, facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge how many nodes have another image than most; on a tie all nodes count."""
    images = {fact["name"]: fact.get("image") or {} for fact in facts}
    known = {name: image for name, image in images.items() if image.get("digest")}
    odd = find_odd_images(known)
    unread = [name for name in images if name not in known]
    count = None if (unread or not known) and not odd else len(odd)
    note = f"packages were not read on {join_names(unread)}" if unread else "no node answers"
    measure(check.IMAGE_DIFFERENCES, count, note=note)
    if odd:
        lists = _ask_packages(cluster, facts, odd, known)
        usual = next((name for name in known if name not in odd), odd[0])
        texts = {name: describe_image(known[name], known[usual], lists) for name in odd}
        faults = {name: text for name, text in texts.items() if text}
        sentence = f"{{nodes}}: {{text}}. Expected: as on {usual}"
        explain_alike(measure, "HOST-IMAGE", faults, sentence)


def find_odd_images(images: Mapping[str, Facts]) -> list[str]:
    """Find the nodes whose image is not the most common one; all of them if two are as common."""
    odd = find_minority({name: (one["os"], one["digest"]) for name, one in images.items()})
    return [name for name in images if name in odd]


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
    answers = cluster.on_each_node(node_facts.list_packages, nodes=nodes)
    return {images[names[id]]["digest"]: packages for id, packages in answers.items()}


def describe_image(image: Facts, usual: Facts, lists: Mapping[str, list[str]]) -> str:
    """Describe how an image differs from the usual one; "" for not at all."""
    parts = []
    if image["os"] != usual["os"]:
        names = [one["os"] or "without a name" for one in (image, usual)]
        parts.append(f"operating system {names[0]} instead of {names[1]}")
    if image["digest"] != usual["digest"]:
        here, there = lists.get(image["digest"]), lists.get(usual["digest"])
        if here is None or there is None:
            parts.append(f"different Python packages ({image['packages']} installed)")
        else:
            other = {"additional": {*here} - {*there}, "missing": {*there} - {*here}}
            shown = {word: join_names(sorted(of), SHOWN_PACKAGES) for word, of in other.items()}
            parts += [f"{word} Python packages: {names}" for word, names in shown.items() if names]
    return "; ".join(parts)


def read_other_image() -> dict[str, Any]:
    """Read this node's image with a further package, which is there for this time only."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "seatrial_control-1.0.dist-info").mkdir()
        return node_facts.read_image([folder])


# Models.


def check_models(cluster: Cluster, paths: Sequence[str], measure: Recorder) -> None:
    """Read the contract's models on all nodes at once and compare them; plant a changed byte."""
    answers, silent, victim = _ask_all(cluster, node_facts.read_model_files, paths)
    measure.covered("model files: their size, and 1 MiB of each 256 MiB, were read")
    judge_models(paths, answers, silent, measure)
    if not victim or len(cluster.nodes) < 2:
        return
    name, path = victim["name"], paths[0]
    changed, unable = ask_victim(cluster, victim, node_facts.read_changed_file, path)
    fault = f"{name} reads a copy of {path} with one changed byte"
    judge = partial(judge_models, [path], {**answers, name: changed}, [])
    plant(measure, check.CHANGED_FILE, fault, judge, unable=unable)


def judge_models(
    paths: Sequence[str], answers: Answers, silent: Sequence[str], measure: Recorder
) -> None:
    """Judge how many files of each node are missing, or not as on most nodes.

    `answers` has {"files", "error", "unknown"} of `read_model_files` by node and path.  A path that
    is missing or unreadable counts as one file.  `silent` nodes prove nothing.
    """
    problems = {path: find_odd_files(path, answers) for path in paths}
    notes = {
        node: join_names(filter(None, (found[path]["unknown"] for path in paths)))
        for node, found in answers.items()
    }
    counts = {node: sum(len(odd.get(node, ())) for odd in problems.values()) for node in answers}
    values = {n: None if notes[n] and not count else count for n, count in counts.items()}
    record_each(measure, check.MODEL_DIFFERENCES, values, silent, notes)
    for path, odd in problems.items():
        faults = {node: join_names(texts, SHOWN) for node, texts in odd.items()}
        sentence = "{file} on {nodes}: {text}. Expected: the same on every node"
        explain_alike(measure, "HOST-MODEL-FILES", faults, sentence, file=path)


def find_odd_files(path: str, answers: Answers) -> dict[str, list[str]]:
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


def find_usual(versions: Iterable[str]) -> str | None:
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
        return f"{name} has {size} bytes instead of {expected}"
    return f"{name} has different content"


# RDMA devices.


def check_rdma_devices(
    cluster: Cluster, facts: Sequence[Facts], rails: int | None, measure: Recorder
) -> None:
    """Judge the RDMA devices that a worker can open; plant a node whose /dev has none.

    By what the NICs reach the memory of GPUs is noted; FABRIC judges whether NCCL does.
    """
    judge_rdma_devices(facts, rails, measure)
    ways = {fact["name"]: fact.get("peer_memory") or NO_PEER_MEMORY for fact in cluster.facts}
    for way in dict.fromkeys(ways.values()):
        measure.note("gpu_peer_memory", way, on=join_names(n for n in ways if ways[n] == way))
    if not cluster.facts:
        return
    victim = cluster.facts[-1]
    access, silent = ask_victim(cluster, victim, read_hidden_devices)
    unable = f"{victim['name']} lists no RDMA device" if access == {} else silent
    fault = f"a worker on {victim['name']} looks for its RDMA devices in an empty folder"
    judge = partial(judge_rdma_devices, [{**victim, "rdma_access": access}], rails)
    plant(measure, check.HIDDEN_DEVICES, fault, judge, unable=unable)


def judge_rdma_devices(facts: Sequence[Facts], rails: int | None, measure: Recorder) -> None:
    """Judge how many devices each node lacks for its rails, or for one where no number is agreed.

    A pod may list the devices of the whole machine, and be given a part of them.
    """
    lacking: dict[str, int | None] = {}
    faults = {}
    for fact in facts:
        access, name = fact.get("rdma_access") or {}, fact["name"]
        closed = [f"{device}: {problem}" for device, problem in access.items() if problem]
        opened = len(access) - len(closed)
        lacking[name] = max(0, (rails or 1) - opened) if access else None
        if lacking[name]:
            can = f"{quantity(opened, 'RDMA devices')} can be opened"
            faults[name] = "; ".join(filter(None, [can, join_names(closed, SHOWN)]))
    record_each(measure, check.RDMA_CLOSED, lacking, notes="the node lists no RDMA device")
    expected = f"{quantity(rails, 'devices')}, one for each rail" if rails else "at least one"
    explain_alike(measure, "HOST-RDMA-CLOSED", faults, f"{{nodes}}: {{text}}. Expected: {expected}")


def read_hidden_devices() -> dict[str, str]:
    """Read the access to the RDMA devices as if their files were not in this worker's /dev."""
    with tempfile.TemporaryDirectory() as folder:
        return read_rdma_access(folder)


# Ways out of the cluster.


def check_egress(cluster: Cluster, targets: Sequence[str], measure: Recorder) -> None:
    """Connect to the contract's targets from all nodes at once; plant a closed port and URL."""
    answers, silent, victim = _ask_all(cluster, try_targets, targets)
    measure.keep("egress.json", answers, caption="connections out of the cluster, by node")
    judge_ways_out(targets, answers, silent, measure)
    if not victim:
        return
    name = victim["name"]
    problems, unable = ask_victim(cluster, victim, try_closed_target)

    def judge(trial: Recorder) -> bool:
        judge_ways_out(list(problems), {name: problems}, [], trial)
        return all(problems.values())

    fault = f"{name} connects to a closed port of its loopback"
    plant(measure, check.CLOSED_TARGET, fault, judge, unable=unable)


def judge_ways_out(
    targets: Sequence[str], answers: Answers, silent: Sequence[str], measure: Recorder
) -> None:
    """Judge the connections of each node to each target; `silent` nodes prove nothing.

    `answers` has the problem by node and target, "" for none.
    """
    failed = {
        node: {t: problem for t in targets if (problem := found.get(t, "no answer"))}
        for node, found in answers.items()
    }
    counts = {node: len(problems) for node, problems in failed.items()}
    record_each(measure, check.EGRESS_CLOSED, counts, silent)
    for target in targets:
        faults = {node: problems[target] for node, problems in failed.items() if target in problems}
        sentence = "{target} from {nodes}: {text}. Expected: a connection"
        explain_alike(measure, "HOST-EGRESS", faults, sentence, asked=len(answers), target=target)


# The Ray client.

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
        measure(check.RAY_CLIENT, None, note="Ray lists no head")
        return
    address = f"ray://{heads[0]['address']}:{port}"
    ids = {node["id"] for node in cluster.known_nodes()}
    _judge_answer(address, *try_client(address, JOIN_SECONDS), ids, measure)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        closed = f"ray://127.0.0.1:{server.getsockname()[1]}"
    judge = partial(_judge_answer, closed, *try_client(closed, CLOSED_SECONDS), ids)
    plant(measure, check.CLOSED_CLIENT, f"a program joins {closed}, where nothing listens", judge)


def _judge_answer(address: str, node: str, problem: str, ids: set[str], measure: Recorder) -> None:
    if node and node not in ids:
        problem = f"the task ran on node {node[:8]} of another cluster"
    measure(check.RAY_CLIENT, int(bool(problem)))
    if problem:
        statement = f"A program cannot join through {address}: {problem}"
        host, _, port = address.removeprefix("ray://").rpartition(":")
        names = {"address": host.strip("[]"), "port": port}
        measure.explain(finding("HOST-RAY-CLIENT", statement, names=names))


def try_client(address: str, seconds: float) -> tuple[str, str]:
    """Join and run one task in another process; return (id of its node, problem)."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    call = [sys.executable, "-c", PROGRAM, address]
    try:
        done = subprocess.run(
            call, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {seconds:g} s"
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("node ")]
    if found and done.returncode == 0:
        return found[-1], ""
    return "", last_line(done.stderr, f"exit code {done.returncode}")
