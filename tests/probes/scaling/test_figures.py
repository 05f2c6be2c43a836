"""What the figures of a ladder are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from probes.acceptance.measure import Recorder
from probes.scaling.judge import record_figures
from tests.support.simulated_ladder import ladder


class Figures:
    """A recorder that only remembers what is drawn."""

    def __init__(self) -> None:
        self.drawn: dict[str, Any] = {}

    def series(self, name: str, values: Any) -> None:
        self.drawn[name] = values

    def keep(self, *_: Any, **__: Any) -> None:
        pass


@pytest.mark.parametrize(("rungs", "lost"), [(3, [2, 4]), (1, None)])
def test_what_is_lost_is_drawn_where_there_are_rungs_to_lose(
    rungs: int, lost: list[int] | None
) -> None:
    found, figures = ladder(link=0.3), Figures()
    climbed = replace(found, rungs=found.rungs[:rungs])
    explained = climbed.explanations(0.9)
    record_figures(climbed, explained, lambda _: None, cast(Recorder, figures), {})
    assert figures.drawn.get("lost", {}).get("nodes") == lost
    assert figures.drawn["efficiency"]["nodes"] == [1, 2, 4][:rungs]
