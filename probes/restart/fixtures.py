"""Fixtures of the runs never killed that RESTART compares with.  Each is made at first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from probes.session.config import RUN
from probes.session.fixtures import shared_folder


def provide_reference_run(request: pytest.FixtureRequest, **options: Any) -> Iterator[Any]:
    """Provide a run that is never killed.  It is made when the first probe asks for it."""
    from probes.restart.reference_run import ReferenceRun

    run = request.config.stash[RUN]
    with shared_folder(run) if run.cluster else nullcontext() as folder:
        yield ReferenceRun(folder or Path(), **options)


@pytest.fixture(scope="module")
def original(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Provide the run on all ranks of the cluster, with damaged copies of its checkpoints."""
    from probes.restart.faulted_run import CORRUPTIONS, QUICK_CORRUPTIONS

    quick = request.config.stash[RUN].tier == "quick"
    corruptions = dict(list(CORRUPTIONS.items())[: QUICK_CORRUPTIONS if quick else None])
    options = {"corruptions": corruptions, "fill_disk": not quick, "repeat": True}
    yield from provide_reference_run(request, **options)


@pytest.fixture(scope="module")
def small_original(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Provide the CPU run that the runs with lost nodes are compared with."""
    yield from provide_reference_run(request, device="cpu")


@pytest.fixture(scope="module")
def long_original(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Provide the run that the soak runs with random kills are compared with."""
    from probes.restart.other_ranks import SOAK_STEPS

    yield from provide_reference_run(request, steps=SOAK_STEPS)
