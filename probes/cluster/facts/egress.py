"""Connects from this node to addresses outside the cluster, as a job's download does."""

from __future__ import annotations

import os
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

SECONDS = 10.0  # for one answer from the other side of the world, by a proxy that is busy
TRIES = 2  # one lost packet, or a proxy that starts again, is no fault
# Answers of a gateway or proxy that did not reach the target (RFC 9110, section 15).
NOT_REACHED = (407, 502, 503, 504)
FORBIDDEN = 403  # from a proxy it is a refusal; a store of objects answers so without a key
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # certificates that requests and curl trust


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for an answer: the contract does not name where it leads."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


def try_targets(targets: Sequence[str], seconds: float = SECONDS) -> dict[str, str]:
    """Connect to all targets at the same time; return the problem of each, "" for none.

    A target is a URL, or `host:port`.  URLs are asked by the proxy that the environment names.
    """
    with ThreadPoolExecutor(max(1, len(targets))) as pool:
        problems = list(pool.map(lambda target: _try_again(target, seconds), targets))
    return dict(zip(targets, problems, strict=True))


def try_closed_target() -> dict[str, str]:
    """Try a port of this node that has just been closed, for a control: as a URL, and without."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
    return try_targets([f"https://{host}", host])


def _try_again(target: str, seconds: float) -> str:
    problem = ""
    for _ in range(TRIES):
        problem = try_url(target, seconds) if "://" in target else try_port(target, seconds)
        if not problem:
            break
    return problem


def try_port(target: str, seconds: float) -> str:
    """Connect to `host:port`; return the problem, or ""."""
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError as error:
        return _describe(error)
    return ""


def try_url(url: str, seconds: float) -> str:
    """Ask for the head of a page; return the problem, or "".  Any answer of the target is sound."""
    context = ssl.create_default_context()
    for path in filter(None, map(os.environ.get, BUNDLES)):
        if os.path.isfile(path):
            context.load_verify_locations(path)
    handlers = (NoRedirect(), urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - a contract has HTTP alone
    try:
        urllib.request.build_opener(*handlers).open(request, timeout=seconds).close()
    except urllib.error.HTTPError as error:
        error.close()
        refused = error.code == FORBIDDEN and _has_proxy(url)
        return f"answer {error.code}" if error.code in NOT_REACHED or refused else ""
    except urllib.error.URLError as error:
        return _describe(error.reason)
    except (OSError, ValueError, HTTPException) as error:  # no answer of HTTP
        return _describe(error)
    return ""


def _has_proxy(url: str) -> bool:
    parts = urlsplit(url)
    has_proxy = parts.scheme in urllib.request.getproxies()
    return has_proxy and not urllib.request.proxy_bypass(parts.hostname or "")


def _describe(error: Any) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
