"""Makes the run that is never killed, and resumes from its checkpoints.

One gang does all of it, because starting a gang is slow.  Controls are resumes that get one thing
wrong, which must be detected.  Resumes from a damaged newest checkpoint must be refused.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from probes.cluster.cluster import Cluster
from probes.cluster.shared_folder import find_folder_problem
from probes.faults.injection import SAVE_EVERY
from probes.faults.process_faults import read_journal
from probes.findings import finding
from probes.restart.equality import loss_distance
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.launchers import train_rank

NEWEST = 2 * SAVE_EVERY  # the step of the newest checkpoint
# Steps, by save mode: a save in the background may last until the next save is due.
MAX_STEPS_LOST = {"sync": SAVE_EVERY, "async": 2 * SAVE_EVERY}
STEPS = 10  # two more than the newest checkpoint has: there a resume's own steps are compared
EXPLODING = 1e30  # learning rate and clipping norm: the next step's loss is not finite
TIMEOUT_SECONDS = 300  # limit of a small run: connecting and importing torch take most of it
Results = list[dict[str, Any]]
Corruption = Callable[[Path], Any]  # takes the folder of the newest checkpoint
NO_REFERENCE_RUN = "the uninterrupted run was not made"  # no gang could be started
WRONG_RESUMES = {
    "rng": "the run is resumed without restoring its random state",
    "data": "the resumed run skips one sample",
    "optimizer": "the run is resumed without its optimizer's state",
    "peer": "one rank resumes from the checkpoint before",
    "all": "the run reports that it resumes, and starts from the state of step 0",
}


def small_config(steps: int, checkpoints: Path, **options: Any) -> TrainConfig:
    """Configure a small run that keeps all its checkpoints."""
    return TrainConfig(
        steps=steps,
        dim=32,
        seq=32,
        save_every=SAVE_EVERY,
        keep_last=steps,
        checkpoints=str(checkpoints),
        **options,
    )


def results_or_error(outcome: Results | str) -> tuple[Results, str]:
    """Split an outcome into results and error; one of them is empty."""
    return ([], outcome or "no reason was given") if isinstance(outcome, str) else (outcome, "")


def _run_or_error(gang: Gang, config: TrainConfig) -> Results | str:
    try:
        return gang.run(train_rank, config, timeout=TIMEOUT_SECONDS)
    except GangError as error:
        return str(error)


@dataclass
class ReferenceRun:
    """The run that is never killed, made at first use.  `results` is ordered by rank.

    `wrong_resumes[part]` is the outcome of the resume that got `part` wrong.  `corrupted[name]` is
    the outcome of the resume after `corruptions[name]`.  An outcome is a list of results, or an
    error.
    """

    folder: Path
    corruptions: dict[str, Corruption] = field(default_factory=dict)
    fill_disk: bool = False
    repeat: bool = False
    device: str = "auto"
    steps: int = STEPS
    results: Results = field(default_factory=list)
    repeated: Results | str = ""  # outcome of the same run, once more, without saves
    wrong_resumes: dict[str, Results | str] = field(default_factory=dict)
    corrupted: dict[str, Results | str] = field(default_factory=dict)
    exploded: Results | str = ""  # outcome of a run whose learning rate is far too large
    full_disk: Results | str = ""
    full_disk_files: int = 0  # number of files that were linked to a full disk
    _folder_problem: tuple[str, list[str]] | None = None

    @property
    def config(self) -> TrainConfig:
        """Small model: equality does not depend on size.

        No emulated compute: this run is not killed.
        """
        checkpoints = self.folder / "original"
        return small_config(self.steps, checkpoints, device=self.device, digest_steps=True)

    @property
    def slow_config(self) -> TrainConfig:
        """Configuration of a run that is killed: slow enough to be hit in a step, one checkpoint.

        If the old checkpoint is deleted before the new one is complete, a kill in between leaves
        none.
        """
        return dataclasses.replace(self.config, pace_s=0.15, keep_last=1)

    @property
    def least_wrong_distance(self) -> float:
        """Smallest distance (nats) of a wrong resume's loss from this run's; NaN if none."""
        gaps = [
            loss_distance(self.results, results)
            for results in self.wrong_resumes.values()
            if not isinstance(results, str)
        ]
        return min((gap for gap in gaps if gap > 0), default=math.nan)

    def require_shared_folder(self, cluster: Cluster, measure: Any) -> None:
        """Fail the probe unless every node sees the folder of the checkpoints."""
        unreported = self._folder_problem is None
        if self._folder_problem is None:
            self._folder_problem = find_folder_problem(cluster, self.folder)
        cause, blind = self._folder_problem
        if cause:
            if unreported:  # one cause is one finding, even if it stops several probes
                names = {"folder": self.folder}
                measure.explain(finding("RESTART-NO-FOLDER", cause, blind, names=names))
            pytest.fail(f"a checkpoint needs a folder that every node sees: {cause}", pytrace=False)

    def ensure_reference_run(self, cluster: Cluster, measure: Any) -> None:
        """Make the run, with a gang of its own, unless it was made before."""
        self.require_shared_folder(cluster, measure)
        if not self.results:
            measure.progress("restart: an uninterrupted run, and resumes of it")
            with cluster.gang() as gang:
                self.run(gang)

    def run(self, gang: Gang) -> None:
        """Run it and the resumes from its checkpoints, once.  Raises RuntimeError when it fails."""
        if self.results:
            return
        try:
            self._run(gang)
        except GangError as error:
            raise RuntimeError(f"the uninterrupted run failed: {error}") from error

    def _run(self, gang: Gang) -> None:
        for stale in self.folder.iterdir():  # files of a failed try: no run may resume from them
            shutil.rmtree(stale)
        results = gang.run(train_rank, self.config, timeout=TIMEOUT_SECONDS)
        if self.repeat:
            again = dataclasses.replace(self.config, checkpoints=None, save_every=0)
            self.repeated = _run_or_error(gang, again)
        fresh = dataclasses.replace(self.config, checkpoints=None, save_every=0, steps=SAVE_EVERY)
        exploding = dataclasses.replace(fresh, lr=EXPLODING, clip=EXPLODING)
        self.exploded = _run_or_error(gang, exploding)
        for part in WRONG_RESUMES:
            self.wrong_resumes[part] = self._resume_copy(gang, f"forgets-{part}", forget=part)
        for name, corrupt in self.corruptions.items():
            self.corrupted[name] = self._resume_copy(gang, name, corrupt)
        if self.fill_disk:
            self._resume_on_full_disk(gang, len(results) - 1)
        self.results = results

    def _resume_on_full_disk(self, gang: Gang, victim: int) -> None:
        with self._link_to_full_disk("full-disk", victim):
            stall = f"upload:rank={victim}:seconds=1:from={NEWEST}:to={NEWEST}"
            out = str(self.folder / "full-disk-out")
            changes = {"save_every": SAVE_EVERY, "stall": stall, "out": out}
            self.full_disk = self._resume_copy(gang, "full-disk", shutil.rmtree, **changes)

    def _resume_copy(
        self, gang: Gang, name: str, corrupt: Corruption = lambda newest: None, **changes: Any
    ) -> Results | str:
        """Resume from a copy of the checkpoints of steps 4 and 8, with the newest damaged."""
        copy = self.folder / name
        for step in (SAVE_EVERY, NEWEST):
            shutil.copytree(self.folder / "original" / f"step-{step}", copy / f"step-{step}")
        corrupt(copy / f"step-{NEWEST}")
        changes = {"save_every": 0, "checkpoints": str(copy), **changes}
        return _run_or_error(gang, dataclasses.replace(self.config, **changes))

    @contextmanager
    def _link_to_full_disk(self, name: str, victim: int) -> Any:
        """Link one rank's file of step 8 to /dev/full, so that every write fails with ENOSPC."""
        stop = threading.Event()
        out = self.folder / f"{name}-out"

        def fill() -> None:
            while not stop.wait(0.02):
                if not any(line["event"] == "saving" for line in read_journal(out, victim)):
                    continue
                for partial in (self.folder / name).glob(f"step-{NEWEST}.tmp-*"):
                    (partial / f"__{victim}_0.distcp").symlink_to("/dev/full")
                    self.full_disk_files += 1
                    return

        thread = threading.Thread(target=fill, daemon=True)
        with ExitStack() as stack:
            stack.callback(thread.join, 10)
            stack.callback(stop.set)
            thread.start()
            yield
