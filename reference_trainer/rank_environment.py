"""Reads and sets the environment of a rank's process. Needs no torch: its import takes seconds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Mapping

LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface

LEADING = "=the one that leads to rank 0"  # for NCCL_SOCKET_IFNAME: each rank finds its own


class LaunchError(RuntimeError):
    """Raised when the process was not started as a rank of a job; the message gives the remedy."""


def read_environment() -> dict[str, int]:
    """Read the numbers among LAUNCH_VARIABLES.

    Raises LaunchError naming what is missing or impossible.
    """
    missing = [name for name in LAUNCH_VARIABLES if not os.environ.get(name)]
    if missing:
        raise LaunchError(
            f"{', '.join(missing)} not set in the environment: start the job with torchrun"
            " or with `python -m reference_trainer launch`, or set the variables yourself"
        )
    numbers = {name: _read_integer(name) for name in LAUNCH_VARIABLES if name != "MASTER_ADDR"}
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise LaunchError(
            f"RANK is {numbers['RANK']}, expected below WORLD_SIZE={numbers['WORLD_SIZE']}:"
            " ranks count from 0"
        )
    return numbers


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Set these variables in this process; None removes one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def bind_gloo() -> None:
    """Make gloo use the interface that leads to MASTER_ADDR, where it would take the loopback.

    Without GLOO_SOCKET_IFNAME gloo binds the address of the host's own name: 127.0.1.1 on Debian
    and Ubuntu images, 127.0.0.1 in pods on their host's network. Ranks of other nodes then find no
    peer. Nothing is changed if the operator chose an interface, or the name is not the loopback's.
    """
    if os.environ.get("GLOO_SOCKET_IFNAME") or not _is_loopback(socket.gethostname()):
        return
    if name := _leading_interface():
        os.environ["GLOO_SOCKET_IFNAME"] = name


def bind_nccl_sockets() -> None:
    """Make NCCL use the interface that leads to MASTER_ADDR, if NCCL_SOCKET_IFNAME is LEADING.

    Without the variable NCCL takes an `ib` interface, or all interfaces. If rails do not reach each
    other, each connection between them then waits for its time-out.
    """
    if os.environ.get("NCCL_SOCKET_IFNAME") == LEADING:
        name = _leading_interface()
        set_variables({"NCCL_SOCKET_IFNAME": f"={name}" if name else None})


def _leading_interface() -> str:
    """Return the name of the interface that leads to MASTER_ADDR; "" if unknown or the loopback."""
    master = os.environ.get("MASTER_ADDR", "")
    with contextlib.suppress(OSError):
        address = _own_address(master) if master else ""
        names = [name for name, own in ipv4_addresses().items() if own == address]
        return names[0] if names and not address.startswith("127.") else ""
    return ""


def _is_loopback(host: str) -> bool:
    """Return whether a name resolves to the loopback, or to nothing at all."""
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return True


def _own_address(peer: str) -> str:
    """Find this host's address that leads to a peer; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])


def ipv4_addresses() -> dict[str, str]:
    """Read the first IPv4 address of each interface from the kernel."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                request = struct.pack("256s", name[:15].encode())
                reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                addresses[name] = socket.inet_ntoa(reply[20:24])
    return addresses


def _read_integer(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise LaunchError(f"{name} is {text!r}, expected a whole number: correct the environment")
    return int(text)
