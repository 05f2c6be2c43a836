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
