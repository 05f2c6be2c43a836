"""The figure of the gangs: who held what, and when; nothing overlaps, nothing is lost."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.charts import Figure, draw_figures
from reports.charts.gang_series import MAX_ROWS
from reports.charts.svg import BLUE, GREEN, GREY, ORANGE, WIDTH, to_grid
from reports.run_folder.integrity import load
from tests.recordings.generate.gang_contention import deadlock, series, storm, two_gangs
from tests.recordings.generate.malicious_input import HOSTILE, contested, unreadable
from tests.support.paths import RECORDINGS

# The same examples each time, and no clock: a busy machine is no bug.
steady = settings(derandomize=True, deadline=None)
LAB = [f"node{at}" for at in range(4)]
PARTIAL = RECORDINGS / "partial-gang"


def draw(values: Any) -> Figure:
    (figure,) = draw_figures({"gang": values})
    return figure


def words(figure: Figure) -> list[str]:
    root = ElementTree.fromstring(figure.svg)
    return [one.text or "" for one in root.iter() if one.tag.endswith("}text")]


def boxes(figure: Figure, color: str) -> list[tuple[float, float]]:
    """(from x, width) of what is held, in the colour of a job."""
    return outlines(rf'<path d="([^"]*)" fill="{color}"/>', figure)


def frames(figure: Figure) -> list[tuple[float, float]]:
    """(from x, width) of what is hatched, but for its key in the legend."""
    return outlines(rf'<path d="([^"]*)" fill="none" stroke="{GREY}"/>', figure, "16h")


def outlines(path: str, figure: Figure, height: str = "") -> list[tuple[float, float]]:
    moves = "".join(re.findall(path, figure.svg))
    found = re.findall(rf"M([\d.]+) [\d.]+h([\d.]+)v{height}", moves)
    return [(float(x), float(width)) for x, width in found]


def parts(figure: Figure) -> list[tuple[float, float]]:
    """(from x, width) of parts of a gang."""
    lane = rf'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="16" fill="{ORANGE}"'
    return [(float(x), float(width)) for x, width in re.findall(lane, figure.svg)]


def alone(**changes: Any) -> dict[str, Any]:
    """Two gangs without their control."""
    return {**two_gangs(LAB, 1), "control": None, **changes}


def test_a_clean_contest_says_so() -> None:
    told = draw(alone())
    assert told.title == "GPUs of each job over time: two gangs of 75 %"
    assert told.sentence == (
        "At each of 190 samples every gang held all of its GPUs or none; "
        "A held up to 3, B waited longest (40 s)."
    )


def test_one_waiting_job_is_not_the_longest_of_many() -> None:
    held = {"node0": {"A": 1}, "node1": {"A": 2}}
    values = series("x", {"node0": 1, "node1": 2}, [(0.2, held, {}), (0.4, held, {"B": 3})], 2.2)
    values |= {"taken": 212}
    assert draw(values).sentence == (
        "At each of 212 samples every gang held all of its GPUs or none; "
        "A held up to 3, B waited 1.8 s."
    )


def test_a_part_that_was_held_is_named() -> None:
    half = [[0.4, 1.9, "B", 1, 3]]
    told = draw(alone(half=half)).sentence
    assert told == "A job held only a part of its gang: B held 1 of 3 GPUs from 0.4 to 1.9 s."
    many = [[at, at + 0.5, "B", 1, 3] for at in range(5)]
    told = draw(alone(half=many, unit="CPU")).sentence
    assert told.endswith("B held 1 of 3 CPUs from 1 to 1.5 s; and 3 more times.")


def test_the_museum_has_a_part_that_was_held() -> None:
    (result,) = (one for one in load(PARTIAL).results if one.series)
    told = draw(result.series["gang"])
    assert "B held 16 of 48 GPUs from 20 to 33.5 s" in told.sentence
    assert "In the control B held 16 of 48 GPUs from 6 to 20 s" in told.sentence
    assert ["B", "part of a gang", "20", "33.5", "16 of 48"] in told.rows
    assert ["B", "control: part of a gang", "6", "20", "16 of 48"] in told.rows


def test_nothing_held_is_not_called_all_or_none() -> None:
    told = draw(series("x", {"n": 1}, [(0, {}, {"A": 1})], 5)).sentence
    assert told == "At each of 200 samples no job held any of the GPUs, A waited 5 s."


def test_each_node_has_a_lane_and_each_job_its_colour() -> None:
    figure = draw(alone())
    said = words(figure)
    assert [one for one in said if one in LAB] == LAB
    assert [one for one in said if one.endswith(" waits")] == ["A waits", "B waits"]
    assert len(boxes(figure, BLUE)) == len(boxes(figure, GREEN)) == 3
    assert said.count("A") == said.count("B") == 1 + 3  # the legend, and each box


def test_boxes_begin_and_end_when_the_job_did() -> None:
    ((left, width), *_) = boxes(draw(alone()), BLUE)
    axis = WIDTH - 18 - 92
    assert left == pytest.approx(92 + axis * 4 / 95, abs=0.6)
    assert width == pytest.approx(axis * 40 / 95, abs=1.1)


def test_a_wait_is_hatched_and_says_for_how_many() -> None:
    figure = draw(alone())
    assert "waits for 3" in words(figure)
    spans = [(6, 44 + 2), (2, 4)]
    axis = (WIDTH - 18 - 92) / 95
    for start, end in spans:
        assert any(
            x == pytest.approx(92 + axis * start, abs=0.6)
            and x + width == pytest.approx(92 + axis * end, abs=0.6)
            for x, width in frames(figure)
        )


def test_gpus_of_a_node_are_apart() -> None:
    held = {"n": {"A": 2, "B": 1}}
    figure = draw(series("x", {"n": 4}, [(0, held, {})], 1))
    tall = {
        color: float(re.findall(rf'v([\d.]+)h[-\d.]+z" fill="{color}"', figure.svg)[0])
        for color in (BLUE, GREEN)
    }
    assert tall[BLUE] == pytest.approx(2 * tall[GREEN], abs=0.11)
    assert tall[GREEN] == pytest.approx(34 / 4, abs=0.11)


def test_who_stays_keeps_its_place() -> None:
    """B does not fall to the bottom when A lets go: it is on the same accelerators."""
    steps = [(0, {"n": {"A": 3, "B": 1}}, {}), (1, {"n": {"B": 1}}, {}), (2, {}, {})]
    assert len(boxes(draw(series("x", {"n": 4}, steps, 3)), GREEN)) == 1


def test_who_gives_some_back_keeps_the_rest() -> None:
    steps = [(0, {"n": {"A": 2, "B": 2}}, {}), (1, {"n": {"B": 1}}, {}), (2, {}, {})]
    axis = WIDTH - 18 - 92
    assert sorted(boxes(draw(series("x", {"n": 4}, steps, 2)), GREEN)) == [
        (92, axis / 2),
        (92, axis),
    ]


def test_half_held_words_are_in_the_box_or_beside_it() -> None:
    wide = draw(alone(half=[[10, 40, "B", 1, 3]]))
    thin = draw(alone(half=[[10, 10.01, "B", 1, 3]]))
    for figure in (wide, thin):
        assert "1 of 3" in words(figure)
        assert "part of a gang" in words(figure)
        assert len(parts(figure)) == 1
    ((left, width),) = parts(thin)
    assert width >= 2
    (middle,) = re.findall(r'<text x="([\d.]+)"[^>]*>1 of 3<', thin.svg)
    assert float(middle) > left + width + 20


def test_a_job_that_never_waited_has_a_lane_for_its_part() -> None:
    assert "C waits" in words(draw(alone(half=[[1, 2, "C", 1, 3]])))


def test_a_deadlock_shows_both() -> None:
    figure = draw(deadlock())
    assert words(figure).count("2 of 4") == 2
    assert "both ask for a second group" in words(figure)


def test_no_wait_is_too_short_to_be_seen() -> None:
    steps = [
        (0.0, {}, {}),
        (30.0, {}, {"A": 1}),
        (30.0001, {}, {}),
        (50, {}, {"C": 2}),
        (50, {}, {}),
    ]
    found = frames(draw(series("x", {"n": 1}, steps, 60)))
    assert len(found) == 2
    assert all(width >= 0.5 for _, width in found)


def test_of_many_nodes_the_busiest_are_drawn() -> None:
    values = storm(64, 8, 120)
    figure = draw(values)
    assert figure.sentence.endswith("; 16 of 64 nodes drawn.")
    drawn = [one for one in words(figure) if one in values["capacity"]]
    assert len(drawn) == 16
    assert drawn == [name for name in values["capacity"] if name in drawn]
    assert "nodes drawn" not in draw(storm()).sentence
    late = {f"n{at}": 1 for at in range(20)}
    held = {f"n{at}": {"A": 1} for at in range(4, 20)}
    drawn = words(draw(series("x", late, [(0, held, {})], 1)))
    assert set(held) <= set(drawn)
    assert not {"n0", "n3"} & set(drawn)


def test_a_node_that_joined_later_has_a_lane() -> None:
    figure = draw(series("x", {"old": 1}, [(0, {"new": {"A": 2}}, {})], 1))
    assert {"old", "new"} <= set(words(figure))


def test_of_many_waiting_jobs_none_is_lost() -> None:
    waits = {f"job{at}": 1 for at in range(30)}
    half = [[1, 2, "job29", 1, 3]]
    said = words(draw(series("x", {"n": 1}, [(0, {}, waits)], 5) | {"half": half}))
    assert "19 others" in said
    assert "job29 waits" in said
    assert len([one for one in said if one.endswith(" waits")]) == 11


@pytest.mark.parametrize("nodes", [4, 8])
def test_a_storm_stays_small(nodes: int) -> None:
    assert len(draw(storm(nodes, 8)).svg) < 60_000
    names = [f"n{at}" for at in range(nodes)]
    steps = [
        (at * 0.012, {n: {"AB"[(at + k) % 2]: 1 + (at * k) % 7} for k, n in enumerate(names)},
         {"BA"[at % 2]: at % 5} if at % 3 else {})
        for at in range(5000)
    ]  # fmt: skip
    worst = series("x", dict.fromkeys(names, 8), steps, 60)
    figure = draw(worst | {"control": worst})
    assert len(figure.svg) < 60_000
    assert len(figure.rows) <= MAX_ROWS
    assert figure.rows[-1][0].endswith(" more")
    assert boxes(figure, BLUE)
    assert boxes(figure, GREEN)
    assert frames(figure)


def test_a_storm_is_the_same_each_time() -> None:
    assert draw(storm()).svg == draw(storm()).svg


def test_the_control_has_lanes_and_an_axis_of_its_own() -> None:
    values = two_gangs(LAB, 1)
    said = words(draw(values))
    (at,) = (at for at, one in enumerate(said) if one.startswith("control:"))
    assert [one for one in said[at:] if one in LAB] == LAB
    assert "80 s" in said[:at]
    assert "20 s" in said[at:]
    assert "80 s" not in said[at:]
    assert "single workers" in said[at:]
    assert "1 of 3" in said[at:]
    assert "1 of 3" not in said[:at]


def test_rows_are_in_the_order_of_time_with_the_parts_kept() -> None:
    values = storm() | {"half": [[59.0, 59.001, "B", 1, 3]]}
    rows = draw(values).rows
    assert ["B", "part of a gang", "59", "59.001", "1 of 3"] in rows
    marks = [at for at, row in enumerate(rows) if row[0] in ("mark", "fault")]
    times = [float(row[2]) for row in rows[: marks[0]] if row[2]]
    assert times == sorted(times)
    assert marks == [*range(marks[0], marks[0] + len(marks))]


@pytest.mark.parametrize("what", list(unreadable()))
def test_what_cannot_be_read_is_said(what: str) -> None:
    figure = draw(unreadable()[what])
    assert figure.svg == ""
    assert "could not be drawn" in figure.sentence


@pytest.mark.parametrize("missing", ["title", "unit", "capacity", "samples", "end", "taken"])
def test_what_is_missing_is_said(missing: str) -> None:
    values = alone()
    del values[missing]
    assert "could not be drawn (KeyError" in draw(values).sentence


def test_hostile_names_are_words_and_no_more() -> None:
    figure = draw(contested())
    tags = {one.tag.split("}")[1] for one in ElementTree.fromstring(figure.svg).iter()}
    assert tags <= {"svg", "title", "text", "rect", "path", "polyline"}
    assert "<script" not in figure.svg
    assert "\x1b" not in figure.svg
    assert "\u202e" not in figure.svg
    assert figure.svg.count("1 of 2") >= len(HOSTILE)


def test_very_long_names_stay_at_their_place() -> None:
    name = "x" * 5000
    values = series(name, {name: 1}, [(0, {name: {name: 1}}, {name: 2})], 1)
    figure = draw(values | {"marks": [[0.5, name]], "half": [[0, 1, name, 1, 2]]})
    assert len(figure.svg) < 10_000
    assert max(map(len, words(figure))) <= 40


# A job may be called so; a figure may not.
NAMES = st.text(max_size=4).filter(lambda name: not re.search("nan|inf", name))


@steady
@given(
    st.lists(
        st.tuples(
            st.floats(0, 100),
            st.dictionaries(
                st.sampled_from(LAB),
                st.dictionaries(NAMES, st.floats(0, 1e9), max_size=3),
            ),
            st.dictionaries(NAMES, st.integers(0, 9), max_size=3),
        ),
        min_size=1,
        max_size=12,
    ),
    st.floats(0, 200),
)
def test_any_story_can_be_drawn(steps: list[Any], end: float) -> None:
    steps = sorted(steps, key=lambda step: step[0])
    figure = draw(series("any", {"node0": 1}, steps, end) | {"taken": 9})
    assert "could not be drawn" not in figure.sentence
    assert not re.search(r'[ "](nan|inf)', figure.svg)
    ElementTree.fromstring(figure.svg)


@steady
@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 20), st.sampled_from("AB")), max_size=40),
    st.sampled_from([0.5, 2, 16]),
)
def test_on_the_grid_nothing_overlaps_and_nothing_is_lost(
    runs: list[tuple[float, float, str]], step: float
) -> None:
    whole = [(start, start + size, what) for start, size, what in sorted(runs)]
    found = to_grid(whole, (0.0, 120.0), step)
    for (_, right, what), (left, _, after) in pairwise(found):
        assert right < left or (right == left and what != after)
    for start, end, _ in whole:
        assert any(left - step <= start and start <= right + step for left, right, _ in found)
        assert any(left <= (start + end) / 2 + step and (start + end) / 2 - step <= right
                   for left, right, _ in found)  # fmt: skip
