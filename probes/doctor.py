"""Checks this machine and the nodes of a cluster before a run: the work of `seatrial doctor`."""

from __future__ import annotations

import http.client
import os
import platform
import urllib.error
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from probes.check.judging import is_alone
from probes.check.registry import CRITERIA, run_order
from probes.cluster.cluster import ROOT, Cluster, gpu_models, refuse_amd
from probes.cluster.dashboard import request_dashboard
from probes.cluster.node_facts import OWN_HOST, Facts, software_differences, software_versions
from probes.cluster.room import busy_accelerators
from probes.cluster.shared_folder import find_folder_problem
from probes.contract.contract import NOT_ACCEPTED, Contract, find_gaps
from probes.contract.derived_limits import list_slips
from probes.contract.terms import ClusterTerms, match_kinds
from probes.findings import join_names
from probes.launch.shell import describe_typist, why_no_other_user, why_not_typed
from probes.requirements import DISTRIBUTION, lacking_sentence, missing_feature
from reports.numbers import quantity
from reports.version import PACKAGES

UNPROVEN, FAIL = "UNPROVEN", "FAIL"  # what a run would say of the criteria
OK = "ok"


@dataclass(frozen=True)
class Answer:
    """What was found to a question; `state` is OK, or what a run would say of `criteria`.

    `do` is an order to the reader; "" where nothing need be done.
    """

    question: str
    found: str
    state: str = OK
    criteria: tuple[str, ...] = ()
    do: str = ""


def affected(answers: Iterable[Answer], state: str) -> list[str]:
    """List the criteria with this state in a run, each once, in the order of a run."""
    named = {id for answer in answers if answer.state == state for id in answer.criteria}
    return [id for id in run_order() if id in named]


def ask_machine(terms: ClusterTerms, *, on_gpu: bool, local: bool = False) -> Iterator[Answer]:
    """Answer each question about this machine; nothing is contacted."""
    yield ask_packages(Path.cwd(), packages_distributions())
    yield ask_versions(on_gpu=on_gpu)
    yield ask_user(terms, why_no_other_user(own_guide=terms.launch.document is None), local=local)
    yield ask_run_folder(Path.cwd())


def ask_packages(folder: Path, owners: Mapping[str, Sequence[str]]) -> Answer:
    """Name a package or folder that Python would import in place of ours.

    `owners` maps a package to the distributions that install it.
    """
    others = [
        f"Python finds {name} at {origin}"
        for name in PACKAGES
        if (origin := _origin(name)) and Path(origin).resolve() != (ROOT / name).resolve()
    ]
    others += [
        f"{name} is also installed by {', '.join(sorted(set(found) - {DISTRIBUTION}))}"
        for name in PACKAGES
        if set(found := owners.get(name, ())) - {DISTRIBUTION}
    ]
    others += [
        f"the folder {folder / name} hides seatrial's {name} from pytest"
        for name in PACKAGES
        if (folder / name).is_dir() and (folder / name).resolve() != (ROOT / name).resolve()
    ]
    if not others:
        return Answer("packages", f"{', '.join(PACKAGES)} are loaded from {ROOT}")
    do = "Install seatrial in a separate Python environment, and start it in another folder"
    return Answer("packages", "; ".join(others), FAIL, run_order(), do)


def _origin(name: str) -> str:
    spec = find_spec(name)
    return str(Path(spec.origin).parent) if spec and spec.origin else ""


def ask_versions(*, on_gpu: bool) -> Answer:
    """Name what a criterion needs and the packages here lack."""
    if text := lacking_sentence():
        return Answer("versions", text, FAIL, run_order(), "Install the missing packages")
    lacking = {id: text for id in run_order() if (text := missing_feature(id, on_gpu))}
    if lacking:
        text = " ".join(dict.fromkeys(lacking.values()))
        return Answer("versions", text, UNPROVEN, tuple(lacking), "Install the expected versions")
    parts = software_versions()
    known = ", ".join(f"{name} {parts[name]}" for name in ("python", "ray", "torch"))
    return Answer("versions", f"{known}, {platform.system()} {platform.machine()}")


def ask_user(terms: ClusterTerms, why_not: str, *, local: bool = False) -> Answer:
    """Say as whom LAUNCH types whose commands; `why_not` is why not as another user.

    On an embedded cluster (`local`) a run does not judge the user's rights.
    """
    if why_not and (refusal := why_not_typed(terms, None, why_not)):
        found, _, do = refusal.rpartition(". ")
        return Answer("user", found, UNPROVEN, ("LAUNCH",), do)
    found = describe_typist(terms, why_not)
    if not why_not or local or terms.launch.user == "own":
        return Answer("user", found)
    do = (
        "Run seatrial as root with the right to become another user, from an installation that "
        'each user can read. Or set user = "own" in the contract\'s [launch]'
    )
    return Answer("user", found, UNPROVEN, ("LAUNCH",), do)


def ask_run_folder(folder: Path) -> Answer:
    """Tell whether a run can be written below this folder."""
    target = folder / "runs"
    place = target if target.is_dir() else folder
    if os.access(place, os.W_OK | os.X_OK):
        return Answer("run folder", f"{target} can be written")
    do = "Start seatrial in another folder, or name one with --run-dir"
    return Answer("run folder", f"{place} cannot be written", FAIL, run_order(), do)


DASHBOARD_SECONDS = 5


def ask_cluster(cluster: Cluster, terms: ClusterTerms) -> Iterator[Answer]:
    """Answer each question; short tasks run on each node, and take no accelerator.

    Raises ClusterUnreachable where the GPUs are none that a run can test.
    """
    refuse_amd(cluster)
    yield ask_nodes(cluster, terms)
    yield ask_silence(cluster)
    yield ask_software(cluster)
    yield ask_accelerators(cluster)
    yield ask_dashboard(cluster)
    if cluster.resource == "GPU" and not cluster.emulated:
        yield ask_nvml(cluster)
    if terms.fabric == "rdma":
        yield ask_rdma(cluster)
    yield ask_shared(cluster, terms)


def ask_contract(contract: Contract, nodes: int | None, cluster: Cluster) -> Iterator[Answer]:
    """Name each term that the contract lacks, without which no run is accepted."""
    if not cluster.rehearsal:
        for criteria, text in find_gaps(contract, gpu_models(cluster.facts), nodes):
            yield Answer("terms", f"{NOT_ACCEPTED}: {text}", UNPROVEN, criteria)
        for text in list_slips(contract.cluster, cluster.facts):
            yield Answer("check", text, UNPROVEN)  # no run would fail for it


def ask_nodes(cluster: Cluster, terms: ClusterTerms) -> Answer:
    """Compare the nodes and accelerators with the order, and with what criteria need."""
    count, size = len(cluster.nodes), cluster.size
    if cluster.resource != "GPU" and terms.accelerators == "real" and terms.gpus_per_node:
        found = f"{quantity(count, 'nodes')}, and Ray counts no GPU"
        do = "Check `nvidia-smi` on each node, then restart Ray there, so that it counts the GPUs"
        return Answer("nodes", found, FAIL, run_order(), do)
    found = f"{quantity(count, 'nodes')}, {quantity(size, cluster.resource + 's')}"
    counts = {node["id"]: int(node["resources"].get("GPU", 0)) for node in cluster.nodes}
    ordered = match_kinds(terms.gpus_per_node, counts)
    names = {node["id"]: node["name"] for node in cluster.nodes}
    short = [f"{names[id]} has {gpus}" for id, gpus in counts.items() if gpus != ordered[id]]
    if not terms.allows(count):
        do = "Start the missing nodes, or correct `nodes` in the contract (or --nodes)"
        return Answer("nodes", f"{found}; {terms.nodes_text} were ordered", FAIL, ("HOSTS",), do)
    if terms.gpus_per_node is not None and short:
        text = f"{found}; {terms.gpus_text} were ordered, but {join_names(short)}"
        do = "Check `nvidia-smi -L` on these nodes, or correct `gpus_per_node` in the contract"
        return Answer("nodes", text, FAIL, ("HOSTS",), do)
    if count < 2 and not (is_alone(cluster, terms) and size > 1):
        lacking = tuple(
            id for id, row in CRITERIA.items() if count < row.least_nodes or size < row.least_gpus
        )
        return Answer(
            "nodes", f"{found}: too few to compare", UNPROVEN, lacking, "Add a node to the cluster"
        )
    return Answer("nodes", found)


def ask_silence(cluster: Cluster) -> Answer:
    """Name the nodes where a task does not run."""
    answered = {fact["node"] for fact in cluster.facts}
    silent = [
        f"{node['name']} ({cluster.errors.get(node['id'], 'no answer')})"
        for node in cluster.nodes
        if node["id"] not in answered
    ]
    if not silent:
        return Answer("tasks", "each node runs a task of Ray")
    do = "Read the log of the raylet on each such node (/tmp/ray/session_latest/logs/raylet.out)"
    return Answer("tasks", f"no task of Ray runs on {join_names(silent)}", FAIL, run_order(), do)


def ask_software(cluster: Cluster) -> Answer:
    """Name the software that is not the same everywhere."""
    differences = software_differences(cluster.facts, software_versions())
    if not differences:
        return Answer("software", f"the same versions on all nodes and on {OWN_HOST}")
    do = f"Install the same version on all nodes and on {OWN_HOST}"
    return Answer("software", "; ".join(differences), FAIL, ("HOSTS",), do)


def ask_accelerators(cluster: Cluster) -> Answer:
    """Name what holds accelerators."""
    unit, busy = f"{cluster.resource}s", busy_accelerators(cluster)
    if not busy:
        return Answer("room", f"all free: {quantity(cluster.size, unit)}")
    held = cluster.describe_holders() or f"not free: {quantity(busy, unit)}"
    do = "Start the run with --wait-for-room 30m, so that it waits until they are free"
    return Answer("room", held, UNPROVEN, tuple(id for id in run_order() if id != "HOSTS"), do)


def ask_dashboard(cluster: Cluster) -> Answer:
    """Tell whether the dashboard takes jobs, by a question that starts none."""
    if not (address := cluster.dashboard):
        do = "Run `pip install 'ray[default]'` on the head, then restart Ray with --dashboard-host"
        return Answer("dashboard", "the cluster has no dashboard", UNPROVEN, ("LAUNCH",), do)
    try:
        request_dashboard(address, "/api/version", seconds=DASHBOARD_SECONDS)
        return Answer("dashboard", f"{address} answers")
    except urllib.error.HTTPError as error:
        with error:
            found = f"{address} refuses the request (HTTP {error.code})"
        do = "Set RAY_AUTH_TOKEN_PATH to the file of the cluster's token"
    except (OSError, ValueError, http.client.HTTPException) as error:
        found = f"{address} does not answer: {error}"
        do = f"Start Ray with --dashboard-host=ADDRESS, and open the dashboard's port to {OWN_HOST}"
    return Answer("dashboard", found, UNPROVEN, ("LAUNCH",), do)


def ask_nvml(cluster: Cluster) -> Answer:
    """Name the nodes where NVML cannot be read."""
    return _by_node(
        "NVML", cluster, lambda fact: (fact["nvml"]["error"] or {}).get("text", ""),
        "each node answers", ("HOSTS", "GANG"),
        "Check that `nvidia-smi` works on each such node, as the user and in the container of Ray",
    )  # fmt: skip


def ask_rdma(cluster: Cluster) -> Answer:
    """Name the nodes where a worker has no RDMA device, or cannot open one."""

    def problem(fact: Facts) -> str:
        devices = fact["rdma_access"]
        return next(filter(None, devices.values()), "") if devices else "no RDMA device"

    return _by_node(
        "RDMA", cluster, problem, "workers can open the RDMA devices of each node", ("FABRIC",),
        "Give the user and the container of Ray read and write access to /dev/infiniband",
    )  # fmt: skip


def _by_node(
    question: str,
    cluster: Cluster,
    problem: Callable[[Facts], str],
    sound: str,
    criteria: tuple[str, ...],
    do: str,
) -> Answer:
    by_text: dict[str, list[str]] = defaultdict(list)
    for fact in cluster.facts:
        if text := problem(fact):
            by_text[text].append(fact["name"])
    if not by_text:
        return Answer(question, sound)
    found = "; ".join(f"{text} on {join_names(names)}" for text, names in by_text.items())
    return Answer(question, found, UNPROVEN, criteria, do)


def ask_shared(cluster: Cluster, terms: ClusterTerms) -> Answer:
    """Name the nodes that do not share the agreed folder."""
    if cluster.kind == "local":
        return Answer("shared folder", "not needed: all raylets are on this host")
    folder = Path(terms.shared) if terms.shared else Path.cwd()
    cause, blind = find_folder_problem(cluster, folder)
    if not cause:
        return Answer("shared folder", f"all nodes share {folder}")
    if not terms.shared:
        do = "Set `shared` in the contract, or start seatrial in a folder that all nodes share"
        found = f"no `shared` in the contract, so checkpoints go into {folder}: {cause}"
        return Answer("shared folder", found, UNPROVEN, ("RESTART",), do)
    state = FAIL if blind else UNPROVEN
    keepers = tuple(id for id in run_order() if CRITERIA[id].keeps_in_shared)
    do = f"Mount {folder} on each node, writable for Ray's workers"
    return Answer("shared folder", cause, state, keepers, do)
