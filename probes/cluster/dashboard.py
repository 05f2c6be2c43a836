"""Asks Ray's dashboard, with our token; each answer is bounded in time and size.

Needs the standard library alone, as `cleanup.py` does, which runs as a file.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import time
import urllib.request
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection, IncompleteRead
from pathlib import Path
from typing import Any

ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"  # Ray's own commands prefer this address
DASHBOARD = ("http://", "https://")  # how its address begins; those of Ray itself do not
DASHBOARD_SECONDS = 10.0  # for one answer of it; it answers in well under one


def request_dashboard(
    address: str,
    path: str,
    method: str = "GET",
    seconds: float = DASHBOARD_SECONDS,
    body: bytes | None = None,
    kind: str = "application/json",
    most: int = 0,
) -> bytes:
    """Send a request with our token; the whole answer must come in so many `seconds`.

    It has at most so many bytes, by default MAX_ANSWER.  Raises OSError (HTTPError for a refusal,
    AnswerTooLong, TimeoutError), HTTPException.
    A redirection is a refusal: the token is for this address alone, and POST would become GET.
    """
    headers = {**authorization_header(), **({} if body is None else {"Content-Type": kind})}
    request = urllib.request.Request(address + path, body, headers, method=method)  # noqa: S310  (of http)
    with urllib.request.build_opener(NoRedirect, _Handler).open(request, timeout=seconds) as answer:
        return read_answer(answer, seconds, most)


class _InTime(io.RawIOBase):
    """Reads a socket up to one deadline: a socket's own limit is for each read anew."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._sock = raw, sock
        self._seconds = sock.gettimeout() or DASHBOARD_SECONDS
        self._deadline = time.monotonic() + self._seconds

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what has come.  Raises TimeoutError after the deadline."""
        left = self._deadline - time.monotonic()
        with contextlib.suppress(TimeoutError):
            if left > 0:
                self._sock.settimeout(left)
                return self._raw.readinto(buffer)
        raise TimeoutError(f"the answer did not end in {self._seconds:.0f} s")

    def close(self) -> None:
        """Close the socket, too."""
        self._raw.close()
        super().close()


class _Answer(HTTPResponse):
    """An answer that comes whole, with its headers, before one deadline."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_InTime(self.fp.detach(), sock))


class _Connection(HTTPConnection):
    response_class = _Answer


class _TlsConnection(HTTPSConnection):
    response_class = _Answer


class _Handler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Makes requests whose answers end in time."""

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        """Send a request."""
        return self.do_open(_Connection, req)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        """Send a request."""
        return self.do_open(_TlsConnection, req)


MAX_ANSWER = 64 << 20  # bytes: the logs of a long run have a few
READ_BYTES = 1 << 16  # at a time


class AnswerTooLong(OSError):
    """The answer has more bytes than any of Ray's."""


def read_answer(answer: HTTPResponse, seconds: float, most: int = 0) -> bytes:
    """Read an answer to its end: at most so many bytes, by default MAX_ANSWER.

    Raises AnswerTooLong, TimeoutError after `seconds`, and IncompleteRead where it was cut off,
    which `read1` does not notice.
    """
    content, deadline, most = bytearray(), time.monotonic() + seconds, most or MAX_ANSWER
    length = answer.length  # None where the answer does not say it
    while part := answer.read1(READ_BYTES):
        content += part
        if len(content) > most:
            raise AnswerTooLong(f"the answer has more than {most >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the answer did not end in {seconds:.0f} s")
        if len(content) == length:
            break
    if len(content) < (length or 0):
        raise IncompleteRead(bytes(content), (length or 0) - len(content))
    return bytes(content)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it leads to a page for a login, or where no contract names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Let the caller see the redirection as an error."""


def authorization_header() -> dict[str, str]:
    """Make the header for a dashboard with token authentication; empty without a token.

    Raises ValueError for a token that no header can have; it is not in the message.
    """
    token = find_token()
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token has a line break, or a character that is not ASCII")
    return {"Authorization": f"Bearer {token}"} if token else {}


def find_token() -> str:
    """Find the token of Ray's token authentication as Ray (2.52 and later) does; "" if none."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return ""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    # RuntimeError: this user has no home.
    with contextlib.suppress(OSError, UnicodeDecodeError, RuntimeError):
        return token_path().read_text(encoding="utf-8").partition("\n")[0].strip()
    return ""


def token_path() -> Path:
    """Find the file that Ray reads the token from, if no variable holds the token itself."""
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return Path(path)
    service_account = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
    kubernetes = os.environ.get("RAY_ENABLE_K8S_TOKEN_AUTH", "").lower() in ("1", "true")
    if kubernetes and service_account.exists():
        return service_account
    return Path.home() / ".ray" / "auth_token"
