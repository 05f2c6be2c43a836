"""The stage of GANG's scenarios, for the probes of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from probes.acceptance.stash import RUN


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Two jobs and the observer, started once for all scenarios."""
    from probes.gang.scenario import ContentionRig

    rig = ContentionRig(request.config.stash[RUN].cluster)
    yield rig
    rig.close()


@pytest.fixture
def scene(cluster: Any, stage: Any, measure: Any) -> Callable[..., Any]:
    """`scene("title")`: one scenario on the stage; too little room ends it unproven."""
    from probes.gang import scenario_checks

    return lambda title, **options: scenario_checks.run_scenario(stage, title, measure, **options)
