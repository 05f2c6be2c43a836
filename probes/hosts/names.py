"""Judges names and ports: whether nodes reach each other as Ray and torch will."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from probes.check.judging import ask_victim, plant
from probes.check.recorder import Recorder, Trial
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import TriedPort, read_names
from probes.environment.checks import NameList, name_list
from probes.findings import finding, join_names
from probes.hosts import criterion as check
from probes.hosts.gpu_health import AllFacts, Facts
from probes.hosts.port_round import GCS, JOB, RAY_PORTS, WORKER, Connection, NameLookup, PortRound
from reference_trainer.rank_environment import changed_variables
from reports.groups import group_pairs
from reports.record import Finding
from reports.sanitize import known_address

Names = Mapping[str, str]  # of nodes, by id
Connections = Sequence[Connection]
Problems = Sequence[tuple[NameLookup, str | None]]
Address = IPv4Address | IPv6Address
IPV4 = 4
PREFERRED = "ib"  # NCCL takes such an interface before others (src/misc/socket.cc)
AVOIDED = NameList(("docker", "lo", "virbr"), exclude=True)  # only where there is no other


def judge_choice(facts: AllFacts, measure: Recorder) -> None:
    """Judge on each node the first interface that NCCL finds, with the worker's variables.

    It leads to no other node if its address is link-local or of the loopback, or if another node
    has that address too, as a bridge for containers does.
    """
    choices = {fact["name"]: find_choice(fact) for fact in facts}
    used = Counter(choice[1] for choice in choices.values() if choice)
    for name, choice in choices.items():
        problem = _find_problem(choice[1], used) if choice else None
        count = None if problem is None else int(bool(problem))
        note = "the node reported no interface with an address"
        measure(check.NCCL_INTERFACE, count, on=name, note=note)
        if choice and problem:
            statement = (
                f"NCCL starts over {choice[0]} ({choice[1]}) on {name}: {problem}. Expected: an "
                "interface that leads to all nodes"
            )
            names = {"interface": choice[0], "address": choice[1]}
            measure.explain(finding("HOST-NCCL-INTERFACE", statement, [name], names=names))


def find_choice(fact: Facts) -> tuple[str, Address] | None:
    """Find (interface, address) that NCCL takes first; None where nothing was read.

    An interface needs an address, and must be up.  Interfaces of IPv4 come first.  That a host
    which takes part in routing has its address on `lo` is sound.
    """
    names = fact.get("names") or {}
    entries = [
        (name, ip_address(text))
        for name, one in (names.get("interfaces") or {}).items()
        if one["up"] is not False
        for text in one["addresses"]
    ]
    entries = [(n, a) for n, a in entries if a.version == IPV4 or not a.is_link_local]
    entries.sort(key=lambda entry: (entry[1].version, entry[1].is_loopback))
    addresses = {name: found[0] for name, found in group_pairs(entries).items()}
    wanted = name_list(names.get("nccl_interfaces", ""))
    orders = [wanted] if wanted else [NameList((PREFERRED,)), AVOIDED, NameList(("",))]
    for order in orders:
        for name in order.admitted(addresses):
            return name, addresses[name]
    return None


def _find_problem(address: Address, used: Mapping[Address, int]) -> str:
    if address.is_loopback:
        return "it is the loopback"
    if address.is_link_local:
        return "its address is link-local"
    return "another node has this address too" if used[address] > 1 else ""


Link = tuple[str, str]  # (source, target)
SOURCE, TARGET = 0, 1  # positions in a Link
LEAST_TRIED = 2  # of one failing connection, neither end is more likely to be the cause
SUBJECTS = {kind: f"{kind} ports" for kind in RAY_PORTS} | {GCS: "GCS port", JOB: "job ports"}
KIND_TEXTS = {kind: f"{kind} port" for kind in RAY_PORTS}
KIND_TEXTS |= {WORKER: "port of a Ray worker", JOB: "port that the kernel picked for a job"}
# What is closed, by the field of Blame.
UNREACHED, UNREACHING, PAIRS = "unreached", "unreaching", "pairs"
CLOSED = {
    UNREACHED: "No other node connects to {nodes}: {ports} ({problem})",
    UNREACHING: "{nodes} cannot connect to other nodes: {kinds} ({problem})",
    PAIRS: "{source} does not connect to {target}: {ports} ({problem})",
}


@dataclass(frozen=True)
class Blame:
    """What explains failing links: nodes that none reaches, nodes that reach none, and pairs."""

    unreached: list[str]
    unreaching: list[str]
    pairs: list[Link]


def blame_nodes(tried: Collection[Link], failed: Collection[Link]) -> Blame:
    """Explain the failing links by few nodes, and by pairs where no node is the cause.

    A node is blamed if all its tried links of one direction fail, and at least two of them have no
    other explanation.  The node that explains most comes first.
    """
    total = Counter(end for link in tried for end in _ends_of(link))
    failing = Counter(end for link in failed for end in _ends_of(link))
    whole = [end for end, count in failing.items() if count == total[end]]
    links = group_pairs((end, link) for link in failed for end in _ends_of(link))
    left, blamed = dict.fromkeys(failed), list[tuple[int, str]]()
    while whole:
        worst = max(whole, key=lambda end: (failing[end], end))
        if failing[worst] < LEAST_TRIED:
            break
        blamed.append(worst)
        for link in links[worst]:
            if link in left:
                del left[link]
                failing.subtract(_ends_of(link))
    unreaching, unreached = (
        sorted(node for way, node in blamed if way == end) for end in (SOURCE, TARGET)
    )
    return Blame(unreached, unreaching, list(left))


def _ends_of(link: Link) -> list[tuple[int, str]]:
    return [(SOURCE, link[SOURCE]), (TARGET, link[TARGET])]


def judge_ports(connections: Connections, names: Names, measure: Recorder) -> None:
    """Judge every tried connection, and explain those that failed.  `names` are by node id."""
    for kind in (*RAY_PORTS, JOB):
        value, note = count_closed(one for one in connections if one.kind == kind)
        name = check.CLOSED_JOB_PORTS if kind == JOB else check.CLOSED_PORTS
        measure(name, value, on=SUBJECTS[kind], note=note)
    measure.explain(find_closed(connections, names))


def count_closed(connections: Iterable[Connection]) -> tuple[int | None, str]:
    """Count the connections that failed; return (None, reason) if none did and one is unknown."""
    rows = list(connections)
    failed = sum(bool(one.problem) for one in rows)
    unknown = list(dict.fromkeys(one.unknown for one in rows if one.problem is None))
    if not rows:
        return None, "no connection was tried"
    return (None if unknown and not failed else failed), join_names(unknown, 3)


def find_closed(connections: Connections, names: Names) -> list[Finding]:
    """Explain the connections that failed: one finding for the nodes with the same ports."""
    kinds: dict[tuple[str, Any], list[str]] = defaultdict(list)  # by way, and node or link
    for kind in (*RAY_PORTS, JOB):
        tried = [one for one in connections if one.kind == kind and one.problem is not None]
        blame = blame_nodes([one.link for one in tried], [one.link for one in tried if one.problem])
        for way in CLOSED:
            for subject in getattr(blame, way):
                kinds[way, subject].append(kind)
    nodes = (((way, tuple(own)), id) for (way, id), own in kinds.items() if way != PAIRS)
    rows = [(way, own, tuple(ids)) for (way, own), ids in group_pairs(nodes).items()]
    rows += [(way, tuple(own), link) for (way, link), own in kinds.items() if way == PAIRS]
    return [explain_closed(way, own, ids, connections, names) for way, own, ids in rows]


def explain_closed(
    way: str, kinds: Sequence[str], ids: Sequence[str], connections: Connections, names: Names
) -> Finding:
    """Explain nodes that no other reaches, or that reach no other, or one link between two."""
    failed = [one for one in connections if one.kind in kinds and one.problem]
    if way == PAIRS:
        failed = [one for one in failed if one.link == ids]
    else:
        end = "target" if way == UNREACHED else "source"
        failed = [one for one in failed if getattr(one, end) in ids]
    who = [names.get(id, "Ray's head") for id in ids]
    text = CLOSED[way].format(
        nodes=join_names(who),
        source=who[0],
        target=who[-1],
        kinds=", ".join(KIND_TEXTS[kind] for kind in kinds),
        ports=", ".join(KIND_TEXTS[kind] + _port_text(kind, failed) for kind in kinds),
        problem=Counter(one.problem for one in failed).most_common(1)[0][0],
    )
    first = next((one for one in failed if ids[0] in (one.source, one.target)), failed[0])
    target, source = (names.get(end) for end in (first.target, first.source))
    known = {"node": target, "peer": source, "port": first.port}
    return finding("HOST-PORT-CLOSED", text, who, names=known)


def _port_text(kind: str, rows: Sequence[Connection]) -> str:
    numbers = {one.port for one in rows if one.kind == kind and one.port}
    return f" {min(numbers)}" if len(numbers) == 1 else ""


UNREAD = "the node did not report its host name and addresses"
LOCALHOST = "localhost"  # a name that leads to no other node, for a control
LOOPBACK = "127.0.0.1"  # where torch's gloo listens if the own name has no address


def judge_addresses(facts: AllFacts, measure: Recorder) -> None:
    """Judge that each node's address in Ray is one of its own, up and not of the loopback."""
    for fact in facts:
        problem, note = find_address_problem(fact)
        count = None if problem is None else int(bool(problem))
        measure(check.ADDRESS_ELSEWHERE, count, on=fact["name"], note=note)
        if problem:
            text = f"{fact['name']}: Ray's address {problem}"
            names = {"ray_address": (fact.get("names") or {}).get("ray_address")}
            measure.explain(finding("HOST-ADDRESS", text, [fact["name"]], names=names))


def find_address_problem(fact: Facts) -> tuple[str | None, str]:
    """Find what is wrong with a node's address in Ray, "" for nothing; (None, reason) if unknown.

    An address on the interface `lo` is sound if it is not of the loopback's network: hosts that
    take part in routing have theirs there.
    """
    names = fact.get("names") or {}
    interfaces, address = names.get("interfaces"), known_address(names.get("ray_address"))
    if interfaces is None:
        return None, UNREAD
    if address is None:
        given = names.get("ray_address") or "the address is missing"
        return None, f"Ray reports no IP address for the node: {given}"
    if address.is_loopback:
        return f"{address} is the loopback: a node that connects to it reaches itself", ""
    holders = [
        name for name, one in interfaces.items() if address in map(known_address, one["addresses"])
    ]
    if not holders:
        has = [f"{name} {text}" for name, text in _own_addresses(names)] or ["no address"]
        return f"{address} is on no interface of the node. The node has {join_names(has)}", ""
    states = [interfaces[name]["up"] for name in holders]
    if any(states):
        return "", ""
    if None in states:
        return None, f"the state of {join_names(holders)} could not be read"
    return f"{address} is on {join_names(holders)}, which is down", ""


def _own_addresses(names: Facts) -> list[tuple[str, str]]:
    """List (interface, address) of a node, without loopback and link-local addresses."""
    return [
        (name, text)
        for name, interface in (names.get("interfaces") or {}).items()
        for text in interface["addresses"]
        if (address := known_address(text))
        and not address.is_loopback
        and not address.is_link_local
    ]


def judge_own_names(facts: AllFacts, measure: Recorder) -> None:
    """Judge where gloo listens on each node: not on the loopback, unless it is given an interface.

    A name on the loopback with an interface is sound, and only noted.
    """
    groups: dict[str, list[Facts]] = defaultdict(list)
    for fact in facts:
        names = fact.get("names") or {}
        own = names.get("own")
        bound = None if own is None else own["bindable"] or LOOPBACK
        is_loopback = bound is not None and bool((a := known_address(bound)) and a.is_loopback)
        given = names.get("gloo_interface", "")
        count = None if bound is None and not given else int(is_loopback and not given)
        note = f"the name {names.get('host', '')} was not resolved in time" if names else UNREAD
        measure(check.LOOPBACK_NAMES, count, on=fact["name"], note=note if count is None else "")
        if count and bound:
            groups[_name_text(names, bound)].append(fact)
        elif is_loopback:
            measure.note("own_name_on_loopback", f"{bound}, gloo uses {given}", on=fact["name"])
    measure.explain(_loopback_finding(text, group) for text, group in groups.items())


def _name_text(names: Facts, bound: str) -> str:
    own = names["own"]
    if own["bindable"]:
        return f"resolves to {bound}"
    reason = own["error"] or f"only to {join_names(own['addresses'])}"
    return f"resolves to no address of the node ({reason})"


def _loopback_finding(text: str, group: AllFacts) -> Finding:
    nodes = [fact["name"] for fact in group]
    names = group[0]["names"]
    own = f"{names['ray_address']} {names['host']}"
    statement = (
        f"The host name of {join_names(nodes)} {text}, and GLOO_SOCKET_IFNAME names no interface: "
        "gloo listens on the loopback"
    )
    remedy = (
        f"Add the host name, with the node's own address, to /etc/hosts of {join_names(nodes)} (on "
        f"{nodes[0]} the line `{own}`). Remove the name from lines of 127.*. Or set "
        "GLOO_SOCKET_IFNAME before `ray start`."
    )
    known = {"host": names["host"], "ray_address": names["ray_address"]}
    return finding("HOST-LOOPBACK-NAME", statement, nodes, remedy=remedy, names=known)


def judge_lookups(
    lookups: Sequence[NameLookup], facts: AllFacts, measure: Recorder, *, agreed: bool
) -> None:
    """Judge that host names resolve to addresses of their node; only note it if not `agreed`."""
    own = {
        fact["node"]: {known_address(text) for _, text in _own_addresses(fact["names"])}
        for fact in facts
        if (fact.get("names") or {}).get("interfaces") is not None
    }
    problems = [(one, _name_problem(one, own)) for one in lookups]
    failed = sum(bool(problem) for _, problem in problems)
    unknown = [one for one, problem in problems if problem is None]
    nodes = {fact["node"]: fact["name"] for fact in facts}
    if not agreed:
        text = f"{len(problems) - failed - len(unknown)} of {len(problems)}"
        measure.note("host_names_resolved", text)
        return
    count = None if not problems or (unknown and not failed) else failed
    reasons = dict.fromkeys(_why_unknown(one, nodes) for one in unknown)
    note = join_names(reasons, 3) if problems else "no name was looked up"
    measure(check.NAMES_UNRESOLVED, count, note=note)
    measure.explain(find_unresolved(problems, nodes))


def _why_unknown(one: NameLookup, nodes: Mapping[str, str]) -> str:
    source, target = (nodes.get(id, id) for id in (one.source, one.target))
    if one.answer is None:
        return f"no answer from {source} about the host name {one.name}"
    return f"the addresses of {source} or {target} were not read"


def _name_problem(one: NameLookup, own: Mapping[str, set[Any]]) -> str | None:
    """Find what is wrong with a lookup: "" for nothing, None if it is not known.

    `own` holds the addresses of each node.
    """
    if one.answer is None:
        return None
    addresses = one.answer["addresses"]
    if not addresses:
        return str(one.answer["error"] or "no address")
    if one.target not in own or one.source not in own:
        return None
    # An address that both have, as that of a container bridge, leads a node to itself.
    theirs = own[one.target] - own[one.source]
    if any(known_address(text) in theirs for text in addresses):
        return ""
    return f"it resolves to {join_names(addresses)}"


def find_unresolved(problems: Problems, nodes: Names) -> list[Finding]:
    """Explain names that do not resolve to their node: by name, by node that asks, or by pair."""
    known = [(one, problem) for one, problem in problems if problem is not None]
    failed = {one.link: (one, problem) for one, problem in known if problem}
    blame = blame_nodes([one.link for one, _ in known], list(failed))
    found = []

    def explain(text: str, ids: Sequence[str], **names: object) -> None:
        found.append(finding("HOST-NAMES", text, [nodes.get(id, id) for id in ids], names=names))

    for target in blame.unreached:
        one, problem = next(row for link, row in failed.items() if link[1] == target)
        text = f"The host name {one.name} does not resolve to {nodes.get(target)} on other nodes"
        explain(f"{text}: {problem}", [target], host=one.name)
    for source in blame.unreaching:
        name = nodes.get(source, source)
        text = f"On {name}, the host names of other nodes do not resolve to their addresses"
        explain(text, [source])
    for link in blame.pairs:
        one, problem = failed[link]
        asks, owner = (nodes.get(id) for id in link)
        text = f"On {asks}, the host name {one.name} does not resolve to {owner}: {problem}"
        explain(text, link, host=one.name, peer=nodes.get(link[1], link[1]))
    return found


def read_loopback_names() -> dict[str, Any]:
    """Read the names of this node as if it was called localhost, and Ray had 127.0.0.1 for it.

    No interface is chosen for gloo, and the loopback for NCCL.
    """
    # Only for a while: Ray uses this worker again.
    with changed_variables({"GLOO_SOCKET_IFNAME": None, "NCCL_SOCKET_IFNAME": "=lo"}):
        return read_names(LOCALHOST, LOOPBACK, os.environ)


def control_loopback(cluster: Cluster, facts: AllFacts, measure: Recorder) -> None:
    """Check that a node is detected whose address, own name or interface is the loopback's."""
    victim = facts[-1]
    answer, _ = ask_victim(cluster, victim, read_loopback_names)
    name, doctored = victim["name"], [{**victim, "names": answer}]
    own_name = f"the host name of {name} is {LOCALHOST}, and gloo has no interface set"
    interface = f"NCCL_SOCKET_IFNAME is `=lo` in a worker on {name}"
    unable = f"{name} does not answer" if answer is None else ""
    for control, fault, judge in (
        (check.LOOPBACK_ADDRESS, f"Ray's address of {name} is {LOOPBACK}", judge_addresses),
        (check.LOOPBACK_NAME, own_name, judge_own_names),
        (check.LOOPBACK_INTERFACE, interface, judge_choice),
    ):
        plant(measure, control, fault, partial(judge, doctored), unable=unable)


def control_names(
    ports: PortRound, facts: AllFacts, peers: Mapping[str, list[str]], measure: Recorder
) -> None:
    """Check that a node is detected that finds itself by the names of others."""
    victim = list(ports.nodes)[-1]
    lookups: list[NameLookup] = ports.look_up_names({victim: peers[victim]}, LOCALHOST)
    fault = f"{ports.name(victim)} looks up {LOCALHOST} instead of the other nodes"
    plant(measure, check.OTHER_NAME, fault, partial(judge_lookups, lookups, facts, agreed=True))


def control_ports(ports: PortRound, planned: Connections, names: Names, measure: Recorder) -> None:
    """Check that closed ports of Ray are detected, and a listener that is not the right one."""
    victim = list(ports.nodes)[-1]
    name, address = ports.name(victim), ports.nodes[victim]["address"]
    closed: Any = ports.call_each("plant_fault", {victim: (address,)}).get(victim)

    def close_port(one: Connection, endpoint: TriedPort) -> TriedPort:
        return endpoint if one.kind == JOB else replace(endpoint, address=address, port=closed)

    chosen = [one for one in planned if victim == (one.source if one.kind == GCS else one.target)]
    results = [] if closed is None else ports.connect(chosen, close_port)

    def judge(is_job: bool, trial: Trial) -> bool:
        judge_ports(results, names, trial)
        return all(one.problem for one in results if (one.kind == JOB) == is_job)

    faults = {
        check.CLOSED_PORT: f"connections to {name} use ports on which nothing listens",
        check.OTHER_LISTENER: f"the listener of {name} answers with a different identity",
    }
    unable = f"{name} does not answer" if closed is None else ""
    for control, fault in faults.items():
        is_job = control == check.OTHER_LISTENER
        plant(measure, control, fault, partial(judge, is_job), unable=unable)
