"""The run that was never killed, and what the same workers make of its checkpoints.

One gang serves all of it, for starting one is what takes time: the original; resumes of it that get
one thing wrong, which must be seen (the controls); and resumes from copies of its checkpoints whose
newest was damaged, which must be refused.
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
from probes.cluster.shared_folder import FolderUnknown, find_blind_nodes
from probes.faults.injection import SAVE_EVERY
from probes.faults.process_faults import read_journal
from probes.findings import finding
from probes.restart.equality import loss_distance
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.launchers import train_rank

NEWEST = 2 * SAVE_EVERY  # the step of the newest checkpoint
# Steps, by save mode: in the background, a save may last until the next one is due.
MAX_STEPS_LOST = {"sync": SAVE_EVERY, "async": 2 * SAVE_EVERY}
STEPS = 10  # two more than the newest checkpoint has: what a resume computes is compared there
EXPLODING = 1e30  # learning rate, and norm to clip at: the next step's loss is no number
TIMEOUT_SECONDS = 300  # for so many small steps: connecting and importing torch is most of it
Results = list[dict[str, Any]]
Corruption = Callable[[Path], Any]  # of the folder of the newest checkpoint
NO_REFERENCE_RUN = "the run that nobody kills was not made"  # no gang came together
WRONG_RESUMES = {
    "rng": "the run is resumed without restoring its random state",
    "data": "the run is resumed one sample further on",
    "optimizer": "the run is resumed without its optimizer's state",
    "peer": "one rank resumes from the checkpoint before",
    "all": "the run says that it resumes, and starts from step 0's state",
}


def find_folder_problem(cluster: Cluster, folder: Path) -> tuple[str, list[str]]:
    """Say why no checkpoint can lie here ("": it can), and which nodes do not share the folder."""
    if not folder.is_absolute():
        blind = [node["name"] for node in cluster.nodes]
        return f"{', '.join(blind)} do not see a folder that all share", blind
    try:
        blind = find_blind_nodes(cluster, str(folder))
    except FolderUnknown as unknown:
        return f"no node can write to {folder}: {unknown}", []
    return (f"{', '.join(blind)} do not see {folder}" if blind else ""), blind


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
    """Give results, or why there are none."""
    return ([], outcome or "no reason was given") if isinstance(outcome, str) else (outcome, "")


def _run_or_error(gang: Gang, config: TrainConfig) -> Results | str:
    try:
        return gang.run(train_rank, config, timeout=TIMEOUT_SECONDS)
    except GangError as error:
        return str(error)


@dataclass
class ReferenceRun:
    """Made at first use: `results` of the run never killed, in order of rank; `config` is its own.

    `wrong_resumes[part]` are the results of the resumes that got one thing wrong, `corrupted[name]`
    those of the resumes after `corruptions[name]`: results, or an error sentence.
    """

    folder: Path
    corruptions: dict[str, Corruption] = field(default_factory=dict)
    fill_disk: bool = False
    repeat: bool = False
    device: str = "auto"
    steps: int = STEPS
    results: Results = field(default_factory=list)
    repeated: Results | str = ""  # of the same run, once more, which saves nothing
    wrong_resumes: dict[str, Results | str] = field(default_factory=dict)
    corrupted: dict[str, Results | str] = field(default_factory=dict)
    exploded: Results | str = ""  # of a run whose learning rate is far too large
    full_disk: Results | str = ""
    full_disk_files: int = 0  # how many files were made to meet a full disk
    _folder_problem: tuple[str, list[str]] | None = None

    @property
    def config(self) -> TrainConfig:
        """Small, for what is proven does not depend on size; not paced, for nobody is killed."""
        checkpoints = self.folder / "original"
        return small_config(self.steps, checkpoints, device=self.device, digest_steps=True)

    @property
    def slow_config(self) -> TrainConfig:
        """For a run that is killed: slow enough to be met in a step, and it keeps one checkpoint.

        Whoever removes the old one before the new one is whole has none, when it is killed.
        """
        return dataclasses.replace(self.config, pace_s=0.15, keep_last=1)

    @property
    def least_wrong_distance(self) -> float:
        """Measure the least by which a wrong resume's loss leaves this run's, nats; NaN if none."""
        gaps = [
            loss_distance(self.results, results)
            for results in self.wrong_resumes.values()
            if not isinstance(results, str)
        ]
        return min((gap for gap in gaps if gap > 0), default=math.nan)

    def require_shared_folder(self, cluster: Cluster, measure: Any) -> None:
        """Without a folder that every node sees the probe ends here."""
        unreported = self._folder_problem is None
        if self._folder_problem is None:
            self._folder_problem = find_folder_problem(cluster, self.folder)
        cause, blind = self._folder_problem
        if cause:
            if unreported:  # one cause is one finding, however many probes it stops
                measure.explain(finding("RESTART-NO-FOLDER", cause, blind))
            pytest.fail(f"a checkpoint needs a folder that every node sees: {cause}", pytrace=False)

    def ensure_reference_run(self, cluster: Cluster, measure: Any) -> None:
        """Have it, if need be with a gang of its own."""
        self.require_shared_folder(cluster, measure)
        if not self.results:
            measure.progress("restart: a run that is never killed, and resumes of it")
            with cluster.gang() as gang:
                self.run(gang)

    def run(self, gang: Gang) -> None:
        """Run it, once, and all that is made of its checkpoints.  Raises RuntimeError."""
        if self.results:
            return
        try:
            self._run(gang)
        except GangError as error:
            raise RuntimeError(f"the run that nobody kills failed: {error}") from error

    def _run(self, gang: Gang) -> None:
        for stale in self.folder.iterdir():  # of a try that failed: nothing may be resumed from it
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
        """Resume from a copy of the checkpoints up to step 8, whose newest was damaged first."""
        copy = self.folder / name
        for step in (SAVE_EVERY, NEWEST):
            shutil.copytree(self.folder / "original" / f"step-{step}", copy / f"step-{step}")
        corrupt(copy / f"step-{NEWEST}")
        changes = {"save_every": 0, "checkpoints": str(copy), **changes}
        return _run_or_error(gang, dataclasses.replace(self.config, **changes))

    @contextmanager
    def _link_to_full_disk(self, name: str, victim: int) -> Any:
        """Have one rank's file of step 8 lie on /dev/full: every write to it meets ENOSPC."""
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
