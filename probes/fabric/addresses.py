"""Finds addresses that two machines have: by inventory, and by who answers for them (ARP)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.findings import join_names

COMPLETE, ETHERNET = 0x2, 0x1  # include/uapi/linux/if_arp.h: ATF_COM, ARPHRD_ETHER
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
NO_MAC = "00:00:00:00:00:00"


@dataclass(frozen=True)
class DuplicateAddress:
    """An address that a second machine also has.

    `nodes` are the nodes of the cluster that have it.
    """

    address: str
    nodes: list[str]
    message: str


def read_arp(path: str = "/proc/net/arp") -> dict[str, str] | None:
    """Read the hardware address that answered for each neighbour's address; None if unreadable."""
    try:
        return parse_arp(Path(path).read_text())
    except OSError:
        return None


def parse_arp(text: str) -> dict[str, str]:
    """Parse /proc/net/arp (proc(5)): complete entries of Ethernet, by IPv4 address.

    InfiniBand's entries are left out: the file cuts their 20-byte addresses.
    """
    rows = [line.split() for line in text.splitlines()[1:]]
    return {
        row[0]: row[3].lower()
        for row in rows
        if len(row) >= 4
        and int(row[1], 16) == ETHERNET
        and int(row[2], 16) & COMPLETE
        and MAC.fullmatch(row[3].lower())
        and row[3] != NO_MAC
    }


def find_duplicates(
    ports: Mapping[str, Mapping[str, Any]],
    macs: Mapping[str, Sequence[str]],
    seen: Mapping[str, Mapping[str, str] | None],
) -> list[DuplicateAddress]:
    """Find addresses that two machines have.

    All arguments are by node.  `ports` holds the `address` and `mac` of its fabric port.  `macs`
    holds those of all its interfaces.  `seen` holds its neighbours (see `read_arp`).
    """
    found = _by_inventory(ports)
    told = {one.address for one in found}
    return [*found, *(one for one in _by_neighbours(ports, macs, seen) if one.address not in told)]


def _by_inventory(ports: Mapping[str, Mapping[str, Any]]) -> list[DuplicateAddress]:
    """Find nodes that report the same address; raylets of one machine share one port."""
    owners: dict[str, dict[str, list[str]]] = {}
    for node, port in ports.items():
        if port["address"] and port["mac"]:
            owners.setdefault(port["address"], {}).setdefault(port["mac"], []).append(node)
    found = []
    for address, by_mac in owners.items():
        if len(by_mac) > 1:
            nodes = [node for names in by_mac.values() for node in names]
            message = f"{join_names(nodes)} have the same address {address}"
            found.append(DuplicateAddress(address, nodes, message))
    return found


def _by_neighbours(
    ports: Mapping[str, Mapping[str, Any]],
    macs: Mapping[str, Sequence[str]],
    seen: Mapping[str, Mapping[str, str] | None],
) -> list[DuplicateAddress]:
    """Find addresses that another machine answers for.

    Any port of the node may answer for its address (Linux does by default).  A router that answers
    for other machines answers for many addresses: on such a network the result is empty.
    """
    owner = {port["address"]: node for node, port in ports.items() if port["address"]}
    foreign: dict[str, dict[str, list[str]]] = {}  # hardware address -> address -> observers
    right = wrong = 0
    for observer, neighbours in seen.items():
        for address, mac in (neighbours or {}).items():
            node = owner.get(address)
            if node is None or node == observer:
                continue
            if mac in macs[node]:
                right += 1
            else:
                wrong += 1
                foreign.setdefault(mac, {}).setdefault(address, []).append(observer)
    if wrong > right:
        return []
    found = []
    for mac, addresses in foreign.items():
        others = [node for node, known in macs.items() if mac in known]
        if len(addresses) > 1 and not others:
            continue
        for address, observers in addresses.items():
            who = join_names(others) or "a machine that is not in this cluster"
            message = (
                f"{who} ({mac}) answers ARP requests of {join_names(observers)} for {address}, "
                f"the address of {owner[address]}"
            )
            found.append(DuplicateAddress(address, [owner[address], *others], message))
    return found
