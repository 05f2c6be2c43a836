"""Sends harmless requests to Ray's entrances: with the cluster's token, a wrong one, or none.

An entrance is a port at which Ray takes orders.  It needs only the standard library, and for gRPC
the package that Ray's own clients use.
"""

from __future__ import annotations

import os
import secrets
import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from probes.cluster.cleanup import find_token

# What an entrance does with a request; any other text but NEEDS_TLS is a problem, and nothing is
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
MAX_PARALLEL = 32  # entrances that are asked at the same time
# Of an HTTP answer: no token, and a wrong one.
REFUSALS = (401, 403)
NOT_FOUND = 404
NEEDS_TLS = "refused without a certificate"  # with RAY_USE_TLS, Ray asks its clients for one


@dataclass(frozen=True)
class Entrance:
    """A port of Ray on the node of this name; `address` is host:port, or a URL for HTTP."""

    kind: str
    node: str
    address: str

    @property
    def text(self) -> str:
        """Name of the entrance in messages."""
        where = f" of {self.node}" if self.node else ""
        return f"{self.kind}{where} ({self.address.removeprefix('http://')})"


@dataclass(frozen=True)
class Answers:
    """What an entrance did with a request without a token, with a wrong one, and with the right.

    The last two are "" if they were not asked.
    """

    without: str
    wrong: str = ""
    right: str = ""


def join_address(host: str, port: int) -> str:
    """Join host and port, with brackets around an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ask_entrances(entrances: Sequence[Entrance], token: str) -> list[Answers]:
    """Ask every entrance; `token` is the cluster's, or "" if it is not known."""
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        return list(pool.map(lambda one: ask_entrance(one, token), entrances))


def ask_from_node(entrances: Sequence[Entrance]) -> list[dict[str, Any]]:
    """Ask every entrance from a Ray worker, which has the token of its node."""
    return [asdict(answers) for answers in ask_entrances(entrances, find_token())]


def ask_entrance(entrance: Entrance, token: str) -> Answers:
    """Ask one entrance; only one that refuses is asked with tokens as well."""
    without = try_request(entrance, "")
    if without != REFUSED:
        return Answers(without)
    wrong = try_request(entrance, secrets.token_hex(32))
    return Answers(without, wrong, try_request(entrance, token) if token else "")


def try_request(entrance: Entrance, token: str) -> str:
    """Send a request, and once more if nothing is known after the first."""
    answer = ""
    for seconds in ANSWER_SECONDS:
        answer = send_request(entrance, token, seconds)
        if answer in (TAKEN, REFUSED, NEEDS_TLS):
            break
    return answer


def send_request(entrance: Entrance, token: str, seconds: float) -> str:
    """Send one request; return TAKEN, REFUSED, or what the problem is."""
    if path := PATHS.get(entrance.kind):
        return send_http(entrance.address + path, token, seconds)
    method, request = METHODS[entrance.kind]
    return send_grpc(entrance.address, method, request, token, seconds)


class NoLoginPage(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a page for a login is no answer of Ray's."""

    def redirect_request(self, *_: Any) -> None:
        """Return nothing, so that the redirect is an error."""
        return


def open_url(url: str, token: str, seconds: float, data: bytes | None = None, **more: Any) -> Any:
    """Open a URL without the shell's proxies and without redirects, as urlopen does."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if data is not None:
        headers["Content-Type"] = "application/json"
    # Addresses are of the cluster and of the contract, which are HTTP alone.
    request = urllib.request.Request(url, data=data, headers=headers, **more)  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoLoginPage())
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
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            channel.unary_unary(method)(request, timeout=seconds, metadata=metadata)
        except grpc.RpcError as error:
            text = f"{error.code().name}: {error.details()}"
            refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
            if error.code() is grpc.StatusCode.UNAVAILABLE and uses_tls() and is_listening(address):
                return NEEDS_TLS
            return REFUSED if error.code() in refusals and WRONG_CLUSTER not in text else text
    return TAKEN


def uses_tls() -> bool:
    """Return whether Ray's processes talk to each other by TLS, with certificates on both ends."""
    return os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true")


def is_listening(address: str) -> bool:
    """Return whether a port accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS[0]).close()
    except (OSError, ValueError):
        return False
    return True
