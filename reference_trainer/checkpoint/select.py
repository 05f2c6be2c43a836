"""Selects the checkpoint to resume from: the newest that is complete and the run's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reference_trainer import manifest
from reference_trainer.checkpoint.save import Storage, call_on, raise_on_all, try_call
from reference_trainer.distributed import World
from reference_trainer.telemetry.event_log import PROGRESS


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Checkpoint to resume from; none if step is 0 and path None. `note` is a sentence for the log.

    `source_rank` has the checkpoint if the folder is not shared. `size_bytes` is the size of all
    its files. `settings` are those of the run that saved it.
    """

    step: int
    path: str | None
    saved_world: int
    skipped: list[dict[str, str]]
    note: str
    source_rank: int = 0
    size_bytes: int = 0
    settings: dict[str, Any] = field(default_factory=dict)


class CheckpointSelector:
    """Selector of the newest usable checkpoint. All ranks call every public method together.

    Reading a complete checkpoint takes long: in a shared folder each rank reads its share.
    """

    def __init__(self, storage: Storage, world: World, identity: dict[str, Any]) -> None:
        self.storage, self.world, self.identity = storage, world, identity
        self.folder = storage.folder

    def select(self, resume: bool) -> tuple[Selection, set[int]]:
        """Return the selection, and the steps in rank 0's folder that were rejected.

        Removes what dead attempts left. Raises CheckpointError when the folder cannot be used.
        Raises it also when `resume` is off and the folder holds checkpoints: a later resume could
        not distinguish them from this run's.
        """
        world, shared = self.world, self.storage.shared
        failure = f"cannot open the checkpoint folder {self.folder}"
        leaders = self.storage.leaders
        steps = call_on(world, leaders, lambda: self._prepare(resume), failure) or []
        if shared:
            step, skipped = _newest_usable(world.broadcast(steps), self._shared_reject_reason)
        else:
            step, skipped = _newest_usable(steps, self._reject_reason)
        picked = call_on(world, leaders, lambda: self._build(step, skipped), failure)
        picks = world.gather(picked)  # None for ranks that lead no node
        source_rank = -max((c.step, -rank) for rank, c in enumerate(picks) if c is not None)[1]
        skipped_steps = {int(entry["name"].removeprefix("step-")) for entry in picks[0].skipped}
        return replace(picks[source_rank], source_rank=source_rank), skipped_steps

    def _prepare(self, resume: bool) -> list[int]:
        """Remove unfinished saves and list the committed steps, newest first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest.sync_folder(self.folder.parent)  # else a power loss may remove the folder itself
        for leftover in manifest.unfinished_saves(self.folder):
            shutil.rmtree(leftover, ignore_errors=True)  # a rank that still ends may write into it
        steps = manifest.committed_steps(self.folder)
        if steps and not resume:
            problem = f"{self.folder} already has step-{steps[0]}, and --no-resume is set"
            raise manifest.CheckpointError(f"{problem}: name an empty folder with --checkpoints")
        return steps

    def _build(self, step: int | None, skipped: list[dict[str, str]]) -> Selection:
        if step is None:
            absence = "no usable checkpoint" if skipped else "no checkpoint"
            note = f"{absence} in {self.folder}: starting from step 0"
            return Selection(step=0, path=None, saved_world=0, skipped=skipped, note=note)
        path = self._path(step)
        content = manifest.read(path)
        ranks, size = int(content["world"]), sum(file["size"] for file in content["files"].values())
        location = "" if self.storage.shared else f", kept on {self.world.host}"
        note = f"resuming from {path}{location}, saved by {ranks} ranks"
        found = Selection(step=step, path=str(path), saved_world=ranks, skipped=skipped, note=note)
        return replace(found, size_bytes=size, settings=content.get("settings", {}))

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def _reject_reason(self, step: int) -> str | None:
        """Return why a checkpoint must not be loaded, or None; this rank alone checks it."""
        files, problem = self._list_files(step)
        return problem or next(self._damaged(step, sorted(files), files), (None, None))[1]

    def _shared_reject_reason(self, step: int) -> str | None:
        """Return the same, checked by all ranks of a shared folder together.

        Rank 0 reads again what any rank finds damaged: a node that reads wrongly must not make the
        job fall back to an older step. Raises CheckpointError on all ranks when rank 0 finds no
        damage.
        """
        world = self.world
        files, problem = world.broadcast(self._list_files(step) if world.rank == 0 else None)
        if problem:
            return str(problem)
        largest_first = sorted(files, key=lambda name: (-files[name]["size"], name))
        bad = dict(self._damaged(step, largest_first[world.rank :: world.size], files))
        reasons = {name: why for part in world.gather(bad) for name, why in part.items()}
        if not reasons:
            return None
        again = next(self._damaged(step, sorted(reasons), files), None) if world.rank == 0 else None
        if (again := world.broadcast(again)) is not None:
            return str(again[1])
        problem = "; ".join(bad.values()) or None
        raise_on_all(world, problem, f"rank 0 can read {self._path(step)}, but another rank cannot")
        return None

    def _list_files(self, step: int) -> tuple[dict[str, Any], str | None]:
        files, problem = try_call(lambda: manifest.own_files(self._path(step), step, self.identity))
        return files or {}, problem

    def _damaged(
        self, step: int, names: Sequence[str], files: dict[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Yield (name, reason) of each file in `names` that differs from its manifest entry."""
        for name in names:
            PROGRESS.update("starting")  # a long read counts as progress
            if reason := manifest.check_file(self._path(step) / name, files[name]):
                yield name, reason


def _newest_usable(
    steps: Sequence[int], reject_reason: Callable[[int], str | None]
) -> tuple[int | None, list[dict[str, str]]]:
    """Return the first usable step, or None, and {"name", "reason"} of each step before it."""
    skipped: list[dict[str, str]] = []
    for step in steps:
        reason = reject_reason(step)
        if reason is None:
            return step, skipped
        skipped.append({"name": f"step-{step}", "reason": reason})
    return None, skipped
