"""The figure of the gangs: who held what, and when; nothing overlaps, nothing is lost."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.charts import Figure
from reports.charts.canvas import MIN_BAR, RIGHT, START, THEME, WIDTH, TimeAxis
from reports.charts.gang_series import JOB_COLORS, MAX_MARKS, MAX_ROWS, ORANGE
from reports.run_folder.integrity import load
from tests.recordings.generate.gang_contention import deadlock, series, storm, two_gangs
from tests.recordings.generate.malicious_input import HOSTILE, contested, unreadable
from tests.reports.charts import drawing
from tests.reports.charts.drawing import Box, outlines, placed, words
from tests.support.paths import RECORDINGS

# The same examples each time, and no clock: a busy machine is no bug.
steady = settings(derandomize=True, deadline=None, max_examples=25)
LAB = [f"node{at}" for at in range(4)]
BLUE, GREEN = JOB_COLORS[:2]
AXIS = RIGHT - START


def draw(values: Any) -> Figure:
    return drawing.draw("gang", values)


def bars(figure: Figure, color: str) -> list[Box]:
    """What is drawn in the colour of a job, without its key in the legend."""
    return [box for box in outlines(figure, fill=color) if round(box.bottom - box.top) != 11]


def frames(figure: Figure) -> list[Box]:
    """The waits, without their key in the legend."""
    found = outlines(figure, fill="none", stroke=THEME.soft)
    return [box for box in found if box.bottom - box.top > 15]


def parts(figure: Figure) -> list[Box]:
    return bars(figure, ORANGE)


def alone(**changes: Any) -> dict[str, Any]:
    """Two gangs without their control."""
    return {**two_gangs(LAB, 1), "control": None, **changes}


def test_a_clean_contest_says_so() -> None:
    told = draw(alone())
    assert told.title == "GPUs of each job over time: two gangs of 75 %"
    assert told.sentence == (
        "In each of 190 samples, every gang held all of its GPUs or none; "
        "job A held up to 3, job B waited longest (40 s)."
    )


def test_one_waiting_job_is_not_the_longest_of_many() -> None:
    held = {"node0": {"A": 1}, "node1": {"A": 2}}
    values = series("x", {"node0": 1, "node1": 2}, [(0.2, held, {}), (0.4, held, {"B": 3})], 2.2)
    values |= {"taken": 212}
    assert draw(values).sentence == (
        "In each of 212 samples, every gang held all of its GPUs or none; "
        "job A held up to 3, job B waited 1.8 s."
    )


def test_a_part_that_was_held_is_named() -> None:
    half = [[0.4, 1.9, "B", 1, 3]]
    told = draw(alone(half=half)).sentence
    assert told == "A job held only a part of its gang: job B held 1 of 3 GPUs from 0.4 to 1.9 s."
    many = [[at, at + 0.5, "B", 1, 3] for at in range(5)]
    told = draw(alone(half=many, unit="CPU")).sentence
    assert told.endswith("B held 1 of 3 CPUs from 1 to 1.5 s; and 3 more times.")


def test_the_museum_has_a_part_that_was_held() -> None:
    (result,) = (one for one in load(RECORDINGS / "partial-gang").results if one.series)
    told = draw(result.series["gang"])
    assert "B held 16 of 48 GPUs from 20 to 33.5 s" in told.sentence
    assert "With the planted fault, job B held 16 of 48 GPUs from 6 to 20 s" in told.sentence
    assert ["B", "part of a gang", "20", "33.5", "16 of 48"] in told.rows
    assert ["B", "control: part of a gang", "6", "20", "16 of 48"] in told.rows


def test_nothing_held_is_not_called_all_or_none() -> None:
    told = draw(series("x", {"n": 1}, [(0, {}, {"A": 1})], 5)).sentence
    assert told == "In each of 200 samples, no job held any of the GPUs, job A waited 5 s."


def test_each_node_has_a_lane_and_each_job_its_colour() -> None:
    figure = draw(alone())
    said = words(figure)
    assert [one for one in said if one in LAB] == LAB
    assert [one for one in said if one.endswith(" waits")] == ["A waits", "B waits"]
    assert len(bars(figure, BLUE)) == len(bars(figure, GREEN)) == 3
    assert said.count("A") == said.count("B") == 1 + 3  # the legend, and each bar


def test_the_axis_ends_with_the_last_event_and_bars_are_where_the_job_was() -> None:
    figure = draw(alone())  # of 95 s, the last job ends after 88 s
    bar = bars(figure, BLUE)[0]
    assert bar.left == pytest.approx(START + AXIS * 4 / 88, abs=0.6)
    assert bar.width == pytest.approx(AXIS * 40 / 88, abs=1.1)
    assert max(box.right for box in bars(figure, GREEN)) == RIGHT
    late = draw(alone(marks=[[93, "B is gone"]]))
    assert max(box.right for box in bars(late, GREEN)) < RIGHT - 10


def test_a_wait_is_framed_and_says_for_how_many() -> None:
    figure = draw(alone())
    assert "waits for 3" in words(figure)
    spans = [(box.left, box.right) for box in frames(figure)]
    for start, end in ((2, 4), (6, 46)):
        assert any(
            left == pytest.approx(START + AXIS / 88 * start, abs=0.6)
            and right == pytest.approx(START + AXIS / 88 * end, abs=0.6)
            for left, right in spans
        )


def test_the_height_is_the_share_of_the_accelerators() -> None:
    figure = draw(series("x", {"n": 4}, [(0, {"n": {"A": 2, "B": 1}}, {})], 1))
    (blue,), (green,) = bars(figure, BLUE), bars(figure, GREEN)
    assert blue.bottom - blue.top == pytest.approx(2 * (green.bottom - green.top), abs=0.2)
    assert not blue.overlaps(green)


def test_who_stays_keeps_its_place() -> None:
    """B does not move when A lets go: it is on the same accelerators."""
    steps = [(0, {"n": {"A": 3, "B": 1}}, {}), (1, {"n": {"B": 1}}, {}), (2, {}, {})]
    first, second = bars(draw(series("x", {"n": 4}, steps, 3)), GREEN)
    assert (first.top, first.bottom) == (second.top, second.bottom)
    assert second.left == first.right


def test_words_of_a_part_are_in_its_bar_or_in_the_table() -> None:
    wide = draw(alone(half=[[10, 40, "B", 1, 3]]))
    thin = draw(alone(half=[[10, 10.01, "B", 1, 3]]))
    assert "1 of 3" in words(wide)
    assert "1 of 3" not in words(thin)
    assert ["B", "part of a gang", "10", "10.01", "1 of 3"] in thin.rows
    for figure in (wide, thin):
        assert "part of a gang" in words(figure)
        assert len(parts(figure)) == 1
    assert parts(thin)[0].width >= 3


def test_a_job_that_never_waited_has_a_lane_for_its_part() -> None:
    assert "C waits" in words(draw(alone(half=[[1, 2, "C", 1, 3]])))


def test_a_deadlock_shows_both() -> None:
    figure = draw(deadlock())
    assert words(figure).count("2 of 4") == 2
    assert "1: 1.5 s, both ask for a second group" in words(figure)


def test_no_bar_is_too_short_to_be_seen() -> None:
    """A unit is 0.8 px on a phone of 390 px: 4 units are 3 px."""
    one = {"n": {"A": 1}}
    steps = [(0.0, {}, {}), (30.0, {}, {"A": 1}), (30.0001, {}, {}), (40, one, {}),
             (40.0001, {}, {}), (50, {}, {"C": 2}), (50, {}, {}), (60, one, {})]  # fmt: skip
    figure = draw(series("x", {"n": 1}, steps, 60))
    found = [*frames(figure), *bars(figure, BLUE)]
    assert len(found) == 4
    assert all(box.width * 362 / WIDTH >= 3 for box in found)


def test_of_many_nodes_the_busiest_are_drawn() -> None:
    values = storm(64, 8, 120)
    figure = draw(values)
    assert figure.sentence.endswith("; 16 of 64 nodes are shown.")
    drawn = [one for one in words(figure) if one in values["capacity"]]
    assert len(drawn) == 16
    assert drawn == [name for name in values["capacity"] if name in drawn]
    assert "nodes are shown" not in draw(storm()).sentence
    late = {f"n{at}": 1 for at in range(20)}
    held = {f"n{at}": {"A": 1} for at in range(4, 20)}
    shown = words(draw(series("x", late, [(0, held, {})], 1)))
    assert set(held) <= set(shown)
    assert not {"n0", "n3"} & set(shown)


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
    assert len(draw(storm(nodes, 8)).svg) < 30_000
    names = [f"n{at}" for at in range(nodes)]
    steps = [
        (at * 0.012, {n: {"AB"[(at + k) % 2]: 1 + (at * k) % 7} for k, n in enumerate(names)},
         {"BA"[at % 2]: at % 5} if at % 3 else {})
        for at in range(5000)
    ]  # fmt: skip
    worst = series("x", dict.fromkeys(names, 8), steps, 60)
    figure = draw(worst | {"control": worst})
    assert len(figure.svg) < 30_000
    assert len(figure.rows) <= MAX_ROWS
    assert figure.rows[-1][0].endswith(" more")
    assert bars(figure, BLUE)
    assert bars(figure, GREEN)
    assert frames(figure)


def test_the_control_has_lanes_and_an_axis_of_its_own() -> None:
    said = words(draw(two_gangs(LAB, 1)))
    (at,) = (at for at, one in enumerate(said) if one.startswith("control:"))
    assert [one for one in said[at:] if one in LAB] == LAB
    assert "80 s" in said[:at]
    assert "20 s" in said[at:]
    assert "80 s" not in said[at:]
    assert "1: 1 s, single workers" in said[at:]
    assert "1 of 3" in said[at:]
    assert "1 of 3" not in said[:at]


def test_rows_are_in_the_order_of_time_with_the_parts_kept() -> None:
    values = storm() | {"half": [[59.0, 59.001, "B", 1, 3]]}
    rows = draw(values).rows
    assert ["B", "part of a gang", "59", "59.001", "1 of 3"] in rows
    times = [float(row[2]) for row in rows if row[2]]
    assert times == sorted(times)
    assert [row[0] for row in rows[-2:]] == [rows[-2][0], "40 more marks"]


def test_marks_are_numbered_and_listed() -> None:
    marks = [[at, f"command {at}"] for at in range(90)]
    figure = draw(alone(marks=marks))
    listed = [one for one in words(figure) if "command" in one]
    assert 4 <= len(listed) <= MAX_MARKS
    for at, one in enumerate(listed, 1):
        assert re.fullmatch(rf"{at}: (\d+) s, command \1", one)
        assert f"{at}" in words(figure)
    assert figure.rows[-1][0] == f"{90 - len(listed)} more marks"


def test_numbers_of_close_marks_are_above_each_other() -> None:
    close = draw(alone(marks=[[40 + at / 100, f"command {at}"] for at in range(4)]))
    numbers = [word for word in placed(close) if word.text in "1234"]
    assert len({word.box.top for word in numbers}) == 4
    assert not any(a.box.overlaps(b.box) for a, b in pairwise(numbers))


def test_faults_are_drawn_before_other_marks_and_unlike_them() -> None:
    marks: list[list[Any]] = [[at, f"command {at}"] for at in range(90)]
    figure = draw(alone(marks=[*marks, [44.5, "B's driver is killed", True]]))
    assert [one for one in words(figure) if one.endswith("44.5 s, B's driver is killed")]
    assert "a fault" in words(figure)
    assert [box for box in outlines(figure, stroke=THEME.fail) if box.left > START]
    assert "a fault" not in words(draw(alone(marks=marks)))
    faults: list[list[Any]] = [[44.0, f"fault {at}", True] for at in range(20)]
    shown = words(draw(alone(marks=[[1, "command"], *faults])))
    assert len([one for one in shown if "fault " in one and ":" in one]) == MAX_MARKS
    assert not [one for one in shown if "command" in one]


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
    assert "<script" not in figure.svg
    assert "\x1b" not in figure.svg
    assert "\u202e" not in figure.svg
    assert len(parts(figure)) == len(HOSTILE)


def test_very_long_names_stay_at_their_place() -> None:
    name = "x" * 5000
    values = series(name, {name: 1}, [(0, {name: {name: 1}}, {name: 2})], 1)
    figure = draw(values | {"marks": [[0.5, name]], "half": [[0, 1, name, 1, 2]]})
    assert len(figure.svg) < 10_000
    assert max(map(len, words(figure))) <= 60


@steady
@given(
    st.lists(
        st.tuples(
            st.floats(0, 100),
            st.dictionaries(
                st.sampled_from(LAB),
                st.dictionaries(st.text(max_size=4), st.floats(0, 1e9), max_size=3),
            ),
            st.dictionaries(st.text(max_size=4), st.integers(0, 9), max_size=3),
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
    for node in drawing.root(figure).iter():
        assert not re.search("nan|inf", node.get("d", "") + node.get("x", ""))


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 20), st.sampled_from("AB")), max_size=40),
    st.sampled_from([0.5, 2, 16]),
)
def test_on_the_grid_nothing_overlaps_and_nothing_is_lost(
    runs: list[tuple[float, float, str]], step: float
) -> None:
    axis = TimeAxis(0.0, 120.0, step)
    found = axis.to_bars((start, start + size, what) for start, size, what in sorted(runs))
    for (_, right, what), (left, _, after) in pairwise(found):
        assert right < left or (right == left and what != after)
    near = max(step, MIN_BAR)
    for start, size, _ in runs:
        middle = axis(start + size / 2)
        assert any(left - near <= middle <= right + near for left, right, _ in found)
    assert all(right - left >= min(MIN_BAR, step) for left, right, _ in found)
