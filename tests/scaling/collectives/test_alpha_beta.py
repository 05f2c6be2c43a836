"""Latency and bandwidth, fitted to times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.collectives.line_rate import fit_alpha_beta
from scaling.collectives.operations import OPERATIONS
from tests.scaling.collectives.test_sweep import ALL_REDUCE


@given(
    st.floats(1e-6, 1e-3),
    st.floats(0.1, 500),
    st.sampled_from(list(OPERATIONS.values())),
    st.integers(2, 64),
)
def test_the_fit_finds_the_latency_and_bandwidth_that_made_the_times(
    alpha: float, gbs: float, operation: object, ranks: int
) -> None:
    factor = operation.factor(ranks)  # type: ignore[attr-defined]
    rows = [
        {"size": 1 << power, "seconds": alpha + (1 << power) * factor / gbs / 1e9}
        for power in range(3, 35)
    ]
    found = fit_alpha_beta(rows, operation, ranks)  # type: ignore[arg-type]
    assert found is not None
    assert found.latency_us == pytest.approx(alpha * 1e6, rel=1e-3)
    assert found.bandwidth == pytest.approx(gbs, rel=1e-3)
    assert found.residual < 1e-6


def test_a_fit_of_nothing_is_none() -> None:
    assert fit_alpha_beta([], ALL_REDUCE, 2) is None
    assert fit_alpha_beta([{"size": 8, "seconds": 1e-3}], ALL_REDUCE, 1) is None


def fitted(*points: tuple[int, float]) -> tuple[float, float, float]:
    """Latency in us, bandwidth in GB/s and residual; all_reduce of 2 ranks sends each byte once."""
    found = fit_alpha_beta([{"size": x, "seconds": t} for x, t in points], ALL_REDUCE, 2)
    assert found is not None
    return found.latency_us, found.bandwidth, found.residual


def test_times_that_fall_with_the_size_show_no_bandwidth() -> None:
    latency, bandwidth, residual = fitted((1_000_000, 2e-3), (2_000_000, 1e-3))
    assert latency == pytest.approx(1200)
    assert bandwidth == float("inf")
    assert residual == pytest.approx((0.4**2 / 2 + 0.2**2 / 2) ** 0.5)


def test_times_that_rise_faster_than_the_size_show_no_latency() -> None:
    latency, bandwidth, residual = fitted((1_000_000, 1e-3), (2_000_000, 3e-3))
    assert latency == 0
    assert bandwidth == pytest.approx(13 / 15)
    assert residual == pytest.approx((13 / 338) ** 0.5)


def test_the_time_of_a_single_size_counts_as_bandwidth() -> None:
    assert fitted((1_000_000, 1e-3)) == (0.0, pytest.approx(1.0), pytest.approx(0.0))


def test_a_size_in_place_and_out_of_place_is_one_size() -> None:
    rows = [{"size": size, "seconds": 1e-3 * size} for size in (8, 8, 16, 16)]
    found = fit_alpha_beta(rows, ALL_REDUCE, 2)
    assert found is not None
    assert str(found).startswith("alpha-beta fit of 2 sizes: ")
