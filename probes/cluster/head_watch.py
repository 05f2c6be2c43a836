"""Whether Ray's head still answers, asked from beside the probe.

A driver whose head is gone waits in its next call, and Ray ends it after a minute without a word
of the run's.  This thread says the word before that.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from probes.findings import finding
from reports.record import Finding

EVERY_SECONDS = 2.0
ANSWER_SECONDS = 5.0
# A head that swaps or restarts is silent for a while; Ray itself waits for 60 s.
PATIENCE_SECONDS = 15.0
# What an HTTP/2 client (gRPC is one) opens with: the preface and empty settings.  A server answers
# with its own, a process that is stopped does not, though its socket still lets in.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class HeadWatch:
    """Asks `host:port` every 2 s; `gone` hears of each silence that lasts.

    Where the port speaks no plain HTTP/2 (Ray over TLS), that it lets in must do.
    """

    def __init__(self, address: str, gone: Callable[[Finding], None]) -> None:
        self._at, self._gone = address.removeprefix("ray://"), gone
        host, _, port = self._at.rpartition(":")
        self._place = (host.strip("[]"), int(port))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="head watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more; returns when the last look is over."""
        self._done.set()
        self._thread.join(timeout=2 * ANSWER_SECONDS)

    def _watch(self) -> None:
        hello = HELLO if self._problem(HELLO) is None else b""
        since, told = 0.0, False
        while not self._done.wait(EVERY_SECONDS):
            begun = time.monotonic()
            problem = self._problem(hello)
            if problem is None:
                since, told = 0.0, False
                continue
            since = since or begun
            silent = time.monotonic() - since
            if silent >= PATIENCE_SECONDS and not told:
                told = True
                said = f"Ray's head at {self._at} has not answered for {silent:.0f} s: {problem}"
                self._gone(finding("HOST-HEAD", said, [self._at]))

    def _problem(self, hello: bytes) -> str | None:
        """Why it does not answer; None when it does."""
        try:
            with socket.create_connection(self._place, timeout=ANSWER_SECONDS) as line:
                if hello:
                    line.sendall(hello)
                    return None if line.recv(1) else "it hangs up"
        except OSError as error:
            return str(error) or type(error).__name__
        return None
