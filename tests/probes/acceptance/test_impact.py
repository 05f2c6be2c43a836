"""Each criterion says what it needs, and each probe what it disturbs."""

from __future__ import annotations

import pytest

from probes.check.declarations import ALL_GPUS
from probes.check.owed import disturbances_of
from probes.check.registry import CRITERIA, all_probes


def test_each_criterion_says_what_it_needs() -> None:
    assert all(row.where and row.needs for row in CRITERIA.values())


@pytest.mark.parametrize("probe", [duty.probe for duty in all_probes()])
def test_each_probe_says_what_it_disturbs(probe: str) -> None:
    found = disturbances_of(probe)
    assert found
    assert all(len(text.split()) >= 3 and not text.endswith(".") for text in found)
    assert len(set(found)) == len(found)


def test_a_probe_that_declares_nothing_is_seen() -> None:
    with pytest.raises(KeyError):
        disturbances_of("gang/test_gang.py::test_new")


def test_probes_that_run_ranks_take_all_gpus() -> None:
    ranks = {id for id, row in CRITERIA.items() if "rank" in row.where or "gang" in row.where}
    probes = [duty.probe for duty in all_probes() if duty.criterion in ranks]
    assert probes
    assert all(ALL_GPUS in disturbances_of(probe) for probe in probes)
