"""Reads where this node's own name leads, and which addresses its interfaces have.

Without GLOO_SOCKET_IFNAME, torch's gloo listens on the first address of the host's own name that
can be bound, and on the loopback if there is none.  The sources are createDefaultDevice in torch's
ProcessGroupGloo.cpp, and lookupAddrForHostname in gloo's tcp/device.cc.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

# glibc asks each name server twice, for 5 s each time (resolv.conf(5)).
LOOKUP_SECONDS = 10.0
RETRY_SECONDS = 1.0  # pause after "temporary failure": one lost datagram must accuse no name
SIOCGIFCONF = 0x8912  # linux/sockios.h: the IPv4 addresses of all interfaces
IFREQ_BYTES = 40  # struct ifreq on 64-bit Linux: a name of 16 bytes, and a union of 24
MAX_ADDRESSES = 4096  # far more than any node has
IFF_UP = 0x1  # linux/if.h
# torch ignores a shorter GLOO_SOCKET_IFNAME: ProcessGroupGloo.cpp asks for strlen > 1.
LEAST_NAME = 2


def read_names(host: str, address: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Read {"host", "ray_address", "gloo_interface", "nccl_interfaces", "own", "interfaces"}.

    `host` is this node's own name, and `address` its address in Ray.  `own` is as in `look_up`, or
    None if there was no answer in time.  `interfaces` is as in `read_addresses`.
    """
    interface = environment.get("GLOO_SOCKET_IFNAME", "")
    return {
        "host": host,
        "ray_address": address,
        "gloo_interface": interface if len(interface) >= LEAST_NAME else "",
        "nccl_interfaces": environment.get("NCCL_SOCKET_IFNAME", ""),
        "own": look_up_all([host])[host],
        "interfaces": read_addresses(),
    }


def look_up(name: str) -> dict[str, Any]:
    """Resolve a name to {"addresses", "bindable", "error"}.

    `addresses` are in the order of getaddrinfo(3).  `bindable` is the first that this host can
    bind, or "".  `error` is why there are none.
    """
    for pause in (RETRY_SECONDS, 0.0):
        try:
            rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN and pause:
                time.sleep(pause)
                continue
            return {"addresses": [], "bindable": "", "error": error.strerror or str(error)}
        except (OSError, ValueError) as error:  # ValueError: a label that is too long
            return {"addresses": [], "bindable": "", "error": str(error)}
        addresses = dict.fromkeys(_address_of(row) for row in rows)
        bindable = next((_address_of(row) for row in rows if _can_bind(row)), "")
        return {"addresses": list(addresses), "bindable": bindable, "error": ""}
    raise AssertionError("the last try returns")


def _address_of(row: tuple[Any, ...]) -> str:
    return str(row[4][0]).partition("%")[0]  # fe80::1%eth0


def _can_bind(row: tuple[Any, ...]) -> bool:
    family, kind, protocol, _, target = row
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(target)
    except OSError:
        return False
    return True


def look_up_all(
    names: Collection[str],
    seconds: float = LOOKUP_SECONDS,
    look_up_one: Callable[[str], dict[str, Any]] = look_up,
) -> dict[str, dict[str, Any] | None]:
    """Resolve names at the same time; a name without an answer within `seconds` is None.

    A lookup cannot be cancelled, so its thread may outlive this call.
    """
    answers: dict[str, dict[str, Any] | None] = dict.fromkeys(names)
    found: dict[str, dict[str, Any]] = {}

    def keep_answer(name: str) -> None:
        found[name] = look_up_one(name)

    threads = [threading.Thread(target=keep_answer, args=(name,)) for name in answers]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: found.get(name) for name in answers}


def read_addresses(
    sysfs: str = "/sys/class/net", inet6: str = "/proc/net/if_inet6"
) -> dict[str, dict[str, Any]] | None:
    """Read {interface: {"up", "addresses"}}, secondary addresses too; None if unreadable.

    `up` is None where the interface's flags cannot be read.
    """
    try:
        pairs = [*_ipv4_addresses(), *_ipv6_addresses(inet6)]
    except OSError:
        return None
    found: dict[str, dict[str, Any]] = {}
    for name, address in pairs:
        entry = found.setdefault(name, {"up": _is_up(Path(sysfs, name, "flags")), "addresses": []})
        entry["addresses"].append(address)
    return found


def _ipv4_addresses() -> list[tuple[str, str]]:
    """Ask the kernel for (interface, address); raises OSError."""
    buffer = array.array("B", bytes(MAX_ADDRESSES * IFREQ_BYTES))
    request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        length, _ = struct.unpack("iL", fcntl.ioctl(probe.fileno(), SIOCGIFCONF, request))
    return parse_ifconf(buffer.tobytes()[:length])


def parse_ifconf(reply: bytes) -> list[tuple[str, str]]:
    """Parse an array of struct ifreq (netdevice(7)); `eth0:1` is an address of eth0."""
    rows = [reply[at : at + IFREQ_BYTES] for at in range(0, len(reply), IFREQ_BYTES)]
    return [
        (row[:16].partition(b"\0")[0].decode(errors="replace").partition(":")[0],
         socket.inet_ntoa(row[20:24]))
        for row in rows
    ]  # fmt: skip


def _ipv6_addresses(path: str) -> list[tuple[str, str]]:
    """Read (interface, address) from /proc/net/if_inet6; empty on a kernel without IPv6."""
    try:
        return parse_inet6(Path(path).read_text())
    except FileNotFoundError:
        return []


def parse_inet6(text: str) -> list[tuple[str, str]]:
    """Parse /proc/net/if_inet6: the address is first and the interface last."""
    rows = [line.split() for line in text.splitlines()]
    return [(row[-1], str(IPv6Address(bytes.fromhex(row[0])))) for row in rows if len(row) == 6]


def _is_up(path: Path) -> bool | None:
    try:
        return bool(int(path.read_text(), 16) & IFF_UP)
    except (OSError, ValueError):
        return None
