"""Sets the environment of a job's only rank, in this process and its children."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from reference_trainer.launch.worker import reserve_port
from reference_trainer.rank_environment import LAUNCH_VARIABLES


@contextmanager
def only_rank() -> Iterator[None]:
    """Set the launch variables as a launcher would, with a reserved rendezvous port."""
    with reserve_port() as port:
        place = ("0", "1", "0", "127.0.0.1", str(port))
        with patch.dict(os.environ, zip(LAUNCH_VARIABLES, place, strict=True)):
            yield
