"""Figures say what they show, carry their numbers, and survive holes in the data."""

from __future__ import annotations

import copy
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.charts import FIGURES, Figure, draw_figures
from reports.charts.figure import binary_size, percent
from reports.charts.svg import Scale
from reports.run_folder.integrity import load
from tests.support.paths import RECORDINGS

# The same examples each time, and no clock: a busy machine is no bug.
steady = settings(derandomize=True, deadline=None)


def series(name: str, run: str = "healthy-atlas") -> dict[str, Any]:
    found = [
        result.series[name] for result in load(RECORDINGS / run).results if name in result.series
    ]
    drawn: dict[str, Any] = copy.deepcopy(found[0])
    return drawn


def draw(name: str, values: Any) -> Figure:
    (figure,) = draw_figures({name: values})
    return figure


@pytest.mark.parametrize("name", list(FIGURES))
@pytest.mark.parametrize("run", ["healthy-atlas", "healthy-lab"])
def test_each_figure_has_words_numbers_and_valid_svg(name: str, run: str) -> None:
    figure = draw(name, series(name, run))
    assert figure.sentence.endswith(".")
    assert figure.rows
    assert all(len(row) == len(figure.header) for row in figure.rows)
    root = ElementTree.fromstring(figure.svg)
    assert root.attrib["role"] == "img"
    assert "viewBox" in root.attrib
    assert not re.search(r'\b(id|style|class)="|nan|inf"', figure.svg)


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_figure_is_the_same_each_time(name: str) -> None:
    assert draw(name, series(name)).svg == draw(name, series(name)).svg


@pytest.mark.parametrize("name", list(FIGURES))
@pytest.mark.parametrize(
    "broken", [None, [], {}, "x", 3, {"sizes": [], "busbw": []}, {"samples": [], "need": {}}]
)
def test_what_cannot_be_drawn_is_said(name: str, broken: Any) -> None:
    figure = draw(name, broken)
    assert figure.svg == ""
    assert "could not be drawn" in figure.sentence


def test_only_the_series_that_are_there() -> None:
    assert draw_figures({}) == []
    assert draw_figures({"something else": [1, 2]}) == []


def test_busbw_says_how_far_it_is_from_limit_and_line_rate() -> None:
    told = draw("busbw", series("busbw")).sentence
    assert "94 % of the line rate of 400" in told
    assert "at or above the limit of 340" in told
    assert "the wrong network reaches 4.89" in told
    slow = draw("busbw", series("busbw", "tcp-fallback")).sentence
    assert "BELOW the limit of 340" in slow


def test_busbw_without_extras_and_with_a_hole() -> None:
    figure = draw("busbw", {"sizes": [1024, 2048, 4096], "busbw": [1.0, None, 3.0]})
    assert "3 GB/s at" not in figure.sentence
    assert "peaks at 3 GB/s with 4 KiB messages" in figure.sentence
    assert figure.rows[1][1] == "-"


def test_efficiency_names_the_last_rung_and_the_load() -> None:
    told = draw("efficiency", series("efficiency")).sentence
    assert "At 8 nodes the job runs at 91.4 %" in told
    assert "at or above the limit of 90 %" in told
    assert "16384 tokens per GPU and step" in told
    each = {**series("efficiency"), "tokens_per_gpu_step": [512, 512, 4096, 4096],
            "over": "within one run"}  # fmt: skip
    figure = draw("efficiency", each)
    assert figure.header[2:4] == ["95 % interval, within one run", "tokens per GPU and step"]
    assert [row[3] for row in figure.rows] == ["512", "512", "4096", "4096"]
    assert figure.sentence.endswith("Error bars are of the noise within one run.")
    slow = draw("efficiency", series("efficiency", "tcp-fallback")).sentence
    assert "BELOW the limit of 90 %" in slow


def test_efficiency_shows_strong_scaling_as_a_curve_of_its_own() -> None:
    values = series("efficiency")
    strong = {"nodes": [2, 4, 8], "efficiency": [1.0, 0.9, 0.42],
              "tokens_per_gpu_step": [65536, 32768, 16384]}  # fmt: skip
    figure, bare = (draw("efficiency", each) for each in ({**values, "strong": strong}, values))
    assert "the same work on more nodes" in figure.svg
    assert figure.header[:-2] == bare.header
    assert [row[-2:] for row in figure.rows] == [
        ["-", "-"], ["100.0 %", "65536"], ["90.0 %", "32768"], ["42.0 %", "16384"],
    ]  # fmt: skip
    assert "the same work 42.0 % as efficiently as 2 nodes" in figure.sentence
    assert "with 16384 tokens per GPU" in figure.sentence
    assert draw("efficiency", {**values, "strong": {}}) == bare


@pytest.mark.parametrize("limit", [0.55, 0.6, 0.65, 0.7, 0.8, 0.9])
def test_the_curves_names_stand_apart_from_the_limits(limit: float) -> None:
    shares = {"nodes": [1, 8], "efficiency": [1.0, 0.74], "tokens_per_gpu_step": [2048, 256]}
    figure = draw("efficiency", {**shares, "limit": limit, "strong": shares})
    at = {words: float(y) for y, words in re.findall(r'y="([\d.]+)"[^>]*>([^<]+)<', figure.svg)}
    (named,) = [y for words, y in at.items() if words.startswith("limit ")]
    curves = [
        at["the same work per GPU (weak scaling)"],
        at["the same work on more nodes (strong scaling)"],
    ]
    assert all(abs(y - named) >= 12 for y in curves)  # a line of text is 12 high


def test_efficiency_has_error_bars_where_they_are_known() -> None:
    values = series("efficiency")
    figure = draw("efficiency", values)
    assert figure.rows[-1][2] == "90.7 % to 92.0 %"
    assert figure.rows[0][2] == "-"
    bare = {name: part for name, part in values.items() if name not in ("low", "high")}
    lines = [draw("efficiency", each).svg.count("<polyline") for each in (values, bare)]
    assert lines[0] - lines[1] == 3 * 3  # a line and two caps for each rung above one node
    holed = {**values, "low": [None, None, 0.94, 0.9]}
    assert lines[0] - draw("efficiency", holed).svg.count("<polyline") == 3


def test_lost_shows_every_part_and_with_what_was_kept_they_are_the_whole() -> None:
    values = series("lost")
    figure = draw("lost", values)
    assert "8.6 % is lost: 6.6 waiting for collectives as replayed" in figure.sentence
    widths = [float(w) for w in re.findall(r'width="([0-9.]+)" height="24"', figure.svg)]
    shares = [1.9, 0.3, 97.8, 4.1, 0.6, 0.2, 95.1, 6.6, 1.4, 0.6, 91.4]
    assert widths == pytest.approx([(480 - 128) * share / 100 for share in shares], abs=0.2)
    told = [float(row[2].split()[0]) for row in figure.rows if row[0] == "8"]
    assert sum(told) == pytest.approx(100)


def boxes(figure: Figure) -> list[tuple[float, float, str]]:
    """(x, width, paint) of the parts of all bars."""
    rect = r'<rect x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)" height="24" (fill[^/]*)/>'
    found = re.findall(rect, figure.svg)
    return [(float(x), float(width), paint) for x, width, paint in found]


def lost(shares: list[float]) -> Figure:
    """One rung's bar, of parts with these shares."""
    parts = [{"share": share, "said": f"part {at}"} for at, share in enumerate(shares)]
    values = {"nodes": [2], "lost": [sum(shares)], "parts": [parts], "sentences": ["so it is"]}
    return draw("lost", values)


def test_a_part_below_nothing_is_left_of_zero_and_small_ones_are_one() -> None:
    figure = lost([0.1, -0.05, 0.001, 0.0015])
    (x, width, _), (left, below, _), (small, little, _), (kept, rest, _) = boxes(figure)
    whole = (480 - 128) / 1.1
    assert [width, below, little, rest] == pytest.approx(
        [whole * share for share in (0.1, 0.05, 0.0025, 0.9475)], abs=0.2
    )
    assert left + below == pytest.approx(x, abs=0.2)  # zero
    assert (small, kept) == pytest.approx((x + width, x + width + little), abs=0.2)
    assert "smaller parts" in figure.svg
    assert [row[1] for row in figure.rows] == ["kept", *(f"part {at}" for at in range(4))]


def test_a_gain_is_drawn_left_of_zero() -> None:
    (left, below, _), (kept, width, _) = boxes(lost([-0.01]))
    assert kept == pytest.approx(left + below, abs=0.2)
    assert width == pytest.approx(480 - 128 - below, abs=0.2)


def test_more_parts_than_colours_can_be_told_apart() -> None:
    paints = [paint for _, _, paint in boxes(lost([0.05] * 15))]
    assert len(set(paints)) == len(paints) == 16


def test_terms_sum_to_the_step() -> None:
    values = series("terms")
    figure = draw("terms", values)
    assert "8.6 % is lost: 6.6 all-reduce, 1.4 data, 0.6 unattributed" in figure.sentence
    widths = [float(w) for w in re.findall(r'width="([0-9.]+)" height="24"', figure.svg)]
    whole = 480 - 54 - 64
    per_rung = len(values["terms"])
    for at in range(len(values["nodes"])):
        assert sum(widths[at * per_rung : (at + 1) * per_rung]) == pytest.approx(whole, abs=0.5)


def test_terms_without_loss_name_the_largest() -> None:
    values = series("terms")
    del values["loss"]
    assert "the largest term is backward with 59 %" in draw("terms", values).sentence


def test_loss_compares_only_the_life_after_the_kill() -> None:
    assert "all 60 steps of the resumed run equal" in draw("loss", series("loss")).sentence
    told = draw("loss", series("loss", "resume-drifts")).sentence
    assert "the largest difference in 60 steps is 0.00400" in told


def test_loss_that_cannot_be_compared_is_said() -> None:
    values = {"reference": [[1, 2.0]], "resumed": [[2, 1.9]], "killed_at": 1, "resumed_from": None}
    assert "no step of the resumed run can be compared" in draw("loss", values).sentence


def test_pairs_lists_the_worst_first_and_unreachable_before_slow() -> None:
    figure = draw("pairs", series("pairs", "tcp-fallback"))
    assert "2 of 56 directed pairs are unreachable" in figure.sentence
    assert [row[2] for row in figure.rows[:3]] == ["unreachable", "unreachable", "4.70"]


@pytest.mark.parametrize("count", [0, 1, 2, 17, 64])
def test_pairs_of_any_number_of_nodes(count: int) -> None:
    names = [f"n{at}" for at in range(count)]
    table = [[None if a == b else 1.0 + a for b in range(count)] for a in range(count)]
    figure = draw("pairs", {"nodes": names, "gbs": table})
    assert "could not be drawn" not in figure.sentence
    assert len(figure.svg) < 150_000


@steady
@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=2, max_size=8))
def test_busbw_survives_any_numbers(speeds: list[float | None]) -> None:
    figure = draw("busbw", {"sizes": [2**at for at in range(len(speeds))], "busbw": speeds})
    assert figure.sentence
    if figure.svg:
        ElementTree.fromstring(figure.svg)


@steady
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_and_inside(low: float, width: float) -> None:
    width = max(width, abs(low) * 1e-6)  # closer values are one value to the eye
    scale = Scale(low, low + width, 0, 100)
    ticks = scale.ticks()
    assert len(ticks) <= 7
    assert all(low - width * 1e-3 <= tick <= low + width * 1.001 for tick in ticks)


def test_units() -> None:
    assert [binary_size(n) for n in (0, 1, 1024, 3 * 2**20, 2**33)] == [
        "0 B", "1 B", "1 KiB", "3 MiB", "8 GiB",
    ]  # fmt: skip
    assert percent(0.914) == "91.4 %"
