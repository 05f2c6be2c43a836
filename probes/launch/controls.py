"""Prepares launches, and controls of LAUNCH."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

import pytest

from probes.check.judging import plant
from probes.check.recorder import Recorder
from probes.cluster.cleanup import StillRuns
from probes.cluster.cluster import Cluster
from probes.cluster.endpoints import ignored_address
from probes.cluster.room import describe_busy
from probes.contract.terms import ClusterTerms
from probes.findings import join_names
from probes.launch import criterion as check
from probes.launch import guide as guides
from probes.launch import judge, shell
from probes.launch.guide import Guide, GuidedCluster, GuideError, LaunchPath, own_guide
from probes.launch.job_processes import NodeNotFree
from probes.launch.ranks import all_lack, group_by_problem, wrong_ranks
from probes.launch.shell import HOMES, NoUser, Transcript, User, why_no_other_user
from probes.launch.training import JobBytes
from reports.numbers import quantity

PLANTED = "weights,samples,validation,metrics,loss,export,corrupt"
# A single rank has no other to differ from.
OF_SEVERAL_RANKS = (
    check.RANKS_WITH_OTHER_WEIGHTS, check.RANKS_WITH_OTHER_VALIDATION, check.MISPLACED_SAMPLES,
    check.WRONG_EXPORTS, check.METRIC_ERROR,
)  # fmt: skip
WRONG_GUIDE = "```sh\nsudo systemctl restart ray\nssh 10.0.0.1 hostname\n```\n"


def ranks_of_two_nodes(cluster: Cluster) -> int | None:
    """Return the ranks of a job that fills two nodes, where two such jobs run at once; else None.

    Two nodes are the fewest between which a job sends. All nodes must have as many accelerators, so
    that a job that is packed fills its nodes: two jobs then share none.
    """
    counts = list(cluster.gpus_by_node.values())
    can = cluster.resource == "GPU" and len(counts) >= 4 and len({*counts}) == 1
    return 2 * counts[0] if can else None


def fewer_ranks(size: int | None) -> list[str]:
    """Make the option of a control's job with so many ranks; None for as many as there are."""
    return ["--workers", str(size)] if size else []


def doctored_options(size: int | None) -> list[str]:
    """Make the options of the first control: no MASTER_PORT, and fewer ranks."""
    return ["--unset", "MASTER_PORT", "--restarts", "0", *fewer_ranks(size)]


def control_missing_variable(path: GuidedCluster, doctored: Transcript, measure: Recorder) -> None:
    """Check that the job without MASTER_PORT, with fewer ranks, fails for that reason alone."""
    job, size = judge.read_job(path, doctored), path.cluster.size
    wrong = wrong_ranks(job) if job.rows else []
    problems = [problem.found for problem in group_by_problem(wrong)]
    announced = [each for each in wrong if each.rank not in job.missing]
    ended = doctored.exit_code is not None and doctored.exit_code > 0  # below 0: it was killed
    seen = f"{quantity(len(wrong), 'ranks')}: {join_names(problems)}" if wrong else "no wrong rank"
    seen += f"; the job ended with exit code {doctored.exit_code}"
    plant(
        measure,
        check.MISSING_VARIABLE,
        f"the same job is launched without MASTER_PORT{' and with fewer ranks' * (size > 1)}",
        partial(judge.judge_ranks, path, doctored),
        unable="" if job.rows else judge.NO_RANK,
        located=ended and all_lack(announced, "MASTER_PORT", len(job.rows)),
        saw=seen,
        without=() if size > 1 else (check.RANKS,),
    )


def plain_options(path: GuidedCluster) -> list[str]:
    """Make the options of the sound job: none, but for RDMA.

    Where GPUs of several nodes share NVLink (NVL72), NCCL sends nothing over RDMA without it.
    """
    rdma = path.cluster.on_gpu and path.terms.fabric == "rdma"
    return ["--set", "NCCL_MNNVL_ENABLE=0"] if rdma else []


def planted_options(path: GuidedCluster) -> list[str]:
    """Make the options of the job with planted errors, which also leaves the agreed fabric."""
    settings = (word for each in other_network(path) for word in ("--set", each))
    return [*plain_options(path), "--plant", PLANTED, *settings]


def other_network(path: GuidedCluster) -> Sequence[str]:
    """Return the settings that force a job off the agreed fabric; none where no other is known."""
    terms = path.terms
    if terms.fabric is None:
        return ()
    if terms.management:
        own = [f"GLOO_SOCKET_IFNAME={terms.management}", f"NCCL_SOCKET_IFNAME=={terms.management}"]
        return ("NCCL_NET=Socket", *own)
    return ("NCCL_NET=Socket",) if path.cluster.on_gpu and terms.fabric == "rdma" else ()


def control_planted_errors(path: GuidedCluster, planted: Transcript, measure: Recorder) -> None:
    """Check that a job whose last rank goes its own way is judged wrong in every respect."""
    job, size = judge.read_job(path, planted), path.cluster.size
    ranks = [int(row["RANK"]) for row in job.rows if row.get("RANK", "").isdecimal()]
    plant(
        measure,
        check.PLANTED_ERRORS,
        "the weights, samples and validation data of the last rank differ from the other ranks'; "
        "all ranks export the model; the logged losses are wrong",
        partial(judge.judge_training, job, planted),
        unable="" if job.ended else f"the job ended with exit code {planted.exit_code}",
        without=() if size > 1 else OF_SEVERAL_RANKS,
        suspects=[f"rank {max(ranks, default=0)}"] if size > 1 else [],
    )


def control_job_network(
    path: GuidedCluster, sent: JobBytes, planted: Transcript, measure: Recorder
) -> None:
    """Check that the job which is forced off the agreed fabric is seen to leave it."""
    fabric, where = path.terms.fabric or "", path.terms.management or "TCP sockets"
    nowhere = "the contract names no second network: set `management` in [cluster]"
    plant(
        measure,
        check.JOB_ON_ANOTHER_NETWORK,
        f"the user's job is forced to use {where} instead of the agreed fabric",
        partial(judge.judge_network, judge.read_job(path, planted), fabric, sent, planted),
        unable="" if other_network(path) else nowhere,
    )


def control_guide(path: GuidedCluster, hosts: Sequence[str], measure: Recorder) -> None:
    """Check that two lines of a guide that a user cannot type are found, each by its number."""
    guide, values = path.guide, path.terms.launch.values
    text = f"{guide.text}\n{WRONG_GUIDE}"
    first = len(text.splitlines()) - 2
    wrong = guides.parse_guide(guide.name, text, own=guide.own)
    fault = "a command as root and an ssh login to a fixed address are added to the guide"
    judge_wrong, lines = partial(judge.judge_guide, wrong, hosts, values=values), (first, first + 1)
    named = [f"line {line}" for line in lines]
    plant(measure, check.WRONG_GUIDE, fault, judge_wrong, suspects=named)


def control_missing_rank(
    path: GuidedCluster, said: Transcript, size: int, measure: Recorder
) -> None:
    """Check that a job which is judged as one of a rank more fails."""
    fault = "the job is expected to have one rank more than it was launched with"
    plant(measure, check.MISSING_RANK, fault, partial(judge.judge_job, path, said, size=size + 1))


def control_user(us: Transcript, why_same: str, measure: Recorder) -> None:
    """Check that the suite's own user, who is root, is not taken for an ordinary one."""
    fault = "the guide's user is replaced by the user who runs seatrial"
    plant(measure, check.OWN_USER, fault, partial(judge.judge_user, us, ""), unable=why_same)


@contextmanager
def prepare_path(cluster: Cluster, terms: ClusterTerms, measure: Recorder) -> Iterator[LaunchPath]:
    """Yield the path to follow.  Remove its user afterwards.

    Fails the probe in one sentence where there is no dashboard, no room, or no guide, or where a
    guide, a user, the user's processes or those on a node hinder it.
    """
    if not cluster.dashboard:
        pytest.fail(
            "this cluster has no dashboard, so no job can be submitted. On the head: run "
            "`pip install 'ray[default]'`, then restart Ray with --dashboard-host",
            pytrace=False,
        )
    if held := describe_busy(cluster):
        do = "To wait, give --wait-for-room 30m"
        pytest.fail(f"no job can start now: {held}. {do}", pytrace=False)
    if ignored := ignored_address(cluster.dashboard):
        measure.progress(f"launch: {ignored}")
        measure.covered(ignored)
    if terms.launch.document is not None:  # before anything is fetched or made
        why_same = why_no_other_user(own_guide=False)
        if why_same and (why := shell.why_not_typed(terms, None, why_same)):
            pytest.fail(why, pytrace=False)
    try:
        with new_user(GuidedCluster(cluster, terms, _find_guide(terms, measure)), measure) as path:
            yield path
    except (GuideError, NodeNotFree, NoUser, StillRuns) as error:
        pytest.fail(str(error), pytrace=False)


@contextmanager
def new_user(guided: GuidedCluster, measure: Recorder) -> Iterator[LaunchPath]:
    """Yield the guide with a user who types it, and remove the user afterwards.

    Two who type at once are two users: who begins to type ends what the same user left running.
    Where no user can be made, it is a shell of our own.
    """
    cluster, terms, guide = guided.cluster, guided.terms, guided.guide
    user = shell.make_user(cluster, HOMES, own_guide=guide.own, shared=terms.shared or "")
    try:
        yield LaunchPath(cluster, terms, guide, user)
    finally:
        if left := shell.remove_user(cluster, user):
            measure.covered(left)


READ: WeakKeyDictionary[object, Guide] = WeakKeyDictionary()  # by the run's store


def _find_guide(terms: ClusterTerms, measure: Recorder) -> Guide:
    """Read the guide once a run, so that all probes type the same.  Raises GuideError."""
    launch, run = terms.launch, measure.store
    if launch.document is None:
        return own_guide()
    if run not in READ:
        source = measure.contract.guide or launch.document
        READ[run] = guides.read_guide(source, launch.section, launch.sha256)
    measure.note("sha256_of_guide", READ[run].sha256)
    return READ[run]


@dataclass(frozen=True)
class LaunchedJobs:
    """What came of a guide: transcripts of the user, of the job, and of the controls' jobs.

    `sent`, `astray` and `idle` are the bytes that nodes sent during the job, during the one with
    planted errors, and before them.  `uid` is the user's; None for the suite's own, and `why_same`
    tells why.
    """

    guide: Guide
    uid: int | None
    why_same: str
    identity: Transcript
    us: Transcript
    said: Transcript
    sent: JobBytes
    doctored: Transcript
    planted: Transcript
    astray: JobBytes
    idle: JobBytes = field(default_factory=JobBytes)

    @property
    def stop_error(self) -> str:
        """Why the dashboard refused to stop one of the jobs; "" if it did not."""
        return self.said.stop_error or self.doctored.stop_error or self.planted.stop_error

    def describe_user(self) -> str:
        """Return who followed the guide, for the coverage."""
        if self.uid is None:
            return f"the user who runs seatrial followed the guide ({self.why_same})"
        return f"user id {self.uid}, with one group, followed the guide in an empty home"


def launch_jobs(cluster: Cluster, terms: ClusterTerms, measure: Recorder) -> LaunchedJobs:
    """Follow the guide, then twice more with errors for the controls."""
    fabric = terms.fabric or ""
    with prepare_path(cluster, terms, measure) as path:
        ours = LaunchPath(cluster, terms, path.guide, User(path.user.folder, homes=path.user.homes))
        (identity, us), idle = JobBytes.around(
            cluster, fabric, lambda: (path.ask_identity(), ours.ask_identity())
        )
        measure.progress("launch: the guide's commands, typed in an empty home folder")
        said, sent = JobBytes.around(cluster, fabric, lambda: path.follow(plain_options(path)))
        doctored, (planted, astray) = _launch_controls(path, measure)
    seen = (identity, us, said, sent, doctored, planted, astray, idle)
    return LaunchedJobs(path.guide, path.user.uid, path.user.why_same, *seen)


def _launch_controls(
    path: LaunchPath, measure: Recorder
) -> tuple[Transcript, tuple[Transcript, JobBytes]]:
    """Follow the guide with a missing variable, and with planted errors: at once on large clusters.

    Returns both transcripts, and the bytes that nodes sent during the second job.
    """
    cluster, fabric = path.cluster, path.terms.fabric or ""
    size = ranks_of_two_nodes(cluster)
    options = [*planted_options(path), *fewer_ranks(size)]

    def follow_planted() -> tuple[Transcript, JobBytes]:
        return JobBytes.around(cluster, fabric, lambda: path.follow(options))

    if size is None:
        measure.progress("launch: the same commands with a missing variable")
        doctored = path.follow(doctored_options(cluster.size - 1 or None))
        measure.progress("launch: the same commands with planted errors")
        return doctored, follow_planted()
    measure.progress("launch: the same commands with a missing variable, and with planted errors")
    with new_user(path, measure) as other, other.start(doctored_options(size)) as running:
        planted = follow_planted()
        doctored = running.wait()
    measure.covered(f"the jobs of both self-tests ran at once, each with {quantity(size, 'ranks')}")
    return doctored, planted
