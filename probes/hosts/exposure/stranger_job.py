"""Submits a harmless job without a token, as a stranger would: it prints its own id."""

from __future__ import annotations

import json
import time
import urllib.error
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.access.entrances import REFUSALS, REFUSED, open_url
from probes.cluster.cluster import Cluster
from probes.cluster.unique_token import make_unique_token
from probes.findings import finding

RAN = "ran"
JOB_SECONDS = 60.0  # for the job to end: its driver starts in some seconds, on a busy node later
POLL_SECONDS = 0.3  # between two questions for its state
ANSWER_SECONDS = 10.0  # for each answer of the dashboard
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


@dataclass(frozen=True)
class StrangerJob:
    """What became of the job: RAN, REFUSED, or the problem."""

    state: str
    detail: str = ""


def submit_stranger_job(dashboard: str, job: str, seconds: float = JOB_SECONDS) -> StrangerJob:
    """Submit a job of this id without a token; wait for its output, and delete it."""
    try:
        _call(f"{dashboard}/api/jobs/", {"entrypoint": f"echo {job}", "submission_id": job})
    except urllib.error.HTTPError as error:
        error.close()
        refused = error.code in REFUSALS
        return StrangerJob(REFUSED if refused else "no answer", f"HTTP {error.code}")
    except (OSError, ValueError) as error:
        return StrangerJob("no answer", str(error))
    try:
        return _wait_for_output(dashboard, job, seconds)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return StrangerJob("accepted", f"its output could not be read: {error}")
    finally:
        with suppress(OSError):
            open_url(f"{dashboard}/api/jobs/{job}", "", ANSWER_SECONDS, method="DELETE").close()


def _wait_for_output(dashboard: str, job: str, seconds: float) -> StrangerJob:
    deadline, state = time.monotonic() + seconds, ""
    while state not in ENDED:
        if time.monotonic() > deadline:
            return StrangerJob("accepted", f"it is {state or 'unknown'} after {seconds:.0f} s")
        time.sleep(POLL_SECONDS)
        state = _call(f"{dashboard}/api/jobs/{job}")["status"]
    printed = job in _call(f"{dashboard}/api/jobs/{job}/logs")["logs"]
    return StrangerJob(RAN) if printed else StrangerJob("accepted", f"it {state.lower()}")


def _call(url: str, body: dict[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with open_url(url, "", ANSWER_SECONDS, data) as answer:
        return json.load(answer)


def try_stranger_job(cluster: Cluster, dashboard: str) -> StrangerJob:
    """Submit the job from a worker on the head's node; the cleanup process stops it if we die."""
    job, id = f"seatrial-{make_unique_token()}", cluster.head_node_id
    head = [node for node in cluster.known_nodes() if node["id"] == id]
    cluster.cleanup.register("job", f"{dashboard} {job}")
    found = cluster.on_each_node(submit_stranger_job, dashboard, job, nodes=head).get(id)
    cluster.cleanup.unregister("job", f"{dashboard} {job}")
    return found or StrangerJob("no answer", "no worker answers on the head's node")


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
    measure("stranger_jobs", count, on="dashboard", note=job.detail)
    if taken:
        what = "ran" if job.state == RAN else f"was accepted ({job.detail})"
        text = f"A job without a token {what}: {dashboard} takes jobs from anyone who reaches it"
        measure.explain(finding("HOST-AUTH-OPEN", text))
