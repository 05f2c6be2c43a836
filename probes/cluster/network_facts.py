"""Reads a node's names, connections, ways out and byte counters; which nodes try each other."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from probes.cluster.ask import make_unique_token
from probes.cluster.dashboard import NoRedirect
from probes.cluster.endpoints import HTTP2_PREFACE, describe_failure, try_port, uses_tls
from reference_trainer.process_group import joins_no_group
from reports.groups import group_pairs
from scaling.collectives.reachability import import_psutil, own_sockets

SECONDS = 10.0  # for one answer from the other side of the world, by a proxy that is busy
# Answers of a gateway or proxy that did not reach the target (RFC 9110, section 15).
NOT_REACHED = (407, 502, 503, 504)
FORBIDDEN = 403  # from a proxy it is a refusal; a store of objects answers so without a key
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # certificates that requests and curl trust


def try_targets(targets: Sequence[str], seconds: float = SECONDS) -> dict[str, str]:
    """Connect to all targets at the same time; return the problem of each, "" for none.

    A target is a URL, or `host:port`.  URLs are asked by the proxy that the environment names.
    """
    with ThreadPoolExecutor(max(1, len(targets))) as pool:
        problems = list(pool.map(lambda target: _try_twice(target, seconds), targets))
    return dict(zip(targets, problems, strict=True))


def try_closed_target() -> dict[str, str]:
    """Try a port of this node that has just been closed, for a control: as a URL, and without."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
    return try_targets([f"https://{host}", host])


def _try_twice(target: str, seconds: float) -> str:
    """Try a target, and once more: one lost packet, or a proxy that starts again, is no fault."""
    ask = try_url if "://" in target else try_port
    return ask(target, seconds) and ask(target, seconds)


def try_url(url: str, seconds: float) -> str:
    """Ask for the head of a page; return the problem, or "".  Any answer of the target is sound."""
    context = ssl.create_default_context()
    for path in filter(None, map(os.environ.get, BUNDLES)):
        if os.path.isfile(path):
            context.load_verify_locations(path)
    handlers = (NoRedirect(), urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - a contract has HTTP alone
    try:
        urllib.request.build_opener(*handlers).open(request, timeout=seconds).close()
    except urllib.error.HTTPError as error:
        error.close()
        refused = error.code == FORBIDDEN and _has_proxy(url)
        return f"HTTP status {error.code}" if error.code in NOT_REACHED or refused else ""
    except urllib.error.URLError as error:
        return describe_failure(error.reason)
    except (OSError, ValueError, HTTPException) as error:  # no answer of HTTP
        return describe_failure(error)
    return ""


def _has_proxy(url: str) -> bool:
    parts = urlsplit(url)
    has_proxy = parts.scheme in urllib.request.getproxies()
    return has_proxy and not urllib.request.proxy_bypass(parts.hostname or "")


# glibc asks each name server twice, for 5 s each time (resolv.conf(5)).
LOOKUP_SECONDS = 10.0
RETRY_SECONDS = 1.0  # pause after "temporary failure": one lost datagram must accuse no name
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
            break
        except (OSError, ValueError) as error:  # ValueError: a label that is too long
            if not pause or getattr(error, "errno", None) != socket.EAI_AGAIN:
                return {"addresses": [], "bindable": "", "error": describe_failure(error)}
            time.sleep(pause)  # EAI_AGAIN: the resolver asks for one more try
    addresses = dict.fromkeys(_address_of(row) for row in rows)
    bindable = next((_address_of(row) for row in rows if _can_bind(row)), "")
    return {"addresses": list(addresses), "bindable": bindable, "error": ""}


def _address_of(row: tuple[Any, ...]) -> str:
    return str(row[4][0]).partition("%")[0]  # fe80::1%eth0


def _can_bind(row: tuple[Any, ...]) -> bool:
    family, kind, protocol, _, target = row
    with suppress(OSError), socket.socket(family, kind, protocol) as probe:
        probe.bind(target)
        return True
    return False


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


def read_addresses(sysfs: str = "/sys/class/net") -> dict[str, dict[str, Any]] | None:
    """Read {interface: {"up", "addresses"}}, secondary addresses too; None if unreadable.

    `up` is None where the interface's flags cannot be read.
    """
    try:
        found = group_pairs(_list_addresses())
    except OSError:
        return None
    flags = {name: Path(sysfs, name, "flags") for name in found}
    return {name: {"up": _is_up(flags[name]), "addresses": of} for name, of in found.items()}


def _list_addresses() -> list[tuple[str, str]]:
    """List (interface, address); `eth0:1` is an address of eth0.  Raises OSError."""
    found = import_psutil().net_if_addrs().items()
    rows = [(name.partition(":")[0], row) for name, of in found for row in of]
    families = (socket.AF_INET, socket.AF_INET6)
    return [(name, one.address.partition("%")[0]) for name, one in rows if one.family in families]


def _is_up(path: Path) -> bool | None:
    with suppress(OSError, ValueError):
        return bool(int(path.read_text(), 16) & IFF_UP)
    return None


# Seconds for a connection and for its answer.  The kernel repeats a lost SYN after 1 s and 3 s.
FIRST_SECONDS = 4.0
# What failed is tried once more: a busy node that answers late is sound.
SECOND_SECONDS = 8.0
MAX_PARALLEL = 32  # connections that one node tries at the same time
NOT_CONNECTED = "no answer in time: packets may be dropped"
NO_ANSWER = "the connection is accepted, but nothing answers"
OTHER_ANSWER = "another program answers"
GRPC = "grpc"  # `proof` of a port where a gRPC server must answer
# A server of HTTP/2 (gRPC is one) sends its settings first: RFC 9113, sections 3.4 and 4.1.
FRAME_BYTES, SETTINGS = 9, 4
NO_PROOF = ""  # an accepted connection is enough


@dataclass(frozen=True)
class TriedPort:
    """A port of node `node` (its id).  `proof` is GRPC, NO_PROOF, or a token to be read there."""

    kind: str
    node: str
    address: str
    port: int
    proof: str = NO_PROOF


class NodePorts:
    """Listener of one node, and its connections to other nodes."""

    def __init__(self) -> None:
        self._server: socket.socket | None = None
        self._token = make_unique_token()

    def open_ports(self, address: str) -> dict[str, Any]:
        """Open the listener on `address`; return {"gcs", "worker", "tls", "job", "token", "error"}.

        `gcs` is the address of Ray's head as this node knows it.  `worker` is the port of this very
        worker.  `job` is the port of the listener; it is None if it cannot be opened, for the
        reason in `error`.
        """
        import ray

        tls = uses_tls()
        gcs = ray.get_runtime_context().gcs_address
        worker = find_worker_port(address, NO_PROOF if tls else GRPC)
        answer = {"gcs": gcs, "worker": worker, "tls": tls, "token": self._token}
        try:
            return {**answer, "job": self.start_listener(address), "error": ""}
        except OSError as problem:
            return {**answer, "job": None, "error": str(problem.strerror or problem)}

    def start_listener(self, address: str) -> int:
        """Send the token to each client on this address, on a port that the kernel picks."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = server = socket.create_server((address, 0), family=family)
        threading.Thread(target=self._answer_clients, args=(server,), daemon=True).start()
        return int(server.getsockname()[1])

    def _answer_clients(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:  # closed
                return
            with client, suppress(OSError):  # a client may leave at once
                client.sendall(self._token.encode())

    def plant_fault(self, address: str) -> int:
        """Send another token from now on, for a control; return a port that has just been closed.

        `address` is this node's own.
        """
        self._token = make_unique_token()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family) as closed:
            return int(closed.getsockname()[1])

    def try_ports(self, endpoints: Sequence[TriedPort]) -> list[str]:
        """Connect to each port; return the problem of each, "" for none."""
        return try_endpoints(endpoints)

    def look_up_names(self, names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        """Resolve names on this node, as `look_up_all`."""
        return look_up_all(names)


def find_worker_port(address: str, proof: str) -> int | None:
    """Find the port of this worker's own server, which answers here; None if there is none."""
    for port in own_listening_ports():
        if not try_endpoint(TriedPort("", "", address, port, proof), FIRST_SECONDS):
            return port
    return None


def own_listening_ports() -> list[int]:
    """List the TCP ports on which this process listens; empty if unreadable."""
    return sorted({one.laddr.port for one in own_sockets("LISTEN")})


def try_endpoints(
    endpoints: Sequence[TriedPort], first: float = FIRST_SECONDS, second: float = SECOND_SECONDS
) -> list[str]:
    """Connect to each endpoint, and once more to each that failed; return the problems."""
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        problems = list(pool.map(lambda one: try_endpoint(one, first), endpoints))
        return [*pool.map(lambda one, bad: bad and try_endpoint(one, second), endpoints, problems)]


def max_try_seconds(count: int) -> float:
    """Return the most seconds that `try_endpoints` takes for so many endpoints."""
    return -(-count // MAX_PARALLEL) * 2 * (FIRST_SECONDS + SECOND_SECONDS)


def try_endpoint(endpoint: TriedPort, seconds: float) -> str:
    """Connect to a port and ask for its proof; return the problem, or "".

    Each of the two may take `seconds`.
    """
    connected = False
    try:
        target = (endpoint.address, endpoint.port)
        with socket.create_connection(target, timeout=seconds) as connection:
            connected = True
            return _check_proof(connection, endpoint.proof)
    except TimeoutError:
        return NO_ANSWER if connected else NOT_CONNECTED
    except (OSError, OverflowError) as error:  # OverflowError: no port has that number
        return describe_failure(error)


def _check_proof(connection: socket.socket, proof: str) -> str:
    if proof == NO_PROOF:
        return ""
    if proof == GRPC:
        connection.sendall(HTTP2_PREFACE)
        header = _receive(connection, FRAME_BYTES)
        return "" if len(header) >= FRAME_BYTES and header[3] == SETTINGS else OTHER_ANSWER
    return "" if _receive(connection, len(proof)) == proof.encode() else OTHER_ANSWER


def _receive(connection: socket.socket, count: int) -> bytes:
    """Receive at least `count` bytes, or what there is until the peer closes."""
    answer = b""
    while len(answer) < count and (more := connection.recv(64)):
        answer += more
    return answer


MOST_ALL_PAIRS = 64  # up to so many nodes each connects to all others: 4,032 connections


def choose_peers(index: int, nodes: int) -> list[int]:
    """List the nodes that one node connects to, in order: all others, or some on a ring.

    Up to MOST_ALL_PAIRS nodes it is all others.  Above, it is those at distances of 1, 2, 4 and so
    on, both ways: each node is tried by as many, near (one rack, by address) and far.  In each
    place of the order one node connects to each, so not all nodes connect to one at once.  A node
    without others connects to itself.
    """
    if nodes == 1:
        return [0]
    if nodes <= MOST_ALL_PAIRS:
        return [(index + step) % nodes for step in range(1, nodes)]
    steps = [2**power for power in range(nodes.bit_length()) if 2**power <= nodes // 2]
    around = [(index + sign * step) % nodes for step in steps for sign in (1, -1)]
    return list(dict.fromkeys(around))


def map_peers(names: Sequence[str]) -> dict[str, list[str]]:
    """Map each node to the nodes that it connects to."""
    return {name: [names[i] for i in choose_peers(at, len(names))] for at, name in enumerate(names)}


def list_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """List the pairs of nodes that connect, each once, in the order of the names."""
    count = len(names)
    pairs = [(at, peer) for at in range(count) for peer in sorted(choose_peers(at, count))]
    return [(names[at], names[peer]) for at, peer in pairs if peer > at]


def describe_peers(count: int) -> str:
    """Say what each of so many nodes tried, and what none did."""
    if count <= MOST_ALL_PAIRS:
        return "all others"
    tried = len(choose_peers(0, count))
    return (
        f"{tried} others, at distances of 1, 2, 4 and so on in the order of addresses; the other "
        "pairs were not tried"
    )


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


@joins_no_group
def read_counters(net: str = "/proc/net/dev", sys: str = "/sys/class") -> dict[str, int | None]:
    """Read the bytes sent since boot by each network device, and by all RDMA ports (`rdma`).

    `rdma` is None if the counter of one port cannot be read.  /sys/class/infiniband counts
    port_xmit_data in units of 4 octets (kernel Documentation/ABI/stable/sysfs-class-infiniband).
    EFA has tx_bytes in hw_counters.  The network devices do not count RDMA payload, so growth there
    during an all-reduce is TCP.
    """
    counts = parse_net_dev(Path(net).read_text())
    sent: dict[str, int | None] = {**count_once(counts, Path(sys, "net"))}
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
    single = [device for device in sent if not (root / device / "master").exists()]
    kept = {device: sent[device] for device in single}
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
