"""Launchers with a fault, as users write them.  A plugin that swaps them in, and the launchers.

pytest -p tests.faults.launchers.faulty_launcher ...  with SEATRIAL_TEST_FAULT=<a name of FAULTS>
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from probes.gang import job_driver as gang_job
from probes.gang.job_driver import JobDriver

NAME = "SEATRIAL_TEST_FAULT"
HERE = str(Path(__file__).resolve())


def pytest_configure() -> None:
    """The probe's jobs are this file's from now on."""
    from probes.gang import competing_job as rivals

    rivals.SCRIPT = Path(HERE)


class Early(JobDriver):
    """Takes one bundle of its gang before the rest."""

    def ask(self, name: str, size: int, *options: Any) -> None:
        super().ask(f"{name}.1", 1, *options)
        if size > 1:
            super().ask(f"{name}.2", size - 1, *options)

    def drop(self, name: str) -> None:
        for part in [group for group in self.groups if group.startswith(name)]:
            super().drop(part)


class Halves(Early):
    """Asks for the second half of its gang once it has the first."""

    def ask(self, name: str, size: int, *options: Any) -> None:
        if "." in name:  # a group of a gang that is asked for in two anyway
            JobDriver.ask(self, name, size, *options)
            return
        first = f"{name}.1"
        JobDriver.ask(self, first, size // 2, *options)

        def rest() -> None:
            self.groups[first].wait(60)
            time.sleep(0.3)  # the other job must have its first half, or there is no deadlock
            JobDriver.ask(self, f"{name}.2", size - size // 2, *options)

        threading.Thread(target=rest, daemon=True).start()


class Deaf(JobDriver):
    """Says that it gives a gang back, and keeps it until its end."""

    def drop(self, name: str) -> None:
        """Keep it."""

    def release(self) -> None:
        for name in list(self.groups):
            super().drop(name)
        super().release()


class Leak(JobDriver):
    """Leaves an actor behind that holds an accelerator outside the gang, until its end."""

    def ask(self, name: str, size: int, *options: Any) -> None:
        super().ask(name, size, *options)
        if "A-" in name and not hasattr(self, "stray"):
            import ray

            self.groups[name].wait(30)  # before that it would look like a part of the gang
            self.stray = ray.remote(gang_job.Holder).options(num_cpus=0, num_gpus=1).remote()
            ray.get(self.stray.location.remote(), timeout=30)


class Fussy(JobDriver):
    """Asks for one thing more, which no cluster has, from its second gang on."""

    asked = 0

    def ask(self, name: str, size: int, *options: Any) -> None:
        self.asked += 1
        if self.asked < 2 and "A-" in name:
            super().ask(name, size, *options)
        else:
            self.ask_too_much(name, size)

    def ask_too_much(self, name: str, size: int) -> None:
        """For its gang, and one thing more."""
        import ray

        bundles = [{self.resource: 1}] * size + [{"no_such_thing": 1}]
        self.groups[name] = ray.util.placement_group(bundles, name=name)


class Scattered(JobDriver):
    """Asks for SPREAD, whatever strategy it was told."""

    def ask(self, name: str, size: int, strategy: str = "PACK", *options: Any) -> None:
        super().ask(name, size, "SPREAD", *options)


class Huddled(JobDriver):
    """Asks for PACK, whatever strategy it was told."""

    def ask(self, name: str, size: int, strategy: str = "PACK", *options: Any) -> None:
        super().ask(name, size, "PACK", *options)


class Swapped(JobDriver):
    """Seats two ranks of its last component on each other's accelerators."""

    def seats(self, name: str, parts: dict[str, list[int]]) -> dict[str, list[tuple[str, str]]]:
        *rest, last = parts
        swapped = [parts[last][1], parts[last][0], *parts[last][2:]]
        return super().seats(name, {**{one: parts[one] for one in rest}, last: swapped})


class Greedy(JobDriver):
    """Trains with more workers than any cluster has."""

    def train(self, size: int, *options: Any) -> None:
        super().train(10 * size, *options)


class Careless(JobDriver):
    """Forgets to give one gang of each stream back."""

    def flow(self, *options: Any) -> None:
        forgotten: list[Any] = []

        def remove(group: Any) -> None:
            if forgotten:
                gang_job.remove_group(group)
            forgotten.append(group)

        super().flow(*options)
        self.streams[-1].remove = remove


class Endless(JobDriver):
    """Says that its stream has ended, and goes on."""

    def calm(self) -> list[dict[str, Any]]:
        return []

    def release(self) -> None:
        super().calm()
        super().release()


class Sluggish(JobDriver):
    """Gives a gang back six seconds after it says so."""

    def drop(self, name: str) -> None:
        threading.Timer(6, gang_job.remove_group, (self.groups.pop(name),)).start()


class Unmanned(JobDriver):
    """Starts one actor fewer than its gang has places."""

    def _spawn(self, count: int, **options: Any) -> None:
        super()._spawn(count - 1 or count, **options)


class Modest(JobDriver):
    """Asks for less than it needs, where all it needs would have to wait."""

    def ask(self, name: str, size: int, *options: Any) -> None:
        super().ask(name, max(size - 1, 1), *options)


class Restless(JobDriver):
    """Starts its gang anew once nobody waits any more, to have a larger one."""

    def ask(self, name: str, size: int, *options: Any) -> None:
        super().ask(name, size, *options)
        if "A-" in name:
            threading.Thread(target=self._anew, args=(name, size), daemon=True).start()

    def _anew(self, name: str, size: int) -> None:
        waited = False
        while not waited or waiting():
            waited = waited or waiting()
            time.sleep(0.01)  # a short look: what it waits for lasts for a moment
        if name in self.groups:
            self.drop(name)
            JobDriver.ask(self, name, size)


def waiting() -> bool:
    """Whether any group on the cluster waits."""
    from ray._private.state import state

    return any(group["state"] == "PENDING" for group in state.placement_group_table().values())


class Stubborn(JobDriver):
    """Never gives its first group up while it waits for its second."""

    def complete(self, gang: str, size: int, patience: float) -> None:
        super().complete(gang, size, 1000 * patience)


class Shaken(Fussy):
    """Asks for one thing more, which no cluster has, once a node has died."""

    before: int | None = None  # nodes that had died when it asked for its first gang

    def ask(self, name: str, size: int, *options: Any) -> None:
        import ray

        dead = sum(not node["Alive"] for node in ray.nodes())
        self.before = dead if self.before is None else self.before
        if "B-" not in name or dead == self.before:
            JobDriver.ask(self, name, size, *options)
        else:
            self.ask_too_much(name, size)


FAULTS: dict[str, type[JobDriver]] = {
    kind.__name__.lower(): kind
    for kind in (
        Early, Halves, Deaf, Leak, Fussy, Scattered, Huddled, Swapped, Greedy, Careless, Endless,
        Sluggish, Unmanned, Modest, Restless, Stubborn, Shaken,
    )
}  # fmt: skip


def main() -> None:
    """Serve as the named launcher; `orphaned` is a launcher whose driver outlives it."""
    name = os.environ[NAME]
    if name == "orphaned":
        sys.exit(subprocess.call([sys.executable, gang_job.__file__, *sys.argv[1:]]))
    gang_job.main(sys.argv[1], sys.argv[2], job_type=FAULTS[name])


if __name__ == "__main__":
    main()
