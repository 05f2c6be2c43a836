"""Tests that the machines are what was ordered, healthy, alike, and as a job needs them."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from probes.check.judging import silent_names
from probes.cluster.endpoints import CLIENT, TAKEN
from probes.cluster.node_facts import NO_ASSIGNMENT, add_silent, count_torch_devices
from probes.findings import join_names
from probes.hosts import closing as at_end
from probes.hosts import (
    compute_controls,
    compute_judge,
    conditions,
    controls,
    endpoints,
    inventory,
    limits,
    storage_judge,
    storage_round,
)
from probes.hosts import criterion as check
from probes.hosts import names as by_name
from probes.hosts.compute_fleet import WorkFleet
from probes.hosts.compute_worker import note_peer_copies
from probes.hosts.gpu_health import compared_sources, judge_gpu_health
from probes.hosts.needs import judge_needs
from probes.hosts.port_round import DEFAULT_PORTS, PortRound
from probes.hosts.storage_work import READ, SMALL, WRITE

pytestmark = pytest.mark.criterion("HOSTS")


def test_hosts_are_what_was_ordered(cluster, terms, measure):
    """Every ordered node answers, with healthy GPUs, one software stack and the shared folder.

    Facts are read inside a worker on each node, for that is where a job will run.  Ray's, NVML's
    and torch's count of GPUs and the order must agree.  NVML must report no fault of any GPU.
    """
    if compared_sources(cluster.kind, cluster.emulated, cluster.facts):
        cluster.hear_xids()  # from here to the last probe
    bystanders = cluster.read_facts(cluster.bystanders)
    facts = add_torch_counts(cluster, cluster.facts)
    everyone = [*facts, *bystanders]
    measure.keep("hosts.json", everyone, caption="inventory of every node, as a worker sees it")
    measure.covered(coverage_text(cluster, facts))
    if free := [fact["name"] for fact in facts if "assigned by" in fact.get("torch", {})]:
        why = f"{NO_ASSIGNMENT} is set, so each job must choose its own GPU"
        measure.covered(f"Ray hides no GPU from a worker on {join_names(free)}: {why}")
    inventory.judge_hosts(cluster, terms, facts, bystanders, measure)
    inventory.judge_parity(cluster, terms, facts, measure)
    inventory.judge_order(facts, terms, measure)
    if terms.shared:
        inventory.judge_folder(cluster, terms.shared, measure)
        controls.control_own_folder(cluster, terms.shared, measure)
    if terms.dcgm_diag and cluster.on_gpu:
        at_end.judge_diagnostics(cluster, measure)
    if facts:
        controls.control_doctored_node(cluster, terms, facts, measure)
        controls.control_larger_order(cluster, terms, facts, measure)
        if compared_sources(cluster.kind, cluster.emulated, facts):
            controls.control_gpu(cluster, facts, facts[-1], measure, check.SICK_GPU)


def add_torch_counts(cluster, facts):
    """Add torch's GPU counts to the facts, where accelerators are real."""
    if not cluster.on_gpu:
        return facts
    counts = cluster.on_each_node(count_torch_devices, gpus=1)
    why = "no GPU was free for a worker, or torch did not answer, within 90 s"
    silent = {id: {"error": cluster.errors.get(id, why)} for id in cluster.node_names}
    return [{**fact, "torch": {**silent, **counts}[fact["node"]]} for fact in facts]


def coverage_text(cluster, facts):
    """Describe which nodes answered, and which take no part."""
    text = f"{len(facts)} of {len(cluster.nodes)} nodes that Ray counts as alive answered"
    if names := [node["name"] for node in cluster.bystanders]:
        text += f"; nodes without accelerators, which run no ranks: {join_names(names)}"
    return text


def test_nodes_reach_each_other_by_name_and_port(cluster, terms, measure):
    """Each node has the address that Ray gives to others, and all ports of Ray and jobs are open.

    Every node connects to the GCS, raylet, object manager and worker ports of the others, and to a
    listener that the probe opens there.
    """
    members = add_silent(cluster.facts, cluster.nodes)
    facts = members + add_silent(cluster.read_facts(cluster.bystanders), cluster.bystanders)
    if cluster.kind == "local":
        measure.covered("addresses and names are not compared: all raylets share one host")
    elif len(facts) > 1:
        by_name.judge_addresses(facts, measure)
        by_name.judge_own_names(members if len(members) > 1 else [], measure)
        by_name.judge_choice(members if len(members) > 1 else [], measure)
        if cluster.facts:
            by_name.control_loopback(cluster, cluster.facts, measure)
    with closing(PortRound.start(cluster)) as ports:
        measure.covered(ports.coverage())
        if cluster.kind != "local" and len(facts) > 1:
            look_up_hosts(ports, facts, terms, measure)
            note_default_ports(ports, measure)
        planned = ports.plan()
        connections = ports.connect(planned)
        measure.keep("ports.json", describe_connections(connections, ports), caption=PORTS_CAPTION)
        by_name.judge_ports(connections, cluster.node_names, measure)
        by_name.control_ports(ports, planned, cluster.node_names, measure)


PORTS_CAPTION = "connections of every node to the ports of the others"
MOST_KEPT = 5000  # rows of evidence: less than 1 MB


def look_up_hosts(ports, facts, terms, measure):
    """Resolve the names of other nodes: of all peers if it is agreed, else of one each."""
    peers = ports.peers()
    asked = peers if terms.host_names else {id: others[:1] for id, others in peers.items()}
    by_name.judge_lookups(ports.look_up_names(asked), facts, measure, agreed=terms.host_names)
    if terms.host_names:
        by_name.control_names(ports, facts, peers, measure)


def note_default_ports(ports, measure):
    """Note how many nodes reach the head's dashboard and Ray client, at Ray's default ports."""
    reached = ports.count_reaching([*DEFAULT_PORTS.values()])
    for (name, port), count in zip(DEFAULT_PORTS.items(), reached, strict=True):
        measure.note(f"{name}_port_reached", count, "nodes", on=f"port {port}")


def describe_connections(connections, ports):
    """Count the connections by port, and list those that failed or are not known."""
    counts = Counter(one.kind for one in connections)
    failed = [
        {
            "port": one.kind,
            "number": one.port,
            "from": ports.name(one.source),
            "to": ports.name(one.target),
            "problem": one.problem or one.unknown,
        }
        for one in connections
        if one.problem != ""
    ]
    return {"tried": counts, "failed": failed[:MOST_KEPT], "failed_in_all": len(failed)}


def test_jobs_get_the_limits_they_need(cluster, terms, measure):
    """A worker has the open files, memory, threads and disk space it needs, and a right clock.

    Limits are read inside a worker on each node: those of a login shell may be others.  Nodes also
    have the same image, and the models and ways out that the contract names.
    """
    facts = cluster.facts
    ranks = {node["id"]: int(node["resources"].get("GPU", 1)) for node in cluster.nodes}
    measures = limits.judged_measures(cluster, terms)
    systems = {fact["name"]: fact.get("system") for fact in facts}
    measure.keep("system.json", systems, caption="limits, memory and free disk space of each node")
    measure.covered(f"{len(facts)} of {len(cluster.nodes)} nodes answered")
    if cluster.kind == "local":
        measure.covered("host limits are not judged: an embedded cluster has the shell's limits")
    silent = silent_names(cluster.nodes, {fact["node"] for fact in facts})
    limits.judge_system(facts, ranks, measures, measure, silent)
    limits.note_settings(facts, measures, measure)
    if facts:
        limits.control_strained_process(cluster, facts, ranks, measures, measure)
    if cluster.kind != "local":
        conditions.measure_conditions(cluster, terms, measure)
    limits.measure_clocks(cluster, measure)
    judge_needs(cluster, terms, measure)


def test_all_nodes_use_the_shared_folder_at_once(cluster, terms, tier, measure):
    """Each node reads what others wrote; no two create the same file; none writes or reads slowly.

    Without an agreed shared folder each node uses its temporary folder.
    """
    folder = terms.shared or ""
    if folder:
        each = {node["id"]: folder for node in cluster.nodes}
        mounts = cluster.on_each_node(storage_round.read_mount, each=each)
        cluster.shared_mounts = mounts  # the last probe compares them
        measure.keep("mounts.json", mounts, caption="what each node mounts at the shared folder")
    with storage_round.StorageRound.start(cluster, folder) as storage:
        sharing = storage.members
        if folder and len(storage.places) > 1:
            sharing = judge_sharing(storage, measure)
        measure.covered(storage.covered(sharing))
        size = storage_judge.choose_size(tier, terms, len(storage.places), storage.opened)
        use_shards(storage, sharing, size, tier, measure)
        if folder:
            saves = storage_judge.judge_room(storage, cluster.size, terms.save_gb, measure)
            if terms.save_gb:
                storage_judge.control_larger_saves(storage, saves, terms.save_gb, measure)


def judge_sharing(storage, measure):
    """Judge what nodes see of each other's files; return the nodes that share the folder."""
    members = storage.members
    apart = storage_judge.judge_exchange(storage, storage.exchange(members), measure)
    together = [id for id in members if id not in apart]
    sharing = together if len(together) > 1 else []
    storage_judge.judge_races(storage, storage.race(sharing) if sharing else {}, sharing, measure)
    storage_judge.control_sharing(storage, sharing, measure)
    return sharing


def use_shards(storage, sharing, size, tier, measure):
    """Let all nodes write and read shards at once, and judge errors and speed."""
    written = storage.work(WRITE, storage.members, size)
    sound = [id for id in written if not written[id]["error"]]
    storage.sharing = [id for id in sharing if id in sound]
    readers = storage.sharing or sound
    steps = {WRITE: written, READ: storage.work(READ, readers, size)}
    done = {**steps, SMALL: storage.work(SMALL, readers, size)}
    errors, silent = storage_round.find_failures(storage, readers, done)
    storage_judge.judge_failures(storage, errors, silent, measure)
    storage_judge.control_no_folder(storage, size, measure)
    measure.keep("storage.json", done, caption="work of every node in the folder")
    storage_judge.note_speeds(storage, SMALL, done[SMALL], measure)
    if not storage.parent or len(storage.places) < 2 or storage.cluster.kind == "local":
        return  # no two nodes compare: each has its own disk, or all have the same
    timings = storage_judge.judge_rates(storage, steps, size, measure)
    agreed = storage_judge.agreed_rates(tier, measure)
    for kind in steps:
        storage_judge.judge_together(storage, kind, steps[kind], agreed, measure)
    storage_judge.note_alone(storage, size, measure)
    if storage.compares or agreed:
        storage_judge.control_slow_node(storage, timings, size, agreed, measure)


def test_each_gpu_computes_rightly_and_as_fast_as_the_others(cluster, measure):
    """Every GPU gives right sums, the same bits and the same speed as others of its model.

    All compute and copy at once.  Slow ones run again, and then alone.  The PCIe link of each GPU
    is read under load.
    """
    alone = len(cluster.nodes) == 1 and not cluster.on_gpu
    without = {check.SLOW_GPUS, check.GEMM_HASH_DIFFERS} if alone else set()
    with closing(WorkFleet.start(cluster)) as fleet:
        measure.covered(fleet.coverage())
        sums, runs = fleet.check_sums(fleet.working), compute_controls.run_work(fleet)
        kept = describe_work(fleet, sums, runs)
        measure.keep("work.json", kept, caption="sums and rates of every accelerator")
        compute_judge.judge_errors(fleet, sums, [runs.first, runs.second, runs.alone], measure)
        compute_judge.judge_sums(fleet, sums, measure, hashes=not alone)
        if alone:
            measure.covered("accelerators are not compared: all are emulated on one node")
        else:
            compute_judge.judge_speed(fleet, runs, measure)
        compute_judge.judge_rates(fleet, runs, measure)
        compute_judge.note_launches(fleet, runs.first, measure)
        compute_controls.control_wrong_sums(fleet, sums, measure, without)
        compute_controls.control_slowed(fleet, runs, measure, without)
        if cluster.on_gpu:
            links = fleet.read_links(fleet.working)
            kept = {one.label: links.get(key) for key, one in fleet.accelerators.items()}
            measure.keep("links.json", kept, caption="PCIe link and clock of every GPU under load")
            compute_controls.judge_links(fleet, links, runs, measure)
            compute_controls.note_clocks(fleet, links, measure)
            compute_controls.control_old_link(fleet, links, runs, measure)
    if cluster.on_gpu:
        note_peer_copies(cluster, measure)


@pytest.mark.tier("standard")
def test_no_gpu_slows_down_under_load(cluster, tier, measure):
    """Every GPU is as fast at the end of long work as at its beginning, and its sums are right.

    The work takes a minute at the tier standard, and ten at the tier soak.
    """
    with closing(WorkFleet.start(cluster)) as fleet:
        measure.covered(fleet.coverage())
        parts = compute_controls.run_long(fleet, tier)
        kept = describe_parts(fleet, parts)
        measure.keep("long_work.json", kept, caption="speed of each accelerator, from start to end")
        sums = fleet.check_sums(fleet.working)
        compute_judge.judge_errors(fleet, sums, parts, measure)
        compute_controls.judge_drift(fleet, parts, measure)
        compute_judge.judge_sums(fleet, sums, measure, hashes=False)
        compute_controls.control_wrong_sums(fleet, sums, measure, {check.GEMM_HASH_DIFFERS})
        compute_controls.control_tiring(fleet, parts, measure)


def describe_work(fleet, sums, runs):
    """Describe what each accelerator computed, and how fast, as evidence."""
    return [
        {
            "gpu": one.label,
            "model": one.model,
            "build": one.build,
            "error": one.error or fleet.errors.get(key, ""),
            "sums": sums.get(key),
            "all at once": describe_speed(runs.first.get(key)),
            "again": describe_speed(runs.second.get(key)),
            "alone": describe_speed(runs.alone.get(key)),
        }
        for key, one in fleet.accelerators.items()
    ]


def describe_parts(fleet, parts):
    """Describe the rates of each accelerator in each part of the long work, as evidence."""
    return {
        one.label: [describe_speed(part.get(key)) for part in parts]
        for key, one in fleet.accelerators.items()
    }


def describe_speed(speed):
    """Describe the rates of one run; None if there are none."""
    if speed is None:
        return None
    return {**speed.typical, "launch_us": speed.launch_us, "celsius": speed.celsius}


def test_endpoints_keep_to_the_authentication(cluster, terms, measure):
    """Where a token is agreed or in use, each endpoint of Ray refuses requests without it.

    Endpoints are the GCS, raylets, dashboard agents, dashboard and Ray client.  A request without
    a token, one with a wrong token, and a harmless job without a token are tried.
    """
    client_port = endpoints.find_client_port(cluster, terms.ray_client_port)
    asked = endpoints.ask_cluster(cluster, client_port)
    mode, reason = endpoints.find_mode(asked, terms.authentication)
    measure.covered(describe_coverage(asked, mode, reason, client_port))
    caption = "endpoints of Ray, and whether each accepts a request without the token"
    kept = [{**vars(one.endpoint), **vars(one.answers)} for one in asked]
    measure.keep("endpoints.json", kept, caption=caption)
    endpoints.judge_endpoints(asked, mode, measure)
    if cluster.own_dashboard:
        job = endpoints.try_stranger_job(cluster, cluster.own_dashboard)
        endpoints.judge_stranger_job(job, cluster.own_dashboard, mode == endpoints.TOKEN, measure)
    elif mode == endpoints.TOKEN:
        measure(check.STRANGER_JOBS, None, note="the cluster has no dashboard")
    nodes = [node for node in cluster.known_nodes() if node["alive"]]
    ports = endpoints.list_ports(asked, nodes)
    listeners = endpoints.read_all_listeners(cluster, ports, nodes)
    endpoints.note_listeners(ports, listeners, measure)
    if cluster.kind != "local":
        facts = cluster.facts + cluster.read_facts(cluster.bystanders)
        endpoints.judge_public(asked, facts, listeners, measure)
    endpoints.control_endpoint(cluster, asked, mode, measure)


def describe_coverage(asked, mode, reason, client_port):
    """Describe what was tried, and what no node can see."""
    counts = Counter(one.answers.without for one in asked)
    words = {TAKEN: "accepted"}  # the others are words already
    answers = ", ".join(f"{count} {words.get(one, one)}" for one, count in counts.items())
    tried = f"{len(asked)} endpoints were tried without a token: {answers}"
    if client_port and CLIENT not in {one.endpoint.kind for one in asked}:
        tried += f"; no Ray client answers at port {client_port}"
    if mode == endpoints.TOKEN:
        return f"{tried}; a token is required ({reason})"
    if mode == endpoints.OFF:
        return (
            f"{tried}; {reason}, so anyone who reaches an endpoint can run code. Firewalls and "
            "addresses behind NAT were not tested: no node sees them"
        )
    return f"{tried}; it is not known whether a token is required"


@pytest.mark.last
def test_hosts_stay_healthy_to_the_end(cluster, terms, measure):
    """After all other probes no node has restarted, and every GPU is as healthy as before.

    What the counters of GPUs gained since the run began is judged as well.  The shared folder is
    still there.
    """
    before, now = cluster.facts, cluster.read_facts(cluster.nodes)
    at_end.judge_changes(cluster, before, now, measure)
    if terms.shared:
        started = [fact["node"] for fact in before]
        storage_round.judge_mounts(cluster, started, cluster.shared_mounts, terms.shared, measure)
        storage_round.control_mount(cluster, cluster.shared_mounts, terms.shared, measure)
    on_gpus = bool(compared_sources(cluster.kind, cluster.emulated, before))
    if on_gpus:
        measure.keep("health.json", [fact["gpu_health"] for fact in now], caption="GPUs at the end")
        at_end.judge_gpu_changes(before, now, measure)
        judge_gpu_health(now, measure)
        at_end.judge_wear(before, now, measure)
        listen(cluster, measure)
        for fact in now:
            measure.explain(inventory.find_nvml_faults(fact, True) or [])
    else:
        measure.covered("NVML is not used: accelerators are emulated, and no node has NVML")
    unchanged = [fact for fact in before if not at_end.describe_change(fact, now)]
    if not unchanged:
        return
    victim = next(fact for fact in now if fact["node"] == unchanged[-1]["node"])
    at_end.control_restarted_node(cluster, before, victim, measure)
    if on_gpus:
        controls.control_gpu(cluster, now, victim, measure, check.GPU_THAT_SICKENS)
        for control in (check.WORN_GPU, check.FALLEN_GPU, check.VANISHED_GPU):
            controls.control_gpu(cluster, before, victim, measure, control)


def listen(cluster, measure):
    """Judge the Xids that were heard since the first probe of GPUs began."""
    (heard, errors), names = cluster.hear_xids(), cluster.node_names
    others = [node["id"] for node in cluster.nodes if node["id"] not in heard]
    silent = {names[id]: errors.get(id, "the node joined later") for id in others}
    answers = {names[id]: answer for id, answer in heard.items() if id in names}
    if answers:
        least = min(answer["seconds"] for answer in answers.values())
        measure.covered(f"seatrial listened for Xids for {least:.0f} s")
        measure.keep("xids.json", answers, caption="Xids of each node, and seatrial's kills there")
    at_end.judge_xids(answers, silent, at_end.read_starts(measure), measure)
