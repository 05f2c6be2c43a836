"""LAUNCH's controls: each is caught for its own fault alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.check.recorder import Recorder
from probes.launch.controls import (
    control_guide,
    control_job_network,
    control_missing_variable,
    control_planted_errors,
    control_user,
    plain_options,
    planted_options,
    ranks_of_two_nodes,
)
from probes.launch.shell import Transcript
from probes.launch.training import JobBytes
from tests.support.launched_job import (
    SENT,
    bytes_of,
    cluster_of,
    guided,
    identity,
    join,
    launched,
    rank_words,
    transcript,
)


def controls(recorder: Recorder) -> dict[str, bool | None]:
    return {one.name: one.caught for one in recorder.finish("finished", 1.0).controls}


def without(name: str = "MASTER_PORT", exit_code: int = 1, ranks: int = 1) -> Transcript:
    words = [
        {"node": f"id{rank}", "host": f"n{rank}", **rank_words(rank, ranks, **{name: None})}
        for rank in range(ranks)
    ]
    lines = [f"attempt=1 {join(each)}" for each in words]
    return Transcript(lines, exit_code, "ray job submit" if exit_code else "")


@pytest.mark.parametrize(
    ("said", "caught"),
    [
        (without(), True),
        (without(exit_code=0), False),
        (without(exit_code=-9), False),  # it hung, and was killed when its time was up
        (without(ranks=2), False),  # it was launched by as many ranks as ever
        (without("MASTER_ADDR"), False),  # the job failed, too
        (without("WORLD_SIZE"), False),
        (transcript(1, node="stranger"), False),
        (Transcript(["nothing"], 1), None),
    ],
)
def test_the_control_is_caught_for_its_own_fault_alone(
    recorder: Recorder, said: Transcript, caught: bool | None
) -> None:
    control_missing_variable(guided(cluster_of()), said, recorder)
    assert controls(recorder) == {"missing variable": caught}


@pytest.mark.parametrize(
    ("cluster", "ranks"),
    [
        (cluster_of(4), 2),
        (cluster_of(64, gpus=8), 16),
        (cluster_of(3), None),  # two jobs of two nodes do not fit
        (SimpleNamespace(resource="GPU", gpus_by_node={"a": 8, "b": 8, "c": 8, "d": 7}), None),
        (SimpleNamespace(resource="CPU", gpus_by_node=dict.fromkeys("abcd", 0)), None),
    ],
    ids=["lab", "large", "three nodes", "unequal", "no GPUs"],
)
def test_two_controls_run_at_once_where_each_fills_two_nodes(
    cluster: Any, ranks: int | None
) -> None:
    """A job of one node sends nothing, and two jobs on one node would share its counters."""
    assert ranks_of_two_nodes(cluster) == ranks


def test_a_single_rank_is_controlled_for_all_but_the_number_of_ranks(recorder: Recorder) -> None:
    control_missing_variable(guided(cluster_of(1)), without(), recorder)
    [control] = recorder.finish("finished", 1.0).controls
    assert control.caught is True
    assert control.proves == ["wrong_ranks", "exit_code", "time_to_first_step"]


@pytest.mark.parametrize(
    ("planted", "caught"),
    [
        (launched().planted, True),
        (transcript(), False),  # nothing was planted
        (transcript(exit_code=1), None),
        (Transcript(["done"], 0), False),
    ],
    ids=["planted", "sound", "failed", "no-rank"],
)
def test_planted_errors_must_all_be_seen(
    recorder: Recorder, planted: Transcript, caught: bool | None
) -> None:
    control_planted_errors(guided(cluster_of()), planted, recorder)
    assert controls(recorder) == {"planted errors": caught}


@pytest.mark.parametrize(
    ("terms", "sent", "caught"),
    [
        ({"fabric": "fab0", "management": "eth0"}, launched().astray, True),
        ({"fabric": "fab0", "management": "eth0"}, bytes_of(), False),
        ({"fabric": "fab0"}, launched().astray, None),  # no other interface is known
        ({"fabric": "rdma"}, bytes_of(rdma=10, eth0=SENT), True),
        ({"fabric": "rdma"}, bytes_of(rdma=SENT, eth0=SENT), False),  # storage traffic over RDMA
    ],
    ids=["caught", "it-stayed", "no-other", "rdma", "storage"],
)
def test_a_job_forced_off_the_fabric_must_be_seen(
    recorder: Recorder, terms: dict[str, str], sent: JobBytes, caught: bool | None
) -> None:
    control_job_network(guided(cluster_of(), **terms), sent, transcript(), recorder)
    assert controls(recorder) == {"job on another network": caught}


def test_the_planted_job_leaves_the_fabric_where_another_network_is_known() -> None:
    options = planted_options(guided(cluster_of(), fabric="fab0", management="eth0"))
    assert options[:2] == ["--plant", "weights,samples,validation,metrics,loss,export,corrupt"]
    assert "GLOO_SOCKET_IFNAME=eth0" in options
    assert "NCCL_SOCKET_IFNAME==eth0" in options
    assert planted_options(guided(cluster_of()))[2:] == []
    rdma = guided(cluster_of(), fabric="rdma")
    assert plain_options(rdma) == planted_options(rdma)[:2] == ["--set", "NCCL_MNNVL_ENABLE=0"]


def test_a_wrong_line_in_the_guide_and_our_own_user_are_seen(recorder: Recorder) -> None:
    control_guide(guided(cluster_of()), ["n0"], recorder)
    control_user(identity(0), "", recorder)
    assert controls(recorder) == {"wrong guide": True, "own user": True}


def test_without_another_user_the_control_is_not_done(recorder: Recorder) -> None:
    control_user(identity(0), "only root can", recorder)
    assert controls(recorder) == {"own user": None}
