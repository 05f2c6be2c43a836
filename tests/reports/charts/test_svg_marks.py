"""Marks in the Gantt: which find room, faults before all others, and the rest in the table."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reports.charts.svg import RED, WIDTH, Marker, place_marks
from tests.reports.charts.test_gang_timeline import alone, draw, steady, words


@steady
@given(
    st.lists(st.tuples(st.floats(92, 462), st.text("abc de", min_size=1, max_size=30)), max_size=30)
)
def test_marks_do_not_overlap(marks: list[tuple[float, str]]) -> None:
    placed = place_marks(sorted(marks), 12, 5)
    assert len(placed) <= 12
    assert bool(placed) == bool(marks)
    for at, one in enumerate(placed):
        left, right = one.extent
        assert 0 <= left <= right <= WIDTH
        for other in placed[:at]:
            start, end = other.extent
            if one.level == other.level:
                assert right <= start or end <= left
            above, below = sorted((one, other), key=lambda mark: -mark.level)
            if above.level > below.level:
                assert not below.extent[0] < above.x < below.extent[1]


def test_marks_close_to_each_other_all_find_room() -> None:
    close = [(300.0 + at, f"command {at}") for at in range(4)]
    assert {mark.label for mark in place_marks(close, 12, 5)} == {one for _, one in close}
    edge = [(455.0 + at, f"command {at}") for at in range(4)]
    assert {mark.anchor for mark in place_marks(edge, 12, 5)} == {"end"}


def test_words_and_a_line_through_them_are_no_neighbours() -> None:
    low = Marker(100, "something said")
    assert not Marker(120, "x", level=1).is_clear_of(low)
    assert Marker(90, "x", level=1).is_clear_of(low)
    assert not Marker(120, "x").is_clear_of(low)


def test_marks_without_room_are_told_in_the_table() -> None:
    marks = [[at, f"command {at}"] for at in range(90)]
    figure = draw(alone(marks=marks))
    drawn = [one for one in words(figure) if one.startswith("command")]
    assert 4 <= len(drawn) <= 12
    told = [row for row in figure.rows if row[0] == "mark"]
    assert len(told) == 8
    assert not {row[1] for row in told} & set(drawn)
    assert figure.rows[-1][0] == f"{90 - len(drawn) - 8} more marks"


def test_a_fault_is_drawn_before_other_marks_and_unlike_them() -> None:
    marks: list[list[Any]] = [[at, f"command {at}"] for at in range(90)]
    figure = draw(alone(marks=[*marks, [44.5, "B's driver is killed", True]]))
    assert {"B's driver is killed", "a fault"} <= set(words(figure))
    assert f'stroke="{RED}"' in figure.svg
    assert "a fault" not in words(draw(alone(marks=marks)))


def test_a_fault_without_room_is_the_first_in_the_table() -> None:
    faults: list[list[Any]] = [[44.0, f"fault {at} of the whole cluster", True] for at in range(20)]
    figure = draw(alone(marks=[[1, "command"], *faults]))
    drawn = [one for one in words(figure) if one.startswith("fault")]
    rest = [row for row in figure.rows if row[0] == "fault"]
    assert 0 < len(drawn) < 20
    assert len(rest) == min(8, 20 - len(drawn))
    assert (
        figure.rows.index(rest[0]) == len(figure.rows) - 9
    )  # then seven more, and what is left out
    assert not {row[1] for row in rest} & set(drawn)
    assert not [row for row in figure.rows if row[0] == "mark"]
