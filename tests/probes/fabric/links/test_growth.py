"""What happened between two readings of counters."""

from __future__ import annotations

from typing import Any

import pytest

from probes.fabric.link_counters import (
    bytes_sent,
    counter_difference,
    lost_packets,
    lost_shares,
    repeated,
)


def reading(sent: int = 0, resent: int | None = 0, twice: int = 0, **more: Any) -> dict[str, Any]:
    """What a `LinkReader` returns after so many TCP segments."""
    tcp = {"sent": sent, "resent": resent, "twice": twice}
    return {"bytes": {"fab0": sent * 1500}, "tcp": tcp, "rdma": None, **more}


def test_counts_are_subtracted_one_by_one() -> None:
    before = {"a": 1, "gone": 1, "reset": 9, "unknown": None, "inner": {"b": 2}, "list": ["x"]}
    before |= {"appears": None, "vanishes": {"b": 2}}
    after = {"a": 4, "reset": 3, "unknown": 5, "inner": {"b": 2}, "new": 1, "list": ["x"]}
    after |= {"appears": {"b": 2}, "vanishes": None}
    grown = counter_difference(before, after)
    unknown = dict.fromkeys(("reset", "unknown", "list", "appears", "vanishes"))
    assert grown == {"a": 3, "inner": {"b": 0}, **unknown}


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        (reading(1000), (1000, 0)),
        (reading(1000, 30), (1000, 30)),
        (reading(1000, 30, twice=10), (1000, 20)),  # those came late: they were not lost
        (reading(1000, 30, twice=40), (1000, 0)),
        (reading(1000, None), None),
        (reading(0), None),  # nothing was sent, so nothing is known
    ],
)
def test_what_was_sent_again_was_lost(after: dict[str, Any], lost: tuple[int, int] | None) -> None:
    assert lost_packets(reading(), after) == lost


def rdma(sent: int | None, resent: int | None) -> dict[str, Any]:
    """After a gigabyte over RDMA."""
    ports = {"sent": sent, "resent": resent}
    return reading(10, bytes={"rdma": 1 << 30, "eth0": 5000}, rdma=ports)


@pytest.mark.parametrize(
    ("sent", "resent", "lost"),
    [(1000, 3, (1000, 3)), (1000, 0, (1000, 0)), (1000, None, None), (None, 3, None)],
)
def test_where_rdma_carried_the_bytes_its_counters_are_asked(
    sent: int | None, resent: int | None, lost: tuple[int, int] | None
) -> None:
    before = reading(bytes={"rdma": 0, "eth0": 0}, rdma={"sent": 0, "resent": 0})
    assert lost_packets(before, rdma(sent, resent)) == lost


@pytest.mark.parametrize(
    ("each", "lost"),
    [
        ([(10**6, 7900), *[(10**6, 0)] * 7], (10**6, 7900)),  # of all rails it is below the limit
        ([(9000, 90), *[(10**6, 0)] * 7], (7_009_000, 90)),  # a rail that hardly carried anything
    ],
)
def test_the_worst_rail_is_judged_by_itself(
    each: list[tuple[int, int]], lost: tuple[int, int]
) -> None:
    def total(ports: list[tuple[int, int]]) -> dict[str, Any]:
        sums = {"sent": sum(sent for sent, _ in ports), "resent": sum(again for _, again in ports)}
        of = {f"mlx5_{i}": {"sent": s, "resent": r} for i, (s, r) in enumerate(ports)}
        return {**sums, "ports": of}

    before = reading(bytes={"rdma": 0, "eth0": 0}, rdma=total([(0, 0)] * 8))
    after = reading(10, bytes={"rdma": 1 << 30, "eth0": 5000}, rdma=total(each))
    assert lost_packets(before, after) == lost


def tries(*losses: int) -> list[dict[str, Any]]:
    """Readings around tries of 1000 segments, of which so many are lost."""
    totals = [sum(losses[:count]) for count in range(len(losses) + 1)]
    return [reading(1000 * count, lost) for count, lost in enumerate(totals)]


@pytest.mark.parametrize(
    ("losses", "share"),
    [
        ((0, 0, 0, 0, 0, 0), 0.0),
        ((30, 28, 31, 30, 29, 33), 0.031),
        ((0, 0, 900, 0, 0, 0), 0.0),  # a queue that overflowed once
        ((0, 0, 50, 0, 40, 0), 0.04),  # and again
        ((30,), 0.03),
    ],
)
def test_a_links_loss_is_what_two_of_its_tries_lost(losses: tuple[int, ...], share: float) -> None:
    assert repeated(lost_shares(tries(*losses)) or []) == pytest.approx(share)


def test_a_try_that_nobody_counted_leaves_the_loss_unknown() -> None:
    known = tries(0, 0, 0)
    known[2]["tcp"]["resent"] = None
    assert lost_shares(known) is None
    assert lost_shares(known[:1]) is None
    assert lost_shares([]) is None


def test_bytes_by_device() -> None:
    assert bytes_sent(tries(0, 0)) == {"fab0": 3_000_000}
    assert bytes_sent([]) == {}
