"""What each shipped contract makes of a defect that a whole fleet shares, and how surely."""

from __future__ import annotations

import numpy as np
import pytest

from probes.hosts.compute_judge import COMPARED
from reference_trainer.model.devices import read_devices
from reports.measurement import Limit, Verdict
from reports.numbers import Value
from scaling.collectives.fault_search import typical_speed
from tests.probes.acceptance.defects import (
    CONTRACTS,
    PAGE,
    SIZES,
    Cell,
    cells,
    judge_cell,
    read_defects,
    write_page,
)
from tests.probes.sound.systems import GPUS

DEFECTS = read_defects()
FLEETS, FOUND = 100, 0.95
SWEEP = {"busbw", "nvlink_busbw"}  # the second lowest of four sizes is judged
NOISY = {"GB/s", "TFLOP/s"}


def test_the_page_says_what_the_limits_say() -> None:
    assert PAGE.read_text() == write_page(), "run `python -m tests.probes.acceptance.defects`"


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("size", SIZES)
def test_a_sound_fleet_is_green(contract: str, size: int) -> None:
    cell = judge_cell(contract, "sound", size)
    assert cell
    assert str(cell) == "green"


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_green_cell_has_its_reason_and_the_report_says_it(defect: str) -> None:
    reasons = {
        (name, size): one
        for one in DEFECTS[defect].green
        for name in CONTRACTS
        for size in SIZES
        if one.holds(name, size) and judge_cell(name, defect, size)
    }
    green = {(name, size): cell for name, size, cell in cells(defect) if cell.is_green}
    assert green.keys() == reasons.keys()
    silent = [at for at, one in reasons.items() if one.shown not in green[at].coverage]
    assert silent == []


def test_an_nvlink_domain_has_one_rack_of_a_large_fleet() -> None:
    few, many = (judge_cell("gb200-nvl72", "sound", size) for size in SIZES)
    assert few
    assert many
    assert many.worst["busbw"].value < few.worst["busbw"].value  # type: ignore[operator]
    rates = [float(cell.worst["nvlink_busbw"].value or 0) for cell in (few, many)]
    assert rates == pytest.approx([800, 800], rel=0.02)


def test_the_figures_of_the_limits_agree_with_other_sources() -> None:
    """A typing error in devices.toml is seen; sources differ most on a B200's memory."""
    for model, sound in GPUS.items():
        reached = read_devices()[model].reached
        rates = {"gemm": sound.gemm, "hbm": sound.hbm}
        shares = {name: rate / reached[name][0] for name, rate in rates.items()}
        assert all(0.95 < share < 1.25 for share in shares.values()), (model, shares)


def test_a_spread_of_marginal_measures_is_refused() -> None:
    cell = judge_cell("a3-ultra", "nvlink_80", 64)
    assert cell
    assert str(cell) == "MARGINAL (all_reduce_inside_node, busbw)"
    assert str(Cell(cell.worst, "", 1)) == "red (all_reduce_inside_node)"


def draw(name: str, value: float, size: int, seed: int) -> float:
    """Draw what a fleet with a spread of 1, 2 or 3 % would have: of GPUs the slowest is judged."""
    chance, spread = np.random.default_rng([size, seed]), 0.01 * (1 + seed % 3)
    if name in SWEEP:
        return value * float(np.sort(chance.normal(1, spread, 4))[1])
    return value * float(chance.normal(1, spread, size if "busbw" not in name else 1).min())


def sees(name: str, value: Value, limit: Limit | None, size: int, seed: int) -> bool:
    """Judge one measure of a drawn fleet; what is counted has no spread."""
    assert limit is not None
    if limit.unit in NOISY and isinstance(value, float):
        value = draw(name, value, size, seed)
    return limit.judge(value) is not Verdict.PASS


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_that_is_not_green_is_found_in_simulated_fleets(defect: str) -> None:
    missed = {}
    for contract, size, cell in cells(defect):
        if cell.is_green:
            continue
        names = cell.names(Verdict.FAIL, Verdict.MARGINAL)
        ones = [(name, cell.worst[name].value, cell.worst[name].limit) for name in names]
        if DEFECTS[defect].one_gpu < 1:
            found = sum(is_alone_slow(DEFECTS[defect].one_gpu, size, at) for at in range(FLEETS))
        else:
            found = sum(any(sees(*one, size, at) for one in ones) for at in range(FLEETS))
        if found < FOUND * FLEETS:
            missed[contract, size] = found
    assert missed == {}


def is_alone_slow(share: float, size: int, seed: int) -> bool:
    """Return whether HOSTS' cut finds the one slow GPU of a drawn fleet."""
    rates = np.random.default_rng([size, seed]).normal(1, 0.01 * (1 + seed % 3), size)
    rates[5] *= share
    return bool(rates[5] < typical_speed(rates.tolist(), 0.95, len(COMPARED))[1])
