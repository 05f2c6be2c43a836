"""Explains a collective that hangs: by NCCL's RAS and by the ranks' state."""

from __future__ import annotations

import socket
import time
from collections import Counter
from contextlib import suppress

from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.fabric.detect import find_silent_ranks, log_findings
from probes.fabric.judge import FabricRig
from probes.fabric.reach import check_reach, explain_duplicates, find_mtu_faults, find_unreachable
from probes.fabric.stack_dump import RankState, read_rank_state
from probes.fabric.transport import RankLogs, keep_logs
from probes.findings import MAX_NAMES, finding
from reference_trainer.launch.gang import GangError, WorkerLost
from reports.record import Finding

HOST, PORT = "localhost", 28028  # NCCL_RAS_ADDR's default; the name may mean ::1
# NCCL itself waits 5 s for processes that do not answer (RAS_COLLECTIVE_LEG_TIMEOUT_SEC).  The jobs
# that we query have such processes.
RAS_SECONDS = 12.0
MAX_ANSWER_BYTES = 1 << 20  # bytes of an answer that are read


def ras_status(port: int = PORT, seconds: float = RAS_SECONDS) -> str:
    """Ask for RAS's verbose status: text that comes within `seconds`; "" without an answer."""
    deadline = time.monotonic() + seconds
    try:
        with socket.create_connection((HOST, port), timeout=seconds / 2) as service:
            service.sendall(b"CLIENT PROTOCOL 2\n")
            if not _read_answer(service, deadline, b"\n").startswith(b"SERVER PROTOCOL"):
                return ""
            service.sendall(b"VERBOSE STATUS\n")
            return _read_answer(service, deadline).decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def _read_answer(service: socket.socket, deadline: float, end: bytes | None = None) -> bytes:
    """Read until the service closes, `end` arrives, or no time is left."""
    answer = b""
    with suppress(OSError):
        while len(answer) < MAX_ANSWER_BYTES and (left_s := deadline - time.monotonic()) > 0:
            service.settimeout(left_s)
            chunk = service.recv(MAX_ANSWER_BYTES - len(answer))
            answer += chunk
            if not chunk or (end and answer.endswith(end)):
                break
    return answer


def explain_start_failure(rig: FabricRig, error: GangError, logs: RankLogs) -> None:
    """Explain the failure by what is known of the ranks; the gang is removed.

    The rig has the node names from when the gang started: a node may be gone by now.
    """
    gang, names, fabric, measure = rig.gang, rig.node_names, rig.terms.fabric, rig.measure
    is_hang = not isinstance(error, WorkerLost)
    nodes = [names[place.node] for place in gang.places]
    labels = {rank: f"rank {rank} on {node}" for rank, node in enumerate(nodes)}
    silent = find_silent_ranks(gang.silent(), nodes, str(error))  # first: the next call may block
    states, transport = gang.ask(read_rank_state), logs.report(gang, names)
    ranks = {labels[rank]: item for rank, item in states.items()}
    content = {"error": str(error), "ranks": ranks, "stages": transport.stages}
    caption = "where each rank is: its stack, torch's flight recorder, and NCCL's log"
    measure.keep("init.json", content, kind="log", caption=caption)
    if is_hang:
        keep_ras_status(logs.cluster, measure)
    waits = is_hang and len(gang.jobs) == 1  # ranks of several jobs do not wait for each other
    gang.remove()  # before the logs are written, which may fill a disk: ranks hold GPUs
    logged = log_findings(keep_logs(transport, measure, only_cited=True), fabric)
    findings = silent or [item for item in logged if item.code.startswith(("INIT-", "NCCL-"))]
    if not findings and waits:
        findings = ranks_behind_finding(states, labels, str(error))
    explained = measure.finding_codes  # the log is read again from its start
    log_only = [item for item in logged if item not in findings and item.code not in explained]
    measure.explain(findings or [start_failure_finding(error, labels)], log_only)
    recheck_reachability(logs.cluster, names, transport.interface or fabric, measure)


def start_failure_finding(error: GangError, labels: dict[int, str]) -> Finding:
    """Make the finding of the error, with its ranks as suspects unless these are all ranks."""
    lost = (error.ranks or error.failed) if isinstance(error, WorkerLost) else []
    suspects = [labels[rank] for rank in lost[:MAX_NAMES]] if len(lost) < len(labels) else []
    return finding("FAB-NO-START", str(error), suspects)


def ranks_behind_finding(
    states: dict[int, RankState], labels: dict[int, str], error: str
) -> list[Finding]:
    """Name the ranks that the others wait for: behind in collectives, or in another function."""
    late = (find_ranks_behind(states) or find_ranks_elsewhere(states)) if states else []
    if not late:
        return []
    majority = next(state for rank, state in states.items() if rank not in late)
    places = {labels[rank]: describe_location(states[rank]) for rank in late[:MAX_NAMES]}
    message = ", ".join(f"{label} is in {place}" for label, place in places.items())
    others = f"the other ranks wait in {describe_location(majority)}"
    message = f"{others}, but {message}. The test ended in: {error}"
    return [finding("INIT-HANG", message, list(places))]


def describe_location(state: RankState) -> str:
    """Describe where a rank is: "`all_reduce` (collective number 3)"."""
    begun = f"collective number {state['begun']}" if state["begun"] else "no collective yet"
    at = f"`{state['at']}`" if state["at"] else "no function of the test"
    return f"{at} ({begun})"


def find_ranks_behind(states: dict[int, RankState]) -> list[int]:
    """List ranks that began fewer collectives than the furthest rank."""
    positions = {rank: (state["group"], state["begun"]) for rank, state in states.items()}
    furthest = max(positions.values())
    return [rank for rank in positions if positions[rank] < furthest]


def find_ranks_elsewhere(states: dict[int, RankState]) -> list[int]:
    """List ranks that are not in the function that more than half of them are in."""
    usual, count = Counter(state["at"] for state in states.values()).most_common(1)[0]
    if 2 * count <= len(states):
        return []
    return [rank for rank, state in states.items() if state["at"] != usual]


def recheck_reachability(
    cluster: Cluster, node_names: dict[str, str], interface: str | None, measure: Recorder
) -> None:
    """Test again which nodes reach each other, on the interface in use; explain the failures."""
    try:
        with cluster.gang() as fresh_gang:
            reach = check_reach(fresh_gang, {**node_names, **cluster.node_names}, interface)
    except GangError as error:
        measure.covered(f"reachability was not tested again: {error}")
        return
    where = interface or "Ray's interface"
    if len(reach.dead) == len(reach.nodes):
        measure.covered(f"reachability was not tested again: no node has an address on {where}")
        return
    blocked = len(reach.pairs) + len(reach.narrow or [])
    measure.covered(f"pairs of nodes that fail on {where}, tested after the failure: {blocked}")
    measure.explain(explain_duplicates(reach), find_unreachable(reach), find_mtu_faults(reach))


def keep_ras_status(cluster: Cluster, measure: Recorder) -> None:
    """Keep the status of NCCL's RAS service on each node as evidence."""
    node_names = cluster.node_names
    for node, status in cluster.on_each_node(ras_status).items():
        if status:
            caption = f"report of NCCL's RAS on {node_names[node]}, after the deadline"
            measure.keep(f"ras-{node_names[node]}.txt", status, kind="log", caption=caption)
