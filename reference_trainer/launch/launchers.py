"""Three ways to start the same job and to start it again: our gang, Ray Train, torchrun.

All of them resume from the job's own checkpoints.  They differ in who sees that a rank is gone, and
in what is done then; benchmarks/restart.py measures by how much.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.supervisor import Patience, supervise
from reference_trainer.launch.torchrun_child import run
from reference_trainer.launch.worker import demand
from reference_trainer.options import arguments
from reference_trainer.telemetry.event_log import JsonLines

# Heartbeats tell much sooner of a job that does not get on; as milliseconds it fits into 31 bits.
LONGEST_SECONDS = 24 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be run: the trainer, on `size` accelerators, restarted up to `restarts` times.

    `environment` is laid over the ranks' own (None removes a variable); `wait` is for room, in
    seconds; `announce` is told of each gang, `say` hears what a user should know.
    """

    config: TrainConfig
    size: int
    resource: str
    environment: dict[str, str | None] = field(default_factory=dict)
    restarts: int = 3
    wait: float = 300
    name: str = "launch"
    announce: Callable[[Gang, int], None] = lambda gang, attempt: None
    say: Callable[[str], None] = lambda words: None

    def gang(self) -> Gang:
        """A gang for it."""
        return Gang(
            self.size,
            resource=self.resource,
            environment=self.environment,
            timeout=self.wait,
            name=self.name,
            say=self.say,
        )


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A job that came to its end: rank 0's result, and after how many attempts (None: unknown)."""

    result: dict[str, Any]
    attempts: int | None = None


def rank(config: TrainConfig) -> dict[str, Any]:
    """One rank of the job; rank 0 logs to the worker's standard output."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    from reference_trainer.train import train

    return train(config)


def patience(config: TrainConfig) -> Patience:
    """As long as the job's own time-outs allow, where that is longer than is usual."""
    usual = Patience()
    return Patience(
        first_step=max(usual.first_step, config.init_timeout_s),
        step=max(usual.step, config.timeout_s),
    )


def by_gang(job: Job) -> Ended:
    """Our own: a loss is made good as soon as it is known.  Raises GangError."""
    log = JsonLines(job.config.out, "attempts.jsonl")

    def tell(event: str, values: dict[str, Any]) -> None:
        log.write({"event": event, "t": time.time(), **values})
        if event in ("lost", "left"):
            job.say(values["reason"])
        elif event == "mended":
            job.say(f"ranks {values['ranks']} were started again in their places")
        elif event == "removed":
            job.say("its gang was removed")

    try:
        results, attempts = supervise(
            job.gang,
            rank,
            job.config,
            restarts=job.restarts,
            timeout=LONGEST_SECONDS,
            patience=patience(job.config),
            on_start=job.announce,
            tell=tell,
        )
    finally:
        log.close()
    return Ended(result=results[0], attempts=len(attempts))


def by_ray_train(job: Job) -> Ended:
    """Ray Train's TorchTrainer with its defaults, but for the number of failures that it forgives.

    Its backend is the trainer's own (Ray Train takes NCCL where Ray counts GPUs, real or not).
    Once one accelerator was there, it waits for the others as long as Ray Train does.  SIGTERM ends
    a rank unsaved, for Ray Train runs it in a thread.  Raises GangError when Ray Train gives up, or
    is not installed whole (it needs pyarrow).
    """
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
    except ImportError as error:
        raise GangError(f"Ray Train cannot be used: {error}; pip install 'ray[train]'") from None
    out = _out(job)
    trainer = TorchTrainer(
        _ray_train_rank,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if _sees_cuda(job) else "gloo"),
        train_loop_config={"config": job.config, "environment": job.environment},
        scaling_config=ScalingConfig(
            num_workers=job.size,
            use_gpu=job.resource == "GPU",
            resources_per_worker={job.resource: 1},
        ),
        run_config=RunConfig(
            name=job.name,
            storage_path=str(out.resolve() / "ray-train"),
            failure_config=FailureConfig(max_failures=job.restarts),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise GangError(f"Ray Train gave up: {last}") from error
    return Ended(result=_result(out))


def _sees_cuda(job: Job) -> bool:
    """Whether torch finds a GPU in a process that owns one of Ray's."""
    import ray

    def available() -> bool:
        import torch

        return torch.cuda.is_available()

    call = ray.remote(available).options(**demand(job.resource)).remote()
    try:
        return bool(ray.get(call, timeout=job.wait))
    except ray.exceptions.GetTimeoutError:
        ray.cancel(call, force=True)
        raise GangError(f"there was no room for one rank in {job.wait:.0f} s") from None


def _ray_train_rank(given: dict[str, Any]) -> None:
    for name, value in given["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    rank(given["config"])


def by_torchrun(job: Job) -> Ended:
    """torchrun's elastic agents, one a node, on accelerators that one gang holds.

    A lost rank is restarted by the agents, within the gang; a lost node ends the job, for the
    agents wait for it.  Raises GangError.
    """
    out = _out(job)
    with job.gang() as gang:
        job.announce(gang, 1)
        try:
            gang.run(
                run,
                timeout=LONGEST_SECONDS,
                environment=job.environment,
                each=[[words, gpus] for words, gpus in _agents(job, gang)],
            )
        except GangError as error:
            raise GangError(f"torchrun gave up: {error}") from error
    return Ended(result=_result(out))


def _agents(job: Job, gang: Gang) -> list[tuple[list[str], str]]:
    """For each worker, torchrun's words and the accelerators it may use; one agent a node."""
    nodes = {place.node for place in gang.places}
    agents = []
    for place in gang.places:
        mine = [other for other in gang.places if other.node == place.node]
        words = [
            *["--nnodes", str(len(nodes)), "--nproc-per-node", str(len(mine))],
            *["--rdzv-backend", "c10d", "--rdzv-id", job.name, "--local-addr", place.address],
            *["--max-restarts", str(job.restarts)],
            *["-m", "reference_trainer", "train", *arguments(job.config)],
        ]
        gpus = ",".join(gpu for other in mine for gpu in other.gpus)
        agents.append((words if mine[0] == place else [], gpus))
    return agents


def _out(job: Job) -> Path:
    """The job's folder for results.  Raises GangError when there is none."""
    if job.config.out is None:
        raise GangError("this launcher hands no result back: give it --out, a shared folder")
    return Path(job.config.out)


def _result(out: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((out / "result.rank0.json").read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise GangError(f"rank 0 left no result that can be read: {error}") from None
    return found


LAUNCHERS: dict[str, Callable[[Job], Ended]] = {
    "gang": by_gang,
    "ray-train": by_ray_train,
    "torchrun": by_torchrun,
}
