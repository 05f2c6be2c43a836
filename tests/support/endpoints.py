"""Serves a stand-in for a gRPC endpoint of Ray, which may ask for a token."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc


@contextmanager
def grpc_endpoint(
    token: str = "", code: Any = None, details: str = "as the test says"
) -> Iterator[str]:
    """Serve every method; yield host:port.

    Without the token it answers UNAUTHENTICATED, as Ray does; otherwise with `code`, if given.
    """

    def answer(_: bytes, context: Any) -> bytes:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if token and given != f"Bearer {token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken: missing or wrong")
        if code is not None:
            context.abort(code, details)
        return b""

    class Handler(grpc.GenericRpcHandler):
        def service(self, _: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer)

    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, handlers=[Handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
