"""What a rank finds: its environment, rings of NCCL, planted errors, and its report."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface

LEADING = "=the one that leads to rank 0"  # for NCCL_SOCKET_IFNAME: each rank finds its own


class LaunchError(RuntimeError):
    """Raised when the process was not started as a rank of a job; the message gives the remedy."""


def read_environment() -> dict[str, int]:
    """Read the numbers among LAUNCH_VARIABLES.

    Raises LaunchError naming what is missing or impossible.
    """
    missing = [name for name in LAUNCH_VARIABLES if not os.environ.get(name)]
    if missing:
        raise LaunchError(
            f"{', '.join(missing)} not set in the environment: start the job with torchrun"
            " or with `python -m reference_trainer launch`, or set the variables yourself"
        )
    numbers = {name: _read_integer(name) for name in LAUNCH_VARIABLES if name != "MASTER_ADDR"}
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise LaunchError(
            f"RANK is {numbers['RANK']}. Expected: below WORLD_SIZE={numbers['WORLD_SIZE']}"
            " (ranks count from 0)"
        )
    return numbers


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Set these variables in this process; None removes one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def changed_variables(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set these variables for a while, as `set_variables`; then restore what was there."""
    before = {name: os.environ.get(name) for name in variables}
    set_variables(variables)
    try:
        yield
    finally:
        set_variables(before)


def bind_gloo() -> None:
    """Make gloo use the interface that leads to MASTER_ADDR, where it would take the loopback.

    Without GLOO_SOCKET_IFNAME gloo binds the address of the host's own name: 127.0.1.1 on Debian
    and Ubuntu images, 127.0.0.1 in pods on their host's network. Ranks of other nodes then find no
    peer. Nothing is changed if the operator chose an interface, or the name is not the loopback's.
    """
    if os.environ.get("GLOO_SOCKET_IFNAME") or not _is_loopback(socket.gethostname()):
        return
    if name := _leading_interface():
        os.environ["GLOO_SOCKET_IFNAME"] = name


def bind_nccl_sockets() -> None:
    """Make NCCL use the interface that leads to MASTER_ADDR, if NCCL_SOCKET_IFNAME is LEADING.

    Without the variable NCCL takes an `ib` interface, or all interfaces. If rails do not reach each
    other, each connection between them then waits for its time-out.
    """
    if os.environ.get("NCCL_SOCKET_IFNAME") == LEADING:
        name = _leading_interface()
        set_variables({"NCCL_SOCKET_IFNAME": f"={name}" if name else None})


def _leading_interface() -> str:
    """Return the name of the interface that leads to MASTER_ADDR; "" if unknown or the loopback."""
    master = os.environ.get("MASTER_ADDR", "")
    with contextlib.suppress(OSError):
        address = _own_address(master) if master else ""
        names = [name for name, own in ipv4_addresses().items() if own == address]
        return names[0] if names and not address.startswith("127.") else ""
    return ""


def _is_loopback(host: str) -> bool:
    """Return whether a name resolves to the loopback, or to nothing at all."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(host).startswith("127.")
    return True


def _own_address(peer: str) -> str:
    """Find this host's address that leads to a peer; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])


def ipv4_addresses() -> dict[str, str]:
    """Read the first IPv4 address of each interface from the kernel."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                request = struct.pack("256s", name[:15].encode())
                reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                addresses[name] = socket.inet_ntoa(reply[20:24])
    return addresses


def _read_integer(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise LaunchError(f"{name} is {text!r} in the environment. Expected: a whole number")
    return int(text)


# INFO(NCCL_GRAPH, "Ring %02d : %d -> %d -> %d", channel, before, rank, after), NCCL's src/init.cc.
RING = re.compile(rb"\bRing 0*(\d+) : (\d+) -> (\d+) -> (\d+)")
# With these settings the order depends on the rings alone: no tree, no sum inside the switch
# (NVLS), and one protocol, because the others split a message differently.
PINNED = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
LOG_VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
QUIET_LOGS = ("", "VERSION", "WARN")  # many images set one: see show_warnings
WARNING = re.compile(rb"^.*\bNCCL WARN\b.*$", re.MULTILINE)


def pin_order() -> list[str]:
    """Pin NCCL's order of sums in this process; return a message for each variable set otherwise.

    NCCL reads the variables with its first communicator.
    """
    overruled = [
        f"this run uses {name}={value} instead of {os.environ[name]}, because sums must have a "
        "fixed order (--no-deterministic keeps your value)"
        for name, value in PINNED.items()
        if os.environ.get(name, value) != value
    ]
    os.environ.update(PINNED)
    return overruled


@cache
def _make_log() -> int | None:
    level, *others = (os.environ.get(name, "") for name in LOG_VARIABLES)
    return None if level.upper() not in QUIET_LOGS or any(others) else os.memfd_create("nccl-log")


def open_log() -> int | None:
    """Open a log of NCCL in memory and return its descriptor; a file would outlive a killed rank.

    Returns None if the operator has set where NCCL logs, or wants more than warnings. NCCL opens
    its log once, so it is the same for all runs of a process. It may do so only in a later run: the
    variables are set in each.
    """
    log = _make_log()
    if log is not None:
        values = ("INFO", "GRAPH", f"/proc/self/fd/{log}")
        os.environ.update(zip(LOG_VARIABLES, values, strict=True))
    return log


def log_length() -> int:
    """Return how many bytes NCCL has logged so far; a run that begins now reads only later ones."""
    log = open_log()
    return os.fstat(log).st_size if log is not None else 0


def _logged(since: int) -> bytes:
    """Return what NCCL logged after byte `since`; nothing where it has no log of ours."""
    log = open_log()
    return b"" if log is None else os.pread(log, os.fstat(log).st_size - since, since)


def show_warnings(since: int) -> None:
    """Print the warnings that NCCL logged after byte `since`: those of a run that has failed."""
    for line in WARNING.findall(_logged(since)):
        print(line.decode("utf-8", "replace"), file=sys.stderr, flush=True)


def read_rings(since: int) -> list[str] | None:
    """Read the rings through this rank that NCCL logged after byte `since`; None if none."""
    rings = sorted({tuple(map(int, found)) for found in RING.findall(_logged(since))})
    return [f"{channel}: {a} -> {b} -> {c}" for channel, a, b, c in rings] or None


STRIKE_STEP = 2  # by then all ranks wait for each other in collectives
CHILD_SECONDS = 120  # then it ends by itself
TOO_MANY_BYTES = 1 << 55  # more than any device has, so nothing is allocated

KINDS = (
    "weights",  # begins with weights of its own
    "samples",  # trains on the samples of rank 0
    "repeat",  # trains on its first samples again and again
    "validation",  # validates on other data
    "metrics",  # reports the sum of the ranks' losses instead of their mean
    "loss",  # climbs the loss instead of descending
    "export",  # each rank exports the model
    "corrupt",  # the exported model is another than the trained one
    "error",  # raises an exception in step 2
    "memory",  # asks for more memory than there is in step 2
    "process",  # starts a process in step 2 that outlives it
    "silence",  # does nothing any more from step 2 on, and prints nothing
)


def parse_errors(text: str) -> frozenset[str]:
    """Parse `weights,samples`. Raises ValueError for a kind that is not known."""
    kinds = frozenset(text.split(",")) if text else frozenset()
    if unknown := sorted(kinds - {*KINDS}):
        raise ValueError(f"plant is {unknown[0]!r}. Expected: some of {', '.join(KINDS)}")
    return kinds


class PlantedErrors:
    """The errors that one rank of a job plants: all of them the last one, some every rank."""

    def __init__(self, text: str, rank: int, size: int) -> None:
        self.kinds = parse_errors(text)
        self.rank, self.size = rank, size

    def here(self, kind: str) -> bool:
        """Return whether this rank plants it."""
        return kind in self.kinds and self.rank == self.size - 1

    def everywhere(self, kind: str) -> bool:
        """Return whether the job plants it, on every rank."""
        return kind in self.kinds

    @property
    def sign(self) -> int:
        """Sign of the learning rate: -1 climbs the loss."""
        return -1 if self.everywhere("loss") else 1

    def strike(self, step: int) -> None:
        """Fail as a user's script does, in STRIKE_STEP of the last rank."""
        if step != STRIKE_STEP:
            return
        if self.here("error"):
            raise KeyError("planted error")
        if self.here("memory"):
            import torch

            torch.empty(TOO_MANY_BYTES, dtype=torch.uint8)
        if self.here("process"):
            # Its parent ends at once: Ray ends the children of a worker that it stops, not these.
            background = f"sleep {CHILD_SECONDS} > /dev/null 2>&1 &"
            subprocess.run(["sh", "-c", background], check=True, start_new_session=True)
        while self.here("silence"):
            time.sleep(1)


SAFE = "/:.,+-@[]"  # as they are: addresses, paths, UUIDs and ranges stay readable
JOB_VARIABLE = "TRAINING_JOB"  # the job's name: all that a rank starts inherits it
PLACE_VARIABLES = (
    "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", JOB_VARIABLE,
)  # fmt: skip
# Variables that change how fast or how safely a job communicates; none of them holds a secret.
OF_NCCL = """ALGO BUFFSIZE CHECK_POINTERS CROSS_NIC CUMEM_ENABLE IB_DISABLE IB_GID_INDEX IB_HCA
IB_TIMEOUT MAX_CTAS MAX_NCHANNELS MAX_NRINGS MIN_NCHANNELS MNNVL_ENABLE NET NET_GDR_LEVEL
NET_GDR_READ NET_PLUGIN NTHREADS NVLS_ENABLE P2P_DISABLE P2P_LEVEL PROTO PXN_DISABLE SHM_DISABLE
SOCKET_IFNAME"""
TUNING_VARIABLES = (
    *(f"NCCL_{name}" for name in OF_NCCL.split()), "GLOO_SOCKET_IFNAME", "CUDA_LAUNCH_BLOCKING",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
CONNECT_SECONDS = 10


def encode_words(values: Mapping[str, Any]) -> str:
    """Encode values as words; leave out those that are None."""
    known = {name: str(value) for name, value in values.items() if value is not None}
    return " ".join(f"{name}={quote(text, safe=SAFE)}" for name, text in known.items())


def read_variables(shown: str = "") -> dict[str, str | None]:
    """Return this process's rendezvous and place variables; None for those not set.

    `shown` names more of them, with commas between.
    """
    names = (*LAUNCH_VARIABLES, *PLACE_VARIABLES, *filter(None, shown.split(",")))
    return {name: os.environ.get(name) for name in names}


def connect_master() -> str | None:
    """Connect to MASTER_ADDR:MASTER_PORT and return the peer's IP address; None if it fails.

    A rank does so while it trains: rank 0's store listens there.
    """
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    try:
        with socket.create_connection((address, int(port)), timeout=CONNECT_SECONDS) as sock:
            return str(sock.getpeername()[0])
    except (OSError, ValueError):
        return None


def ranges(numbers: Iterable[int]) -> str:
    """Write numbers as ranges: `0-3,8`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def trained_words(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a rank's result says of it: see `reference_trainer.train.train`."""
    steps: Sequence[Mapping[str, Any]] = result["steps"]
    validation, export = result.get("validation") or {}, result.get("export") or {}
    return {
        **(result.get("variables") or {}),
        "RANK": result["rank"],
        "host": result["host"],
        "device": result["device"],
        "gpu": result["gpu"],
        "master": result.get("master"),
        "start": _short(result.get("start_digest")),
        "end": _short(result["digest"]),
        "from": result["start_step"],
        "losses": ",".join(f"{step['local_loss']:.6g}" for step in steps) or None,
        "samples": ranges(id for step in steps for id in step["ids"]) or None,
        "seen": sum(len(step["ids"]) for step in steps) or None,
        "validation": validation.get("crc32"),
        "validation_loss": _loss(validation.get("loss")),
        "exported": _short(export.get("sha256")),
        "loaded": _short(export.get("loaded_sha256")),
        "loaded_loss": _loss(export.get("loaded_loss")),
    }


def _short(digest: str | None) -> str | None:
    return digest[:16] if digest else None


def _loss(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"
