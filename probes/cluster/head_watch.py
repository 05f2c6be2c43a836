"""Watches in a thread whether Ray's head still answers.

A driver whose head is gone blocks in its next call.  Ray ends the driver after a minute, without a
message from the run.  This thread reports the head before that.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from probes.findings import finding
from reports.record import Finding

POLL_SECONDS = 2.0  # dates the start of a silence to 2 s, and is no load for the head
# Limit of one query: a later answer counts as none.  SILENCE_SECONDS is three of them.
ANSWER_SECONDS = 5.0
# A head that swaps or restarts is silent for a while; Ray itself waits for 60 s.
SILENCE_SECONDS = 15.0
# First bytes of an HTTP/2 client (gRPC is one): the preface and empty settings.  A server answers
# with its own settings.  A stopped process does not, although its socket still accepts connections.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class HeadWatch:
    """Thread that queries `host:port` every 2 s, and reports each silence of 15 s to `on_silence`.

    If the port speaks no plain HTTP/2 (Ray over TLS), an accepted connection is an answer.
    """

    def __init__(self, address: str, on_silence: Callable[[Finding], None]) -> None:
        self._head, self._on_silence = address.removeprefix("ray://"), on_silence
        host, _, port = self._head.rpartition(":")
        self._endpoint = (host.strip("[]"), int(port))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="head watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; return when its last query is over."""
        self._stop.set()
        self._thread.join(timeout=2 * ANSWER_SECONDS)

    def head_answers(self) -> bool:
        """Query the head once more: a call of Ray to a lost head ends the process."""
        return self._problem(HTTP2_PREFACE) is None or self._problem(b"") is None

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
                names = {"head_address": self._endpoint[0], "port": self._endpoint[1]}
                text = f"Ray's head at {self._head} has not answered for {silent:.0f} s: {problem}"
                self._on_silence(finding("HOST-HEAD", text, [self._head], names=names))

    def _problem(self, preface: bytes) -> str | None:
        """Query the head; return why it does not answer, or None if it does."""
        try:
            with socket.create_connection(self._endpoint, timeout=ANSWER_SECONDS) as connection:
                if preface:
                    connection.sendall(preface)
                    return None if connection.recv(1) else "it closes the connection"
        except OSError as error:
            return str(error) or type(error).__name__
        return None
