"""The environment of a job's only rank, in this process and what it starts."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest.mock import patch

from reference_trainer.world import VARIABLES


@contextmanager
def only_rank() -> Iterator[None]:
    """As a launcher would set it, with a rendezvous port that is free."""
    place = ("0", "1", "0", "127.0.0.1", str(free_port()))
    with patch.dict(os.environ, zip(VARIABLES, place, strict=True)):
        yield


def free_port() -> int:
    """A port that nobody listens on, and that no outgoing connection takes before we do."""
    while True:
        port = random.randrange(15_000, 32_768)  # Linux takes higher ones for those (ip(7))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
