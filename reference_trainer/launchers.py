"""Three ways to start the same job and to start it again: our gang, Ray Train, torchrun.

All of them resume from the job's own checkpoints.  They differ in who sees that a rank is gone, and
in what is done then; benchmarks/restart.py measures by how much.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reference_trainer.config import TrainConfig
from reference_trainer.gang import Gang, GangError
from reference_trainer.journal import JsonLines
from reference_trainer.options import arguments
from reference_trainer.supervisor import supervise

DAY_SECONDS = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be run: the trainer, on `size` accelerators, restarted up to `restarts` times.

    `environment` is laid over the ranks' own; `wait` is for room, in seconds.
    """

    config: TrainConfig
    size: int
    resource: str
    environment: dict[str, str | None] = field(default_factory=dict)
    restarts: int = 3
    wait: float = 300
    announce: Callable[[Gang, int], None] = lambda gang, attempt: None
    say: Callable[[str], None] = lambda words: None

    def gang(self) -> Gang:
        """A gang for it."""
        return Gang(
            self.size,
            resource=self.resource,
            environment=self.environment,
            timeout=self.wait,
            name="launch",
            say=self.say,
        )


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A job that came to its end: rank 0's result, and after how many attempts (None: unknown)."""

    result: dict[str, Any]
    ranks: int
    attempts: int | None


def rank(config: TrainConfig) -> dict[str, Any]:
    """One rank of the job; rank 0 logs to the worker's standard output."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    from reference_trainer.train import train

    return train(config)


def by_gang(job: Job) -> Ended:
    """Our own: a lost gang is replaced as soon as its loss is known.  Raises GangError."""
    events = JsonLines(job.config.out, "attempts.jsonl")

    def tell(event: str, values: dict[str, Any]) -> None:
        import time

        events.write({"event": event, "t": time.time(), **values})
        if event in ("lost", "left"):
            job.say(f"{values['reason']}; its gang is removed, a new one is asked for")

    try:
        results, attempts = supervise(
            job.gang,
            rank,
            job.config,
            restarts=job.restarts,
            timeout=DAY_SECONDS,
            on_start=job.announce,
            tell=tell,
        )
    finally:
        events.close()
    return Ended(result=results[0], ranks=len(results), attempts=len(attempts))


def by_ray_train(job: Job) -> Ended:
    """Ray Train's TorchTrainer with its defaults, but for the number of failures that it forgives.

    Raises GangError when Ray Train gives up, or is not installed whole (it needs pyarrow).
    """
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise GangError(f"Ray Train cannot be used: {error}; pip install 'ray[train]'") from None
    with _outbox(job) as config:
        trainer = TorchTrainer(
            _ray_train_rank,
            train_loop_config={"config": config, "environment": job.environment},
            scaling_config=ScalingConfig(
                num_workers=job.size,
                use_gpu=job.resource == "GPU",
                resources_per_worker={job.resource: 1},
            ),
            run_config=RunConfig(
                storage_path=str(Path(str(config.out)).resolve() / "ray-train"),
                failure_config=FailureConfig(max_failures=job.restarts),
            ),
        )
        try:
            trainer.fit()
        except Exception as error:
            raise GangError(f"Ray Train gave up: {_last_line(error)}") from error
        return Ended(result=_result(config), ranks=job.size, attempts=None)


def _ray_train_rank(given: dict[str, Any]) -> None:
    import os

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
    from reference_trainer.leash import run

    with _outbox(job) as config, job.gang() as gang:
        job.announce(gang, 1)
        nodes = list(dict.fromkeys(place.node for place in gang.places))
        home = gang.places[0]
        (port,) = set(gang.run(_port_of, home.node, timeout=60)) - {None}
        words = []
        for place in gang.places:
            mine = [other for other in gang.places if other.node == place.node]
            agent = [
                *["--nnodes", str(len(nodes)), "--nproc-per-node", str(len(mine))],
                *["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{home.address}:{port}"],
                *["--local-addr", place.address, "--max-restarts", str(job.restarts)],
                *["-m", "reference_trainer", "train", *arguments(config)],
            ]
            gpus = ",".join(gpu for other in mine for gpu in other.gpus)
            words.append((agent if mine[0] == place else [], gpus))
        try:
            gang.run(run, timeout=DAY_SECONDS, environment=job.environment, each=words)
        except GangError as error:
            raise GangError(f"torchrun gave up: {error}") from error
        return Ended(result=_result(config), ranks=job.size, attempts=None)


def _port_of(node: str) -> int | None:
    """A free port, on the node of this id alone."""
    import socket

    import ray

    if ray.get_runtime_context().get_node_id() != node:
        return None
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


class _outbox:
    """The job's configuration with a folder where rank 0 leaves its result.

    These two launchers hand no results back, so there is one in any case: beside the checkpoints,
    which all nodes see, where the job names none.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._made: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> TrainConfig:
        config = self.job.config
        if config.out is not None:
            return config
        if config.checkpoints is None:
            raise GangError("this launcher needs --out, a folder that all nodes see")
        Path(config.checkpoints).mkdir(parents=True, exist_ok=True)
        self._made = tempfile.TemporaryDirectory(dir=Path(config.checkpoints), prefix=".out-")
        return replace(config, out=self._made.name)

    def __exit__(self, *_: object) -> None:
        if self._made is not None:
            self._made.cleanup()


def _result(config: TrainConfig) -> dict[str, Any]:
    path = Path(str(config.out)) / "result.rank0.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise GangError(f"rank 0 left no result that can be read: {error}") from None
    return found


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


LAUNCHERS: dict[str, Callable[[Job], Ended]] = {
    "gang": by_gang,
    "ray-train": by_ray_train,
    "torchrun": by_torchrun,
}
