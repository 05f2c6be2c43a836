"""Forwards HTTP to a dashboard and adds its token to each request, as a careless ingress does.

Runs as a file on a lab node: <address> <port> <dashboard> <token file>.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FORWARD_SECONDS = 60  # for an answer of the dashboard


def main(address: str, port: str, dashboard: str, token_file: str) -> None:
    """Serve until killed."""
    token = Path(token_file).read_text().strip()

    class Handler(BaseHTTPRequestHandler):
        def forward_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
            kept = {"Authorization": f"Bearer {token}"}
            if kind := self.headers.get("Content-Type"):
                kept["Content-Type"] = kind
            asked = urllib.request.Request(
                f"{dashboard}{self.path}", data=body, headers=kept, method=self.command
            )
            try:
                with urllib.request.urlopen(asked, timeout=FORWARD_SECONDS) as answer:
                    self.send_answer(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                self.send_answer(error.code, error.read())

        def send_answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = forward_request

        def log_message(self, *_: object) -> None:
            pass

    ThreadingHTTPServer((address, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
