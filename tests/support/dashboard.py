"""Serves a stand-in for a Ray dashboard, which may ask for a token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.support.served import serving


@contextmanager
def dashboard(session: str = "ours", token: str = "") -> Iterator[tuple[str, list[str]]]:
    """Serve a dashboard; yield its address, and the paths of the requests that it accepted.

    Without the token it answers 401, with a wrong token 403, as Ray does.
    """
    served: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            given = self.headers.get("Authorization", "")
            status = 200 if not token or given == f"Bearer {token}" else 403 if given else 401
            self.send_response(status)
            self.end_headers()
            if status == 200:
                served.append(self.path)
                self.wfile.write(json.dumps({"session_name": session}).encode())

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as address:
        yield address, served
