"""Tests that the same commands work every time: elsewhere, and for two users at once."""

import threading

import pytest

from probes.launch.job.held_nodes import NodeNotFree, hold_node
from probes.launch.judge import judge_job, keep_transcript
from probes.launch.path.documented_path import LaunchPath, new_name
from probes.launch.path.user import make_user, remove_user
from probes.launch.prepare import HOMES, prepare_path

WAIT = ["--wait", "300"]  # the second of two jobs that do not fit at once waits


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("standard")
def test_the_same_commands_work_every_time(cluster, terms, measure):
    """The job runs correctly with a node held back, twice, so that rank 0 runs on another node.

    Two users who type the same commands at the same time, with the same name for their job, both
    get a correct job.
    """
    with prepare_path(cluster, terms, measure) as path:
        try:
            firsts = held_back(path, measure)
        except NodeNotFree as error:
            pytest.fail(f"{error}: wait until no other job runs", pytrace=False)
        judge_two_users(path, measure)
    if len(cluster.nodes) > 1:
        judge_places(firsts, measure)


def judge_places(firsts, measure):
    """Judge on how many nodes rank 0 ran, one after the other; None for a job without a rank 0."""
    known = {first for first in firsts if first}
    count = len(known) if known else None
    measure("nodes_of_rank_0", count, samples=len(firsts), note="no job had a rank 0")


def held_back(path, measure):
    """Hold back a node, and then the one where rank 0 ran; return rank 0's node each time."""
    nodes = {node["id"]: node for node in path.cluster.nodes}
    if len(nodes) < 2:
        return []
    first = run_without(path, next(iter(nodes.values())), measure)
    return [first, run_without(path, nodes[first], measure)] if first in nodes else [first]


def run_without(path, node, measure):
    """Hold a node, judge the job on the rest, and return rank 0's node; None without a rank 0."""
    name = f"without {node['name']}"
    measure.progress(f"launch: {name}")
    with hold_node(path.cluster, node) as ranks:
        size = path.cluster.size - ranks
        said = path.follow(["--workers", str(size), *WAIT])
    file = f"transcript-without-{node['name'].replace('/', '-')}.txt"
    keep_transcript(said, measure, file, f"the guide, while {node['name']} is held")
    job = judge_job(path, said, measure, on=name, size=size)
    return job.rank0.get("node") if job.rank0 else None


def judge_two_users(path, measure):
    """Let two users type the same commands at once, each for half of the accelerators."""
    cluster = path.cluster
    size = max(1, cluster.size // 2)
    other = make_user(cluster, HOMES, own_guide=path.guide.own)
    second = LaunchPath(cluster, path.terms, path.guide, other)
    options = ["--workers", str(size), "--name", new_name(), *WAIT]
    measure.progress("launch: two users at once, with the same name for their job")
    try:
        transcripts = follow_both(path, second, options)
    finally:
        remove_user(cluster, other)
    for number, said in enumerate(transcripts, 1):
        caption = f"user {number} of two who type the same at once"
        keep_transcript(said, measure, f"transcript-user{number}.txt", caption)
        judge_job(path, said, measure, on=f"user {number} of two", size=size)
    trial = measure.trial()
    judge_job(path, transcripts[0], trial, size=size + 1)
    measure.control("missing rank", "the job is judged as one that has a rank more", trial)


def follow_both(first, second, options):
    """Follow the guide twice at the same time; return both transcripts."""
    answers = []

    def follow():
        try:
            answers.append(second.follow(options))
        except Exception as error:  # noqa: BLE001  (raised again below, in the probe's own thread)
            answers.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    said = first.follow(options)
    thread.join()
    if isinstance(answers[0], Exception):
        raise answers[0]
    return [said, answers[0]]
