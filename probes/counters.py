"""Which road the bytes took: byte counters of every network device and RDMA port of a node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

RDMA = "rdma"


def read_counters() -> dict[str, int]:
    """Bytes sent since boot: one entry per network device, and `rdma` summed over its ports.

    /sys/class/infiniband counts port_xmit_data in units of 4 octets (kernel
    Documentation/ABI/stable/sysfs-class-infiniband); EFA has tx_bytes in hw_counters.  The
    devices' counters do not include RDMA payload, so growth there during an all-reduce is TCP.
    """
    sent = parse_net_dev(Path("/proc/net/dev").read_text())
    root = Path("/sys/class/infiniband")
    rdma = [4 * int(p.read_text()) for p in root.glob("*/ports/*/counters/port_xmit_data")]
    rdma += [int(p.read_text()) for p in root.glob("efa_*/ports/*/hw_counters/tx_bytes")]
    if rdma:
        sent[RDMA] = sum(rdma)
    return sent


def parse_net_dev(text: str) -> dict[str, int]:
    """Transmitted bytes per device, from the text of /proc/net/dev."""
    sent = {}
    for line in text.splitlines()[2:]:
        device, _, fields = line.partition(":")
        sent[device.strip()] = int(fields.split()[8])
    return sent


def growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Bytes sent in between, per road; a device that appeared meanwhile counts from zero.

    TCP over IPoIB counts on the ib* device and on its RDMA port: such bytes are not RDMA's.
    """
    sent = {road: after[road] - before.get(road, 0) for road in after}
    if RDMA in sent:
        over_ip = sum(count for road, count in sent.items() if road.startswith("ib"))
        sent[RDMA] = max(0, sent[RDMA] - over_ip)
    return sent


def main_road(sent: Mapping[str, int]) -> str:
    """The road that carried most bytes; `none` when nothing was sent."""
    road = max(sent, key=lambda name: sent[name], default="none")
    return road if sent.get(road, 0) > 0 else "none"
