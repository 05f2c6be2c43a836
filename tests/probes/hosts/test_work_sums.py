"""The numbers of a GEMM with a known answer."""

from __future__ import annotations

import pytest

from probes.hosts import compute_worker

UNCHANGED = 10**9  # no inner product is as large: the vectors stay as they were drawn


def inner_product(left: list[int], right: list[int]) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


# Of 37, 39 and 43 the first draw gives 0, and of 4096 it gives 285.
@pytest.mark.parametrize("size", [*range(1, 65), 4096])
def test_the_inner_product_is_known_and_neither_0_nor_large(size: int) -> None:
    left, right, total = compute_worker.balanced_factors(size)
    assert total == inner_product(left, right)
    assert 0 < abs(total) <= compute_worker.MOST_SUM
    assert 4 * compute_worker.MOST_SUM <= 256, "what bfloat16 holds"


def test_all_factors_are_drawn_with_both_signs() -> None:
    left, right, _ = compute_worker.balanced_factors(256)
    assert set(left) == set(right) == {-2, -1, 1, 2}


def test_an_inner_product_at_the_limit_stays_as_it_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compute_worker, "MOST_SUM", UNCHANGED)
    drawn = compute_worker.balanced_factors(256)
    monkeypatch.setattr(compute_worker, "MOST_SUM", abs(drawn[2]))
    assert compute_worker.balanced_factors(256) == drawn
    monkeypatch.setattr(compute_worker, "MOST_SUM", abs(drawn[2]) - 1)
    _, _, less = compute_worker.balanced_factors(256)
    assert 0 < abs(less) < abs(drawn[2])
