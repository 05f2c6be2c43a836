"""Judges the inventory: hardware, software and order of the nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median_low
from typing import Any, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from probes.check.declarations import Check, exactly
from probes.check.judging import record_each, worst_of
from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.node_facts import SYSTEM_PARTS, software_differences, software_versions
from probes.cluster.nvml import DRIVER_MISMATCH, DRIVER_NOT_LOADED, GPU_IS_LOST
from probes.cluster.shared_folder import BLIND, FolderUnknown, find_blind_nodes
from probes.contract.contract import ClusterTerms
from probes.contract.terms import Agreeable, match_kinds
from probes.findings import finding, join_names, name_gpu
from probes.hosts import criterion as check
from probes.hosts import gpu_health
from probes.hosts.gpu_health import AllFacts, Facts, NodeGpus, nodes_with_fewer_gpus
from reports.groups import group_pairs
from reports.measurement import Limit, Measurement, Verdict
from reports.numbers import quantity
from reports.record import Finding

CODES = {
    DRIVER_NOT_LOADED: "HOST-NO-DRIVER",
    GPU_IS_LOST: "HOST-GPU-LOST",
    DRIVER_MISMATCH: "HOST-DRIVER-MISMATCH",
}
# How a report names what a contract may agree on.
AGREEABLE: dict[Agreeable, str] = {
    "kernel": "kernel", "ofed": "ofed", "vbios": "vBIOS of", "nic_firmware": "firmware of",
    "persistence": "persistence mode of", "numa": "NUMA nodes of",
}  # fmt: skip
MIX = ". If different GPUs were ordered, write `gpu_model` as a table of kinds: model = nodes"
MEMORY_TOLERANCE = 0.01  # boards of one model differ by less; ECC on GDDR takes 6 %


def find_nvml_faults(fact: Facts, expected: bool) -> list[Finding] | None:
    """Find the NVML errors of a node; None if its GPUs are AMD's.

    If no GPU is `expected`, a missing library or driver is no fault: the node may have none.
    """
    nvml, name = fact["nvml"], fact["name"]
    if not nvml["library"]:
        if expected and fact["amd_driver"]:
            return None
        text = f"{name}: GPUs are expected there, and libnvidia-ml.so.1 was not found"
        return [finding("HOST-NO-NVML", text, [name])] if expected else []
    if (error := nvml["error"]) and (expected or error["code"] != DRIVER_NOT_LOADED):
        return [_explain_error(name, "the node's GPUs", error, {})]
    failed = [gpu for gpu in fact["gpus"] if "error" in gpu]
    return [_explain_error(name, gpu_name(gpu), gpu["error"], gpu) for gpu in failed]


def _explain_error(node: str, what: str, error: Facts, gpu: Facts) -> Finding:
    text = f"{node}: NVML does not answer for {what}: error {error['code']}, {error['text']}"
    code = CODES.get(error["code"], "HOST-NVML-ERROR")
    return finding(code, text, [node], names=name_gpu(gpu.get("uuid"), gpu.get("index")))


def gpu_name(gpu: Facts) -> str:
    """Name a GPU: `GPU 3 (GPU-uuid)`, or a MIG instance: `GPU 3 MIG 1 (MIG-uuid)`."""
    name = f"GPU {gpu['index']}" + (f" MIG {gpu['mig']}" if "mig" in gpu else "")
    return f"{name} ({gpu['uuid']})" if gpu["uuid"] else name


Place = TypeVar("Place")
Read = Callable[[Facts], Iterable[tuple[str, str]]]  # facts -> (what, value) of a node's parts


def find_odd_gpus(facts: AllFacts) -> list[Finding]:
    """Find the nodes whose GPU model or memory differs from that of most GPUs."""
    sizes = [gpu["memory_gib"] for fact in facts for gpu in _answering(fact)]
    usual = median_low([size for size in sizes if size is not None] or [0])

    def read(fact: Facts) -> Iterator[tuple[str, str]]:
        for gpu in _answering(fact):
            yield "GPU model", gpu["name"]
            yield "GPU memory", _size_text(gpu["memory_gib"], usual)

    return [*_find_minorities(facts, read, "HOST-GPU-MODEL")]


def _answering(fact: Facts) -> list[Facts]:
    return [gpu for gpu in fact["gpus"] if "error" not in gpu]


def _size_text(size: float | None, usual: float) -> str:
    if size is None:
        return "no size"
    return f"{usual if abs(size - usual) <= MEMORY_TOLERANCE * usual else size:g} GiB"


def _find_minorities(facts: AllFacts, read: Read, code: str) -> Iterator[Finding]:
    """Make one finding for each kind of part that has not the same value everywhere.

    Suspects are the nodes without the most common value.  If two values tie, they are all nodes.
    """
    kinds: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        for what, value in read(fact):
            kinds[what][value].append(fact["name"])
    for what, nodes in kinds.items():
        counts = Counter({value: len(names) for value, names in nodes.items()}).most_common()
        if len(counts) > 1:
            texts = [
                f"{value or 'no name'} on {join_names(dict.fromkeys(nodes[value]))}"
                for value, _ in reversed(counts)
            ]
            tied = counts[0][1] == counts[1][1]
            odd = [name for value, _ in counts[0 if tied else 1 :] for name in nodes[value]]
            yield finding(code, f"{what}: {'; '.join(texts)}", list(dict.fromkeys(odd)))


def find_odd_systems(facts: AllFacts, kinds: Iterable[AllFacts]) -> list[Finding]:
    """Find the nodes whose kernel, OFED, firmware, or setting of GPUs is not as on most.

    Settings are compared within each of the `kinds` of nodes that were ordered.
    """
    return [
        *_find_minorities(facts, _read_kernel, "HOST-KERNEL"),
        *_find_minorities(facts, _read_firmware, "HOST-FIRMWARE"),
        *(o for own in kinds for o in _find_minorities(own, _read_settings, "HOST-GPU-SETTINGS")),
    ]


def _read_kernel(fact: Facts) -> Iterator[tuple[str, str]]:
    software = fact["software"]
    yield from ((part, software[part] or "none") for part in SYSTEM_PARTS if part in software)


def _read_firmware(fact: Facts) -> Iterator[tuple[str, str]]:
    """Read the firmware of GPUs, by their model, and of NICs, by their board."""
    for board in fact.get("gpu_health", {}).get("boards", ()):
        if "vbios" in board:
            yield f"{AGREEABLE['vbios']} {board.get('name') or 'GPUs'}", board["vbios"]
    for nic in fact.get("nics", ()):
        if nic["board"] and nic["firmware"]:
            yield f"{AGREEABLE['nic_firmware']} {nic['board']}", nic["firmware"]


def _read_settings(fact: Facts) -> Iterator[tuple[str, str]]:
    """Read how GPUs are set, by their model, and near to which CPUs GPUs and NICs are."""
    boards = fact.get("gpu_health", {}).get("boards", ())
    for board in boards:
        model = board.get("name") or "GPUs"
        if "persistence" in board:
            state = "enabled" if board["persistence"] else "disabled"
            yield f"{AGREEABLE['persistence']} {model}", state
        if "clock_mhz" in board:
            yield f"application clock of {model}", f"{board['clock_mhz']} MHz"
    for what, parts in (("GPUs", boards), ("RDMA devices", fact.get("nics", ()))):
        places = [part.get("numa", "") for part in parts]
        if places and all(places):
            yield f"{AGREEABLE['numa']} {len(places)} {what}", ", ".join(places)


def find_shared_gpus(facts: Iterable[Facts]) -> list[Finding]:
    """Find each GPU whose UUID several nodes show, or one node at several indices."""
    gpus = [(gpu["uuid"], fact["name"], gpu_name(gpu)) for fact in facts for gpu in fact["gpus"]]
    found = []
    for uuid, places in _find_repeated((uuid, (node, gpu)) for uuid, node, gpu in gpus).items():
        text = f"{join_names(f'{gpu} on {node}' for node, gpu in places)} are the same GPU"
        nodes = list(dict.fromkeys(node for node, _ in places))
        found.append(finding("HOST-GPU-TWICE", text, nodes, names={"gpu": uuid}))
    return found


def find_shared_machines(facts: Iterable[Facts]) -> list[Finding]:
    """Find each machine that several nodes run on, by its boot id."""
    return [
        finding("HOST-SAME-MACHINE", f"{join_names(names)} run on the same machine", names)
        for names in _find_repeated((fact["boot_id"], fact["name"]) for fact in facts).values()
    ]


def _find_repeated(pairs: Iterable[tuple[str, Place]]) -> dict[str, list[Place]]:
    """Find the ids that are in several places; an empty id is not known."""
    return {id: found for id, found in group_pairs(pairs).items() if id and len(found) > 1}


def judge_order(facts: AllFacts, terms: ClusterTerms, measure: Recorder) -> None:
    """Judge each node by what the contract orders of it; the rest is not judged."""
    models = limit_models(facts, terms)
    for fact in facts:
        for name, value, limit in ordered_values(fact, terms, models.get(fact["node"])):
            measure(name, value, on=fact["name"], limit=limit, note="the node did not report it")
            if limit.judge(value) is Verdict.FAIL:
                text = describe_failure(fact, name, value, limit)
                code = "HOST-GPU-MODEL" if name == check.GPU_MODEL else "HOST-BELOW-ORDER"
                measure.explain(finding(code, text, [fact["name"]]))


# How each is read of a node's facts.
ORDERED: dict[Check, Callable[[Facts], float | None]] = {
    check.GPU_MEMORY: lambda fact: _smallest_memory(fact["gpus"]),
    check.CPUS: lambda fact: fact["cpus"],
    check.RAM: lambda fact: fact["ram_gib"],
    check.DISK: lambda fact: fact.get("disk_gib"),
}


def limit_models(facts: AllFacts, terms: ClusterTerms) -> dict[str, Limit]:
    """Build the limit of each node's GPU model; where kinds were ordered, it must be of one."""
    found = {fact["node"]: terms.kind_of(fact) for fact in facts if terms.models}
    kinds = terms.gpu_model if isinstance(terms.gpu_model, dict) else {}
    counts, limits = Counter(found.values()), {}
    for node, kind in match_kinds(kinds, found).items():
        short = kinds[kind] - counts[kind] if kind else 0
        on = f" on {quantity(kinds[kind], 'nodes')}" if kind else ""
        on += f", missing on {quantity(short, 'nodes')}" * (short > 0)
        limits[node] = Limit(one_of=[kind] if kind else terms.models, because=f"ordered{on}")
    return limits


Ordered = list[tuple[str, Any, Limit]]  # measure, value, limit


def ordered_values(fact: Facts, terms: ClusterTerms, models: Limit | None) -> Ordered:
    """List everything that is ordered of one node; `models` is the limit of its GPU model."""
    values: Ordered = []
    if models:
        model = _worst_model([gpu["name"] for gpu in fact["gpus"]], models.one_of or [])
        values.append((check.GPU_MODEL, model, models))
    for name, read in ORDERED.items():
        if (least := getattr(terms, name.ordered_by)) is not None:
            values.append((name, read(fact), Limit(low=least, unit=name.unit, because="ordered")))
    if terms.versions is not None:
        met = [version_met(fact["software"].get(p, ""), o) for p, o in terms.versions.items()]
        count = None if None in met and False not in met else met.count(False)
        text = ", ".join(f"{part} {order}" for part, order in terms.versions.items())
        values.append((check.ORDERED_VERSIONS, count, exactly(0, "versions", f"ordered: {text}")))
    return values


def _worst_model(names: list[str], ordered: list[str]) -> str | None:
    """Return a model that was not ordered, if there is one; None if a model is not known."""
    if wrong := [name for name in names if name and name not in ordered]:
        return wrong[0]
    return names[0] if names and all(names) else None


def _smallest_memory(gpus: Sequence[Facts]) -> float | None:
    """Return the smallest memory (GiB) of GPUs; None if there are none, or one is not known."""
    return worst_of({index: gpu["memory_gib"] for index, gpu in enumerate(gpus)}, min)[1]


def version_met(version: str, order: str) -> bool | None:
    """Return whether a version meets the order; None if it is unknown, or no version.

    An order is a version ("2.13.0" is met by 2.13.0+cu128) or ">=" and the oldest allowed version.
    Of a kernel or OFED (6.8.0-1021-nvidia) the numbers before the first dash count.
    """
    try:
        required = SpecifierSet(order if order.startswith(">=") else f"=={order}")
        return required.contains(Version(version.partition("-")[0]), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return None


def describe_failure(fact: Facts, name: str, value: Any, limit: Limit) -> str:
    """Describe in one sentence what is below the order on a node."""
    if name == check.ORDERED_VERSIONS:
        has = ", ".join(f"{part} {version}" for part, version in fact["software"].items())
        return f"{fact['name']} has {has}; {limit.because}"
    seen = {"name": str(name), "value": value, "unit": limit.unit, "subject": fact["name"]}
    return Measurement(**seen, limit=limit).sentence()


def judge_hosts(
    cluster: Cluster, terms: ClusterTerms, facts: AllFacts, bystanders: AllFacts, measure: Recorder
) -> None:
    """Judge nodes, machines and GPUs.  `bystanders` are facts of nodes where Ray counts no GPU."""
    alive = {node["id"] for node in cluster.nodes}
    gone = [fact["name"] for fact in facts if fact["node"] not in alive]
    facts = [fact for fact in facts if fact["node"] in alive]
    bystanders = without_hosts_gpus(bystanders, facts)
    judge_nodes(cluster, terms, facts, bystanders, gone, measure)
    nodes = count_all_gpus(cluster, terms, facts, bystanders)
    judge_counts(nodes, measure, kept_outside(nodes, terms, measure))
    # A bystander that does not answer may have GPUs.
    silent = _find_silent(cluster, cluster.bystanders, bystanders, measure)
    record_each(measure, check.COUNT_MISMATCHES, {}, silent)
    if cluster.kind == "local":
        measure.covered("machines and NVML are not compared: all raylets share one host")
        return
    judge_machines(facts, measure)
    if gpu_health.compared_sources(cluster.kind, cluster.emulated, facts):
        short = terms.nodes is not None and len(facts) < terms.nodes
        judge_nvml(nodes, [*facts, *bystanders], short, measure)
        judge_duplicates(nodes, facts, measure)
        gpu_health.judge_gpu_health(facts, measure)
    else:
        measure.covered("NVML is not used: accelerators are emulated, and no node has NVML")


def judge_nodes(
    cluster: Cluster,
    terms: ClusterTerms,
    facts: AllFacts,
    bystanders: AllFacts,
    gone: list[str],
    measure: Recorder,
) -> None:
    """Judge the nodes that answer against the order; name the lost and the silent ones.

    `gone` are nodes that answered when the run began.  Without an order no other node counts as
    missing: Ray also lists nodes that left days ago.  A node where Ray counts no GPU may be an
    ordered node whose driver did not load.
    """
    ordered = terms.nodes
    # A node that joined after the facts were read takes part in every job: it counts as one more.
    short = ordered is None or len(facts) < ordered
    count = len(facts) if short else max(len(facts), len(cluster.nodes))
    silent = _find_silent(cluster, cluster.nodes, facts, measure)
    # Of nodes that may be more than ordered, one that was not inspected is no part of the proof.
    hidden = silent and terms.nodes_at_most and terms.allows(count)
    limit = ordered_limit(ordered, "nodes", terms.nodes_at_most)
    note = f"{join_names(silent)}: not inspected" if hidden else ""
    measure(check.NODES, None if hidden else count, limit=limit, note=note)
    known = cluster.known_nodes()
    # A node that died twice has two entries.
    dead = list(dict.fromkeys(node["name"] for node in known if not node["alive"]))
    draining = [node for node in known if node.get("drained")]
    # In a cluster with GPUs a node without any runs no ranks.
    if draining and any(node["resources"].get("GPU") for node in cluster.nodes):
        draining = [node for node in draining if node["resources"].get("GPU")]
    drained = [node["name"] for node in draining]
    lost = [name for name in (dead if ordered else gone) if name not in drained]
    head = next((node["address"] for node in known if node.get("head")), "")
    if drained and ordered and short:
        text = f"{join_names(drained)}: being drained, takes no work. Expected: no drain"
        measure.explain(finding("HOST-DRAINED", text, drained, names={"head_address": head}))
    if not silent and (len(facts) + len(drained) < ordered if ordered else lost):
        no_gpus = [fact["name"] for fact in bystanders]
        names = lost or no_gpus or ["a node that never joined"]
        of = f"{len(facts)} of {ordered} nodes answer" if ordered else f"{len(facts)} nodes answer"
        why = "" if lost or not no_gpus else ", where Ray counts no GPU"
        text = f"{of}; missing: {join_names(names)}{why}"
        measure.explain(finding("HOST-MISSING", text, names, names={"head_address": head}))
    if ordered and len(facts) > ordered:
        statement = f"{len(facts)} nodes answer. Ordered: {terms.nodes_text}"
        if terms.allows(len(facts)):
            measure.covered(statement)
        else:
            measure.explain(finding("HOST-EXTRA", statement))  # the extra node is not known


def ordered_limit(count: int | None, unit: str, most: int | None = None) -> Limit | None:
    """Build the limit that an ordered number sets; None without an order."""
    return None if count is None else exactly(count, unit, "ordered", most)


def _find_silent(
    cluster: Cluster, nodes: Sequence[Facts], facts: AllFacts, measure: Recorder
) -> list[str]:
    """Report each node that did not answer as a finding; return their names."""
    answered = {fact["node"] for fact in facts}
    silent = {node["id"]: node["name"] for node in nodes if node["id"] not in answered}
    for id, name in silent.items():
        why = cluster.errors.get(id, "no answer in time")
        measure.explain(finding("HOST-NO-ANSWER", f"No worker answers on {name}: {why}", [name]))
    return list(silent.values())


def without_hosts_gpus(bystanders: AllFacts, facts: AllFacts) -> list[Facts]:
    """Remove from the bystanders what belongs to a node of the gang.

    A container may see its host's GPUs: GPUs that a node of the gang shows are removed.  If both
    run on one machine, NVML counts as missing on the bystander.
    """
    shown = {gpu["uuid"] for fact in facts for gpu in fact["gpus"]} - {""}
    hosts = {fact["boot_id"] for fact in facts} - {""}
    unasked = {"library": False, "error": None}
    return [
        {
            **fact,
            "gpus": [gpu for gpu in fact["gpus"] if gpu["uuid"] not in shown],
            "nvml": unasked if fact["boot_id"] in hosts else fact["nvml"],
        }
        for fact in bystanders
    ]


def judge_machines(facts: AllFacts, measure: Recorder) -> None:
    """Judge that each node is a machine of its own, by the kernels' boot ids."""
    boots = [fact["boot_id"] for fact in facts]
    known = bool(boots) and all(boots)
    limit = exactly(len(facts), "machines", "each node must be a separate machine")
    silent = join_names(fact["name"] for fact in facts if not fact["boot_id"])
    note = f"/proc/sys/kernel/random/boot_id was not read on {silent or 'any node'}"
    measure(check.MACHINES, len(set(boots)) if known else None, limit=limit, note=note)
    measure.explain(find_shared_machines(facts))


def count_all_gpus(
    cluster: Cluster, terms: ClusterTerms, facts: AllFacts, bystanders: AllFacts
) -> list[NodeGpus]:
    """Count each node's GPUs by every source that is compared here."""
    sources = gpu_health.compared_sources(cluster.kind, cluster.emulated, facts)
    by_ray = {node["id"]: int(node["resources"].get("GPU", 0)) for node in cluster.nodes}
    found = {fact["node"]: by_ray.get(fact["node"], 0) for fact in facts}
    ordered = match_kinds(terms.gpus_per_node, found)
    members = [
        gpu_health.count_gpus(fact, by_ray.get(id := fact["node"], 0), ordered[id], sources)
        for fact in facts
    ]
    # A bystander without GPUs may have no NVML; the GPUs of a bystander are known to NVML alone.
    outside = [] if cluster.kind == "local" else ["NVML"]
    return members + [
        gpu_health.count_gpus(fact, 0, None, outside, member=False) for fact in bystanders
    ]


def kept_outside(
    nodes: Sequence[NodeGpus], terms: ClusterTerms, measure: Recorder
) -> Sequence[NodeGpus]:
    """Return the nodes whose GPUs are outside Ray by agreement, and note them.

    Where the order is not complete, or more GPUs than agreed are outside, some of them are lost.
    """
    outside = [node for node in nodes if not node.member and node.mismatches]
    is_complete = terms.nodes and len([node for node in nodes if node.member]) >= terms.nodes
    gpus = sum(max(node.known) for node in outside)
    if not outside or not is_complete or gpus > (terms.gpus_outside_ray or 0):
        return ()
    measure.note("gpus_outside_ray", gpus, "GPUs", on=join_names(node.name for node in outside))
    return outside


def judge_counts(
    nodes: Sequence[NodeGpus], measure: Recorder, outside: Sequence[NodeGpus] = ()
) -> None:
    """Judge each node's GPU count against the order, and its sources against each other.

    The GPUs of nodes `outside` are not Ray's by agreement.
    """
    for node in nodes:
        if node.member:
            limit = ordered_limit(node.ordered, "GPUs")
            measure(check.GPUS, node.value, on=node.name, limit=limit, note=node.why_unknown)
        count = 0 if node in outside else node.mismatches
        measure(check.COUNT_MISMATCHES, count, on=node.name, note=node.why_unknown)
    fewer = nodes_with_fewer_gpus(nodes)
    measure(check.NODES_WITH_FEWER_GPUS, len(fewer) if nodes else None, note="no node answers")
    for node in nodes:
        if (node.is_wrong and node not in outside) or node.name in fewer:
            measure.explain(finding("HOST-GPUS", node.sentence, [node.name]))


def judge_nvml(nodes: Sequence[NodeGpus], facts: AllFacts, short: bool, measure: Recorder) -> None:
    """Judge that NVML answers on each node, and for each of its GPUs.

    If nodes are missing (`short`), a node with NVML's library may be one of them: it must answer.
    """
    for node, fact in zip(nodes, facts, strict=True):
        missing = short and fact["nvml"]["library"]
        faults = find_nvml_faults(fact, bool(node.counts["Ray"] or node.ordered or missing))
        count = None if faults is None else len(faults)
        unread = "the GPUs are AMD's, and NVML reads only NVIDIA's"
        measure(check.NVML_ERRORS, count, on=node.name, note=unread)
        measure.explain(faults or [])


def judge_duplicates(nodes: Sequence[NodeGpus], facts: AllFacts, measure: Recorder) -> None:
    """Judge that each GPU belongs to one node alone, by its UUID."""
    shared = find_shared_gpus(facts)
    uuids = [gpu["uuid"] for fact in facts for gpu in fact["gpus"]]
    known = all(uuids) and (uuids or not any(node.counts["Ray"] for node in nodes))
    count = len(shared) if (known and facts) or shared else None
    measure(check.DUPLICATE_GPUS, count, note="some GPUs report no UUID")
    measure.explain(shared)


def judge_parity(cluster: Cluster, terms: ClusterTerms, facts: AllFacts, measure: Recorder) -> None:
    """Judge that all nodes have the same software, and all of an ordered kind the same GPUs."""
    software = software_differences(facts, software_versions())
    kinds = [*group_pairs((terms.kind_of(fact), fact) for fact in facts).values()]
    odd = [] if cluster.kind == "local" else [one for own in kinds for one in find_odd_gpus(own)]
    if isinstance(terms.gpu_model, list) and len(terms.gpu_model) > 1:
        odd = [one.model_copy(update={"statement": one.statement + MIX}) for one in odd]
    names = tuple(AGREEABLE[one] for one in terms.agreed_differences or ())
    found = find_odd_systems(facts, kinds)
    systems = [one for one in found if not one.statement.startswith(names)]
    if agreed := "; ".join(one.statement for one in found if one not in systems):
        measure.note("agreed_differences", agreed)
    measure(check.SYSTEM_DIFFERENCES, len(systems) if facts else None, note="no node answers")
    measure.explain(systems)
    measure(check.DIFFERENCES, len(software) + len(odd) if facts else None, note="no node answers")
    measure.explain([finding("HOST-VERSIONS", *each) for each in software.items()], odd)


def judge_folder(
    cluster: Cluster, folder: str, measure: Recorder, elsewhere: Mapping[str, str] | None = None
) -> None:
    """Judge that every node writes and sees the shared folder, by files that nodes write there.

    `elsewhere` is for a control, see `find_blind_nodes`.
    """
    try:
        blind = find_blind_nodes(cluster, folder, elsewhere)
    except FolderUnknown as unknown:
        measure(check.SHARED_MISSING, None, on=folder, note=str(unknown))
        return
    measure(check.SHARED_MISSING, len(blind), on=folder)
    for name in blind:
        text = f"{name} {BLIND.format(folder)}"
        measure.explain(finding("HOST-SHARED", text, [name], names={"folder": folder}))
