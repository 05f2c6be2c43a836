"""Finds the address of a cluster, and how its endpoints ask for a token."""

from __future__ import annotations

import os
import pwd
import re
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from probes.cluster.dashboard import DASHBOARD, find_token, token_path
from probes.cluster.embedded import OWN_FOLDER
from probes.cluster.endpoints import CLIENT, GCS, REFUSED, TAKEN, Endpoint, try_port, try_request
from probes.cluster.ray_internals import complete_address, find_last_address, reload_settings
from reports.numbers import quantity
from reports.redact import redact_text
from reports.sanitize import closest_name, one_line

MODE = "RAY_AUTH_MODE"
SILENT = ("DEADLINE_EXCEEDED", "UNAVAILABLE")  # of gRPC: nothing that speaks it is there
HINT = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN) to the cluster's token"


class ClusterUnreachable(RuntimeError):
    """Raised when no cluster can be joined.  The message is one sentence and a hint."""

    def __init__(self, message: str) -> None:
        super().__init__(redact_text(message))  # an address may have a password


def follow_auth_mode(address: str) -> None:
    """Turn on token authentication in this process, and in its children, if the cluster asks.

    Ray does this only where it finds the cluster by itself.  Raises ClusterUnreachable if the token
    is missing or wrong, if no Ray answers, or if the driver insists on tokens and there are none.
    """
    is_client = address.startswith("ray://")
    door = Endpoint(CLIENT if is_client else GCS, "", address.removeprefix("ray://"))
    without = try_request(door, "")
    if without == TAKEN and os.environ.get(MODE, "").lower() == "token":
        raise ClusterUnreachable(
            f"{MODE} is token, but the cluster at {address} requires no token: "
            f"set {MODE}=disabled, or start the cluster with token authentication"
        )
    if without.startswith(SILENT):  # Ray would wait for ever
        raise ClusterUnreachable(
            f"no Ray answers at {address} ({one_line(without)}). Is the head up, and is this "
            "its port (6379, or 10001 with ray://)?"
        )
    if without != REFUSED:  # no token is asked for; or nothing is known, and Ray will say why
        return
    if not (token := find_token()):
        lack = f"none was found in RAY_AUTH_TOKEN or {token_path()}"
        if os.environ.get(MODE, "").lower() == "disabled":
            lack = f"{MODE} is disabled here"
        raise ClusterUnreachable(f"the cluster at {address} requires a token, but {lack}: {HINT}")
    if try_request(door, token) == REFUSED:
        in_variable = os.environ.get("RAY_AUTH_TOKEN", "").strip()
        raise ClusterUnreachable(
            f"the cluster at {address} refuses the token of "
            f"{'RAY_AUTH_TOKEN' if in_variable else token_path()}: {HINT}. "
            "On the head, `ray get-auth-token` prints the token"
        )
    if os.environ.get(MODE, "").lower() != "token":
        turn_on_tokens()


def turn_on_tokens() -> None:
    """Set the variable for this process and its children, and make Ray read it again."""
    os.environ[MODE] = "token"
    reload_settings()


CONNECT_SECONDS = 2  # bounds one TCP handshake with a host that drops packets
ROUTES = Path("/proc/net/route")
# Flags of a raylet, all with hyphens; Ray writes `--temp_dir`.
GCS_FLAG = "--gcs-address"  # the address of its cluster
OWN_FLAG = "--node-ip-address"  # its own
FOLDER_FLAG = "--temp-dir"  # where its files are
MAX_RAYLETS = 32  # of an embedded cluster: more do not fit on a host
OTHERWISE = (
    "run seatrial on a node of the cluster, set RAY_ADDRESS to its address, give --cluster "
    "ray://host:10001, or rehearse with --cluster local:4"
)
SUBMIT = "a dashboard. Run the suite as a job: seatrial submit"


def check_spec(spec: str) -> None:
    """Check that `spec` can name a cluster, without contacting any.  Raises ClusterUnreachable."""
    if spec == "auto" or re.fullmatch(r"ray://[^:/]+:\d+", spec):
        return
    if spec.startswith(DASHBOARD):
        raise ClusterUnreachable(f"--cluster is {spec}, {SUBMIT} --address {spec}")
    if match := re.fullmatch(r"local(?::(\d+))?", spec):
        if not 1 <= int(match[1] or 1) <= MAX_RAYLETS:
            expected = f"1 to {MAX_RAYLETS} raylets"
            raise ClusterUnreachable(f"--cluster local:N: expected {expected}, found {match[1]}")
        return
    word = spec.partition(":")[0]
    close = closest_name(word, ["auto", "local", "ray"])
    found = f"{spec!r}; did you mean {close}?" if close not in ("", word) else repr(spec)
    expected = "auto, local[:N] or ray://host:port"
    raise ClusterUnreachable(f"--cluster: expected {expected}, found {found}")


def count_raylets(spec: str) -> int:
    """Return how many raylets a `local[:N]` asks for; 0 for another cluster."""
    return int(spec.partition(":")[2] or 2) if spec.split(":")[0] == "local" else 0


def find_address(spec: str) -> str:
    """Return the address to join for `auto` or `ray://host:port`, once it answers.

    Raises ClusterUnreachable where there is no address, or nothing answers at it.
    """
    origin, hint = "from --cluster", "Is the head up, and its port open?"
    if spec == "auto" and os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        spec, origin = os.environ["RAY_ADDRESS"], "from RAY_ADDRESS"
        check_spec(spec)
    if spec == "auto":
        spec, origin = _running_address()
        hint = f"Is the head up? Try `ray status` there, or {OTHERWISE}"
    if reason := try_port(spec.removeprefix("ray://"), CONNECT_SECONDS):
        raise ClusterUnreachable(f"no Ray answers at {spec} (address {origin}): {reason}. {hint}")
    return spec


def _running_address() -> tuple[str, str]:
    """Find the address of the Ray cluster that this machine is a node of, and where it is from.

    Raises ClusterUnreachable when there is none, or none that this machine's network has.
    """
    if (named := os.environ.get("RAY_ADDRESS", "")).startswith(DASHBOARD):
        raise ClusterUnreachable(f"RAY_ADDRESS is {named}, {SUBMIT}, or {OTHERWISE}")
    if named not in ("", "auto"):
        try:
            address = complete_address(named)
        except ValueError as error:
            raise ClusterUnreachable(f"RAY_ADDRESS is not an address: {error}") from None
        if address is None:
            raise ClusterUnreachable(f"RAY_ADDRESS is {named!r}, expected host:port: {OTHERWISE}")
        return address, "from RAY_ADDRESS"
    last = find_last_address()
    raylets = find_raylets()
    own = sorted(address for address, here in raylets.items() if here)
    if own:
        if len(own) > 1 and last not in own:
            found = f"several clusters ({', '.join(own)})"
            raise ClusterUnreachable(f"--cluster auto found {found}: set RAY_ADDRESS to one")
        return (last if last in own else own[0]), "from a Ray process of this host"
    if raylets:
        raise ClusterUnreachable(
            f"--cluster auto found Ray at {', '.join(sorted(raylets))} in another network "
            f"namespace, such as a container: {OTHERWISE}"
        )
    if not last and (embedded := find_embedded()):
        found = "; ".join(f"{address} ({run})" for address, run in sorted(embedded.items()))
        raise ClusterUnreachable(
            "--cluster auto does not join the cluster of another run (--cluster local). Found: "
            f"{found}. Wait until that run ends, {OTHERWISE}. To use the found cluster, set "
            f"RAY_ADDRESS={min(embedded)}, and give --wait-for-room 30m"
        )
    if not last:
        raise ClusterUnreachable(f"--cluster auto found no running Ray cluster: {OTHERWISE}")
    origin = "from the last `ray start` of this host"
    if not reaches_directly(last.rpartition(":")[0]):
        raise ClusterUnreachable(
            f"--cluster auto does not join {last} ({origin}): it is behind a router, and no "
            f"Ray runs here. Start Ray here, or {OTHERWISE}"
        )
    return last, origin


def find_raylets() -> dict[str, bool]:
    """Find the clusters of this host's raylets: address -> whether one is in our own network.

    Embedded clusters are left out: they belong to a run.  A process of another user may not show
    its network namespace.  It is in ours if its own address is one of this host.
    """
    found: dict[str, bool] = {}
    for process, flags in _read_raylets(embedded=False):
        here = shares_our_network(process, flags.get(OWN_FLAG, ""))
        found[flags[GCS_FLAG]] = found.get(flags[GCS_FLAG], False) or here
    return found


def find_embedded() -> dict[str, str]:
    """Find the embedded clusters in our network: address -> how many raylets, and whose."""
    raylets = [
        (flags[GCS_FLAG], _owner(process))
        for process, flags in _read_raylets(embedded=True)
        if shares_our_network(process, flags.get(OWN_FLAG, ""))
    ]
    counts = Counter(raylets)
    return {address: f"{quantity(n, 'raylets')} of {run}" for (address, run), n in counts.items()}


def _read_raylets(*, embedded: bool) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield each raylet of this host, of embedded clusters or of others, and its flags."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        pairs = (word.partition("=") for word in words)
        flags = {name.replace("_", "-"): value for name, _, value in pairs}
        is_embedded = bool(OWN_FOLDER.match(flags.get(FOLDER_FLAG, "")))
        if words[0].endswith("/raylet") and GCS_FLAG in flags and is_embedded is embedded:
            yield process, flags


def _owner(raylet: Path) -> str:
    """Describe the process whose run embeds this raylet's cluster.

    A cluster is a session of processes, and the parent of its leader is the run.
    """
    try:
        leader = Path("/proc") / str(os.getsid(int(raylet.name)))
        run = int((leader / "stat").read_text().rpartition(")")[2].split()[1])
        uid = (leader.parent / str(run)).stat().st_uid
    except OSError:
        return "an unknown process"
    user = f"uid {uid}"
    with suppress(KeyError):
        user = pwd.getpwuid(uid).pw_name
    return f"process {run} of {user}"


def shares_our_network(process: Path, address: str) -> bool:
    """Return whether a process with this address is in our network namespace."""
    with suppress(OSError):
        return os.stat(process / "ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino
    return not address or is_own_address(address)


def is_own_address(address: str) -> bool:
    """Return whether an interface of our network namespace has this address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as own:
        own.bind((address, 0))
        return True
    return False


# Of 10.0.0.0/8, the largest network of private addresses.  A larger route without a router is that
# of a tunnel: the default route, or two that halve all addresses.
LEAST_PREFIX = 8


def reaches_directly(host: str) -> bool:
    """Return whether packets for `host` need no router (IPv4; true where that is not known)."""
    try:
        address = IPv4Address(socket.gethostbyname(host))
        lines = ROUTES.read_text(encoding="ascii").splitlines()[1:]
    except (OSError, ValueError):
        return True
    if is_own_address(str(address)):
        return True
    routes = [route for route in map(Route.parse, lines) if address in route.network]
    best = max(routes, key=lambda route: route.network.prefixlen, default=None)
    return best is not None and not best.by_router and best.network.prefixlen >= LEAST_PREFIX


@dataclass(frozen=True)
class Route:
    """A row of /proc/net/route."""

    network: IPv4Network
    by_router: bool

    @classmethod
    def parse(cls, line: str) -> Route:
        """Parse a row: numbers are hexadecimal, in the byte order of an x86."""
        _, target, gateway, *rest = line.split()
        numbers = (int(text, 16).to_bytes(4, sys.byteorder) for text in (target, rest[4]))
        network, mask = map(IPv4Address, numbers)
        return cls(IPv4Network(f"{network}/{mask}"), int(gateway, 16) != 0)


# Options of ray.init: a driver prints what the user asked for, and nothing of Ray's.
QUIET = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}


def cannot_join(address: str, error: Exception) -> ClusterUnreachable:
    """Make the error of a cluster that Ray cannot join."""
    if isinstance(error, UnicodeEncodeError):  # Ray sends the driver's command line
        why = "the command line has characters that Python cannot read in this locale"
        return ClusterUnreachable(f"{address} cannot be joined: {why}. Set PYTHONUTF8=1")
    return ClusterUnreachable(f"{address} cannot be joined: {' '.join(str(error).split())}")


def read_size(spec: str) -> tuple[int, int]:
    """Return the number of live nodes and GPUs of a running cluster.  Nothing is placed on it."""
    import ray

    address = find_address(spec)
    try:
        follow_auth_mode(address)
        ray.init(address, **QUIET)
        resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise cannot_join(address, error) from None
    finally:
        ray.shutdown()
    with_gpus = [one for one in resources if one.get("GPU")]
    return len(with_gpus or resources), int(sum(one["GPU"] for one in with_gpus))
