"""Training jobs with a fault, as users write them.  A plugin that swaps one in, and the faults.

pytest -p tests.faults.launchers.faulty_run ...      with SEATRIAL_TEST_FAULT=<a name of FAULTS>
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from probes.cluster.kept_gang import GANG_NAME
from probes.restart import faulted_run as restart_run
from probes.restart import other_ranks as restart_sizes
from probes.restart import reference_run as restart_original
from probes.restart import scenarios as restart_scenarios
from reference_trainer import manifest
from reference_trainer.checkpoint import checkpointer as checkpoint
from reference_trainer.checkpoint import save as saving
from reference_trainer.checkpoint import select as choosing
from reference_trainer.config import TrainConfig
from reference_trainer.launch import launchers, supervisor
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.supervisor import Timeouts
from reference_trainer.manifest import CheckpointError
from reference_trainer.telemetry.event_log import EventLog

NAME = "SEATRIAL_TEST_FAULT"
Change = Callable[[pytest.MonkeyPatch, TrainConfig], TrainConfig]


def pytest_configure() -> None:
    """The run that meets blows is a faulty one from now on."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers have no tests
    FAULTS[os.environ[NAME]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two minutes of punishment are enough to see a fault, or none."""
    for item in items:
        if hasattr(module := getattr(item, "module", None), "SOAK_SECONDS"):
            setattr(module, "SOAK_SECONDS", 120)  # noqa: B010  (the suite's own module)


def struck(change: Change) -> Callable[[], None]:
    """A fault in the ranks of the run that is killed."""
    return lambda: setattr(restart_run, "train_rank", partial(_rank, change))


def kept(change: Change) -> Callable[[], None]:
    """A fault in the ranks that resume from the checkpoints of the run never killed."""
    return lambda: setattr(restart_original, "train_rank", partial(_rank, change))


def supervised(**options: Any) -> Callable[[], None]:
    """A fault in the supervisor of the run that is killed."""

    def supervise(*arguments: Any, **usual: Any) -> Any:
        return supervisor.supervise(*arguments, **{**usual, **options})

    return lambda: setattr(restart_run, "supervise", supervise)


def _rank(change: Change, config: TrainConfig) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as at:
        return launchers.train_rank(change(at, config))


def forgets(what: str) -> Callable[[], None]:
    """A resume that gets one thing wrong; one of them needs the checkpoint before the newest."""
    return struck(lambda at, config: replace(config, forget=what, keep_last=config.steps))


def typed(**changes: Any) -> Callable[[], None]:
    """A fault in the job that the command starts."""
    scenario = restart_scenarios.LAUNCHER_KILLED
    faulty = replace(scenario, changes={**scenario.changes, **changes})
    return lambda: setattr(restart_scenarios, "LAUNCHER_KILLED", faulty)


def shrunk(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """Whoever goes on with fewer ranks begins one sample further on."""
    resumed = str(config.checkpoints).endswith("/resumed")
    return replace(config, forget="data") if resumed else config


def silent(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """Takes the one before, and keeps it to itself."""
    choose = choosing.CheckpointSelector.select

    def hush(
        self: choosing.CheckpointSelector, resume: bool
    ) -> tuple[choosing.Selection, set[int]]:
        choice, distrusted = choose(self, resume)
        return replace(choice, skipped=[]), distrusted

    at.setattr(choosing.CheckpointSelector, "select", hush)
    return config


def prunes_first(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """Makes room for the new checkpoint before it is whole."""
    write = manifest.write

    def remove_first(path: Path, **values: Any) -> None:
        for old in manifest.committed_steps(path.parent):
            shutil.rmtree(path.parent / f"step-{old}")
        write(path, **values)

    at.setattr(manifest, "write", remove_first)
    return config


def remembers(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """A process that outlived its peer goes on with the random state that it has."""
    outlived = hasattr(launchers, "lived")
    setattr(launchers, "lived", True)  # noqa: B010  (a mark of the process, not of this module)
    return replace(config, forget="rng") if outlived else config


def never_saves(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """Somebody has switched the saves off."""
    return replace(config, save_every=0)


def trusting(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """Takes the newest checkpoint as it is."""
    at.setattr(choosing.CheckpointSelector, "_shared_reject_reason", lambda *_: None)
    return config


def miscalculates(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """On rank 2 a number is wrong in its last places, in one run and not in the other."""
    from reference_trainer import train

    if config.checkpoints is None and os.environ["RANK"] == "2":
        right = train.next_token_loss
        at.setattr(train, "next_token_loss", lambda *tensors: right(*tensors) * (1 + 2**-20))
    return config


def brittle(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """One failed save ends it."""
    return replace(config, save_failures=0)


def careless(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """Does not look whether its data was written, and commits."""

    def attempt(action: Callable[[], Any], rank: int = 0) -> tuple[Any, str | None]:
        return saving_attempt(action, rank)[0] or {}, None

    saving_attempt = saving.try_call
    at.setattr(saving, "try_call", attempt)
    return config


def unstaged(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """Writes in the background what the next steps are changing."""
    at.setattr(checkpoint, "_make_stager", lambda on_gpu: lambda state: state)
    return replace(config, stall=f"{config.stall},upload:rank=0:seconds=0.3:from=4:to=4")


def on_notice(action: Callable[[], Any]) -> Callable[[], None]:
    """What it does on SIGTERM, instead of saving and leaving."""

    def change(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
        from reference_trainer.telemetry.event_log import PROGRESS

        at.setattr(PROGRESS.stop_requested, "set", action)
        return config

    return struck(change)


# The fault itself: whoever is told to go on (SIGCONT) is stopped again at once.
STOPS = """
import os, signal, sys, time
while time.sleep(0.002) is None:
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
"""


def stuck(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """Its last rank does nothing from step 5 on, as in a driver's call that never returns.

    A process that is only stopped would get SIGHUP and SIGCONT when its raylet, its parent, dies.
    """
    write, rank = EventLog.write, int(os.environ["RANK"])
    first = not (Path(str(config.out)) / f"metrics.rank{rank}.jsonl").exists()

    def stop(self: EventLog, event: str, **values: Any) -> None:
        if event == "begin" and values["step"] == 5:
            ctypes.CDLL(None).signal(signal.SIGHUP, 1)  # SIG_IGN, from a thread that is not main
            write(self, event, **values)
            # It ends when there is nobody to stop any more.
            words = [sys.executable, "-c", STOPS, str(os.getpid())]
            subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL)
            time.sleep(60)  # the first SIGSTOP comes meanwhile, and ends this rank's part
        write(self, event, **values)

    if first and rank == int(os.environ["WORLD_SIZE"]) - 1:
        at.setattr(EventLog, "write", stop)
    return config


def needs_a_checkpoint(at: pytest.MonkeyPatch, config: TrainConfig) -> TrainConfig:
    """When it is started again, a missing checkpoint is an error."""
    again = (Path(str(config.out)) / "metrics.rank0.jsonl").exists()
    if again and not manifest.committed_steps(Path(str(config.checkpoints))):
        raise CheckpointError("there is no checkpoint to resume from")
    return config


def keeps_its_gang() -> None:
    """Ends its workers and forgets their placement group."""
    remove = Gang.remove

    def forget(self: Gang, timeout: float = 30) -> None:
        if self.name == GANG_NAME:
            self._group = None
        remove(self, timeout)

    setattr(Gang, "remove", forget)  # noqa: B010  (mypy lets no method be assigned)


def reuses_its_gang() -> None:
    """Keeps its placement group, and waits until Ray has put its lost bundle elsewhere."""
    import ray

    place, remove, kept = Gang._request_group, Gang.remove, []

    def keep(self: Gang, timeout: float = 30) -> None:
        if self.name == GANG_NAME:
            kept.append(self._group)
            self._group = None
        remove(self, timeout)

    def again(self: Gang) -> None:
        with pytest.MonkeyPatch.context() as at:
            if kept and self.name == GANG_NAME:
                at.setattr(ray.util, "placement_group", lambda *_, **__: kept[-1])
            place(self)

    setattr(Gang, "_request_group", again)  # noqa: B010  (as above)
    setattr(Gang, "remove", keep)  # noqa: B010  (as above)


def one_at_a_time() -> None:
    """Replaces one lost rank; ranks that are lost at once end the job."""
    replace_workers = Gang.replace_workers

    def replace_one(self: Gang, lost: Sequence[int]) -> list[int]:
        if len(lost) > 1:
            raise GangError(f"ranks {list(lost)} were lost at once")
        return replace_workers(self, lost)

    setattr(Gang, "replace_workers", replace_one)  # noqa: B010  (as above)


FAULTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    **{f"forgets-{what}": forgets(what) for what in ("rng", "data", "optimizer", "peer", "all")},
    "remembers": struck(remembers),
    "typed-forgets-rng": typed(forget="rng"),
    "shrunk": lambda: setattr(restart_sizes, "train_rank", partial(_rank, shrunk)),
    "prunes-first": struck(prunes_first),
    "never-saves": struck(never_saves),
    "unstaged": struck(unstaged),
    "hasty": on_notice(lambda: os._exit(143)),
    "heedless": on_notice(lambda: None),
    "stuck": struck(stuck),
    "needs-a-checkpoint": struck(needs_a_checkpoint),
    "miscalculates": kept(miscalculates),
    "trusting": kept(trusting),
    "silent": kept(silent),
    "brittle": kept(brittle),
    "careless": kept(careless),
    "gives-up": supervised(restarts=0),
    "gives-up-early": supervised(restarts=1),
    "never-gives-up": supervised(restarts=9),
    "no-heartbeat": supervised(timeout=75, timeouts=Timeouts(answer=1e6, step=1e6)),
    "keeps-its-gang": keeps_its_gang,
    "reuses-its-gang": reuses_its_gang,
    "one-at-a-time": one_at_a_time,
}
