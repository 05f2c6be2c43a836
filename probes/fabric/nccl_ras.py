"""Asks NCCL's RAS service on this node what its communicators wait for.

Only after a time-out of our own: a query while NCCL starts may crash versions 2.26 and 2.29.7.  The
text protocol needs no `ncclras` binary (NCCL 2.24 and later, src/ras/client_support.cc).
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

HOST, PORT = "localhost", 28028  # NCCL_RAS_ADDR's default; the name may mean ::1
# NCCL itself waits 5 s for processes that do not answer (RAS_COLLECTIVE_LEG_TIMEOUT_SEC).  The jobs
# that we query have such processes.
RAS_SECONDS = 12.0
MAX_ANSWER_BYTES = 1 << 20  # bytes of an answer that are read


def ras_status(port: int = PORT, seconds: float = RAS_SECONDS) -> str:
    """Ask for RAS's verbose status: text that comes within `seconds`; "" without an answer."""
    deadline = time.monotonic() + seconds
    try:
        with socket.create_connection((HOST, port), timeout=seconds / 2) as service:
            service.sendall(b"CLIENT PROTOCOL 2\n")
            if not _read_answer(service, deadline, b"\n").startswith(b"SERVER PROTOCOL"):
                return ""
            service.sendall(b"VERBOSE STATUS\n")
            return _read_answer(service, deadline).decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def _read_answer(service: socket.socket, deadline: float, end: bytes | None = None) -> bytes:
    """Read until the service closes, `end` arrives, or no time is left."""
    answer = b""
    with suppress(OSError):
        while len(answer) < MAX_ANSWER_BYTES and (left_s := deadline - time.monotonic()) > 0:
            service.settimeout(left_s)
            chunk = service.recv(MAX_ANSWER_BYTES - len(answer))
            answer += chunk
            if not chunk or (end and answer.endswith(end)):
                break
    return answer
