"""Judges who can send commands to Ray: endpoints, listeners, and a job of a stranger."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from probes.check.recorder import Recorder
from probes.cluster import endpoints as of_ray
from probes.cluster.ask import make_unique_token, on_node
from probes.cluster.cluster import Cluster
from probes.cluster.dashboard import find_token
from probes.cluster.endpoints import CLIENT, GCS, REFUSED, TAKEN, Endpoint, EndpointAnswers
from probes.cluster.ray_internals import read_value
from probes.findings import finding, join_names
from probes.hosts import criterion as check
from reference_trainer.late import ray
from reports.groups import group_pairs
from reports.record import Finding
from reports.sanitize import last_line

TOKEN, OFF = "token", "disabled"  # values of RAY_AUTH_MODE
KINDS = (GCS, of_ray.RAYLET, of_ray.AGENT, of_ray.DASHBOARD, CLIENT, of_ray.SUBMIT)
SUBJECTS = {GCS: "GCS", of_ray.RAYLET: "raylets", of_ray.AGENT: "dashboard agents"}
OPEN_TEXT = "accepts requests without a token"
ANY_TEXT = "accepts requests with a wrong token"
OWN_TEXT = "refuses the cluster's own token"
ASKS_TEXT = "requires a token, but the cluster has none"
NO_CONTRAST = "no token of the cluster was found for the test, so a refusal proves nothing"


@dataclass(frozen=True)
class Asked:
    """An endpoint and its answers."""

    endpoint: Endpoint
    answers: EndpointAnswers


def find_mode(asked: Sequence[Asked], agreed: str | None) -> tuple[str, str]:
    """Find the authentication that the cluster must have, and why; ("", "") if it is not known.

    The contract comes first, then the driver's own RAY_AUTH_MODE, then what the GCS does.
    """
    if agreed == TOKEN:
        return TOKEN, "the contract requires it"
    # The GCS shows the mode, unless it asks for a certificate.
    closed = {one.endpoint.kind for one in asked if one.answers.without == of_ray.NEEDS_TLS}
    kind = of_ray.DASHBOARD if GCS in closed else GCS
    answers = {one.answers.without for one in asked if one.endpoint.kind == kind}
    if REFUSED in answers:
        return TOKEN, f"the {kind} requires a token"
    if os.environ.get("RAY_AUTH_MODE", "").lower() == TOKEN:
        return TOKEN, "RAY_AUTH_MODE is token on the host that runs seatrial"
    return (OFF, f"the {kind} requires no token") if TAKEN in answers else ("", "")


def find_problem(one: Asked, mode: str) -> tuple[str | None, str]:
    """Find what an endpoint does against the mode, "" for nothing; (None, reason) if unknown."""
    kind, answers = one.endpoint.kind, one.answers
    if answers.without == of_ray.NEEDS_TLS:
        return "", ""
    if not mode:
        return None, "it is not known whether the cluster requires a token"
    if mode == OFF:
        if answers.without == REFUSED:
            # A proxy in front of the dashboard may ask for a login of its own.
            return ("" if kind == of_ray.SUBMIT else ASKS_TEXT), ""
        return ("", "") if answers.without == TAKEN else (None, answers.without)
    if TAKEN in (answers.without, answers.wrong):
        return (OPEN_TEXT if answers.without == TAKEN else ANY_TEXT), ""
    if answers.right == REFUSED:
        return OWN_TEXT, ""
    if answers == EndpointAnswers(REFUSED, REFUSED, TAKEN):
        return "", ""
    unclear = [text for text in (answers.without, answers.wrong, answers.right) if text != REFUSED]
    return None, unclear[0] or NO_CONTRAST


def judge_endpoints(asked: Sequence[Asked], mode: str, measure: Recorder) -> None:
    """Judge every endpoint by the mode: with a token none is open, without it none refuses."""
    for kind in KINDS:
        rows = [one for one in asked if one.endpoint.kind == kind]
        if not rows and kind != GCS:
            continue
        problems = {one.endpoint.text: find_problem(one, mode) for one in rows}
        wrong = sum(bool(problem) for problem, _ in problems.values())
        unknown = [f"{text}: {why}" for text, (problem, why) in problems.items() if problem is None]
        note = join_names(unknown, 2) if rows else "the address of the GCS is not known"
        value = None if (unknown or not rows) and not wrong else wrong
        measure(check.WRONG_ENDPOINTS, value, on=SUBJECTS.get(kind, kind), note=note)
    measure.explain(explain_endpoints(asked, mode))


def explain_endpoints(asked: Sequence[Asked], mode: str) -> Iterator[Finding]:
    """Explain the wrong endpoints: one finding for those with the same problem."""
    found = ((find_problem(one, mode)[0], one.endpoint) for one in asked)
    groups = group_pairs((problem, endpoint) for problem, endpoint in found if problem)
    for problem, rows in groups.items():
        texts = join_names([one.text for one in rows], 6)
        nodes = list(dict.fromkeys(one.node for one in rows if one.node))
        is_open = problem in (OPEN_TEXT, ANY_TEXT)
        if is_open and len(rows) == len(asked):
            texts, nodes = f"Every endpoint of Ray ({texts})", []
        text = f"{texts}: {problem}" if len(rows) > 1 else f"{texts} {problem}"
        code = "HOST-AUTH-OPEN" if is_open else "HOST-AUTH-DIFFERS"
        names = {"node": rows[0].node, "port": find_port(rows[0].address)}
        yield finding(code, text, nodes, names=names)


def find_port(address: str) -> int:
    """Find the port of host:port or of a URL; 0 if it has none."""
    return urlsplit(address if "//" in address else f"//{address}").port or 0


Facts = Mapping[str, Any]
Ports = Mapping[str, Mapping[str, int]]  # by node name and kind
Listeners = Mapping[str, Mapping[int, list[str]]]  # by node name and port
METRICS = "metrics"
# Where these listen only informs: what a listener on all addresses opens, a firewall may close.
NOTED = (of_ray.DASHBOARD, CLIENT, GCS, METRICS)


def list_ports(asked: Sequence[Asked], nodes: Sequence[Facts]) -> dict[str, dict[str, int]]:
    """Map each node's name to its ports by kind: endpoints, and the port of its metrics."""
    ports: dict[str, dict[str, int]] = {node["name"]: {} for node in nodes}
    for one in asked:
        if one.endpoint.node in ports:
            ports[one.endpoint.node][one.endpoint.kind] = find_port(one.endpoint.address)
    for node in nodes:
        if number := node["ports"].get(METRICS):
            ports[node["name"]][METRICS] = number
    return ports


def read_all_listeners(
    cluster: Cluster, ports: Ports, nodes: list[dict[str, Any]]
) -> dict[str, dict[int, list[str]]]:
    """Read on every node where its ports listen; a node that cannot be read has no entry."""
    each = {node["id"]: list(ports[node["name"]].values()) for node in nodes}
    answers = cluster.on_each_node(of_ray.read_listeners, each=each, nodes=nodes)
    names = {node["id"]: node["name"] for node in nodes}  # as the ports have them
    return {names[id]: found for id, found in answers.items() if found is not None}


def note_listeners(ports: Ports, listeners: Listeners, measure: Recorder) -> None:
    """Record where dashboard, Ray client, GCS and metrics listen on the head's node."""
    head = next((name for name, kinds in ports.items() if GCS in kinds), "")
    for kind in NOTED:
        number = ports.get(head, {}).get(kind)
        if found := listeners.get(head, {}).get(number or 0):
            name = f"{kind.lower().replace(' ', '_')}_listens_on"
            measure.note(name, join_names(found), on=f"{head} port {number}")


def judge_public(
    asked: Sequence[Asked], facts: Sequence[Facts], listeners: Listeners, measure: Recorder
) -> None:
    """Judge the endpoints that ask for no token and listen at a globally routable address.

    A firewall may keep strangers out, which no node can see.  So such an endpoint is no failure,
    and leaves the measure UNPROVEN.
    """
    own = {fact["name"]: read_own_addresses(fact) for fact in facts}
    public, unknown = [], []
    for one in asked:
        name = one.endpoint.node
        if one.answers.without != TAKEN or not name:
            continue
        addresses = own.get(name)
        listens = listeners.get(name, {}).get(find_port(one.endpoint.address), [])
        if addresses is None:
            unknown.append(f"the addresses of {name} were not read")
        elif not listens and of_ray.public_addresses(["::"], addresses):
            unknown.append(f"the listening address of {one.endpoint.text} could not be read")
        elif reached := of_ray.public_addresses(listens, addresses):
            public.append((one.endpoint, reached))
    nodes = list(dict.fromkeys(endpoint.node for endpoint, _ in public))
    texts = [f"{endpoint.text} at {join_names(reached)}" for endpoint, reached in public]
    note = join_names(dict.fromkeys(unknown), 3)
    value = None if unknown and not public else len(public)
    if measure.would_fail(check.PUBLIC_ENDPOINTS, value):
        value, note = None, f"Ray is public if no firewall closes the port: {join_names(texts, 3)}"
        endpoint, reached = public[0]
        names = {"address": reached[0], "port": find_port(endpoint.address)}
        text = f"Ray requires no token at public addresses: {join_names(texts, 6)}"
        measure.explain(finding("HOST-PUBLIC", text, nodes, names=names))
    measure(check.PUBLIC_ENDPOINTS, value, note=note)


def read_own_addresses(fact: Facts) -> list[str] | None:
    """List the addresses of a node's interfaces; None if they were not read."""
    interfaces = (fact.get("names") or {}).get("interfaces")
    if interfaces is None:
        return None
    return [text for interface in interfaces.values() for text in interface["addresses"]]


CLIENT_PORT = 10001  # of `ray start`; no part of Ray tells another number
KNOWN = (TAKEN, REFUSED, of_ray.NEEDS_TLS)
HEAD_SILENT = "no worker answers on the head's node"


def plan_endpoints(cluster: Cluster, client_port: int) -> list[Endpoint]:
    """List the endpoints of Ray on all live nodes, as far as their addresses are known."""
    alive = [node for node in cluster.known_nodes() if node["alive"]]
    head = next((node for node in alive if node["head"]), None)
    planned = [
        Endpoint(of_ray.RAYLET, node["name"], of_ray.join_address(node["address"], port))
        for node in alive
        if (port := node["ports"]["raylet"])
    ]
    agents = ((node["name"], read_agent_address(node["id"])) for node in alive)
    planned += [Endpoint(of_ray.AGENT, name, f"http://{agent}") for name, agent in agents if agent]
    of_head = {GCS: read_gcs_address(), of_ray.DASHBOARD: cluster.own_dashboard}
    if head and client_port:
        of_head[CLIENT] = of_ray.join_address(head["address"], client_port)
    name = head["name"] if head else ""
    return planned + [Endpoint(kind, name, at) for kind, at in of_head.items() if at]


def read_gcs_address() -> str:
    """Read the address of the GCS as Ray's workers know it."""
    return str(ray.get_runtime_context().gcs_address or "")


def read_agent_address(node: str) -> str:
    """Read host and port of the HTTP server of a node's dashboard agent; "" if it has none."""
    key = f"DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX:{node}"
    try:
        found = json.loads(read_value(key.encode(), b"dashboard") or b"[]")
        host, port = str(found[0]), int(found[1])
    except (ValueError, LookupError, TypeError):
        return ""
    return of_ray.join_address(host, port) if port > 0 else ""


def ask_from_head(cluster: Cluster, planned: Sequence[Endpoint]) -> list[Asked]:
    """Ask endpoints from a worker on the head's node: it has the token, and reaches all nodes."""
    found = run_on_head(cluster, of_ray.ask_from_node, planned) if planned else []
    rows = found or [{"without": HEAD_SILENT}] * len(planned)
    return [Asked(one, EndpointAnswers(**row)) for one, row in zip(planned, rows, strict=True)]


def run_on_head(cluster: Cluster, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a worker on the head's node; return None if it does not answer."""
    id = cluster.head_node_id
    head = [node for node in cluster.known_nodes() if node["id"] == id]
    return cluster.on_each_node(function, *arguments, nodes=head).get(id)


def find_client_port(cluster: Cluster, agreed: int | None) -> int:
    """Find the port of the Ray client: the agreed one, the driver's own, or that of `ray start`.

    It is 0 for an embedded cluster, which has none.
    """
    if cluster.kind == "local":
        return 0
    own = int(cluster.address.rpartition(":")[2]) if cluster.kind == "client" else None
    return agreed or own or CLIENT_PORT


def ask_cluster(cluster: Cluster, client_port: int) -> list[Asked]:
    """Ask all endpoints: from the head's node, and the submit address from here.

    A Ray client that does not answer is left out: a cluster may have none, or it is elsewhere.
    """
    asked = ask_from_head(cluster, plan_endpoints(cluster, client_port))
    found = [one for one in asked if one.endpoint.kind != CLIENT or one.answers.without in KNOWN]
    return found + ask_submit_address(cluster)


def ask_submit_address(cluster: Cluster) -> list[Asked]:
    """Ask the address that the driver submits jobs to, where it is not the dashboard's own."""
    if cluster.dashboard in ("", cluster.own_dashboard):
        return []
    endpoint = Endpoint(of_ray.SUBMIT, "", cluster.dashboard)
    return [Asked(endpoint, one) for one in of_ray.ask_endpoints([endpoint], find_token())]


RAN = "ran"
JOB_SECONDS = 60.0  # for the job to end: its driver starts in some seconds, on a busy node later
POLL_SECONDS = 0.3  # between two questions for its state
ANSWER_SECONDS = 10.0  # for each answer of the dashboard
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
STRANGER_METADATA = {"seatrial": "stranger"}


@dataclass(frozen=True)
class StrangerJob:
    """What became of the job: RAN, REFUSED, or the problem."""

    state: str
    detail: str = ""


def submit_stranger_job(dashboard: str, job: str, seconds: float = JOB_SECONDS) -> StrangerJob:
    """Submit a job of this id without a token; wait for its output, and delete it."""
    # So that `seatrial cleanup` knows it for sure.
    body = {"entrypoint": f"echo {job}", "submission_id": job, "metadata": STRANGER_METADATA}
    try:
        _call(f"{dashboard}/api/jobs/", body)
    except urllib.error.HTTPError as error:
        error.close()
        refused = error.code in of_ray.REFUSALS
        return StrangerJob(REFUSED if refused else "no answer", f"HTTP {error.code}")
    except (OSError, ValueError) as error:
        return StrangerJob("no answer", str(error))
    try:
        return _wait_for_output(dashboard, job, seconds)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return StrangerJob("accepted", f"its output could not be read: {error}")
    finally:
        with suppress(OSError):
            url = f"{dashboard}/api/jobs/{job}"
            of_ray.open_url(url, "", ANSWER_SECONDS, method="DELETE").close()


def _wait_for_output(dashboard: str, job: str, seconds: float) -> StrangerJob:
    deadline, state = time.monotonic() + seconds, ""
    while state not in ENDED:
        if time.monotonic() > deadline:
            return StrangerJob("accepted", f"it is {state or 'unknown'} after {seconds:.0f} s")
        time.sleep(POLL_SECONDS)
        state = _call(f"{dashboard}/api/jobs/{job}")["status"]
    printed = job in _call(f"{dashboard}/api/jobs/{job}/logs")["logs"]
    return StrangerJob(RAN) if printed else StrangerJob("accepted", f"it {state.lower()}")


def _call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with of_ray.open_url(url, "", ANSWER_SECONDS, data) as answer:
        return json.load(answer)


def try_stranger_job(cluster: Cluster, dashboard: str) -> StrangerJob:
    """Submit the job from a worker on the head's node; the cleanup process stops it if we die."""
    job = f"seatrial-{make_unique_token()}"
    cluster.cleanup.register("job", f"{dashboard} {job}")
    found: StrangerJob | None = run_on_head(cluster, submit_stranger_job, dashboard, job)
    cluster.cleanup.unregister("job", f"{dashboard} {job}")
    return found or StrangerJob("no answer", HEAD_SILENT)


def judge_stranger_job(
    job: StrangerJob, dashboard: str, must_refuse: bool, measure: Recorder
) -> None:
    """Judge that the job was refused; only note what became of it if none `must_refuse` it.

    An accepted job is one that ran: the dashboard took a stranger's order.
    """
    if not must_refuse:
        text = f"{job.state}: {job.detail}" if job.detail else job.state
        measure.note("job_of_a_stranger", text, on="dashboard")
        return
    taken = job.state in (RAN, "accepted")
    count = int(taken) if taken or job.state == REFUSED else None
    measure(check.STRANGER_JOBS, count, on="dashboard", note=job.detail)
    if taken:
        what = "ran" if job.state == RAN else f"was accepted ({job.detail})"
        text = f"A job without a token {what}: {dashboard} accepts jobs from anyone who reaches it"
        measure.explain(finding("HOST-AUTH-OPEN", text))


START_SECONDS = 60.0  # for an actor to start, and its server: seconds on a busy node


class StandInEndpoint:
    """Ray actor with an HTTP server that answers as an endpoint of Ray.

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

    return Server((address, 0), Handler)


class StandInMissing(RuntimeError):
    """Raised if the stand-in does not start."""


@contextmanager
def open_stand_in(node: Mapping[str, Any], refuses: bool) -> Iterator[str]:
    """Start a stand-in on this node; yield its URL.  Raises StandInMissing."""
    actor = on_node(StandInEndpoint, node["id"]).remote()
    try:
        call = actor.start_server.remote(node["address"], refuses)
        yield f"http://{of_ray.join_address(node['address'], ray.get(call, timeout=START_SECONDS))}"
    except ray.exceptions.RayError as error:
        raise StandInMissing(last_line(error, "the fake endpoint died")) from None
    finally:
        ray.kill(actor)


def control_endpoint(
    cluster: Cluster, asked: Sequence[Asked], mode: str, measure: Recorder
) -> None:
    """Check that an endpoint is detected which does the opposite of what the mode asks for."""
    victim = cluster.nodes[-1]
    does = "requires a token" if mode == OFF else "accepts every request"
    fault, trial = f"an endpoint on {victim['name']} {does}", measure.trial()
    try:
        with open_stand_in(victim, mode == OFF) as url:
            planted = ask_from_head(cluster, [Endpoint(of_ray.AGENT, victim["name"], url)])
            judge_endpoints([*asked, *planted], mode, trial)
            if mode == TOKEN:
                judge_stranger_job(try_stranger_job(cluster, url), url, True, trial)
    except StandInMissing as problem:
        measure.control(check.OTHER_ENDPOINT, fault, None, saw=str(problem))
        return
    located = all(find_problem(one, mode)[0] for one in planted)
    others = () if mode == TOKEN else (check.STRANGER_JOBS,)
    measure.control(check.OTHER_ENDPOINT, fault, trial, located=located, without=others)
