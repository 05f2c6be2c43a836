"""Reads counters, routes and settings of the fabric's links."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from probes.cluster import network_facts
from probes.cluster.network_facts import LOOPBACK, RDMA, UNKNOWN, counter_growth, main_device
from probes.cluster.node_facts import rdma_netdev, rdma_ports, read_interfaces
from probes.cluster.system_facts import RDMA_SYSFS
from probes.environment.checks import nccl_ports, read_ib_hca
from probes.fabric.addresses import first_ranks, node_of, rail_of
from reference_trainer.launch.gang import Gang
from reference_trainer.process_group import joins_no_group, kept_sockets, open_sockets
from scaling.collectives.fault_search import Link
from scaling.collectives.sweep import call_seconds

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
    counts = zip(names, struct.unpack_from(f"{count}Q", reply, 8), strict=True)
    return {name: value for name, value in counts if any(word in name for word in TELLING)}


def _count(sock: socket.socket, interface: str) -> int:
    """Ask how many counters there are.  Raises OSError if there are none, or too many."""
    reply = _ask(sock, interface, struct.pack("IIQI", GSSET_INFO, 0, 1 << SS_STATS, 0))
    mask, count = struct.unpack_from("QI", reply, 8)
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


NET_SYSFS = "/sys/class/net"
Count = int | None
# Bytes into struct tcp_info (include/uapi/linux/tcp.h), each an unsigned 32-bit number:
# tcpi_data_segs_out, tcpi_total_retrans, tcpi_dsack_dups.
TCP_COUNTS = {"sent": 156, "resent": 100, "twice": 216}
TCP_INFO_BYTES = 232  # of struct tcp_info, to the last field that is read
# The driver caches RDMA counters for `lifespan`, 10 ms by default
# (kernel Documentation/ABI/stable/sysfs-class-infiniband).
RDMA_CACHE_S = 0.012
# Share of packets that sound data centre networks lose (Guo et al., Pingmesh, 2015).
SOUND_LOSS = 1e-4
PORT_PACKETS = 10_000  # of one port: with so many, one lost packet is what sound networks lose
RDMA_MTU = 4096  # bytes of a packet, where a port counts bytes only
# Packets, or runs of packets, that a sender resent, by driver.  mlx5: a peer missed a packet, or
# did not answer in time (NCCL names these as signs of loss).  Then EFA, then bnxt_re.
RDMA_RESENT = (
    "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err",
    "retrans_pkts", "retrans_timeout_events",
    "seq_err_naks_rcvd", "to_retransmits",
)  # fmt: skip
RDMA_PACKETS = ("counters/port_xmit_packets", "hw_counters/tx_pkts")
RDMA_BYTES = (("counters/port_xmit_data", 4), ("hw_counters/tx_bytes", 1))
NET_PACKETS = {"receives": "rx_packets", "sends": "tx_packets"}
# Errors by direction: a sound link counts none.  `rx_dropped` of an interface is left out: a host
# also counts unwanted packets there, such as a switch's LLDP.
NET_ERRORS = {
    "receives": ("rx_errors", "rx_missed_errors", "rx_fifo_errors"),
    "sends": ("tx_errors", "tx_dropped", "tx_carrier_errors"),
}
RDMA_ERRORS = {
    "receives": (
        "symbol_error", "port_rcv_errors", "local_link_integrity_errors",
        "excessive_buffer_overrun_errors", "rx_icrc_encapsulated", "rx_drops",
    ),
    "sends": ("port_xmit_discards",),
}  # fmt: skip
RDMA_LOST_LINK = ("link_downed", "link_error_recovery")
EFA_LOST = "unresponsive_remote_events"
# Kept as evidence and not judged: a sound link counts them too.
RDMA_NOTES = (
    "out_of_sequence", "rnr_nak_retry_err", "out_of_buffer", "port_xmit_wait",
    "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart",
    "np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled",
)  # fmt: skip
TCP_NOTES = {
    "Tcp": ("OutSegs", "RetransSegs"),
    "TcpExt": ("TCPTimeouts", "TCPLostRetransmit", "TCPSackRecovery", "TCPFastRetrans"),
}


class LinkReader:
    """Reader of what was sent so far, for a process group that was kept, or is joined after this.

    `resent_share` is for a control: this share of what was sent is reported as resent.
    """

    def __init__(self, resent_share: float = 0.0) -> None:
        self._older = set(open_sockets().values()) - kept_sockets()
        self._ports = used_ports()
        self._resent_share = resent_share

    def __call__(self) -> dict[str, Any]:
        """Read `bytes` by device, and packets `sent` and `resent` over `tcp` and over `rdma`.

        `tcp` are the group's own connections, `rdma` all of the node's ports together.
        """
        if self._ports:
            time.sleep(RDMA_CACHE_S)
        packets: dict[str, dict[str, Any] | None] = {
            "tcp": {**self.tcp()},
            "rdma": read_rdma_packets(self._ports),
        }
        for counts in packets.values() if self._resent_share else ():
            if counts and counts["sent"] is not None and counts["resent"] is not None:
                counts["resent"] += int(self._resent_share * counts["sent"])
        return {"bytes": network_facts.read_counters(), **packets}

    def tcp(self) -> dict[str, Count]:
        """Count TCP segments with data: `sent`, `resent`, and `twice` (the peer had them already).

        Connections within the host, and to the rendezvous store, are left out.  Each count is None
        on kernels before 4.19.
        """
        store_port = int(os.environ.get("MASTER_PORT", "0"))
        total = {"sent": 0, "resent": 0, "twice": 0}
        for descriptor, name in open_sockets().items():
            ends, info = ((), b"") if name in self._older else _connection_state(descriptor)
            if not ends or ends[0] == ends[2] or store_port in (ends[1], ends[3]):
                continue
            counts = parse_tcp_info(info)
            if counts is None:
                return dict.fromkeys(total)
            total = {key: total[key] + counts[key] for key in total}
        return {**total}


def used_ports(root: str = RDMA_SYSFS) -> list[Path]:
    """List the sysfs folders of the RDMA ports that NCCL may use; others are for storage."""
    ports = nccl_ports(rdma_ports(root), read_ib_hca())
    return [Path(root, port["device"], "ports", port["port"]) for port in ports]


def _connection_state(descriptor: int) -> tuple[tuple[Any, ...], bytes]:
    """Read ((own address, port, peer's address, port), struct tcp_info); both empty if no TCP."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return (), b""
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
            return (*connection.getsockname()[:2], *connection.getpeername()[:2]), info
    except OSError:  # closed meanwhile, or not connected
        return (), b""


def parse_tcp_info(info: bytes) -> dict[str, int] | None:
    """Parse struct tcp_info: segments with data that were `sent`, `resent`, and received `twice`.

    None on an old kernel.
    """
    if len(info) < max(TCP_COUNTS.values()) + 4:
        return None
    return {key: struct.unpack_from("I", info, at)[0] for key, at in TCP_COUNTS.items()}


def read_rdma_packets(ports: Sequence[Path]) -> dict[str, Any] | None:
    """Count the packets that these ports (sysfs folders) sent and resent; None without a port.

    `ports` has the counts of each.
    """
    if not ports:
        return None
    sent = {str(port): _packets_sent(port) for port in ports}
    resent = {str(port): _sum_of(port / "hw_counters", RDMA_RESENT) for port in ports}
    each = {name: {"sent": sent[name], "resent": resent[name]} for name in sent}
    return {"sent": _total(sent.values()), "resent": _total(resent.values()), "ports": each}


def _packets_sent(port: Path) -> Count:
    packets = [_read(port / name) for name in RDMA_PACKETS]
    sizes = [(_read(port / name), unit) for name, unit in RDMA_BYTES]
    by_bytes = [count and count * unit // RDMA_MTU for count, unit in sizes]
    return next((count for count in [*packets, *by_bytes] if count is not None), None)


def read_ports(net: str = NET_SYSFS, rdma: str = RDMA_SYSFS) -> dict[str, dict[str, Any]]:
    """Read what each interface, and each RDMA port that is used, has counted since boot.

    The result is by name, `device/port` for an RDMA port.  `changes` are those of the carrier
    (RDMA: how often the link was lost).  `packets` and `errors` are by direction.  `lower` lists
    the interfaces below it.  `notes` are not judged.
    """
    ports = {path.name: _read_interface(path) for path in Path(net).iterdir()}
    ports.pop(LOOPBACK, None)
    for path in used_ports(rdma):
        ports[f"{path.parts[-3]}/{path.name}"] = _read_rdma_port(path)
    return ports


def _read_interface(path: Path) -> dict[str, Any]:
    statistics = path / "statistics"
    return {
        "changes": _read(path / "carrier_changes"),
        "packets": {way: _read(statistics / name) for way, name in NET_PACKETS.items()},
        "errors": {way: _sum_of(statistics, names) for way, names in NET_ERRORS.items()},
        "lower": sorted(link.name.removeprefix("lower_") for link in path.glob("lower_*")),
        "notes": {
            "rx_dropped": _read(statistics / "rx_dropped"),
            **read_driver_counters(path.name),
        },
    }


def _read_rdma_port(path: Path) -> dict[str, Any]:
    counters, hardware = path / "counters", path / "hw_counters"
    errors = {
        way: _total([_sum_of(counters, names), _sum_of(hardware, names)], partly=True)
        for way, names in RDMA_ERRORS.items()
    }
    received = [_read(counters / "port_rcv_packets"), _read(hardware / "rx_pkts")]
    notes = {name: _read(hardware / name) for name in RDMA_NOTES}
    return {
        "changes": _total([_sum_of(counters, RDMA_LOST_LINK), _read(hardware / EFA_LOST)], True),
        "packets": {"sends": _packets_sent(path), "receives": _total(received, partly=True)},
        "errors": errors,
        "lower": [name] if (name := rdma_netdev(path)) else [],
        "notes": {name: count for name, count in notes.items() if count is not None},
    }


def read_tcp_counters(proc: str = "/proc/net") -> dict[str, int]:
    """Read TCP's counters of this network namespace that show loss (/proc/net/snmp, netstat)."""
    found: dict[str, int] = {}
    for name in ("snmp", "netstat"):
        with suppress(OSError, ValueError):
            found |= _parse_pairs(Path(proc, name).read_text())
    return found


def _parse_pairs(text: str) -> dict[str, int]:
    """Parse lines in pairs: names after `Tcp:`, then their values after `Tcp:`."""
    lines = [line.split() for line in text.splitlines()]
    return {
        name: int(value)
        for names, values in zip(lines[::2], lines[1::2], strict=True)
        for name, value in zip(names[1:], values[1:], strict=True)
        if name in TCP_NOTES.get(names[0].rstrip(":"), ())
    }


def _read(path: Path) -> Count:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _sum_of(folder: Path, names: Iterable[str]) -> Count:
    """Add up those counters of a folder that exist; None if none does."""
    return _total([_read(folder / name) for name in names], partly=True)


def _total(counts: Iterable[Count], partly: bool = False) -> Count:
    """Add up counts; None if one is unknown, or with `partly` if all are."""
    counts = list(counts)
    known = [count for count in counts if count is not None]
    return sum(known) if known and (partly or len(known) == len(counts)) else None


WAYS = ("sends", "receives")


def counter_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Subtract an earlier reading from a later one, count by count, also in nested mappings.

    A count that is unknown in one of them, or that decreased, is None.  Names that only one of them
    has are left out.
    """
    grown: dict[str, Any] = {}
    for name in before.keys() & after.keys():
        first, last = before[name], after[name]
        if isinstance(first, Mapping) and isinstance(last, Mapping):
            grown[name] = counter_difference(first, last)
        else:
            numbers = isinstance(first, int) and isinstance(last, int)
            grown[name] = last - first if numbers and last >= first else None
    return grown


def lost_packets(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[int, int] | None:
    """Count (packets sent, packets lost) between two readings of a `LinkReader`.

    The transport that carried the bytes decides: RDMA's counters for RDMA, TCP's otherwise.  None
    if it does not count, or nothing was sent.  Of several ports the worst is counted by itself, if
    it carried enough.
    """
    device = main_device(counter_growth(before["bytes"], after["bytes"]))
    if device == UNKNOWN:
        return None
    key = "rdma" if device == RDMA else "tcp"
    grown = counter_difference(before[key] or {}, after[key] or {})
    sent, resent = grown.get("sent"), grown.get("resent")
    if not sent or resent is None:
        return None
    ports = [(one["sent"] or 0, one["resent"] or 0) for one in (grown.get("ports") or {}).values()]
    alone = [one for one in ports if one[0] >= PORT_PACKETS]
    together = sent, max(0, resent - (grown.get("twice") or 0))
    return max([together, *alone], key=lambda one: one[1] / one[0])


def lost_shares(readings: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """Compute the share of packets lost in each try; `readings` are before and after each.

    None if a try has no count, or there was none.
    """
    tries = [lost_packets(before, after) for before, after in pairwise(readings)]
    shares = [lost / sent for sent, lost in filter(None, tries)]
    return shares if shares and len(shares) == len(tries) else None


def repeated(values: Sequence[float]) -> float:
    """Return the second largest value of several tries: one alone may have met a full queue."""
    return sorted(values)[-2:][0]


GROSS = 10.0  # times the allowed share: so much is lost by no busy host


def lasting_loss(meetings: Sequence[Sequence[float]], allowed: float) -> float:
    """Return the share that two tries of a link lost; `meetings` have the shares of their tries.

    Below ten times what is allowed it must show in each meeting: a busy host resends some packets.
    """
    lost = repeated([*chain(*meetings)])
    return lost if lost > GROSS * allowed else min(map(repeated, meetings))


def bytes_sent(readings: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Count the bytes sent by device, from the first to the last reading."""
    return counter_growth(readings[0]["bytes"], readings[-1]["bytes"]) if readings else {}


ROUTE_SECONDS = 10  # for `ip` to answer, which takes milliseconds


@joins_no_group
def read_route(address: str, source: str | None = None) -> str:
    """Ask `ip route get ADDRESS` on this node, from `source` if given; "" if it cannot be asked."""
    try:
        done = subprocess.run(
            ["ip", "-4", "route", "get", address, *(["from", source] if source else [])],
            capture_output=True,
            text=True,
            timeout=ROUTE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):  # many images have no `ip`
        return ""
    # As "10.77.0.3 via 10.78.0.3 dev eth0 src 10.77.0.2 uid 0"; the rest is not needed.
    return " ".join(done.stdout.partition(" uid ")[0].split())


def read_routes(
    gang: Gang, node_names: dict[str, str], links: Iterable[Link], interfaces: Mapping[Link, str]
) -> dict[Link, str]:
    """Ask each sender of these links how it reaches its receiver's address on its interface.

    Links whose receiver has no such address, as with RDMA, are left out.
    """
    links = list(links)
    if not links:
        return {}
    ranks = first_ranks(gang, node_names)
    ports = gang.run(read_interfaces, timeout=call_seconds(len(gang.places)))
    found = {}
    for sender, receiver in links:
        name, rank = interfaces[sender, receiver], ranks[node_of(sender)]
        address = ports[ranks[node_of(receiver)]].get(name, {}).get("address")
        own = ports[rank].get(name, {}).get("address") if rail_of(sender) else None
        if address:
            call = gang.run(read_route, address, own, timeout=60, groups=[[rank]])
            found[sender, receiver] = str(call[0])
    return found
