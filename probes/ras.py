"""Ask NCCL's RAS service on this node what its communicators wait for.

Only after a time-out of our own: queried while NCCL starts, versions 2.26 and 2.29.7 may crash.
The text protocol needs no `ncclras` binary (NCCL 2.24 and later, src/ras/client_support.cc).
"""

from __future__ import annotations

import socket

PORT = 28028  # NCCL_RAS_ADDR's default, on localhost
LONGEST = 1 << 20  # bytes of an answer that are read


def ras_status(port: int = PORT, seconds: float = 5) -> str:
    """RAS's verbose status as text; "" where nobody answers.  Takes `seconds` at most twice."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as service:
            lines = service.makefile("rb")
            service.sendall(b"CLIENT PROTOCOL 2\n")
            if not lines.readline(200).startswith(b"SERVER PROTOCOL"):
                return ""
            service.sendall(b"VERBOSE STATUS\n")
            return lines.read(LONGEST).decode("utf-8", "backslashreplace")
    except OSError:
        return ""
