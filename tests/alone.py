"""The environment of a job's only rank, in this process and what it starts."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from reference_trainer.world import VARIABLES


@contextmanager
def only_rank() -> Iterator[None]:
    """As a launcher would set it, with a rendezvous port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with patch.dict(os.environ, zip(VARIABLES, ("0", "1", "0", "127.0.0.1", port), strict=True)):
        yield
