"""Which road the bytes took: byte counters of every network device and RDMA port of a node.

A count that cannot be read is None, and never 0: virtual functions, some drivers, and containers
that mask /sys show none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

RDMA = "rdma"
LOOPBACK = "lo"  # what ranks of one node send each other there leaves no node
UNKNOWN = "unknown"  # the road of bytes that no known device can account for
Sent = Mapping[str, int | None]


def read_counters(net: str = "/proc/net/dev", sys: str = "/sys/class") -> dict[str, int | None]:
    """Read bytes sent since boot: one entry per network device, `rdma` summed over its ports; None
    where the counter of one of them cannot be read.

    /sys/class/infiniband counts port_xmit_data in units of 4 octets (kernel
    Documentation/ABI/stable/sysfs-class-infiniband); EFA has tx_bytes in hw_counters.  The
    devices' counters do not include RDMA payload, so growth there during an all-reduce is TCP.
    """
    sent: dict[str, int | None] = {
        **count_once(parse_net_dev(Path(net).read_text()), Path(sys, "net"))
    }
    rdma = [port_bytes(port) for port in Path(sys, "infiniband").glob("*/ports/*")]
    if rdma:
        known = [count for count in rdma if count is not None]
        sent[RDMA] = sum(known) if len(known) == len(rdma) else None
    return sent


def port_bytes(port: Path) -> int | None:
    """Read bytes that an RDMA port (its sysfs folder) sent since boot.

    None without a counter; 0 where the port is not active, and so sends nothing.
    """
    for name, unit in (("counters/port_xmit_data", 4), ("hw_counters/tx_bytes", 1)):
        with contextlib.suppress(OSError, ValueError):
            return unit * int((port / name).read_text())
    with contextlib.suppress(OSError):
        return None if "ACTIVE" in (port / "state").read_text() else 0
    return None


def count_once(sent: Mapping[str, int], root: Path) -> dict[str, int]:
    """Count each byte once: not again on the ports of a bond or bridge, nor on a VLAN's parent.

    `root` is /sys/class/net: a port has a link `master`, a parent links `upper_<child>`.
    """
    kept = {
        device: count for device, count in sent.items() if not (root / device / "master").exists()
    }
    for device in kept:
        children = [link.name.removeprefix("upper_") for link in (root / device).glob("upper_*")]
        kept[device] = max(0, kept[device] - sum(sent.get(child, 0) for child in children))
    return kept


def parse_net_dev(text: str) -> dict[str, int]:
    """Parse the text of /proc/net/dev: transmitted bytes per device that leads somewhere."""
    rows = [line.partition(":") for line in text.splitlines()[2:]]
    sent = {device.strip(): fields.split() for device, _, fields in rows}
    return {device: int(fields[8]) for device, fields in sent.items() if device != LOOPBACK}


def counter_growth(before: Sent, after: Sent) -> dict[str, int | None]:
    """Tell the bytes sent in between, per road; a device that appeared meanwhile counts from zero.

    TCP over IPoIB counts on the ib* device and on its RDMA port: such bytes are not RDMA's.
    """
    sent: dict[str, int | None] = {}
    for name, last in after.items():
        first = before.get(name, 0)
        sent[name] = None if first is None or last is None else last - first
    if (rdma := sent.get(RDMA)) is not None:
        over_ip = sum(count or 0 for name, count in sent.items() if name.startswith("ib"))
        sent[RDMA] = max(0, rdma - over_ip)
    return sent


def main_device(sent: Sent, expected: float = 0.0) -> str:
    """Name the road that carried most bytes; `none` when nothing was sent.

    Where a counter cannot be read, it is UNKNOWN unless another road carried most of those that
    were `expected`.
    """
    known = {name: count for name, count in sent.items() if count is not None}
    busiest = max(known, key=lambda name: known[name], default="none")
    most = known.get(busiest, 0)
    if len(known) < len(sent) and not (expected and most > expected / 2):
        return UNKNOWN
    return busiest if most > 0 else "none"
