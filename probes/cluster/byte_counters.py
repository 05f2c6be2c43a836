"""Which road the bytes took: byte counters of every network device and RDMA port of a node."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from probes.cluster.node_facts import RDMA_SYSFS

RDMA = "rdma"
LOOPBACK = "lo"  # what ranks of one node send each other there leaves no node


def read_counters() -> dict[str, int]:
    """Read bytes sent since boot: one entry per network device, `rdma` summed over its ports.

    /sys/class/infiniband counts port_xmit_data in units of 4 octets (kernel
    Documentation/ABI/stable/sysfs-class-infiniband); EFA has tx_bytes in hw_counters.  The
    devices' counters do not include RDMA payload, so growth there during an all-reduce is TCP.
    """
    sent = count_once(parse_net_dev(Path("/proc/net/dev").read_text()), Path("/sys/class/net"))
    rdma = [port_bytes(port) for port in Path(RDMA_SYSFS).glob("*/ports/*")]
    if rdma:
        sent[RDMA] = sum(rdma)
    return sent


def port_bytes(port: Path) -> int:
    """Read bytes that an RDMA port (its sysfs folder) sent since boot; 0 without a counter."""
    for name, unit in (("counters/port_xmit_data", 4), ("hw_counters/tx_bytes", 1)):
        with contextlib.suppress(OSError, ValueError):
            return unit * int((port / name).read_text())
    return 0


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


def counter_growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Tell the bytes sent in between, per road; a device that appeared meanwhile counts from zero.

    TCP over IPoIB counts on the ib* device and on its RDMA port: such bytes are not RDMA's.
    """
    sent = {name: after[name] - before.get(name, 0) for name in after}
    if RDMA in sent:
        over_ip = sum(count for name, count in sent.items() if name.startswith("ib"))
        sent[RDMA] = max(0, sent[RDMA] - over_ip)
    return sent


def main_device(sent: Mapping[str, int]) -> str:
    """Name the road that carried most bytes; `none` when nothing was sent."""
    busiest = max(sent, key=lambda name: sent[name], default="none")
    return busiest if sent.get(busiest, 0) > 0 else "none"
