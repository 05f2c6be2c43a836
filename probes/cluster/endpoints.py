"""Tries the endpoints of a cluster: dashboard, agents, head, and what else listens on a port."""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from probes.cluster.dashboard import ADDRESS_VARIABLE, NoRedirect, find_token, request_dashboard
from probes.cluster.ray_internals import read_dashboard_url, read_value
from probes.findings import finding
from reports.record import Finding
from reports.redact import redact_text


def find_dashboard(host: str = "") -> str:
    """Ask the joined cluster for the address of its dashboard; "" if it has none.

    `host` replaces the host that the cluster names, which a remote client may not reach.  The
    shell's own address (a tunnel, an ingress) is used only if it leads to the same cluster.
    """
    named = os.environ.get(ADDRESS_VARIABLE, "").rstrip("/")
    if named and leads_to_session(named, _session_name()):
        return named
    own = own_dashboard()
    port = urlsplit(own).port
    return f"http://{host}:{port}" if host and port else own


def own_dashboard() -> str:
    """Read the address that the joined cluster gives its dashboard; "" if it has none."""
    url = read_dashboard_url()
    return f"http://{urlsplit(url if '://' in url else f'http://{url}').netloc}" if url else ""


def _session_name() -> str:
    """Read the name that Ray gave the joined cluster when it was started."""
    return bytes(read_value(b"session_name", b"session") or b"").decode()


def leads_to_session(address: str, session: str) -> bool:
    """Return whether the dashboard at this address is that of the session with this name."""
    if not session or not address.startswith(("http://", "https://")):
        return False
    try:
        reply = request_dashboard(address, "/api/version")
        return bool(json.loads(reply)["session_name"] == session)
    except urllib.error.HTTPError as error:
        error.close()
    except (OSError, ValueError, LookupError, TypeError):  # no dashboard, or not of this Ray
        pass
    return False


def ignored_address(dashboard: str) -> str:
    """Describe the dashboard address of the shell that was ignored; "" if none was."""
    named = os.environ.get(ADDRESS_VARIABLE, "").rstrip("/")
    if named in ("", dashboard):
        return ""
    return redact_text(
        f"{ADDRESS_VARIABLE}={named} was ignored: it may lead to another cluster. Jobs go to "
        f"{dashboard}. Unset or correct the variable"
    )


LISTEN = "0A"  # include/net/tcp_states.h, as in /proc/net/tcp
WILD_V4, WILD_V6 = "0.0.0.0", "::"  # noqa: S104  all addresses of a node


def read_listeners(ports: Sequence[int], net: str = "/proc/net") -> dict[int, list[str]] | None:
    """Read the addresses on which each of these ports listens; None if no table is readable."""
    texts = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # a kernel without IPv6
            texts.append(Path(net, table).read_text())
    if not texts:
        return None
    found = parse_listeners("\n".join(texts))
    of = {port: {address for address, number in found if number == port} for port in ports}
    return {port: sorted(addresses) for port, addresses in of.items()}


def parse_listeners(text: str) -> list[tuple[str, int]]:
    """Parse lines of /proc/net/tcp and tcp6 into (address, port) of the sockets that listen."""
    rows = [line.split() for line in text.splitlines()]
    return [parse_address(row[1]) for row in rows if len(row) > 3 and row[3] == LISTEN]


def parse_address(text: str) -> tuple[str, int]:
    """Parse `0100007F:18EB`: the address in words of 32 bits of the host, and the port."""
    words, _, port = text.partition(":")
    parts = [int(words[at : at + 8], 16) for at in range(0, len(words), 8)]
    address = ip_address(struct.pack(f"={len(parts)}I", *parts))
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address), int(port, 16)


def public_addresses(listens: Sequence[str], own: Sequence[str]) -> list[str]:
    """List the globally routable addresses of a node at which a listener is reached.

    `listens` are the addresses of the listener, and `own` those of the node's interfaces.  A
    listener on :: takes IPv4 as well, unless another setting of the socket forbids it.
    """
    reached = []
    for text in own:
        try:
            address = ip_address(text.partition("%")[0])
        except ValueError:
            continue
        is_wild = WILD_V6 in listens or (address.version == 4 and WILD_V4 in listens)
        if address.is_global and (is_wild or str(address) in listens):
            reached.append(str(address))
    return reached


# What an endpoint does with a request; any other text but NEEDS_TLS is a problem, and nothing is
# known.
TAKEN, REFUSED = "taken", "refused"
GCS, RAYLET, AGENT, CLIENT = "GCS", "raylet", "dashboard agent", "Ray client"
DASHBOARD, SUBMIT = "dashboard", "submit address"
# Method and request, which the server only answers.  The GCS takes no other from a client that
# does not name its cluster, and the Ray client's PING (6) is for connections that are not set up.
METHODS = {
    GCS: ("/ray.rpc.NodeInfoGcsService/GetClusterId", b""),
    RAYLET: ("/ray.rpc.NodeManagerService/GetSystemConfig", b""),
    CLIENT: ("/ray.rpc.RayletDriver/ClusterInfo", b"\x08\x06"),
}
WRONG_CLUSTER = "WrongClusterID"  # the GCS's other reason for UNAUTHENTICATED
# Ray asks for the token before it looks for the path: no agent has the second one.
PATHS = {DASHBOARD: "/api/version", SUBMIT: "/api/version", AGENT: "/api/seatrial"}
ANSWER_SECONDS = (5.0, 10.0)  # for an answer; a busy node that answers late is asked once more
MAX_PARALLEL = 32  # endpoints that are asked at the same time
# Of an HTTP answer: no token, and a wrong one.
REFUSALS = (401, 403)
NOT_FOUND = 404  # RFC 9110
NEEDS_TLS = "refused without a certificate"  # with RAY_USE_TLS, Ray asks its clients for one


@dataclass(frozen=True)
class Endpoint:
    """A port of Ray on the node of this name; `address` is host:port, or a URL for HTTP."""

    kind: str
    node: str
    address: str

    @property
    def text(self) -> str:
        """Name of the endpoint in messages."""
        where = f" of {self.node}" if self.node else ""
        return f"{self.kind}{where} ({self.address.removeprefix('http://')})"


@dataclass(frozen=True)
class EndpointAnswers:
    """What an endpoint did with a request without a token, with a wrong one, and with the right.

    The last two are "" if they were not asked.
    """

    without: str
    wrong: str = ""
    right: str = ""


def join_address(host: str, port: int) -> str:
    """Join host and port, with brackets around an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ask_endpoints(endpoints: Sequence[Endpoint], token: str) -> list[EndpointAnswers]:
    """Ask every endpoint; `token` is the cluster's, or "" if it is not known."""
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        return list(pool.map(lambda one: ask_endpoint(one, token), endpoints))


def ask_from_node(endpoints: Sequence[Endpoint]) -> list[dict[str, Any]]:
    """Ask every endpoint from a Ray worker, which has the token of its node."""
    return [asdict(answers) for answers in ask_endpoints(endpoints, find_token())]


def ask_endpoint(endpoint: Endpoint, token: str) -> EndpointAnswers:
    """Ask one endpoint; only one that refuses is asked with tokens as well."""
    without = try_request(endpoint, "")
    if without != REFUSED:
        return EndpointAnswers(without)
    wrong = try_request(endpoint, secrets.token_hex(32))
    return EndpointAnswers(without, wrong, try_request(endpoint, token) if token else "")


def try_request(endpoint: Endpoint, token: str) -> str:
    """Send a request, and once more if nothing is known after the first."""
    answer = ""
    for seconds in ANSWER_SECONDS:
        answer = send_request(endpoint, token, seconds)
        if answer in (TAKEN, REFUSED, NEEDS_TLS):
            break
    return answer


def send_request(endpoint: Endpoint, token: str, seconds: float) -> str:
    """Send one request; return TAKEN, REFUSED, or what the problem is."""
    if path := PATHS.get(endpoint.kind):
        return send_http(endpoint.address + path, token, seconds)
    method, request = METHODS[endpoint.kind]
    return send_grpc(endpoint.address, method, request, token, seconds)


def open_url(url: str, token: str, seconds: float, data: bytes | None = None, **more: Any) -> Any:
    """Open a URL without the shell's proxies and without redirects, as urlopen does."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if data is not None:
        headers["Content-Type"] = "application/json"
    # Addresses are of the cluster and of the contract, which are HTTP alone.
    request = urllib.request.Request(url, data=data, headers=headers, **more)  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect())
    return opener.open(request, timeout=seconds)


def send_http(url: str, token: str, seconds: float) -> str:
    """Send a GET request; a path that is not known is an answer to a request that was taken."""
    try:
        open_url(url, token, seconds).close()
        return TAKEN
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in REFUSALS:
            return REFUSED
        return TAKEN if error.code == NOT_FOUND else f"HTTP {error.code}"
    except (OSError, ValueError) as error:  # ValueError: an answer that is no HTTP
        return str(getattr(error, "reason", error) or type(error).__name__)


def send_grpc(address: str, method: str, request: bytes, token: str, seconds: float) -> str:
    """Call a method without TLS; `request` is the message as bytes."""
    try:
        import grpc
    except ImportError:
        return "the package grpcio is not installed"
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(method)(request, timeout=seconds, metadata=metadata)
        except grpc.RpcError as error:
            text = f"{error.code().name}: {error.details()}"
            refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
            silent = error.code() is grpc.StatusCode.UNAVAILABLE
            if silent and uses_tls() and not try_port(address, seconds):
                return NEEDS_TLS
            return REFUSED if error.code() in refusals and WRONG_CLUSTER not in text else text
    return TAKEN


def uses_tls() -> bool:
    """Return whether Ray's processes talk to each other by TLS, with certificates on both ends."""
    return os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true")


def try_port(address: str, seconds: float) -> str:
    """Connect to `host:port`; return the problem, or ""."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError as error:
        return describe_failure(error)
    return ""


def describe_failure(error: Any) -> str:
    """Describe why a connection failed, by the system's own words where there are some."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


POLL_SECONDS = 2.0  # dates the start of a silence to 2 s, and is no load for the head
# Limit of one query: a later answer counts as none.  SILENCE_SECONDS is three of them.
HEAD_SECONDS = 5.0
# A head that swaps or restarts is silent for a while; Ray itself waits for 60 s.
SILENCE_SECONDS = 15.0
# From then on it is lost.  20 s later a raylet ends, with the driver: the run writes its end first.
LOST_SECONDS = 40.0
# First bytes of an HTTP/2 client (gRPC is one): the preface and empty settings.  A server answers
# with its own settings.  A stopped process does not, although its socket still accepts connections.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class HeadWatch:
    """Thread that queries `host:port` every 2 s, and reports each silence of 15 s to `on_silence`.

    `on_lost` gets a sentence when a silence has lasted 40 s; the watch then ends.

    If the port speaks no plain HTTP/2 (Ray over TLS), an accepted connection is an answer.
    """

    def __init__(
        self,
        address: str,
        on_silence: Callable[[Finding], None],
        on_lost: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._head, self._on_silence = address.removeprefix("ray://"), on_silence
        self._on_lost = on_lost
        host, _, port = self._head.rpartition(":")
        self._endpoint = (host.strip("[]"), int(port))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="head watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; return when its last query is over."""
        self._stop.set()
        self._thread.join(timeout=2 * HEAD_SECONDS)

    def head_answers(self) -> bool:
        """Query the head once more: a call of Ray to a lost head ends the process."""
        return self._problem(HTTP2_PREFACE) is None or self._problem(b"") is None

    def _watch(self) -> None:
        preface = HTTP2_PREFACE if self._problem(HTTP2_PREFACE) is None else b""
        silent, reported = 0.0, False
        while not self._stop.wait(POLL_SECONDS):
            started = time.monotonic()
            problem = self._problem(preface)
            if problem is None:
                silent, reported = 0.0, False
                continue
            # No more than a query may take: a driver that was frozen heard nothing either.
            silent += min(time.monotonic() - started, HEAD_SECONDS) + POLL_SECONDS * (silent > 0)
            text = f"Ray's head at {self._head} has not answered for {silent:.0f} s: {problem}"
            if silent >= SILENCE_SECONDS and not reported:
                reported = True
                names = {"head_address": self._endpoint[0], "port": self._endpoint[1]}
                self._on_silence(finding("HOST-HEAD", text, [self._head], names=names))
            if silent >= LOST_SECONDS:
                self._on_lost(text)
                return

    def _problem(self, preface: bytes) -> str | None:
        """Query the head; return why it does not answer, or None if it does."""
        return query_port(self._endpoint, preface, HEAD_SECONDS)


def query_port(endpoint: tuple[str, int], preface: bytes, seconds: float) -> str | None:
    """Connect, and greet with `preface` if there is one; return why there is no answer, or None."""
    try:
        with socket.create_connection(endpoint, timeout=seconds) as connection:
            if preface:
                connection.sendall(preface)
                return None if connection.recv(1) else "it closes the connection"
    except OSError as error:
        return str(error) or type(error).__name__
    return None
