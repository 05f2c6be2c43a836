"""The ranks that the documented path starts."""

from __future__ import annotations

import pytest

from probes.launch.documented_path import rank_variables, wrong_ranks


def ranks(count: int = 4) -> list[dict[str, str]]:
    return [{"node": f"id{r}", "host": f"n{r}", "RANK": str(r), "WORLD_SIZE": str(count),
             "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
            for r in range(count)]  # fmt: skip


def test_right_ranks_are_right() -> None:
    assert wrong_ranks(ranks(), 4) == {}


@pytest.mark.parametrize(
    ("rank", "name", "value", "says"),
    [
        (1, "MASTER_PORT", None, "MASTER_PORT not set"),
        (2, "WORLD_SIZE", "3", "WORLD_SIZE is 3, expected 4"),
        (3, "MASTER_ADDR", "10.0.0.9", "others have another"),
        (1, "RANK", "2", "taken twice"),
        (3, "RANK", "7", "out of range"),
        (1, "LOCAL_RANK", "zero", "not a number"),
    ],
)
def test_wrong_ranks_are_named(rank: int, name: str, value: str | None, says: str) -> None:
    rows = ranks()
    if value is None:
        del rows[rank][name]
    else:
        rows[rank][name] = value
    assert says in wrong_ranks(rows, 4)[rank]


def test_local_rank_twice_on_a_node() -> None:
    rows = ranks(2)
    rows[1]["node"] = rows[0]["node"]
    assert set(wrong_ranks(rows, 2)) == {0, 1}


def test_announced_ranks_are_read_from_a_log() -> None:
    text = (
        "noise\nattempt=1 node=id0 host=n0 RANK=0 WORLD_SIZE=2\n"
        "\x1b[36m(pid=1)\x1b[0m attempt=1 node=id1 host=n1 RANK=1 WORLD_SIZE=2\n"
        "attempt=2 node=id0 RANK=0\n"
    )
    assert [row["RANK"] for row in rank_variables(text)] == ["0", "1"]
