"""Opens a listener on this node, and connects to the ports of other nodes.

`NodePorts` is a Ray actor, one on each node.  Its own port is that of any Ray worker there.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.cluster.facts.names import look_up_all
from probes.cluster.head_watch import HTTP2_PREFACE
from probes.cluster.unique_token import make_unique_token

LISTEN = "0A"  # include/net/tcp_states.h, as in /proc/net/tcp
MAX_PARALLEL = 32  # connections that one node tries at the same time
# Seconds for a connection and for its answer.  The kernel repeats a lost SYN after 1 s and 3 s.
FIRST_SECONDS = 4.0
# What failed is tried once more: a busy node that answers late is sound.
SECOND_SECONDS = 8.0
NOT_CONNECTED = "packets are dropped: no answer in time"
NO_ANSWER = "the connection is accepted, and nothing answers"
OTHER_ANSWER = "another program answers"
GRPC = "grpc"  # `proof` of a port where a gRPC server must answer
# A server of HTTP/2 (gRPC is one) sends its settings first: RFC 9113, sections 3.4 and 4.1.
FRAME_BYTES, SETTINGS = 9, 4
NO_PROOF = ""  # an accepted connection is enough


@dataclass(frozen=True)
class Endpoint:
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

        tls = os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true")
        answer = {
            "gcs": ray.get_runtime_context().gcs_address,
            "worker": find_worker_port(address, NO_PROOF if tls else GRPC),
            "tls": tls,
            "token": self._token,
        }
        try:
            port: int | None = self.start_listener(address)
            error = ""
        except OSError as problem:
            port, error = None, str(problem.strerror or problem)
        return {**answer, "job": port, "error": error}

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

    def try_ports(self, endpoints: Sequence[Endpoint]) -> list[str]:
        """Connect to each port; return the problem of each, "" for none."""
        return try_endpoints(endpoints)

    def look_up_names(self, names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        """Resolve names on this node, as `look_up_all`."""
        return look_up_all(names)


def find_worker_port(address: str, proof: str) -> int | None:
    """Find the port of this worker's own server, which answers here; None if there is none."""
    for port in own_listening_ports():
        if not try_endpoint(Endpoint("", "", address, port, proof), FIRST_SECONDS):
            return port
    return None


def own_listening_ports(proc: str = "/proc/self") -> list[int]:
    """List the TCP ports on which this process listens; empty if unreadable."""
    try:
        files = list(Path(proc, "fd").iterdir())
    except OSError:
        return []
    own = set()
    for file in files:
        with suppress(OSError):  # closed in the meantime
            own.add(os.readlink(file))
    text = ""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # a kernel without IPv6
            text += Path(proc, "net", table).read_text()
    return [port for port, inode in parse_listeners(text) if f"socket:[{inode}]" in own]


def parse_listeners(text: str) -> list[tuple[int, str]]:
    """Parse lines of /proc/net/tcp and tcp6 into (port, inode) of the sockets that listen."""
    rows = [line.split() for line in text.splitlines()]
    return [
        (int(row[1].rpartition(":")[2], 16), row[9])
        for row in rows
        if len(row) > 9 and row[3] == LISTEN
    ]


def try_endpoints(
    endpoints: Sequence[Endpoint], first: float = FIRST_SECONDS, second: float = SECOND_SECONDS
) -> list[str]:
    """Connect to each endpoint, and once more to each that failed; return the problems."""
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        problems = list(pool.map(lambda one: try_endpoint(one, first), endpoints))
        failed = [index for index, problem in enumerate(problems) if problem]
        again = pool.map(lambda index: try_endpoint(endpoints[index], second), failed)
        for index, problem in zip(failed, again, strict=True):
            problems[index] = problem
    return problems


def max_try_seconds(count: int) -> float:
    """Return the most seconds that `try_endpoints` takes for so many endpoints."""
    return -(-count // MAX_PARALLEL) * 2 * (FIRST_SECONDS + SECOND_SECONDS)


def try_endpoint(endpoint: Endpoint, seconds: float) -> str:
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
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _check_proof(connection: socket.socket, proof: str) -> str:
    if proof == NO_PROOF:
        return ""
    if proof == GRPC:
        connection.sendall(HTTP2_PREFACE)
        header = _receive(connection, FRAME_BYTES)
        is_settings = len(header) >= FRAME_BYTES and header[3] == SETTINGS
        return "" if is_settings else OTHER_ANSWER
    return "" if _receive(connection, len(proof)) == proof.encode() else OTHER_ANSWER


def _receive(connection: socket.socket, count: int) -> bytes:
    """Receive at least `count` bytes, or what there is until the peer closes."""
    answer = b""
    while len(answer) < count and (more := connection.recv(64)):
        answer += more
    return answer
