"""Controls of the launched job: the same path with planted errors must be judged red."""

from __future__ import annotations

from collections.abc import Sequence

from probes.acceptance.measure import Recorder
from probes.findings import join_names
from probes.launch.job.own_network import JobBytes
from probes.launch.job.ranks import all_lack, group_by_problem, wrong_ranks
from probes.launch.judge import (
    judge_guide,
    judge_network,
    judge_ranks,
    judge_training,
    judge_user,
    read_job,
)
from probes.launch.path.documented_path import GuidedCluster
from probes.launch.path.guide import Guide, parse_guide
from probes.launch.path.shell import Transcript

PLANTED = "weights,samples,validation,metrics,loss,export,corrupt"
WRONG_GUIDE = "```sh\nsudo systemctl restart ray\nssh 10.0.0.1 hostname\n```\n"


def doctored_options(size: int) -> list[str]:
    """Make the options of the first control: no MASTER_PORT and, of several ranks, one less."""
    fewer = ["--workers", str(size - 1)] if size > 1 else []
    return ["--unset", "MASTER_PORT", "--restarts", "0", *fewer]


def control_missing_variable(path: GuidedCluster, doctored: Transcript, measure: Recorder) -> None:
    """Check that the job without MASTER_PORT, by one rank less, fails for that reason alone."""
    trial, size = measure.trial(), path.cluster.size
    job = judge_ranks(path, doctored, trial)
    wrong = wrong_ranks(job) if job.rows else []
    problems = [problem.found for problem in group_by_problem(wrong)]
    announced = [each for each in wrong if each.rank not in job.missing]
    ended = doctored.exit_code is not None and doctored.exit_code > 0  # below 0: it was killed
    measure.control(
        "missing variable",
        "the same job is launched without MASTER_PORT and with one rank less",
        trial if job.rows else None,
        located=ended and all_lack(announced, "MASTER_PORT", len(job.rows)),
        saw=f"{len(wrong)} ranks: {join_names(problems)}; exit code {doctored.exit_code}"
        if wrong
        else "no rank",
        without=() if size > 1 else ("ranks",),
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
    job, trial, size = read_job(path, planted), measure.trial(), path.cluster.size
    judge_training(job, planted, trial)
    ranks = [int(row["RANK"]) for row in job.rows if row.get("RANK", "").isdecimal()]
    last = f"rank {max(ranks, default=0)}"
    named = {suspect for one in trial.findings for suspect in one.suspects}
    alone = ("ranks_with_other_weights", "ranks_with_other_validation", "misplaced_samples")
    measure.control(
        "planted errors",
        "the last rank has other weights, samples and validation data, all ranks export the model, "
        "and its losses are wrong",
        trial if job.ended else None,
        located=size == 1 or last in named,
        saw="" if job.ended else f"the job ended with {planted.exit_code}",
        # A single rank has nobody to differ from.
        without=() if size > 1 else (*alone, "wrong_exports", "metric_error"),
    )


def control_job_network(
    path: GuidedCluster, sent: JobBytes, planted: Transcript, measure: Recorder
) -> None:
    """Check that the job which is forced off the agreed fabric is seen to leave it."""
    fabric, trial = path.terms.fabric or "", measure.trial()
    forced = other_network(path)
    if forced:
        judge_network(read_job(path, planted), fabric, sent, planted, trial)
    where = path.terms.management or "sockets"
    measure.control(
        "job on another network",
        f"the user's job is forced onto {where}",
        trial if forced else None,
        saw=""
        if forced
        else "no other interface is agreed: name one in the contract, [cluster] management",
    )


def control_guide(guide: Guide, hosts: Sequence[str], measure: Recorder) -> None:
    """Check that two lines of a guide that a user cannot type are found, each by its number."""
    text = f"{guide.text}\n{WRONG_GUIDE}"
    first = len(text.splitlines()) - 2
    trial = measure.trial()
    judge_guide(parse_guide(guide.name, text, own=guide.own), hosts, trial)
    named = {suspect for one in trial.findings for suspect in one.suspects}
    measure.control(
        "wrong guide",
        "a command as root and a login by address are added to the guide",
        trial,
        located={f"line {first}", f"line {first + 1}"} <= named,
    )


def control_user(us: Transcript, why_same: str, measure: Recorder) -> None:
    """Check that the suite's own user, who is root, is not taken for an ordinary one."""
    trial = measure.trial()
    judge_user(us, "", trial)
    fault = "the suite's own user is judged as the user"
    measure.control("own user", fault, None if why_same else trial, saw=why_same)
