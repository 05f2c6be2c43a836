"""The runs never killed that RESTART's probes compare with, each made at first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from probes.acceptance.fixtures import shared_folder
from probes.acceptance.stash import RUN


@contextmanager
def made(request: pytest.FixtureRequest, **options: Any) -> Iterator[Any]:
    """A run that was never killed; made when the first probe asks for it."""
    from probes.restart.reference_run import Original

    run = request.config.stash[RUN]
    with shared_folder(run) if run.cluster else nullcontext() as folder:
        yield Original(folder, **options)


@pytest.fixture(scope="module")
def original(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Of the cluster's size, with damaged copies of its checkpoints."""
    from probes.restart.checkpoint_corruption import DAMAGES, QUICK_DAMAGES

    quick = request.config.getoption("--tier") == "quick"
    wanted = dict(list(DAMAGES.items())[: QUICK_DAMAGES if quick else None])
    with made(request, damages=wanted, fills=not quick, repeats=True) as run:
        yield run


@pytest.fixture(scope="module")
def small_original(request: pytest.FixtureRequest) -> Iterator[Any]:
    """On the few ranks that lose nodes."""
    with made(request, device="cpu") as run:
        yield run


@pytest.fixture(scope="module")
def long_original(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Of as many steps as a punished run has."""
    from probes.restart.random_kills import PUNISHED_STEPS

    with made(request, steps=PUNISHED_STEPS) as run:
        yield run
