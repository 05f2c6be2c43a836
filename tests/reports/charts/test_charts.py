"""Figures say what they show, carry their numbers, and survive holes in the data."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.charts import FIGURES, draw_figures
from reports.charts.canvas import (
    LEFT,
    PLOT_HEIGHT,
    RIGHT,
    THEME,
    binary_size,
    fit_ticks,
    percent,
    text_width,
)
from reports.charts.pairs import MAX_MAP_NODES, MAX_ROWS, SLOW_TO_FAST
from tests.reports.charts.drawing import Box, dots, draw, outlines, placed, root, words
from tests.reports.charts.test_svg import recorded
from tests.support.pairs import cells_of

# The same examples each time, and no clock: a busy machine is no bug.
steady = settings(derandomize=True, deadline=None, max_examples=25)
SIZES = [2**power for power in range(20, 28)]
SPEEDS = [10.0, 20, 40, 80, 120, 150, 149, 151]


@pytest.mark.parametrize("name", list(FIGURES))
@pytest.mark.parametrize("run", ["healthy-atlas", "healthy-lab"])
def test_each_figure_has_words_and_numbers(name: str, run: str) -> None:
    figure = draw(name, recorded(run)[name])
    assert figure.svg
    assert figure.sentence.endswith(".")
    assert figure.rows
    assert all(len(row) == len(figure.header) for row in figure.rows)


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
    told = draw("busbw", recorded()["busbw"]).sentence
    assert "94 % of the line rate of 400" in told
    assert "at or above the limit of 340" in told
    assert "limit of 340 GB/s. Planted wrong network: at most 4.89 GB/s." in told
    assert "BELOW the limit of 340" in draw("busbw", recorded("tcp-fallback")["busbw"]).sentence


def test_busbw_has_one_number_the_judged_one_and_marks_its_sizes() -> None:
    values = {"sizes": SIZES, "busbw": SPEEDS, "judged": {"sizes": SIZES[-4:], "busbw": 149.6}}
    figure = draw("busbw", values)
    assert figure.sentence == "Bus bandwidth is 150 GB/s for messages of 16 MiB to 128 MiB."
    assert "measured: 150 GB/s for messages of 16 MiB to 128 MiB" in words(figure)
    assert not [word for word in words(figure) if "151" in word]
    assert len(dots(figure, THEME.link)) == 4
    del values["judged"]
    figure = draw("busbw", values)
    assert figure.sentence == "Bus bandwidth is 151 GB/s for messages of 128 MiB."
    assert len(dots(figure, THEME.link)) == 1


def test_busbw_draws_what_it_is_compared_with_if_the_series_has_it() -> None:
    bare = {"sizes": SIZES, "busbw": SPEEDS}
    sweep = {"sizes": SIZES, "busbw": [speed / 2 for speed in SPEEDS]}
    full = draw("busbw", {**bare, "limit": 100, "line_rate": 200, "control": sweep,
                          "baseline": sweep})  # fmt: skip
    said = words(full)
    for label, color in (
        ("limit 100", THEME.marginal),
        ("line rate 200", THEME.soft),
        ("planted wrong network", THEME.fail),
        ("baseline", THEME.unproven),
    ):
        assert label in said
        assert label not in words(draw("busbw", bare))
        assert len(outlines(full, stroke=color)) >= 2  # the line, and the one of the legend
    assert full.header == ["size", "busbw GB/s", "low", "high", "planted wrong network", "baseline"]


def test_a_control_of_one_size_is_a_dot() -> None:
    one_size = {"sizes": SIZES[:1], "busbw": [1.0]}
    figure = draw("busbw", {"sizes": SIZES, "busbw": SPEEDS, "control": one_size})
    assert len(dots(figure, THEME.fail)) == 1


def test_busbw_has_a_ribbon_of_its_noise() -> None:
    values = {"sizes": SIZES, "busbw": SPEEDS, "low": [v * 0.8 for v in SPEEDS],
              "high": [v * 1.2 for v in SPEEDS]}  # fmt: skip
    (ribbon,) = outlines(draw("busbw", values), fill=THEME.link)
    assert ribbon.width > 0.8 * (RIGHT - LEFT)
    assert ribbon.bottom - ribbon.top > PLOT_HEIGHT / 2


def test_busbw_with_a_hole_has_a_gap() -> None:
    figure = draw("busbw", {"sizes": SIZES, "busbw": [1.0, 2, 3, None, 3, 4, 5, 6]})
    curve = [box for box in outlines(figure, stroke=THEME.link, fill="none") if box.width > 20]
    first, second = sorted(curve)[-2:] if len(curve) > 2 else sorted(curve)
    assert second.left - first.right > (RIGHT - LEFT) / 8
    assert figure.rows[3][1] == "-"


def test_efficiency_names_the_last_rung_and_the_load() -> None:
    told = draw("efficiency", recorded()["efficiency"]).sentence
    assert "At 8 nodes the job runs at 91.4 %" in told
    assert "at or above the limit of 90 %" in told
    assert "16384 tokens per GPU and step" in told
    each = {**recorded()["efficiency"], "tokens_per_gpu_step": [512, 512, 4096, 4096],
            "over": "within one run", "predicted": {}}  # fmt: skip
    figure = draw("efficiency", each)
    assert figure.header[2:4] == ["95 % interval, within one run", "tokens per GPU and step"]
    assert [row[3] for row in figure.rows] == ["512", "512", "4096", "4096"]
    assert figure.sentence.endswith("Error bars show the noise within one run.")
    assert "BELOW the limit" in draw("efficiency", recorded("tcp-fallback")["efficiency"]).sentence


def test_efficiency_doubles_in_equal_steps_and_has_its_values_below_the_axis() -> None:
    figure = draw("efficiency", {"nodes": [1, 2, 4, 8], "efficiency": [1.0, 0.9, 0.8, 0.7]})
    xs = [x for x, _ in dots(figure, THEME.link)]
    steps = [after - before for before, after in pairwise(xs)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    values = [word for word in placed(figure) if word.text in ("100.0 %", "70.0 %")]
    assert all(word.box.top > PLOT_HEIGHT for word in values)


def test_what_is_predicted_is_dashed_has_a_band_and_is_called_so() -> None:
    """At most 8 times the nodes that were measured."""
    measured = {"nodes": [1, 2, 4], "efficiency": [1.0, 0.95, 0.9]}
    predicted = {"nodes": [4, 16, 32, 33], "efficiency": [0.9, 0.8, 0.7, 0.6],
                 "low": [0.8, 0.75, 0.5, 0.4], "high": [0.95, 0.85, 0.75, 0.7]}  # fmt: skip
    figure = draw("efficiency", {**measured, "predicted": predicted})
    assert "Predicted, not measured: 70.0 % (50.0 % to 75.0 %) on 32 nodes." in figure.sentence
    assert [row[:3] for row in figure.rows[3:]] == [
        ["16, predicted", "80.0 %", "band 75.0 % to 85.0 %"],
        ["32, predicted", "70.0 %", "band 50.0 % to 75.0 %"],
    ]
    assert {len(row) for row in figure.rows} == {len(figure.header)}
    (band,) = outlines(figure, fill=THEME.link)
    assert len(dots(figure, THEME.link)) == 3, "only what was measured is a dot"
    assert band.width > (RIGHT - LEFT) / 2
    assert {"1", "4", "16", "32 nodes", "90 %", "70 %"} <= {*words(figure)}
    assert "Predicted" not in draw("efficiency", measured).sentence


def test_efficiency_shows_strong_scaling_as_a_curve_of_its_own() -> None:
    values = {**recorded()["efficiency"], "predicted": {}}
    strong = {"nodes": [2, 4, 8], "efficiency": [1.0, 0.9, 0.42],
              "tokens_per_gpu_step": [65536, 32768, 16384]}  # fmt: skip
    figure, bare = (draw("efficiency", each) for each in ({**values, "strong": strong}, values))
    assert "the same total work (strong scaling)" in words(figure)
    assert outlines(figure, stroke=THEME.unproven)
    assert figure.header[:-2] == bare.header
    assert [row[-2:] for row in figure.rows] == [
        ["-", "-"], ["100.0 %", "65536"], ["90.0 %", "32768"], ["42.0 %", "16384"],
    ]  # fmt: skip
    assert draw("efficiency", {**values, "strong": {}}) == bare


def test_efficiency_has_error_bars_where_they_are_known() -> None:
    values = {**recorded()["efficiency"], "predicted": {}}
    figure = draw("efficiency", values)
    assert figure.rows[-1][2] == "90.7 % to 92.0 %"
    assert figure.rows[0][2] == "-"
    assert len(outlines(figure, stroke_width="5")) == 3
    holed = {**values, "low": [None, None, 0.94, 0.9]}
    assert len(outlines(draw("efficiency", holed), stroke_width="5")) == 2


def lost(shares: list[float], nodes: int = 2) -> dict[str, Any]:
    """One rung, of parts with these shares."""
    parts = [{"share": share, "said": f"part {at}"} for at, share in enumerate(shares)]
    return {"nodes": [nodes], "lost": [sum(shares)], "parts": [parts], "sentences": ["so it is"]}


def test_lost_shows_only_what_is_lost_each_part_after_the_other() -> None:
    figure = draw("lost", recorded()["lost"])
    assert (
        "8.6 % of a step is lost: 6.6 % waiting for collectives (as long as without training)"
        in figure.sentence
    )
    assert "kept" not in " ".join(words(figure))
    assert [word for word in words(figure) if "of a step" in word] == [
        "2 nodes: 2.2 % of a step", "4 nodes: 4.9 % of a step", "8 nodes: 8.6 % of a step",
    ]  # fmt: skip
    bars = outlines(figure, fill=THEME.link)
    unit = bars[-3].width / 0.066
    assert [bar.width for bar in bars] == pytest.approx(
        [unit * share for share in (0.019, 0.003, 0.041, 0.006, 0.002, 0.066, 0.014, 0.006)],
        abs=0.3,
    )
    assert bars[-2].left == pytest.approx(bars[-3].right, abs=0.1)
    assert bars[-1].left == pytest.approx(bars[-2].right, abs=0.1)


def test_a_part_below_nothing_goes_back_and_the_last_ends_at_the_loss() -> None:
    figure = draw("lost", lost([0.1, -0.04]))
    (gain,) = outlines(figure, fill=THEME.passed)
    (loss,) = outlines(figure, fill=THEME.link)
    assert gain.right == pytest.approx(loss.right, abs=0.1)
    assert gain.width == pytest.approx(0.4 * loss.width, abs=0.3)
    (below,) = outlines(draw("lost", lost([-0.01])), fill=THEME.passed)
    assert below.width > 50


def test_many_parts_become_one_and_the_table_has_all() -> None:
    figure = draw("lost", lost([0.02] * 14 + [0.00001]))
    assert words(figure).count("smaller parts") == 1
    assert len(outlines(figure, fill=THEME.link)) == 6
    assert [row[1] for row in figure.rows] == ["lost", *(f"part {at}" for at in range(15))]


def test_terms_are_in_milliseconds_so_that_growth_is_seen() -> None:
    figure = draw("terms", recorded()["terms"])
    assert figure.sentence == (
        "At 8 nodes a step takes 1382 ms, and 1285 ms at 1 node. "
        "The part that grows most is all-reduce: by 104 ms."
    )
    assert figure.rows[-1] == [
        "8", "1382 ms", "31 ms", "403 ms", "816 ms", "104 ms", "11 ms", "17 ms",
    ]  # fmt: skip
    assert [word for word in words(figure) if word in ("21 ms", "43 ms")] == ["21 ms", "43 ms"]
    bars = {round(bar.width) for bar in outlines(figure, fill=THEME.link)}
    assert len(bars) > 5


def test_a_term_that_is_missing_is_said_and_has_no_bar() -> None:
    figure = draw("terms", {"nodes": [1, 2], "terms": {"data": [0.1, None]}})
    assert "not measured" in words(figure)
    assert len(outlines(figure, fill=THEME.link)) == 1
    assert figure.rows[1][2] == "not measured"
    assert "No part of a step grows" in figure.sentence
    ragged = draw("terms", {"nodes": [1, 2], "terms": {"data": [0.1]}})
    assert "a term does not have one time for each node count" in ragged.sentence


def test_loss_compares_only_the_life_after_the_kill() -> None:
    assert "all 60 steps of the resumed run equal" in draw("loss", recorded()["loss"]).sentence
    told = draw("loss", recorded("resume-drifts")["loss"]).sentence
    assert "the loss differs by at most 0.00400 in 60 steps" in told


def test_loss_shades_the_steps_done_again_and_shows_the_difference() -> None:
    values = recorded("resume-drifts")["loss"]
    figure = draw("loss", values)
    said = words(figure)
    assert {"killed at step 73", "resumed from step 60", "repeated steps"} <= set(said)
    assert {"-0.004", "0", "0.004"} <= set(said)
    shades = [box for box in outlines(figure, fill=THEME.rule) if box.bottom - box.top > 20]
    assert len(shades) == 2  # of the curves, and of the differences
    unit = (RIGHT - LEFT) / (120 - 1)
    assert shades[0].width == pytest.approx(13 * unit, abs=0.2)
    unknown = draw("loss", {**values, "resumed_from": None})
    assert "repeated steps" not in words(unknown)


def test_loss_that_cannot_be_compared_is_said() -> None:
    values = {"reference": [[1, 2.0]], "resumed": [[2, 1.9]], "killed_at": 1, "resumed_from": None}
    assert "no step of the resumed run can be compared" in draw("loss", values).sentence


def test_a_long_loss_keeps_its_extremes_and_stays_small() -> None:
    curve = [[at, 2.0 + at % 7 / 100] for at in range(20_000)]
    jump = [*curve[:9999], [9999, 9.0], *curve[10_000:]]
    figure = draw("loss", {"reference": curve, "resumed": jump, "killed_at": 1, "resumed_from": 0})
    assert len(figure.svg) < 30_000
    assert "6.97" in " ".join(words(figure))
    assert min(box.top for box in outlines(figure, stroke=THEME.link) if box.width > 50) < 70


def grid(count: int, value: float = 300.0) -> list[list[Any]]:
    return [[value + (a + b) % 7 for b in range(count)] for a in range(count)]


def series_of(table: list[list[Any]]) -> dict[str, Any]:
    names = [f"node{at:04d}" for at in range(len(table))]
    return {"nodes": names, "cells": cells_of(table)}


def test_a_pair_is_measured_unreachable_or_not_measured() -> None:
    table = grid(4)
    table[0][1], table[2][3] = 0, None
    figure = draw("pairs", series_of(table))
    assert figure.sentence.startswith("Unreachable: 1 of 11 directed pairs; the slowest of 10")
    assert figure.sentence.endswith("; 1 directed pair was not measured.")
    assert figure.rows[0] == ["node0000", "node0001", "unreachable"]
    assert len(figure.rows) == 11
    assert len(outlines(figure, fill=THEME.fail)) == 1 + 1  # and its key in the legend
    assert len(outlines(figure, fill="none", stroke=THEME.soft)) == 1 + 1
    assert {"unreachable", "not measured"} <= set(words(figure))
    assert not {"unreachable", "not measured"} & set(words(draw("pairs", series_of(grid(4)))))


def test_a_map_without_a_measured_pair_has_no_colour_scale() -> None:
    figure = draw("pairs", {"nodes": ["a", "b", "c"], "cells": [[0, 1, 0.0], [2, 1, 0.0]]})
    assert figure.sentence == (
        "Unreachable: 2 of 2 directed pairs; 4 directed pairs were not measured."
    )
    assert "unreachable" in words(figure)
    assert not [word for word in words(figure) if "GB/s" in word]


def test_a_node_at_nine_tenths_is_seen() -> None:
    table = grid(4, 1000.0)
    table[2] = [900.0] * 4
    figure = draw("pairs", series_of(table))
    slow = SLOW_TO_FAST[int((0.9 - 0.5) / 0.5 * len(SLOW_TO_FAST))]
    row = sorted(box for box in outlines(figure, fill=slow) if box.width > 20)
    assert len(row) == 3
    assert len({box.top for box in row}) == 1


@pytest.mark.parametrize("count", [0, 1, 2, 17, 32, 33, 64])
def test_pairs_of_any_number_of_nodes(count: int) -> None:
    figure = draw("pairs", series_of(grid(count)))
    assert "could not be drawn" not in figure.sentence
    assert len(figure.svg) < 120_000
    if 1 < count <= MAX_MAP_NODES:
        assert words(figure).count("node0001") == 2  # of its row and of its column


def test_of_many_nodes_each_has_a_row_with_its_medians() -> None:
    count = MAX_MAP_NODES + 1
    table = grid(count)
    table[5] = [90.0] * count
    for row in table:
        row[7] = None
    values = series_of(table)
    figure = draw("pairs", values)
    assert [row[1] for row in figure.rows[:MAX_ROWS]].count("all others") == 0
    assert figure.rows[0][0] == "node0005"
    assert figure.rows[0][3] == "90"
    nodes = figure.rows[MAX_ROWS:]
    assert [row[0] for row in nodes] == values["nodes"]
    assert nodes[5][3] == "90"
    assert nodes[7][4] == "-"
    assert f"{count} nodes in order; slowest: node0005" in words(figure)
    assert len(dots(figure, THEME.link)) == count
    assert len(dots(figure, THEME.marginal)) == count - 1


@pytest.mark.parametrize(
    "change",
    [
        {"cells": [[0, 2, 1.0]]},
        {"cells": [[-1, 0, 1.0]]},
        {"cells": [[0.5, 1, 1.0]]},
        {"cells": [["a", "b", 1.0]]},
        {"cells": [[0, 1]]},
        {"nodes": []},
    ],
)
def test_pairs_that_do_not_fit_their_names_are_said(change: dict[str, Any]) -> None:
    values = series_of(grid(2)) | change
    assert "could not be drawn (ValueError" in draw("pairs", values).sentence


def test_the_work_grows_with_the_number_of_pairs() -> None:
    """From 64 to 1,024 nodes there are 256 times as many pairs."""

    def seconds(values: dict[str, Any]) -> float:
        begun = time.process_time()
        assert draw("pairs", values).svg
        return time.process_time() - begun

    small, large = series_of(grid(64)), series_of(grid(1024))
    seconds(small)  # loads matplotlib
    assert seconds(large) < 2 * 256 * min(seconds(small) for _ in range(3))


@steady
@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=2, max_size=8))
def test_busbw_survives_any_numbers(speeds: list[float | None]) -> None:
    figure = draw("busbw", {"sizes": [2**at for at in range(len(speeds))], "busbw": speeds})
    assert figure.sentence
    assert bool(figure.svg) == any(speed is not None for speed in speeds)
    if figure.svg:
        root(figure)


@given(st.lists(st.floats(0, 400), max_size=40))
def test_labels_that_are_kept_are_side_by_side(places: list[float]) -> None:
    places = sorted(places)
    labels = [f"{int(place)} nodes" for place in places]
    kept = fit_ticks(places, labels)
    assert kept[-1:] == [len(places) - 1] * bool(places)
    rooms = []
    for at in kept:
        half = text_width(labels[at]) / 2
        rooms.append(Box(places[at] - half, 0, places[at] + half, 1))
    assert not any(a.overlaps(b) for a, b in pairwise(rooms))


def test_units() -> None:
    assert [binary_size(n) for n in (0, 1, 1024, 3 * 2**20, 2**33)] == [
        "0 B", "1 B", "1 KiB", "3 MiB", "8 GiB",
    ]  # fmt: skip
    assert percent(0.914) == "91.4 %"
