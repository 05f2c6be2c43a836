"""Plants errors in the last rank of a job, to see whether a check or a launcher finds them."""

from __future__ import annotations

import subprocess
import time

STRIKE_STEP = 2  # by then all ranks wait for each other in collectives
CHILD_SECONDS = 120  # then it ends by itself
TOO_MANY_BYTES = 1 << 55  # more than any device has, so nothing is allocated

KINDS = (
    "weights",  # begins with weights of its own
    "samples",  # trains on the samples of rank 0
    "repeat",  # trains on its first samples again and again
    "validation",  # validates on other data
    "metrics",  # reports the sum of the ranks' losses instead of their mean
    "loss",  # climbs the loss instead of descending
    "export",  # each rank exports the model
    "corrupt",  # the exported model is another than the trained one
    "error",  # raises an exception in step 2
    "memory",  # asks for more memory than there is in step 2
    "process",  # starts a process in step 2 that outlives it
    "silence",  # does nothing any more from step 2 on, and prints nothing
)


def parse_errors(text: str) -> frozenset[str]:
    """Parse `weights,samples`. Raises ValueError for a kind that is not known."""
    kinds = frozenset(text.split(",")) if text else frozenset()
    if unknown := sorted(kinds - {*KINDS}):
        raise ValueError(f"plant is {unknown[0]!r}, expected some of {', '.join(KINDS)}")
    return kinds


class PlantedErrors:
    """The errors that one rank of a job plants: all of them the last one, some every rank."""

    def __init__(self, text: str, rank: int, size: int) -> None:
        self.kinds = parse_errors(text)
        self.rank, self.size = rank, size

    def here(self, kind: str) -> bool:
        """Return whether this rank plants it."""
        return kind in self.kinds and self.rank == self.size - 1

    def everywhere(self, kind: str) -> bool:
        """Return whether the job plants it, on every rank."""
        return kind in self.kinds

    @property
    def sign(self) -> int:
        """Sign of the learning rate: -1 climbs the loss."""
        return -1 if self.everywhere("loss") else 1

    def strike(self, step: int) -> None:
        """Fail as a user's script does, in STRIKE_STEP of the last rank."""
        if step != STRIKE_STEP:
            return
        if self.here("error"):
            raise KeyError("planted error")
        if self.here("memory"):
            import torch

            torch.empty(TOO_MANY_BYTES, dtype=torch.uint8)
        if self.here("process"):
            # Its parent ends at once: Ray ends the children of a worker that it stops, not these.
            background = f"sleep {CHILD_SECONDS} > /dev/null 2>&1 &"
            subprocess.run(["sh", "-c", background], check=True, start_new_session=True)
        while self.here("silence"):
            time.sleep(1)
