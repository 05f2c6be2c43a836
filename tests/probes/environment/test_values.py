"""How NCCL reads what it is told: names, numbers and lists."""

from __future__ import annotations

import pytest

from probes.cluster.variables import known_variables
from probes.environment.checks import name_list, parse_int
from probes.environment.lint import suggest_spelling

INTERFACES = ["docker0", "eth0", "eth1", "eth10", "fab0", "lo", "virbr0"]


def test_known_and_foreign_names_are_no_slips() -> None:
    for name in (
        *known_variables().names,
        "NCCL_FASTRAK_IFNAME",
        "NCCL_SOMETHING_NEW",
        "NCCL_VERSION",
        "HOME",
    ):
        assert suggest_spelling(name) == ""


@pytest.mark.parametrize(
    ("value", "read"),
    [("1", 1), (" 0x20", 32), ("020", 16), ("5x", 5), ("true", 0), ("-1", -1), ("", None),
     ("9" * 30, None), ("9" * 100_000, None), ("0x", 0), ("٣", 0)],
)  # fmt: skip
def test_numbers_as_strtoll_reads_them(value: str, read: int | None) -> None:
    assert parse_int(value) == read


# As seen with the library of 2.27.5, by what it said it would use.
@pytest.mark.parametrize(
    ("value", "used"),
    [("=nosuch,=lo", []), ("=nosuch,lo", ["lo"]), ("=nosuch,l", []), ("nosuch,l", ["lo"]),
     ("nosuch, lo", []), ("l:5", ["lo"]), (" lo", []), ("^=lo", ["eth0"]), ("^lo", ["eth0"])],
)  # fmt: skip
def test_lists_as_nccl_reads_them(value: str, used: list[str]) -> None:
    read = name_list(value)
    assert read is not None
    assert read.admitted(["eth0", "lo"]) == used


def test_a_list_too_short_to_count() -> None:
    assert [name_list(value) for value in ("", "^", "=", ",", "l", "^=", ",,")] == [None] * 7
