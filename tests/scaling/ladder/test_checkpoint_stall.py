"""Which save of a rung counts, who wrote longest, and at what excess a node is named."""

from __future__ import annotations

import pytest

from scaling.ladder.ladder import CheckpointSave, collect_saves, slow_writer_node, slowest_writer
from tests.probes.scaling.test_checkpoint_cost import rung


def test_the_saves_of_a_job_of_one_rank_are_collected() -> None:
    (save,) = collect_saves(rung({4: 2.0}, own=(1.5,), nodes=["a"]))
    assert (save.stall_s, save.size_bytes, save.write_s) == (2.0, 6000, (1.5,))


@pytest.mark.parametrize(
    ("write_s", "slowest"),
    [((9.0, 1.0, 1.0, 5.0), (0, 9.0, 1.0)), ((1.0, 5.0, 9.0, 1.0), (2, 9.0, 1.0))],
)
def test_the_slowest_writer_is_compared_with_the_median_of_all_others(
    write_s: tuple[float, ...], slowest: tuple[int, float, float]
) -> None:
    assert slowest_writer(write_s) == slowest


@pytest.mark.parametrize(
    ("seconds", "stall_s", "node"),
    [
        (5.0, 5.0, "b"),  # two and a half times as long, and most of the stall
        (4.0, 3.0, None),  # twice as long and no longer
        (6.0, 8.0, None),  # longer by half of the stall and no more
        (6.0, 10.0, None),
    ],
)
def test_a_node_is_named_if_it_is_twice_as_slow_and_explains_half_of_the_stall(
    seconds: float, stall_s: float, node: str | None
) -> None:
    """The others write for 2 s."""
    save = CheckpointSave(4, stall_s, 6000, (2.0, seconds, 2.0))
    assert slow_writer_node(save, ["a", "b", "c"]) == node
