"""Each criterion says what it needs, and each probe what it disturbs."""

from __future__ import annotations

import pytest

from probes.check.owed import ALL_GPUS, DISTURBS, DUTIES, NEEDS, disturbances_of
from probes.check.registry import CRITERIA


def test_each_criterion_says_what_it_needs() -> None:
    assert NEEDS.keys() == CRITERIA.keys()
    assert all(len(needs) > 1 for needs in NEEDS.values()), "where, and at least one need"


@pytest.mark.parametrize("probe", [duty.probe for duty in DUTIES])
def test_each_probe_says_what_it_disturbs(probe: str) -> None:
    found = disturbances_of(probe)
    assert found
    assert all(len(text.split()) >= 3 and not text.endswith(".") for text in found)
    assert len(set(found)) == len(found)


def test_nothing_is_declared_for_probes_that_are_none() -> None:
    assert DISTURBS.keys() == {duty.probe.partition("[")[0] for duty in DUTIES}


def test_a_probe_that_declares_nothing_is_seen() -> None:
    with pytest.raises(KeyError):
        disturbances_of("gang/test_gang.py::test_new")


def test_probes_that_run_ranks_take_all_gpus() -> None:
    """Where they run is the first need of their criterion."""
    ranks = {id for id, (where, *_) in NEEDS.items() if "rank" in where or "gang" in where}
    probes = [duty.probe for duty in DUTIES if duty.criterion in ranks]
    assert probes
    assert all(ALL_GPUS in disturbances_of(probe) for probe in probes)
