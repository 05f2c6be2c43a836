"""Reads the byte counters of every network device and RDMA port of a node.

They show which path the bytes took.  A count that cannot be read is None, never 0.  Virtual
functions, some drivers, and containers that mask /sys have no counters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

RDMA = "rdma"
LOOPBACK = "lo"  # bytes between ranks of one node, which do not leave it
UNKNOWN = "unknown"  # the path of bytes that no known device accounts for
Sent = Mapping[str, int | None]


def interfaces_of(fabric: str | None) -> list[str]:
    """List the interfaces of a fabric, as `eth1,eth2`; RDMA has none of its own."""
    return fabric.split(",") if fabric and fabric != RDMA else []


def join_fabric(sent: Sent, fabric: str | None) -> dict[str, int | None]:
    """Count the interfaces of a fabric as one device of its name; None if one cannot be read."""
    names = interfaces_of(fabric)
    own = [sent[name] for name in names if name in sent]
    if fabric is None or len(names) < 2 or not own:
        return dict(sent)
    known = [count for count in own if count is not None]
    total = sum(known) if len(known) == len(own) else None
    return {fabric: total, **{name: count for name, count in sent.items() if name not in names}}


def read_counters(net: str = "/proc/net/dev", sys: str = "/sys/class") -> dict[str, int | None]:
    """Read the bytes sent since boot by each network device, and by all RDMA ports (`rdma`).

    `rdma` is None if the counter of one port cannot be read.  /sys/class/infiniband counts
    port_xmit_data in units of 4 octets (kernel Documentation/ABI/stable/sysfs-class-infiniband).
    EFA has tx_bytes in hw_counters.  The network devices do not count RDMA payload, so growth there
    during an all-reduce is TCP.
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
    """Read the bytes that an RDMA port (its sysfs folder) sent since boot.

    None without a counter; 0 if the port is not active and so sends nothing.
    """
    for name, unit in (("counters/port_xmit_data", 4), ("hw_counters/tx_bytes", 1)):
        with contextlib.suppress(OSError, ValueError):
            return unit * int((port / name).read_text())
    with contextlib.suppress(OSError):
        return None if "ACTIVE" in (port / "state").read_text() else 0
    return None


def count_once(sent: Mapping[str, int], root: Path) -> dict[str, int]:
    """Count each byte once: not again on the ports of a bond or bridge, nor on a VLAN's parent.

    `root` is /sys/class/net.  A port has a link `master`, a parent has links `upper_<child>`.
    """
    kept = {
        device: count for device, count in sent.items() if not (root / device / "master").exists()
    }
    for device in kept:
        children = [link.name.removeprefix("upper_") for link in (root / device).glob("upper_*")]
        kept[device] = max(0, kept[device] - sum(sent.get(child, 0) for child in children))
    return kept


def parse_net_dev(text: str) -> dict[str, int]:
    """Parse the text of /proc/net/dev: transmitted bytes per device, without the loopback."""
    rows = [line.partition(":") for line in text.splitlines()[2:]]
    sent = {device.strip(): fields.split() for device, _, fields in rows}
    return {device: int(fields[8]) for device, fields in sent.items() if device != LOOPBACK}


def counter_growth(before: Sent, after: Sent) -> dict[str, int | None]:
    """Compute the bytes sent between two readings, per device.

    A device that appeared in between counts from zero.  TCP over IPoIB counts on the ib* device and
    on its RDMA port: such bytes are subtracted from `rdma`.
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
    """Name the device that carried most bytes; `none` if nothing was sent.

    If a counter cannot be read, the result is UNKNOWN.  The exception is a device that carried most
    of the `expected` bytes.
    """
    known = {name: count for name, count in sent.items() if count is not None}
    busiest = max(known, key=lambda name: known[name], default="none")
    most = known.get(busiest, 0)
    if len(known) < len(sent) and not (expected and most > expected / 2):
        return UNKNOWN
    return busiest if most > 0 else "none"
