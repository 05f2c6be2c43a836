"""Launchers of the trainer, and the commands that they run."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from reference_trainer import rank_environment
from reference_trainer.config import TrainConfig, build_config, cli_options, config_options
from reference_trainer.late import ray
from reference_trainer.launch.gang import Gang, GangError, last_line, name_ranks
from reference_trainer.launch.supervisor import Timeouts, supervise
from reference_trainer.launch.torchrun_child import run_torchrun
from reference_trainer.launch.worker import ray_resources
from reference_trainer.process_group import JOB, joins
from reference_trainer.rank_environment import JOB_VARIABLE, encode_words, read_variables
from reference_trainer.telemetry.event_log import EventLog

# Practically no limit: heartbeats detect a stuck job much sooner. In milliseconds it fits into 31
# bits.
MAX_SECONDS = 24 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Job to run: the trainer on the ranks of a gang, restarted up to `restarts` times.

    `ranks` is never started: each attempt that needs a gang gets a copy of it. `on_start` is called
    with each gang and the number of the attempt.
    """

    config: TrainConfig
    ranks: Gang
    restarts: int
    on_start: Callable[[Gang, int], None]


# Of a finished job: the result of each rank, and the number of attempts (None: unknown).
JobResult = tuple[list[dict[str, Any]], int | None]


@joins(JOB)
def train_rank(config: TrainConfig) -> dict[str, Any]:
    """Train one rank of the job and return its result; rank 0 logs to the worker's stdout."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    from reference_trainer.train import train

    freeze_imports()
    return train(config)


@cache
def freeze_imports() -> None:
    """Keep what the imports made (300,000 objects) out of each later garbage collection.

    Once per process, before the first run: what a run makes must still be collected.
    """
    gc.collect()  # what earlier calls left, or it would be kept for good
    gc.freeze()


HEAD_START_S = 30  # seconds that the supervisor's limits are below the collectives' time-outs


def job_timeouts(config: TrainConfig) -> Timeouts:
    """Return the supervisor's limits: just below the job's own time-outs, at least the defaults.

    At its own time-out NCCL's watchdog aborts all ranks that wait for a rank that hangs. The
    supervisor could then no longer find out which rank hangs.
    """
    return Timeouts(
        first_step=max(Timeouts.first_step, config.init_timeout_s - HEAD_START_S),
        step=max(Timeouts.step, config.timeout_s - HEAD_START_S),
    )


def run_with_gang(job: TrainingJob) -> JobResult:
    """Run the job with our gang: it recovers as soon as a loss is known. Raises GangError."""

    def log_event(event: str, values: dict[str, Any]) -> None:
        log.write(event, **values)
        if event in ("lost", "left"):
            notify(values["reason"])
        elif event == "repaired":
            notify(f"started again on the same nodes: {name_ranks(values['ranks'])}")
        elif event == "removed":
            notify("all ranks were ended, to be started again in a new placement group")

    notify = job.ranks.notify
    with closing(EventLog(job.config.out, "attempts.jsonl")) as log:
        results, attempts = supervise(
            partial(replace, job.ranks),
            train_rank,
            job.config,
            restarts=job.restarts,
            timeout=MAX_SECONDS,
            timeouts=job_timeouts(job.config),
            on_start=job.on_start,
            on_event=log_event,
        )
    return results, len(attempts)


def run_with_ray_train(job: TrainingJob) -> JobResult:
    """Run the job with Ray Train's TorchTrainer; only the number of failures is not its default.

    Its backend is the trainer's own (Ray Train takes NCCL where Ray counts GPUs, real or not). Once
    one accelerator was available, it waits for the others as long as Ray Train does. SIGTERM ends a
    rank without a save, because Ray Train runs it in a thread. Raises GangError when Ray Train
    gives up, or is not completely installed (it needs pyarrow).
    """
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
    except ImportError as error:
        why = f"{error}. Install it: pip install 'ray[train]'"
        raise GangError(f"Ray Train cannot be used: {why}") from None
    out, ranks = _out_folder(job), job.ranks
    trainer = TorchTrainer(
        _ray_train_rank,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if _sees_cuda(ranks) else "gloo"),
        train_loop_config={"config": job.config, "environment": ranks.environment or {}},
        scaling_config=ScalingConfig(
            num_workers=ranks.size,
            use_gpu=ranks.resource == "GPU",
            resources_per_worker={ranks.resource: 1},
        ),
        run_config=RunConfig(
            name=ranks.name,
            storage_path=str(out.resolve() / "ray-train"),
            failure_config=FailureConfig(max_failures=job.restarts),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:
        raise GangError(f"Ray Train gave up: {last_line(error)}") from error
    return _read_results(out, ranks.size), None


def _sees_cuda(ranks: Gang) -> bool:
    """Return whether torch finds a GPU in a process that owns one of Ray's.

    Raises GangError when there is no room for that process within `timeout` seconds.
    """

    def cuda_available() -> bool:
        import torch

        return torch.cuda.is_available()

    call = ray.remote(cuda_available).options(**ray_resources(ranks.resource)).remote()
    try:
        return bool(ray.get(call, timeout=ranks.timeout))
    except ray.exceptions.GetTimeoutError:
        ray.cancel(call, force=True)
        raise GangError(f"no free resources for one rank within {ranks.timeout:.0f} s") from None


def _ray_train_rank(loop_config: dict[str, Any]) -> None:
    rank_environment.set_variables(loop_config["environment"])
    train_rank(loop_config["config"])


def run_with_torchrun(job: TrainingJob) -> JobResult:
    """Run the job with torchrun's elastic agents, one a node, on accelerators that one gang holds.

    The agents restart a lost rank within the gang. A lost node ends the job, because the agents
    wait for it. Raises GangError.
    """
    out = _out_folder(job)
    with replace(job.ranks) as gang:
        job.on_start(gang, 1)
        try:
            agents = _agent_commands(job, gang)
            gang.run(run_torchrun, timeout=MAX_SECONDS, environment=gang.environment, each=agents)
        except GangError as error:
            raise GangError(f"torchrun gave up: {error}") from error
    return _read_results(out, gang.size), None


def _agent_commands(job: TrainingJob, gang: Gang) -> list[tuple[list[str], str]]:
    """Return (torchrun's arguments, GPUs) for each worker; one agent per node has arguments."""
    nodes = {place.node for place in gang.places}
    agents = []
    for place in gang.places:
        on_node = [peer for peer in gang.places if peer.node == place.node]
        options = [
            *["--nnodes", str(len(nodes)), "--nproc-per-node", str(len(on_node))],
            *["--rdzv-backend", "c10d", "--rdzv-id", gang.name, "--local-addr", place.address],
            *["--max-restarts", str(job.restarts)],
            *["-m", "reference_trainer", "train", *cli_options(job.config)],
        ]
        gpus = ",".join(gpu for peer in on_node for gpu in peer.gpus)
        agents.append((options if on_node[0] == place else [], gpus))
    return agents


def _out_folder(job: TrainingJob) -> Path:
    """Return the job's folder for results. Raises GangError when there is none."""
    if job.config.out is None:
        needed = "a folder for results that all nodes share"
        raise GangError(f"this launcher needs {needed}: name it with --out")
    return Path(job.config.out)


def _read_results(out: Path, size: int) -> list[dict[str, Any]]:
    """Read the result that each rank left in the shared folder. Raises GangError."""
    results = []
    for rank in range(size):
        try:
            results.append(json.loads((out / f"result.rank{rank}.json").read_text("ascii")))
        except (OSError, ValueError) as error:
            what = f"the result of rank {rank}"
            raise GangError(f"{what} cannot be read from --out: {error}") from None
    return results


LAUNCHERS: dict[str, Callable[[TrainingJob], JobResult]] = {
    "gang": run_with_gang,
    "ray-train": run_with_ray_train,
    "torchrun": run_with_torchrun,
}


@click.command(short_help="Start the job on a Ray cluster, with all ranks or none.")
@click.option(
    "--workers",
    default="all",
    show_default=True,
    help="Number of ranks. all means one for each GPU; without GPUs, one for each node.",
)
@click.option(
    "--launcher",
    type=click.Choice(list(LAUNCHERS)),
    default="gang",
    show_default=True,
    help="Program that starts and restarts the ranks: gang is this trainer's own launcher.",
)
@click.option(
    "--unset",
    multiple=True,
    metavar="NAME",
    help="Remove the environment variable NAME from every rank (can be given several times).",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an environment variable on every rank (can be given several times).",
)
@click.option(
    "--restarts",
    default=3,
    show_default=True,
    help="How often the job is started again after a rank was lost.",
)
@click.option(
    "--wait",
    default=300.0,
    show_default=True,
    help="Seconds to wait for enough free GPUs; then the job fails.",
)
@click.option(
    "--name", default="launch", show_default=True, help="Name of the job and its placement group."
)
@config_options
def launch(
    workers: str,
    launcher: str,
    unset: tuple[str, ...],
    settings: tuple[str, ...],
    restarts: int,
    wait: float,
    name: str,
    **values: Any,
) -> None:
    """Start the training job on a Ray cluster: that of RAY_ADDRESS, or else of this machine."""
    config = build_config(values)
    if restarts < 0 or wait <= 0:
        raise click.UsageError("--restarts must be 0 or more, and --wait above 0")
    if isinstance(sys.stdout, TextIOWrapper):  # Ray prints the ranks' lines without a flush
        sys.stdout.reconfigure(line_buffering=True)
    # A submitted job brings its code (RAY_JOB_CONFIG_JSON_ENV_VAR); any other job ships this
    # package.
    default_env = {"py_modules": [str(Path(__file__).parents[1])], "excludes": ["**/__pycache__"]}
    runtime_env = None if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else default_env
    ray.init(log_to_driver=True, logging_level="warning", runtime_env=runtime_env)
    resource = "GPU" if ray.cluster_resources().get("GPU") else "CPU"
    ranks = Gang(
        _count_ranks(workers, resource),
        resource=resource,
        environment={JOB_VARIABLE: name, **_parse_settings(settings), **dict.fromkeys(unset)},
        timeout=wait,
        name=name,
        notify=click.echo,
    )
    on_start = partial(print_rendezvous, config.show)
    job = TrainingJob(config=config, ranks=ranks, restarts=restarts, on_start=on_start)
    try:
        results, attempts = LAUNCHERS[launcher](job)
    except GangError as error:
        raise click.ClickException(str(error)) from None
    _print_result(results, attempts)


def _parse_settings(settings: tuple[str, ...]) -> dict[str, str | None]:
    """Parse NAME=VALUE. Raises click.UsageError."""
    parsed: dict[str, str | None] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not name or not sign:
            raise click.UsageError(f"--set must be NAME=VALUE, but is {setting!r}")
        parsed[name] = value
    return parsed


def print_rendezvous(shown: str, gang: Gang, attempt: int) -> None:
    """Print one line for each rank: attempt, location, rendezvous, and variables.

    These are those that are `shown`, and those of TUNING_VARIABLES that are set.
    """
    shown = ",".join([shown, *rank_environment.TUNING_VARIABLES])
    environments = gang.run(read_variables, shown, timeout=60)
    for place, variables in zip(gang.places, environments, strict=True):
        where = {"node": place.node, "host": place.host, "pid": place.pid}
        click.echo(f"attempt={attempt} {encode_words({**where, **variables})}")


def _print_result(results: list[dict[str, Any]], attempts: int | None) -> None:
    """Print the last lines. Raises click.ClickException when the last loss is not finite."""
    first = results[0]
    last = first["steps"][-1] if first["steps"] else {"step": first["start_step"], "loss": None}
    if last["loss"] is not None and not math.isfinite(last["loss"]):
        found = f"the loss of step {last['step']} is {last['loss']}"
        raise click.ClickException(f"training failed: {found}")
    for result in results:
        click.echo(f"trained {encode_words(rank_environment.trained_words(result))}")
    loss = "" if last["loss"] is None else f" loss={last['loss']:.4f}"
    made = "" if attempts is None else f" attempts={attempts}"
    end = f"step={last['step']}{loss} digest={first['digest']}"
    click.echo(f"done ranks={len(results)}{made} {end}")


def _count_ranks(workers: str, resource: str) -> int:
    """Return the number of ranks; "all" means all GPUs, or one rank per node without GPUs.

    Raises click.UsageError when `workers` is neither a number nor "all".
    """
    if workers == "all":
        alive = sum(bool(node["Alive"]) for node in ray.nodes())
        return int(ray.cluster_resources()["GPU"]) if resource == "GPU" else alive
    if not workers.isdecimal() or int(workers) < 1:
        raise click.UsageError(f"--workers must be 1 or more, or all, but is {workers!r}")
    return int(workers)
