"""The run that is never killed, and whether another run is equal to it."""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from probes.cluster.cluster import Cluster
from probes.cluster.shared_folder import find_folder_problem
from probes.faults.process_faults import read_journal
from probes.findings import finding, join_names
from probes.restart.faulted_run import SAVE_EVERY, FaultedRun
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError, WorkerLost
from reference_trainer.launch.launchers import train_rank
from reports.numbers import quantity

LOCAL_LOSS = "local_loss_hex"  # loss of a rank's own sequences; loss and norm are of all ranks
TOLD_KEYS = ("loss_hex", "norm_hex", "ids")  # without these a step cannot be compared
KEY_WORDS = {  # what must be equal bit by bit, in the words of a report
    "loss_hex": "loss",
    LOCAL_LOSS: "loss of its own samples",
    "norm_hex": "gradient norm",
    "lr_hex": "learning rate",
    "ids": "samples",
    "data_crc32": "CRC-32 of the data",
    "digest": "hash of the parameters",
}
Results = list[dict[str, Any]]  # of the trainer, ordered by rank
UNROUNDED_KEYS = ("lr_hex", "ids", "data_crc32")  # the order of a sum does not change these


@dataclass(frozen=True)
class UnequalStep:
    """One step of one rank that differs.  `keys` names the values that differ."""

    rank: int
    step: int
    keys: list[str]
    expected: dict[str, Any]
    actual: dict[str, Any]

    def __str__(self) -> str:
        parts = [
            f"{KEY_WORDS.get(key, key)} {_shorten_digest(self.actual.get(key, 'no value'))} "
            f"instead of {_shorten_digest(self.expected.get(key, 'no value'))}"
            for key in self.keys
        ]
        return f"rank {self.rank}, step {self.step}: {'; '.join(parts)}"


def _shorten_digest(value: Any) -> Any:
    """Cut a string of more than 32 characters to its first 12; keep other values."""
    return f"{value[:12]}..." if isinstance(value, str) and len(value) > 32 else value


def first_unequal_step(unequal: Sequence[UnequalStep]) -> tuple[UnequalStep, list[int]]:
    """Find the first step that differs, and the ranks that caused it (empty if unknown).

    One rank that computes wrongly makes every rank unequal.  Only the rank at fault also differs in
    its own loss in the first step.  A wrong gradient shows in no rank's own loss.  Raises
    ValueError when `unequal` is empty.
    """
    first = min(item.step for item in unequal)
    in_step = [item for item in unequal if item.step == first]
    local = [item for item in in_step if LOCAL_LOSS in item.keys]
    culprits = local if len(local) < len(in_step) else []
    return (culprits or in_step)[0], [item.rank for item in culprits]


@dataclass(frozen=True)
class StepComparison:
    """Result of a comparison of two runs.

    `unequal` lists the steps that differ.  `steps` counts all steps, `compared` those that hold the
    values to compare.
    """

    unequal: list[UnequalStep] = field(default_factory=list)
    steps: int = 0
    compared: int = 0

    def __add__(self, other: StepComparison) -> StepComparison:
        unequal, steps = self.unequal + other.unequal, self.steps + other.steps
        return StepComparison(unequal, steps, self.compared + other.compared)

    @property
    def count(self) -> int | None:
        """Number of steps that differ.  None if none differs and not every step was compared."""
        whole = self.steps and self.compared == self.steps
        return len(self.unequal) if whole or self.unequal else None

    @property
    def doubt(self) -> str:
        """Reason why `count` is None."""
        if not self.steps:
            return "the run made no step after a resume"
        missing = self.steps - self.compared
        return f"loss, gradient norm or samples are missing in {missing} of {self.steps} steps"


def compare_steps(
    reference: Results, results: Results, first: int = 1, tolerance: float | None = None
) -> StepComparison:
    """Compare the steps of two runs from `first` on, rank by rank and bit by bit.

    With a `tolerance` (nats), only samples, data and learning rate are compared bit by bit.  The
    loss of all ranks may then differ by `tolerance`.  Both runs are the trainer's results, ordered
    by rank.  Raises ValueError when their numbers of ranks differ.  A step that one run lacks is
    unequal.
    """
    found = StepComparison()
    for expected, actual in zip(reference, results, strict=True):
        expected_steps = {step["step"]: step for step in expected["steps"] if step["step"] >= first}
        actual_steps = {step["step"]: step for step in actual["steps"] if step["step"] >= first}
        for number in sorted(expected_steps.keys() | actual_steps.keys()):
            a, b = expected_steps.get(number, {}), actual_steps.get(number, {})
            keys = _differing_keys(a, b, tolerance)
            unequal = [UnequalStep(expected["rank"], number, keys, a, b)] if keys else []
            known = all(a.get(key) is not None for key in TOLD_KEYS)
            found += StepComparison(unequal, 1, int(known or bool(keys)))
    return found


def _differing_keys(a: dict[str, Any], b: dict[str, Any], tolerance: float | None) -> list[str]:
    if tolerance is None:
        return [key for key in KEY_WORDS if a.get(key) != b.get(key)]
    keys = [key for key in UNROUNDED_KEYS if a.get(key) != b.get(key)]
    losses = [step.get("loss", math.nan) for step in (a, b)]
    # Written so that a NaN loss counts as different.
    return keys if abs(losses[0] - losses[1]) <= tolerance else [*keys, "loss"]


def reordered_sums(reference: Results, run: FaultedRun, victim: int) -> str:
    """Explain why the last bits of two runs on GPUs may differ: NCCL summed over other rings.

    Returns "" if all attempts used the rings of the reference run.  Also returns "" on CPUs, where
    sums follow the order of ranks.  Rings that NCCL did not report may have been any.
    """
    ranks = zip(reference, run.results, strict=False)
    on_gpu = [(a, b) for a, b in ranks if str(b.get("device", "")).startswith("cuda")]
    pairs = [(a["rank"], a.get("rings"), b.get("rings")) for a, b in on_gpu]
    if not pairs:
        return ""
    of_victim = reference[victim].get("rings")
    lives = [event for life in run.journals for event in life if event["event"] == "rings"]
    pairs += [(victim, of_victim, event["rings"]) for event in lives]
    for rank, expected, actual in pairs:
        if expected is None or actual is None:
            return f"NCCL did not log the rings of rank {rank}"
        if expected != actual:
            return f"NCCL used different rings on rank {rank}"
    return ""


def loss_distance(reference: Results, results: Results) -> float:
    """Measure the largest difference (nats) of the mean loss over the steps of `results`.

    Returns NaN if a loss is NaN, or if there is no step.
    """
    expected = {step["step"]: step["loss"] for step in reference[0]["steps"]}
    gaps = [abs(step["loss"] - expected[step["step"]]) for step in results[0]["steps"]]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps, default=math.nan)


def compare_attempts(
    run: FaultedRun, reference: dict[str, Any], attempts: int, tolerance: float | None = None
) -> StepComparison:
    """Compare the steps of the victim's first `attempts` attempts with its rank's `reference`."""
    expected, found = {step["step"]: step for step in reference["steps"]}, StepComparison()
    for attempt in range(attempts):
        steps = run.step_events(attempt)
        references = [expected[step["step"]] for step in steps if step["step"] in expected]
        pair = [{**reference, "steps": references}], [{**reference, "steps": steps}]
        found += compare_steps(*pair, tolerance=tolerance)
    return found


NEWEST = 2 * SAVE_EVERY  # the step of the newest checkpoint
# Steps, by save mode: a save in the background may last until the next save is due.
MAX_STEPS_LOST = {"sync": SAVE_EVERY, "async": 2 * SAVE_EVERY}
STEPS = 10  # two more than the newest checkpoint has: there a resume's own steps are compared
EXPLODING = 1e30  # learning rate and clipping norm: the next step's loss is not finite
TIMEOUT_SECONDS = 300  # limit of a small run: connecting and importing torch take most of it


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder of files that are never written again, by links where the disk has them.

    A checkpoint of 4,096 ranks has as many files, and each of a dozen resumes has its own copy.
    """
    try:
        shutil.copytree(source, target, copy_function=os.link)
    except OSError:  # shutil.Error is one: a file system without links
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)


Corruption = Callable[[Path], Any]  # takes the folder of the newest checkpoint
# No gang could be started.
NO_REFERENCE_RUN = "the undisturbed run, which is needed for the comparison, was not made"
WRONG_RESUMES = {
    "rng": "the run is resumed without restoring its random state",
    "data": "the resumed run skips one sample",
    "optimizer": "the run is resumed without its optimizer state",
    "peer": "one rank resumes from the previous checkpoint",
    "all": "the run reports that it resumes, but starts from the state of step 0",
}


def small_config(steps: int, checkpoints: Path, **options: Any) -> TrainConfig:
    """Configure a small run that keeps all its checkpoints."""
    options |= {"steps": steps, "keep_last": steps, "checkpoints": str(checkpoints)}
    return TrainConfig(dim=32, seq=32, save_every=SAVE_EVERY, **options)


def results_or_error(outcome: Results | str) -> tuple[Results, str]:
    """Split an outcome into results and error; one of them is empty."""
    return ([], outcome or "no reason was given") if isinstance(outcome, str) else (outcome, "")


def run_or_error(gang: Gang, config: TrainConfig) -> Results | str:
    """Train; return why it failed, with a gang that can run again where that is possible."""
    try:
        return gang.run(train_rank, config, timeout=TIMEOUT_SECONDS)
    except WorkerLost as loss:
        with suppress(GangError):  # ranks that wait for a lost one would take no other call
            gang.replace_workers(loss.ranks) or gang.replace_waiting()
        return str(loss)
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
        return replace(self.config, pace_s=0.15, keep_last=1)

    def describe(self) -> str:
        """Describe the size, devices and machines of the run, and what its size leaves open."""
        devices = join_names(sorted({result["device_name"] for result in self.results}))
        machines = quantity(len({result["host"] for result in self.results}), "machines")
        sizes = [save["bytes"] for save in self.results[0]["checkpoints"]]
        saved = quantity(max(sizes, default=0) / 1e6, "MB")
        ranks = f"{quantity(len(self.results), 'ranks')} ({devices}) on {machines}"
        return f"{ranks}, checkpoints of {saved}. Larger ones were not tested"

    @property
    def least_wrong_distance(self) -> float:
        """Smallest distance (nats) of a wrong resume's loss from this run's; NaN if none."""
        known = [one for one in self.wrong_resumes.values() if not isinstance(one, str)]
        gaps = [loss_distance(self.results, results) for results in known]
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
            lacking = f"not every node has the checkpoint folder {self.folder}"
            pytest.fail(f"{lacking}: {cause}", pytrace=False)

    def ensure_reference_run(self, cluster: Cluster, measure: Any) -> None:
        """Make the run, with a gang of its own, unless it was made before."""
        self.require_shared_folder(cluster, measure)
        if not self.results:
            measure.progress("restart: an undisturbed run, then resumes from its checkpoints")
            with cluster.kept_gang.take(measure.covered) as gang:
                self.run(gang)

    def run(self, gang: Gang) -> None:
        """Run it and the resumes from its checkpoints, once.  Raises RuntimeError when it fails."""
        if self.results:
            return
        try:
            self._run(gang)
        except GangError as error:
            failed = "the undisturbed run failed, so nothing can be compared with it"
            raise RuntimeError(f"{failed}: {error}") from error

    def _run(self, gang: Gang) -> None:
        for stale in self.folder.iterdir():  # files of a failed try: no run may resume from them
            shutil.rmtree(stale)
        results = gang.run(train_rank, self.config, timeout=TIMEOUT_SECONDS)
        if self.repeat:
            again = replace(self.config, checkpoints=None, save_every=0)
            self.repeated = run_or_error(gang, again)
        fresh = replace(self.config, checkpoints=None, save_every=0, steps=SAVE_EVERY)
        self.exploded = run_or_error(gang, replace(fresh, lr=EXPLODING, clip=EXPLODING))
        for part in WRONG_RESUMES:
            self.wrong_resumes[part] = self._resume_copy(gang, f"forgets-{part}", forget=part)
        for name, corrupt in self.corruptions.items():
            self.corrupted[name] = self._resume_copy(gang, name, corrupt)
        if self.fill_disk:
            self._resume_on_full_disk(gang, len(results) - 1)
        self.results = results

    def _resume_on_full_disk(self, gang: Gang, victim: int) -> None:
        """Resume while one rank's file of step 8 is a link to /dev/full: writes fail (ENOSPC)."""
        stop, name, out = threading.Event(), "full-disk", self.folder / "full-disk-out"

        def fill() -> None:
            while not stop.wait(0.02):
                if not any(line["event"] == "saving" for line in read_journal(out, victim)):
                    continue
                for partial in (self.folder / name).glob(f"step-{NEWEST}.tmp-*"):
                    (partial / f"__{victim}_0.distcp").symlink_to("/dev/full")
                    self.full_disk_files += 1
                    return

        stall = f"upload:rank={victim}:seconds=1:from={NEWEST}:to={NEWEST}"
        changes = {"save_every": SAVE_EVERY, "stall": stall, "out": str(out)}
        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        try:
            self.full_disk = self._resume_copy(gang, name, shutil.rmtree, **changes)
        finally:
            stop.set()
            thread.join(10)

    def _resume_copy(
        self, gang: Gang, name: str, corrupt: Corruption = lambda newest: None, **changes: Any
    ) -> Results | str:
        """Resume from a copy of the checkpoints of steps 4 and 8, with the newest damaged."""
        copy = self.folder / name
        for step in (SAVE_EVERY, NEWEST):
            link_tree(self.folder / "original" / f"step-{step}", copy / f"step-{step}")
        corrupt(copy / f"step-{NEWEST}")
        changes = {"save_every": 0, "checkpoints": str(copy), **changes}
        return run_or_error(gang, replace(self.config, **changes))
