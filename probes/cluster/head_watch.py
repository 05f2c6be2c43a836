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

POLL_SECONDS = 2.0  # dates a silence to 2 s, and is no load for the head
ANSWER_SECONDS = (
    5.0  # bounds one question; later than this is no answer, and SILENCE_SECONDS takes three
)
# A head that swaps or restarts is silent for a while; Ray itself waits for 60 s.
SILENCE_SECONDS = 15.0
# What an HTTP/2 client (gRPC is one) opens with: the preface and empty settings.  A server answers
# with its own, a process that is stopped does not, though its socket still lets in.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class HeadWatch:
    """Asks `host:port` every 2 s; `on_silence` hears of each silence that lasts.

    Where the port speaks no plain HTTP/2 (Ray over TLS), that it lets in must do.
    """

    def __init__(self, address: str, on_silence: Callable[[Finding], None]) -> None:
        self._head, self._on_silence = address.removeprefix("ray://"), on_silence
        host, _, port = self._head.rpartition(":")
        self._endpoint = (host.strip("[]"), int(port))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="head watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more; returns when the last look is over."""
        self._stop.set()
        self._thread.join(timeout=2 * ANSWER_SECONDS)

    def _watch(self) -> None:
        preface = HTTP2_PREFACE if self._problem(HTTP2_PREFACE) is None else b""
        since, reported = 0.0, False
        while not self._stop.wait(POLL_SECONDS):
            started = time.monotonic()
            problem = self._problem(preface)
            if problem is None:
                since, reported = 0.0, False
                continue
            since = since or started
            silent = time.monotonic() - since
            if silent >= SILENCE_SECONDS and not reported:
                reported = True
                text = f"Ray's head at {self._head} has not answered for {silent:.0f} s: {problem}"
                self._on_silence(finding("HOST-HEAD", text, [self._head]))

    def _problem(self, preface: bytes) -> str | None:
        """Why it does not answer; None when it does."""
        try:
            with socket.create_connection(self._endpoint, timeout=ANSWER_SECONDS) as connection:
                if preface:
                    connection.sendall(preface)
                    return None if connection.recv(1) else "it hangs up"
        except OSError as error:
            return str(error) or type(error).__name__
        return None
