"""Which checkpoint a run resumes from: the newest that is whole and its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reference_trainer import manifest
from reference_trainer.checkpoint.rank_errors import agree, attempt
from reference_trainer.checkpoint.storage import Storage
from reference_trainer.distributed import World
from reference_trainer.manifest import CheckpointError
from reference_trainer.telemetry.heartbeat import PULSE


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to resume from.  step 0 and path None: nothing.  `note` is a sentence for the log.

    `keeper` is the rank that has it, where the folder is not shared; `bytes` are all its files'.
    `settings` are those of the run that saved it.
    """

    step: int
    path: str | None
    saved_world: int
    skipped: list[dict[str, str]]
    note: str
    keeper: int = 0
    bytes: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def distrusted(self) -> set[int]:
        """The steps that were skipped."""
        return {int(entry["name"].removeprefix("step-")) for entry in self.skipped}


class Chooser:
    """Looks for it, from the newest to the oldest.  Every method is called by all ranks together.

    To read a checkpoint whole takes long: where all ranks see it, each reads its share.
    """

    def __init__(self, storage: Storage, world: World, identity: dict[str, Any]) -> None:
        self.storage, self.world, self.identity = storage, world, identity
        self.folder = storage.folder

    def choose(self, resume: bool) -> tuple[Choice, set[int]]:
        """The choice, and the steps in rank 0's folder that it does not trust.

        Removes what dead attempts left.  Raises CheckpointError when the folder cannot be used, or
        when `resume` is off and the folder holds checkpoints: a later resume could not tell them
        from this run's.
        """
        world, shared = self.world, self.storage.shared
        failed, speaks = "cannot open the checkpoint folder", world.rank in self.storage.speakers
        steps, problem = attempt(lambda: self._prepare(resume)) if speaks else ([], None)
        agree(world, problem, failed)
        if shared:
            step, skipped = _newest(world.broadcast(steps), self._why_not_together)
        else:
            step, skipped = _newest(steps, self._why_not)
        mine, problem = attempt(lambda: self._choice(step, skipped)) if speaks else (None, None)
        agree(world, problem, failed)
        choices: list[Choice | None] = world.gather(mine)
        keeper = -max((c.step, -rank) for rank, c in enumerate(choices) if c is not None)[1]
        chosen, first = choices[keeper], choices[0]
        assert chosen is not None
        assert first is not None
        return replace(chosen, keeper=keeper), first.distrusted

    def _prepare(self, resume: bool) -> list[int]:
        """Clear up, and list the steps that there are, newest first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest.sync_folder(self.folder.parent)  # else a power loss takes the folder itself
        for leftover in manifest.unfinished(self.folder):
            shutil.rmtree(leftover, ignore_errors=True)  # a rank that still ends may write there
        steps = manifest.committed_steps(self.folder)
        if steps and not resume:
            raise CheckpointError(
                f"{self.folder} already holds step-{steps[0]} and resume is off:"
                " choose an empty folder"
            )
        return steps

    def _choice(self, step: int | None, skipped: list[dict[str, str]]) -> Choice:
        if step is None:
            what = "no usable checkpoint" if skipped else "no checkpoint"
            note = f"{what} in {self.folder}: starting from step 0"
            return Choice(step=0, path=None, saved_world=0, skipped=skipped, note=note)
        path = self._path(step)
        content = manifest.read(path)
        world, size = int(content["world"]), sum(file["size"] for file in content["files"].values())
        where = "" if self.storage.shared else f", kept on {self.world.host}"
        note = f"resuming from {path}{where}, saved by {world} ranks"
        return Choice(
            step=step,
            path=str(path),
            saved_world=world,
            skipped=skipped,
            note=note,
            bytes=size,
            settings=content.get("settings", {}),
        )

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def _why_not(self, step: int) -> str | None:
        """Why a checkpoint must not be loaded, as this rank alone finds."""
        files, problem = self._listed(step)
        return problem or next(self._damages(step, sorted(files), files), (None, None))[1]

    def _why_not_together(self, step: int) -> str | None:
        """The same, found by all ranks of a shared folder.  Raises CheckpointError on all.

        What only one rank finds damaged is read again by rank 0: a node that reads wrongly must
        not make the job fall back to an older step.
        """
        world = self.world
        files, problem = world.broadcast(self._listed(step) if world.rank == 0 else None)
        if problem:
            return str(problem)
        largest_first = sorted(files, key=lambda name: (-files[name]["size"], name))
        bad = dict(self._damages(step, largest_first[world.rank :: world.size], files))
        told = {name: why for named in world.gather(bad) for name, why in named.items()}
        if not told:
            return None
        again = next(self._damages(step, sorted(told), files), None) if world.rank == 0 else None
        if (again := world.broadcast(again)) is not None:
            return str(again[1])
        agree(world, "; ".join(bad.values()) or None, f"rank 0 reads {self._path(step)} whole, but")
        return None

    def _listed(self, step: int) -> tuple[dict[str, Any], str | None]:
        files, problem = attempt(lambda: manifest.listed(self._path(step), step, self.identity))
        return files or {}, problem

    def _damages(
        self, step: int, names: Sequence[str], files: dict[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """(name, why) of the files among these that are not as they were written."""
        for name in names:
            PULSE.now("starting")  # one that reads for long gets on all the same
            if why := manifest.check(self._path(step) / name, files[name]):
                yield name, why


def _newest(
    steps: Sequence[int], why_not: Callable[[int], str | None]
) -> tuple[int | None, list[dict[str, str]]]:
    """The first step that nothing is wrong with, and {"name", "reason"} of those before it."""
    skipped: list[dict[str, str]] = []
    for step in steps:
        reason = why_not(step)
        if reason is None:
            return step, skipped
        skipped.append({"name": f"step-{step}", "reason": reason})
    return None, skipped
