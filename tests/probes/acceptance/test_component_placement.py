"""Placements of trainer components: what is read, what is refused and why, and what ran."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.contract.placement import (
    SpecError,
    as_ranges,
    check_parallel_sizes,
    collocated_groups,
    layout_errors,
    parse,
    split_groups,
)

Seen = dict[str, list[tuple[str, str]]]
EIGHT = tuple(range(8))
MOST = 16  # accelerators, so that a sentence names all runs of them


def refused(spec: Any, total: int = 32) -> str:
    """What parse says of a spec that it does not take."""
    with pytest.raises(SpecError) as caught:
        parse(spec, total)
    return str(caught.value)


# Reading.


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ({"actor,rollout": "all"}, {"actor": EIGHT, "rollout": EIGHT}),
        ({"actor": "ALL"}, {"actor": EIGHT}),
        (
            {"rollout": "0-3", "inference": "4", "actor": "5-7"},
            {"rollout": (0, 1, 2, 3), "inference": (4,), "actor": (5, 6, 7)},
        ),
        ({"actor": "0-2,5,7", "env": "3-4, 6"}, {"actor": (0, 1, 2, 5, 7), "env": (3, 4, 6)}),
        ({"actor": 0, "rollout": "1-7"}, {"actor": (0,), "rollout": EIGHT[1:]}),
        ({" actor , rollout ": " 0 - 3 ,\t4-7\n"}, {"actor": EIGHT, "rollout": EIGHT}),
        ({"actor": "00-0007"}, {"actor": EIGHT}),
        ({"actor": "0-0, 1-7"}, {"actor": EIGHT}),
    ],
)
def test_parse(spec: dict[str, str | int], parts: dict[str, tuple[int, ...]]) -> None:
    assert parse(spec, 8) == parts
    assert list(parse(spec, 8)) == list(parts)


def test_the_documented_placements() -> None:
    parts = parse({"rollout": "0-19", "inference": "20-23", "actor": "24-31"}, 32)
    assert {name: len(numbers) for name, numbers in parts.items()} == {
        "rollout": 20,
        "inference": 4,
        "actor": 8,
    }
    assert collocated_groups(parts) == []
    assert collocated_groups(parse({"actor,rollout": "all"}, 32)) == [("actor", "rollout")]


# Refusing: each case with the words that its sentence needs.


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ["found {}", 'write "actor" = "all"']),
        (None, ["found None"]),
        ([("actor", "all")], ["expected a component"]),
        ({"": "all"}, ["expected names", "found ''"]),
        ({"actor,": "all"}, ["'actor,'", "expected names"]),
        ({"actor": "0-15", " , ": "16-31"}, ["' , '", "expected names"]),
        ({7: "all"}, ["expected names", "found 7"]),
        ({"actor,rollout,actor": "all"}, ["'actor,rollout,actor'", "once", "'actor' again"]),
        ({"actor": "0-15", " actor": "16-31"}, ["' actor'", "'actor' again"]),
        ({"actor": "0-15,gpu7"}, ["'actor'", "within 0-31", "found 'gpu7'"]),
        ({"actor": ""}, ["'actor'", "found ''"]),
        ({"actor": "0-15,,16-31"}, ["'actor'", "found ''"]),
        ({"actor": "0-3-5"}, ["'actor'", "found '0-3-5'"]),
        ({"actor": "-1"}, ["'actor'", "found '-1'"]),
        ({"actor": -1}, ["'actor'", "found '-1'"]),
        ({"actor": "0x3"}, ["found '0x3'"]),
        ({"actor": "1_0"}, ["found '1_0'"]),
        ({"actor": "0-\u0663"}, ["'actor'", "within 0-31"]),
        ({"actor": "0-15:0-31"}, ["found '0-15:0-31'"]),
        ({"actor": "0-7,19-0"}, ["'actor'", "low to high", "found '19-0'", "write 0-19"]),
        ({"actor": "0-32"}, ["'actor'", "within 0-31", "found '0-32'"]),
        ({"actor": "40-0"}, ["'actor'", "within 0-31", "found '40-0'"]),
        ({"actor": 32}, ["'actor'", "within 0-31", "found '32'"]),
        ({"actor": "0-999999999999999999"}, ["within 0-31", "found '0-999999999999999999'"]),
        ({"actor": "0-7,4-9"}, ["'actor'", "once", "found 4-7 again in '4-9'"]),
        ({"actor": "all,3"}, ["'actor'", "found 3 again in '3'"]),
        ({"actor": "8-31,0-7"}, ["'actor'", "ascending", "found '0-7' after 31"]),
        (
            {"actor": "0-19", "rollout": "16-31"},
            ["'rollout'", "no other key", "found 16-19 of 'actor'", "put both names"],
        ),
        (
            {"actor": "0-19", "env": "20-31", "rollout": "4,20,24-31"},
            ["'rollout'", "found 4 of 'actor'"],
        ),
        (
            {"actor": "0-19", "rollout": "24-30"},
            ["'actor, rollout'", "all of 0-31", "no component on 20-23, 31:"],
        ),
        ({"actor": 0.5}, ["'actor'", "found 0.5 (float)"]),
        ({"actor": None}, ["'actor'", "found None (NoneType)"]),
        ({"actor": True}, ["'actor'", "found true (bool)"]),
        ({"actor": [0, 1]}, ["'actor'", "found [0, 1] (list)"]),
        ({"actor": {"node_group": "a"}}, ["'actor'", "(dict)"]),
    ],
)
def test_refused(spec: Any, words: list[str]) -> None:
    said = refused(spec)
    assert [word for word in words if word not in said] == [], said
    assert re.fullmatch(r"component placement.*: expected .*, found .*: .*", said)


def test_the_neighbours_of_what_is_refused_are_taken() -> None:
    assert parse({"actor": "0-31"}, 32) == parse({"actor": "0-7,8-31"}, 32)
    assert parse({"actor": "0-15", "rollout": "16-31"}, 32)["rollout"] == tuple(range(16, 32))
    assert parse({"actor": "0"}, 1) == parse({"actor": 0}, 1) == {"actor": (0,)}
    assert "for 0 accelerators" in refused({"actor": "all"}, 0)


def test_long_junk_is_cut() -> None:
    for junk in ("x" * 10**6, "9" * 10**6, "0" * 10**6 + "1-" + "9" * 10**6, 10**6000, [10**6000]):
        assert len(refused({"actor": junk})) < 200
        assert len(refused({"y" * 10**6: junk})) < 200
    assert len(refused({"y" * 10**6: "0-3"})) < 200
    assert len(refused({"y" * 10**6: "0-19", "z" * 10**6: "19-31"})) < 250
    assert len(refused({"actor": ",".join(str(n) for n in range(0, 1000, 2))}, 1000)) < 200
    said = refused({"actor\n\x1b[31m\u202e": "0-3"})
    assert said.isprintable()


def test_deep_junk_is_not_followed() -> None:
    deep: list[Any] = []
    for _ in range(10**4):
        deep = [deep]
    assert "(list)" in refused({"actor": deep})


def test_a_repeated_part_ends_the_reading() -> None:
    assert "0-31 again" in refused({"actor": "0-31," * 10**5})


def partitions(keys: int = 4) -> st.SearchStrategy[dict[str, set[int]]]:
    """Some keys, each with accelerators, which together have 0..n-1 for some n."""
    labels = st.lists(st.integers(0, keys - 1), min_size=1, max_size=MOST)
    return labels.map(
        lambda owners: {
            f"part{key}": {n for n, owner in enumerate(owners) if owner == key}
            for key in dict.fromkeys(owners)
        }
    )


def written(parts: Mapping[str, set[int]]) -> dict[str, str | int]:
    return {name: as_ranges(numbers) for name, numbers in parts.items() if numbers}


@given(partitions())
def test_every_partition_is_read_back(parts: dict[str, set[int]]) -> None:
    total = sum(map(len, parts.values()))
    read = parse(written(parts), total)
    assert read == {name: tuple(sorted(numbers)) for name, numbers in parts.items()}
    assert written({name: set(numbers) for name, numbers in read.items()}) == written(parts)
    assert collocated_groups(read) == []


@given(partitions(), st.data())
def test_every_gap_is_refused_and_named(parts: dict[str, set[int]], data: st.DataObject) -> None:
    total = sum(map(len, parts.values())) + 1  # the last one stays with a key of its own
    idle = data.draw(st.sets(st.integers(0, total - 2), min_size=1))
    used = {name: numbers - idle for name, numbers in parts.items()} | {"last": {total - 1}}
    assert f"found no component on {as_ranges(idle)}: " in refused(written(used), total)


@given(partitions(), st.data())
def test_every_overlap_is_refused_and_named(
    parts: dict[str, set[int]], data: st.DataObject
) -> None:
    total = sum(map(len, parts.values()))
    shared = data.draw(st.sets(st.integers(0, total - 1), min_size=1))
    last = set(range(total, total + 3)) | shared
    said = refused(written(parts | {"last": last}), total + 3)
    owner = next(name for name, numbers in parts.items() if min(shared) in numbers)
    assert "'last': expected accelerators that no other key uses, found " in said
    assert f"found {as_ranges(shared & parts[owner])} of '{owner}': " in said


WORDS = st.one_of(
    st.text(),
    st.text(alphabet="0123456789-, al:"),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
)


@given(st.dictionaries(WORDS, st.one_of(WORDS, st.lists(st.integers()))), st.integers(0, 9))
def test_whatever_a_file_holds_is_read_or_refused_in_one_sentence(
    spec: dict[Any, Any], total: int
) -> None:
    said = ""
    try:
        parts = parse(spec, total)
    except SpecError as error:
        said = str(error)
    if said:
        assert len(said) < 250
        assert "\n" not in said
    else:
        assert {n for numbers in parts.values() for n in numbers} == set(range(total))


@given(st.sets(st.integers(0, 60)))
def test_ranges(numbers: set[int]) -> None:
    runs = [tuple(map(int, run.split("-"))) for run in as_ranges(numbers).split(", ") if run]
    assert [n for run in runs for n in range(run[0], run[-1] + 1)] == sorted(numbers)
    assert all(left[-1] + 1 < right[0] for left, right in pairwise(runs)), "as short as can be"


def test_ranges_as_people_write_them() -> None:
    assert as_ranges([0, 1, 2, 3, 8]) == as_ranges([8, 3, 2, 1, 0, 0]) == "0-3, 8"
    assert (as_ranges([]), as_ranges([7]), as_ranges([7, 8])) == ("", "7", "7-8")


def test_collocated_components() -> None:
    parts = parse({"actor,rollout,reward": "0-3", "env": "4-5", "critic,inference": "6-7"}, 8)
    assert collocated_groups(parts) == [("actor", "rollout", "reward"), ("critic", "inference")]
    assert collocated_groups({}) == []


# Parallel sizes and tensor-parallel groups.


def test_parallel_sizes() -> None:
    check_parallel_sizes(32, 4, 2, 4)
    check_parallel_sizes(1, 1, 1, 1)
    with pytest.raises(SpecError, match=r"^parallel: .* 32, found tp 4 x pp 2 x dp 3 = 24: change"):
        check_parallel_sizes(32, 4, 2, 3)
    for sizes in ((0, 1, 1), (-1, -1, 32), (-2, -2, 8), (1, 1, 0), (10**4000, 10**4000, 1)):
        with pytest.raises(SpecError, match=r"expected sizes of at least 1 .* found tp "):
            check_parallel_sizes(32, *sizes)


NODES = ["n0"] * 8 + ["n1"] * 8


def test_groups_inside_nodes() -> None:
    for tp in (1, 2, 4, 8):
        assert split_groups(range(16), NODES, tp) == []
    assert split_groups(range(16), NODES, 16) == [tuple(range(16))]
    assert split_groups([], NODES, 8) == []


def test_groups_across_nodes_are_named() -> None:
    assert split_groups(range(4, 12), NODES, 8) == [tuple(range(4, 12))]
    assert split_groups(range(2, 14), NODES, 4) == [(6, 7, 8, 9)]
    assert split_groups([0, 8, 1, 9], NODES, 2) == [(0, 8), (1, 9)], "ranks, not numbers"
    assert split_groups([0, 1, 8, 9], NODES, 2) == []


@pytest.mark.parametrize("tp", [0, -1, 3, 32])
def test_ranks_that_make_no_whole_groups(tp: int) -> None:
    with pytest.raises(SpecError, match=rf"divides the 16 ranks on 0-15, found tp {tp}: change"):
        split_groups(range(16), NODES, tp)


# What ran.


def ran(*places: str) -> list[tuple[str, str]]:
    """`n0/g1` as (node, accelerator)."""
    return [(place.split("/")[0], place.split("/")[1]) for place in places]


FOUR = ("n0/g0", "n0/g1", "n1/g0", "n1/g1")
TOGETHER = parse({"actor,rollout": "all"}, 4)
APART = parse({"actor": "0-1", "rollout": "2-3"}, 4)


def test_layouts_as_asked() -> None:
    assert layout_errors(TOGETHER, {"actor": ran(*FOUR), "rollout": ran(*FOUR)}) == []
    assert layout_errors(APART, {"rollout": ran(*FOUR[2:]), "actor": ran(*FOUR[:2])}) == []
    assert layout_errors({}, {}) == []


def test_too_few_ranks() -> None:
    (said,) = layout_errors(APART, {"actor": ran(*FOUR[:2]), "rollout": ran(FOUR[2])})
    assert said == (
        "'rollout' rank 1, of accelerator 3, reported no node. Ranks expected: 2, found: 1"
    )
    (said,) = layout_errors(APART, {"actor": ran(*FOUR[:2])})
    assert said.startswith("'rollout' rank 0-1, of accelerator 2-3, reported no node")


def test_too_many_ranks() -> None:
    parts = {"actor": (0,)}
    (said,) = layout_errors(parts, {"actor": ran("n0/g0", "n0/g1")})
    assert said == "'actor' rank 1 is on accelerator g1 of node n0. Ranks expected: 1, found: 2"
    (said,) = layout_errors(parts, {"actor": ran("n0/g0"), "critic": ran("n1/g0")})
    assert said == "'critic' rank 0 is on accelerator g0 of node n1. Ranks expected: 0, found: 1"


def test_two_ranks_on_one_accelerator() -> None:
    seen = {"actor": ran("n0/g0", "n0/g0"), "rollout": ran("n1/g0", "n1/g1")}
    (said,) = layout_errors(APART, seen)
    assert said == (
        "'actor' rank 1 is on accelerator g0 of node n0, expected a different one: rank 0 is on it"
    )
    both = ran("n0/g0", "n0/g1", "n1/g0", "n1/g0")
    assert len(layout_errors(TOGETHER, {"actor": both, "rollout": both})) == 2, "one for each"


def test_collocated_in_another_order() -> None:
    seen = {"actor": ran(*FOUR), "rollout": ran(FOUR[0], FOUR[2], FOUR[1], FOUR[3])}
    first, second = layout_errors(TOGETHER, seen)
    assert first == (
        "'rollout' rank 1 is on accelerator g0 of node n1, expected accelerator g1 of node n0, "
        "where 'actor' rank 1 is"
    )
    assert second.startswith("'rollout' rank 2 is on accelerator g1 of node n0, expected ")


def test_collocated_elsewhere() -> None:
    seen = {"rollout": ran("n2/g0", "n2/g1", "n3/g0", "n3/g1"), "actor": ran(*FOUR)}
    assert len(layout_errors(TOGETHER, seen)) == 4


def test_disaggregated_that_share() -> None:
    seen = {"actor": ran("n0/g0", "n0/g1"), "rollout": ran("n0/g1", "n1/g1")}
    (said,) = layout_errors(APART, seen)
    assert said == (
        "'rollout' rank 0 is on accelerator g1 of node n0, expected a different one: "
        "'actor' rank 1 is on it"
    )


def test_what_ranks_report_is_cut_and_kept_on_one_line() -> None:
    seen = {"actor": [("n\n" * 1000, "\x1b[31mg")] * 2, "rollout": ran(*FOUR[2:])}
    (said,) = layout_errors(APART, seen)
    assert said.isprintable()
    assert len(said) < 250
    gpu = "GPU-8f3a1c2e-0b5d-4c77-9a10-3f6e2d1c0b9a"
    (said,) = layout_errors(APART, {**seen, "actor": [("f" * 56, gpu)] * 2})
    assert f"accelerator {gpu} of node {'f' * 56}," in said


@given(partitions(), st.data())
def test_a_layout_that_ran_as_asked_has_no_fault_and_a_moved_rank_has(
    parts: dict[str, set[int]], data: st.DataObject
) -> None:
    total = sum(map(len, parts.values()))
    names = {name: f"{name},with_{name}" for name in data.draw(st.sets(st.sampled_from([*parts])))}
    asked = parse(written({names.get(n, n): numbers for n, numbers in parts.items()}), total)
    seen: Seen = {
        name: [(f"n{n // 4}", f"g{n % 4}") for n in numbers] for name, numbers in asked.items()
    }
    assert layout_errors(asked, seen) == []
    every = [(name, rank) for name, places in seen.items() for rank in range(len(places))]
    left, i = data.draw(st.sampled_from(every))
    right, j = data.draw(st.sampled_from(every))
    if seen[left][i] != seen[right][j]:
        seen[right][j] = seen[left][i]
        faults = layout_errors(asked, seen)
        assert any(f"'{right}' rank {j} " in said or f"rank {j} is on" in said for said in faults)
