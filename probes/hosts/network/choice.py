"""Judges the interface that NCCL picks by itself for its start: does it lead to other nodes?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from probes.acceptance.measure import Recorder
from probes.environment.values import NameList, name_list
from probes.findings import finding

Facts = Mapping[str, Any]
Address = IPv4Address | IPv6Address
IPV4 = 4
PREFERRED = "ib"  # NCCL takes such an interface before others (src/misc/socket.cc)
AVOIDED = NameList(("docker", "lo", "virbr"), exclude=True)  # only where there is no other


def judge_choice(facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge on each node the first interface that NCCL finds, with the worker's variables.

    It leads to no other node if its address is link-local or of the loopback, or if another node
    has that address too, as a bridge for containers does.
    """
    choices = {fact["name"]: find_choice(fact) for fact in facts}
    used = Counter(choice[1] for choice in choices.values() if choice)
    for name, choice in choices.items():
        problem = _find_problem(choice[1], used) if choice else None
        count = None if problem is None else int(bool(problem))
        measure("nccl_interface", count, on=name, note="no interface with an address was read")
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
    addresses: dict[str, Address] = {}
    for name, address in entries:
        addresses.setdefault(name, address)
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
    if used[address] > 1:
        return "another node has this address too"
    return ""
