"""Keeps the ranks of one probe for the next: starting them takes longer than some probes do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from probes.cluster.ask import make_unique_token
from reference_trainer.launch.gang import Gang

GANG_NAME = f"seatrial-gang-{make_unique_token()}"  # name of the placement groups of these gangs
Say = Callable[[str], None]


class GangKeeper:
    """Lends one gang of all ranks of the cluster to one probe after the other.

    Each call of a rank begins with the worker's own variables (see Worker.run), so a probe leaves
    no setting to the next. NCCL reads its variables once in a process: on GPUs, only a probe with
    the same variables gets the same processes.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._kept: Gang | None = None
        self._began, self._variables = 0.0, ""  # of the kept gang's processes

    @contextmanager
    def lend(self, say: Say, **options: Any) -> Iterator[Gang]:
        """Yield the kept gang, or a new one; keep it afterwards, unless something failed in it.

        `options` are its `environment` and `by_local_rank`. `say` gets a sentence on its age.
        """
        gang, begun = self.take(say, **options), time.monotonic()
        is_new = not gang.is_running
        gang.__enter__()
        try:
            if is_new:
                self._began, self._variables = begun, self._read_once(options)
                say(f"ranks: started for this test, in {time.monotonic() - begun:.1f} s")
            yield gang
        except BaseException:
            gang.remove()
            raise
        if gang.is_sound:
            self._kept = gang
        else:
            gang.remove()

    def take(self, say: Say, **options: Any) -> Gang:
        """Return the kept gang, which runs, or a new one; who takes it enters and leaves it."""
        if self._kept is not None and not self._fits(self._kept, options):
            self.release()
        gang, self._kept = self._kept, None
        if gang is None:
            return self._cluster.gang(name=GANG_NAME, keeps_groups=True, **options)
        say(f"ranks: those of an earlier test, {time.monotonic() - self._began:.0f} s old")
        gang.leave_groups()  # no group of an earlier probe reaches this one
        gang.environment = options.get("environment")
        gang.by_local_rank = options.get("by_local_rank", ())
        return gang

    def release(self) -> None:
        """Remove the kept gang, so that all accelerators are free."""
        gang, self._kept = self._kept, None
        if gang is not None:
            gang.remove()

    def _fits(self, gang: Gang, options: Mapping[str, Any]) -> bool:
        """Whether the gang has every rank of the cluster, as new for these options."""
        same = self._variables == self._read_once(options) and gang.size == self._cluster.size
        return same and gang.is_sound and not gang.silent()

    def _read_once(self, options: Mapping[str, Any]) -> str:
        """Describe the variables that a process of this gang has read for good."""
        return repr(sorted(options.items())) if self._cluster.on_gpu else ""
