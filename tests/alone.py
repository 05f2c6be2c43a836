"""The environment of a job's only rank, in this process and what it starts."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from reference_trainer.config import TrainConfig
from reference_trainer.launchers import rank
from reference_trainer.world import VARIABLES


@contextmanager
def only_rank() -> Iterator[None]:
    """As a launcher would set it, with a rendezvous port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with patch.dict(os.environ, zip(VARIABLES, ("0", "1", "0", "127.0.0.1", port), strict=True)):
        yield


def one_of(size: int, config: TrainConfig) -> dict[str, Any]:
    """The run of one rank of `size` of which no other is there: torch's fake group.

    Its numbers mean nothing, for it has a part of the weights only; the calls it makes are right.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        return rank(config)
    finally:
        dist.destroy_process_group()
