"""Serves HTTP on this host while a test runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


@contextmanager
def running(server: HTTPServer) -> Iterator[str]:
    """Let a server answer until the end; yield its address."""
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve with this handler; yield the address."""
    with running(HTTPServer(("127.0.0.1", 0), handler)) as address:
        yield address
