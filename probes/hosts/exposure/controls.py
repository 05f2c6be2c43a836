"""Control of Ray's entrances: a stand-in on the last node that does the opposite of the mode."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.access.entrances import AGENT, Entrance, join_address
from probes.cluster.cluster import Cluster
from probes.cluster.node_affinity import on_node
from probes.hosts.exposure.entrances import OFF, TOKEN, Asked, find_problem, judge_entrances
from probes.hosts.exposure.plan import ask_from_head
from probes.hosts.exposure.stranger_job import judge_stranger_job, try_stranger_job

NAME = "other entrance"
START_SECONDS = 60.0  # for an actor to start, and its server: seconds on a busy node


class StandInEntrance:
    """Ray actor with an HTTP server that answers as an entrance of Ray.

    It takes every request, or refuses all.  It runs nothing.
    """

    def start_server(self, address: str, refuses: bool) -> int:
        """Start the server on this address; return its port, which the kernel picks."""
        server = make_server(address, refuses)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return int(server.server_port)


def make_server(address: str, refuses: bool) -> ThreadingHTTPServer:
    """Make a server that refuses all, or answers as if each job ran and printed its id."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(401 if refuses else 200)
            self.end_headers()
            if not refuses:
                self.wfile.write(json.dumps({"status": "SUCCEEDED", "logs": self.path}).encode())

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        daemon_threads = True

    return Server((address, 0), Handler)


class StandInMissing(RuntimeError):
    """Raised if the stand-in does not start."""


@contextmanager
def open_stand_in(node: Mapping[str, Any], refuses: bool) -> Iterator[str]:
    """Start a stand-in on this node; yield its URL.  Raises StandInMissing."""
    import ray

    actor = on_node(StandInEntrance, node["id"]).remote()
    try:
        call = actor.start_server.remote(node["address"], refuses)
        yield f"http://{join_address(node['address'], ray.get(call, timeout=START_SECONDS))}"
    except ray.exceptions.RayError as error:
        raise StandInMissing((str(error).strip().splitlines() or ["it died"])[-1]) from None
    finally:
        ray.kill(actor)


def control_entrance(
    cluster: Cluster, asked: Sequence[Asked], mode: str, measure: Recorder
) -> None:
    """Check that an entrance is detected which does the opposite of what the mode asks for."""
    victim = cluster.nodes[-1]
    does = "asks for a token" if mode == OFF else "takes every request"
    fault, trial = f"an entrance on {victim['name']} {does}", measure.trial()
    try:
        with open_stand_in(victim, mode == OFF) as url:
            planted = ask_from_head(cluster, [Entrance(AGENT, victim["name"], url)])
            judge_entrances([*asked, *planted], mode, trial)
            if mode == TOKEN:
                judge_stranger_job(try_stranger_job(cluster, url), url, True, trial)
    except StandInMissing as problem:
        measure.control(NAME, fault, None, saw=str(problem))
        return
    located = all(find_problem(one, mode)[0] for one in planted)
    others = () if mode == TOKEN else ("stranger_jobs",)
    measure.control(NAME, fault, trial, located=located, without=others)
