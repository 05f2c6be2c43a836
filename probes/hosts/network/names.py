"""Judges the nodes' addresses and host names: where Ray, gloo and other nodes meet a node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from probes.acceptance.measure import Recorder
from probes.findings import finding, join_names
from probes.hosts.network.port_round import NameLookup
from probes.hosts.network.ports import blame_nodes
from reports.record import Finding

Facts = Mapping[str, Any]
UNREAD = "the node's names were not read"
FALLBACK = "127.0.0.1"  # where torch's gloo listens if the own name has no address


def judge_addresses(facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge that each node's address in Ray is one of its own, up and not of the loopback."""
    for fact in facts:
        problem, note = find_address_problem(fact)
        count = None if problem is None else int(bool(problem))
        measure("address_elsewhere", count, on=fact["name"], note=note)
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
    interfaces, address = names.get("interfaces"), _parse_address(names.get("ray_address"))
    if interfaces is None:
        return None, UNREAD
    if address is None:
        return None, f"Ray's address is {names.get('ray_address')!r}, which is no IP address"
    if address.is_loopback:
        return f"{address} is the loopback: other nodes reach themselves there", ""
    holders = [name for name in interfaces if address in _addresses_of(interfaces[name])]
    if not holders:
        has = [f"{name} {text}" for name, text in _own_addresses(names)]
        return f"{address} is on no interface of the node, which has {join_names(has)}", ""
    states = [interfaces[name]["up"] for name in holders]
    if any(states):
        return "", ""
    if None in states:
        return None, f"the state of {join_names(holders)} could not be read"
    return f"{address} is on {join_names(holders)}, which is down", ""


def _parse_address(text: Any) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(str(text))
    except ValueError:
        return None


def _addresses_of(interface: Facts) -> list[IPv4Address | IPv6Address | None]:
    return [_parse_address(text) for text in interface["addresses"]]


def _own_addresses(names: Facts) -> list[tuple[str, str]]:
    """List (interface, address) of a node, without loopback and link-local addresses."""
    return [
        (name, text)
        for name, interface in (names.get("interfaces") or {}).items()
        for text in interface["addresses"]
        if (address := _parse_address(text))
        and not address.is_loopback
        and not address.is_link_local
    ]


def judge_own_names(facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge where gloo listens on each node: not on the loopback, unless it is given an interface.

    A name on the loopback with an interface is sound, and only noted.
    """
    groups: dict[str, list[Facts]] = defaultdict(list)
    for fact in facts:
        names = fact.get("names") or {}
        own = names.get("own")
        bound = None if own is None else own["bindable"] or FALLBACK
        is_loopback = bound is not None and bool((a := _parse_address(bound)) and a.is_loopback)
        given = names.get("gloo_interface", "")
        count = None if bound is None and not given else int(is_loopback and not given)
        note = f"the name {names.get('host', '')} was not resolved in time" if names else UNREAD
        measure("loopback_names", count, on=fact["name"], note=note if count is None else "")
        if count and bound:
            groups[_name_text(names, bound)].append(fact)
        elif is_loopback:
            measure.note("own_name_on_loopback", f"{bound}, gloo has {given}", on=fact["name"])
    measure.explain(_loopback_finding(text, group) for text, group in groups.items())


def _name_text(names: Facts, bound: str) -> str:
    if names["own"]["bindable"]:
        return f"leads to {bound}"
    return f"leads to no address of the node ({_no_address_text(names['own'])})"


def _no_address_text(own: Facts) -> str:
    return own["error"] or f"only to {join_names(own['addresses'])}"


def _loopback_finding(text: str, group: Sequence[Facts]) -> Finding:
    nodes = [fact["name"] for fact in group]
    names = group[0]["names"]
    own = f"{names['ray_address']} {names['host']}"
    statement = (
        f"The own name of {join_names(nodes)} {text}, and GLOO_SOCKET_IFNAME names no interface: "
        "gloo listens on the loopback"
    )
    remedy = (
        f"Give the own name of {join_names(nodes)} its own address in /etc/hosts there (on "
        f"{nodes[0]} the line `{own}`). Remove the name from lines of 127.*. Or set "
        "GLOO_SOCKET_IFNAME before `ray start`."
    )
    known = {"host": names["host"], "ray_address": names["ray_address"]}
    return finding("HOST-LOOPBACK-NAME", statement, nodes, remedy=remedy, names=known)


def judge_lookups(
    lookups: Sequence[NameLookup], facts: Sequence[Facts], measure: Recorder, *, agreed: bool
) -> None:
    """Judge that each host name leads to an address of that node; only note it if not `agreed`."""
    problems = find_name_problems(lookups, facts)
    failed = [one for one, problem in problems if problem]
    unknown = [one for one, problem in problems if problem is None]
    nodes = {fact["node"]: fact["name"] for fact in facts}
    if not agreed:
        text = f"{len(problems) - len(failed) - len(unknown)} of {len(problems)}"
        measure.note("host_names_resolved", text)
        return
    count = None if not problems or (unknown and not failed) else len(failed)
    reasons = list(dict.fromkeys(_why_unknown(one, nodes) for one in unknown))
    note = join_names(reasons, 3) if problems else "no name was looked up"
    measure("names_unresolved", count, note=note)
    measure.explain(find_unresolved(problems, nodes))


def _why_unknown(one: NameLookup, nodes: Mapping[str, str]) -> str:
    source, target = (nodes.get(id, id) for id in (one.source, one.target))
    if one.answer is None:
        return f"{source} gives no answer for {one.name}"
    return f"the addresses of {source} or {target} were not read"


def find_name_problems(
    lookups: Sequence[NameLookup], facts: Sequence[Facts]
) -> list[tuple[NameLookup, str | None]]:
    """Find what is wrong with each lookup: "" for nothing, None if it is not known."""
    own: dict[str, set[Any]] = {}
    for fact in facts:
        names = fact.get("names") or {}
        if names.get("interfaces") is not None:
            own[fact["node"]] = {_parse_address(text) for _, text in _own_addresses(names)}
    return [(one, _name_problem(one, own)) for one in lookups]


def _name_problem(one: NameLookup, own: Mapping[str, set[Any]]) -> str | None:
    """Find what is wrong with a lookup; `own` holds the addresses of each node."""
    if one.answer is None:
        return None
    addresses = one.answer["addresses"]
    if not addresses:
        return str(one.answer["error"] or "no address")
    if one.target not in own or one.source not in own:
        return None
    # An address that both have, as that of a container bridge, leads a node to itself.
    theirs = own[one.target] - own[one.source]
    if any(_parse_address(text) in theirs for text in addresses):
        return ""
    return f"it leads to {join_names(addresses)}"


def find_unresolved(
    problems: Sequence[tuple[NameLookup, str | None]], nodes: Mapping[str, str]
) -> list[Finding]:
    """Explain the names that do not lead to their node: by name, by node that asks, or by pair."""
    known = [(one, problem) for one, problem in problems if problem is not None]
    failed = {(one.source, one.target): (one, problem) for one, problem in known if problem}
    blame = blame_nodes([(one.source, one.target) for one, _ in known], list(failed))
    found = []
    for target in blame.unreached:
        one, problem = next(row for link, row in failed.items() if link[1] == target)
        text = f"The name {one.name} does not lead to {nodes.get(target)} on other nodes: {problem}"
        suspects = [nodes.get(target, target)]
        found.append(finding("HOST-NAMES", text, suspects, names={"host": one.name}))
    for source in blame.unreaching:
        name = nodes.get(source, source)
        text = f"On {name}, the names of other nodes do not lead to them"
        found.append(finding("HOST-NAMES", text, [name]))
    for link in blame.pairs:
        one, problem = failed[link]
        text = f"On {nodes.get(link[0])}, the name {one.name} does not lead there: {problem}"
        suspects = [nodes.get(id, id) for id in link]
        names = {"host": one.name, "peer": suspects[1]}
        found.append(finding("HOST-NAMES", text, suspects, names=names))
    return found
