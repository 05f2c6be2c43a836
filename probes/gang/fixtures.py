"""Provides the fixtures of the GANG probes: the rig of two jobs, and its scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from probes.session.config import RUN


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Provide two jobs and the observer, which all scenarios of a module share."""
    from probes.gang.scenario import ContentionRig

    rig = ContentionRig(request.config.stash[RUN].cluster)
    yield rig
    rig.close()


@pytest.fixture
def scene(cluster: Any, stage: Any, measure: Any) -> Callable[..., Any]:
    """Provide `scene("title")`, a context manager that runs one scenario.

    Raises NoRoom if too few accelerators are free: the scenario proves nothing then.
    """
    from probes.gang import scenario_checks

    return lambda title, **options: scenario_checks.run_scenario(stage, title, measure, **options)
