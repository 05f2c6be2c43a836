"""Reads a network driver's counters beyond the kernel's own statistics: ethtool -S, by ioctl."""

from __future__ import annotations

import array
import fcntl
import socket
import struct

# include/uapi/linux/sockios.h and ethtool.h
SIOCETHTOOL, GSTRINGS, GSTATS, GSSET_INFO, SS_STATS = 0x8946, 0x1B, 0x1D, 0x37, 1
NAME_BYTES, MAX_COUNTERS = 32, 20_000  # mlx5 has some 5,000 with many queues
# Kept as evidence: flow control, damage on the wire, lost links (mlx5: *_phy).
TELLING = ("pause", "crc", "discards_phy", "symbol_err_phy", "link_down_events", "ecn_mark", "fcs")


def read_driver_counters(interface: str) -> dict[str, int]:
    """Read those counters of an interface's driver that concern its link; {} if it has none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            count = _count(sock, interface)
            names = _names(sock, interface, count)
            reply = _ask(sock, interface, struct.pack("II", GSTATS, count) + bytes(8 * count))
    except OSError:  # no such interface, no such counters, or no right to read them
        return {}
    values = struct.unpack_from(f"{count}Q", reply, 8)
    return {
        name: value
        for name, value in zip(names, values, strict=True)
        if any(word in name for word in TELLING)
    }


def _count(sock: socket.socket, interface: str) -> int:
    """Ask how many counters there are.  Raises OSError if there are none, or too many."""
    reply = _ask(sock, interface, struct.pack("IIQI", GSSET_INFO, 0, 1 << SS_STATS, 0))
    (mask,) = struct.unpack_from("Q", reply, 8)
    (count,) = struct.unpack_from("I", reply, 16)
    if not mask or not 0 < count <= MAX_COUNTERS:
        raise OSError(f"{interface} counts nothing")
    return int(count)


def _names(sock: socket.socket, interface: str, count: int) -> list[str]:
    head = struct.pack("III", GSTRINGS, SS_STATS, count)
    reply = _ask(sock, interface, head + bytes(NAME_BYTES * count))
    cells = [reply[at : at + NAME_BYTES] for at in range(12, 12 + NAME_BYTES * count, NAME_BYTES)]
    return [cell.partition(b"\0")[0].decode("ascii", "replace") for cell in cells]


def _ask(sock: socket.socket, interface: str, request: bytes) -> bytes:
    """Send a request to the driver, which writes its answer over it; return the answer."""
    buffer = array.array("B", request)
    name = interface.encode()[:15].ljust(16, b"\0")
    fcntl.ioctl(sock, SIOCETHTOOL, struct.pack("16sP16x", name, buffer.buffer_info()[0]))
    return buffer.tobytes()
