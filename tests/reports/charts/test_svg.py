"""Every chart is a small and inert SVG, the same each time, in the colours of the page."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from reports.acceptance import load_summary
from reports.charts import FIGURES, Figure
from reports.charts.canvas import FONT_SIZE, THEME, WIDTH, Key, open_chart
from reports.page.render import TEMPLATES, render
from reports.run_folder.integrity import load
from tests.recordings.generate.gang_contention import storm, two_gangs
from tests.recordings.generate.malicious_input import HOSTILE, contested
from tests.reports.charts.drawing import SVG, draw, placed, root, words
from tests.support.pairs import cells_of
from tests.support.paths import RECORDINGS, REPO

ATTRIBUTES = {
    "svg": {"viewBox", "role", "font-family", "font-size", "fill", "stroke-linejoin"},
    "title": set(),
    "desc": set(),
    "path": {"d", "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap",
             "opacity", "fill-opacity", "stroke-opacity"},
    "text": {"x", "y", "text-anchor", "fill", "font-size", "font-weight", "transform"},
}  # fmt: skip
MALICE = [
    *HOSTILE,
    '"/><image href="//evil.example/x"/>',
    "$\\frac{1}{2}$",
    "\uffff\ufffe",
    "节点7",
]
DRAW_ALL = """
import hashlib, json, sys
from reports.charts import draw_figures
series = json.load(sys.stdin)
print(hashlib.sha256("".join(f.svg for f in draw_figures(series)).encode()).hexdigest())
"""


def recorded(run: str = "healthy-atlas") -> dict[str, Any]:
    results = load(RECORDINGS / run).results
    return copy.deepcopy({name: drawn for one in results for name, drawn in one.series.items()})


def malicious() -> dict[str, Any]:
    """All series that have names, with names by someone who means harm."""
    parts = [{"said": word, "share": 0.02} for word in MALICE]
    count = len(MALICE)
    return {
        "pairs": {"nodes": MALICE, "cells": cells_of([[1.0 + at for at in range(count)]] * count)},
        "efficiency": {"nodes": [1, 2], "efficiency": [1.0, 0.9], "over": MALICE[0]},
        "lost": {"nodes": [2], "lost": [0.2], "parts": [parts], "sentences": [" ".join(MALICE)]},
        "terms": {"nodes": [1, 2], "terms": {word: [0.1, 0.2] for word in MALICE}},
        "gang": contested() | {"marks": [[at / 9, word, True] for at, word in enumerate(MALICE)]},
    }  # fmt: skip


def all_cases() -> list[tuple[str, Any]]:
    many = {"nodes": [f"n{at}" for at in range(40)], "cells": cells_of(
        [[float(a + b + 1) for b in range(40)] for a in range(40)])}  # fmt: skip
    cases = [*recorded().items(), *recorded("healthy-lab").items(), *malicious().items()]
    return [*cases, ("pairs", many), ("gang", storm()), ("gang", two_gangs(["a", "b"], 8, True))]


CASES = all_cases()
every_case = pytest.mark.parametrize(
    "at", range(len(CASES)), ids=[f"{at}-{name}" for at, (name, _) in enumerate(CASES)]
)


@cache
def case(at: int) -> Figure:
    return draw(*CASES[at])


@every_case
def test_only_shapes_and_text_and_no_way_out(at: int) -> None:
    figure = case(at)
    assert figure.svg.startswith("<svg ")
    for node in root(figure).iter():
        assert set(node.attrib) <= ATTRIBUTES[node.tag.removeprefix(SVG)]
        for value in node.attrib.values():
            assert not re.search(r"url\(|//|:|nan|inf", value)
    plain = re.sub(r">[^<]*<", "><", figure.svg)
    assert plain.count("http") == 1  # the name space


@every_case
def test_a_chart_has_a_name_and_a_description(at: int) -> None:
    figure = case(at)
    top = root(figure)
    assert top.get("role") == "img"
    assert [node.tag for node in top][:2] == [f"{SVG}title", f"{SVG}desc"]
    assert top[0].text
    assert top[1].text
    assert words(figure)


@every_case
def test_text_is_large_enough_and_on_the_sheet(at: int) -> None:
    figure = case(at)
    height = float(root(figure).get("viewBox", "").split()[3])
    for word in placed(figure):
        assert word.size * 560 / WIDTH >= 11
        assert word.box.left >= -8, word  # the estimate of its width is high
        assert word.box.top >= -1
        assert word.box.bottom <= height
        assert word.box.right <= WIDTH + 12, word


@every_case
def test_no_words_are_on_other_words(at: int) -> None:
    found = [word for word in placed(case(at)) if word.text]
    for index, word in enumerate(found):
        for other in found[:index]:
            assert not word.box.overlaps(other.box), (word, other)


def test_the_same_series_gives_the_same_bytes() -> None:
    for at, (name, values) in enumerate(CASES):
        assert draw(name, copy.deepcopy(values)).svg == case(at).svg


def test_the_same_bytes_in_another_process_whatever_the_users_settings(tmp_path: Path) -> None:
    settings = tmp_path / "matplotlibrc"
    settings.write_text(
        "font.size: 40\nlines.linewidth: 9\nsvg.fonttype: path\naxes.facecolor: red\n"
        "text.usetex: True\nsvg.hashsalt: own\naxes.prop_cycle: cycler('color', ['lime'])\n"
    )
    told = json.dumps(recorded())
    seen = set()
    for seed, extra in (("1", {}), ("2", {}), ("3", {"MATPLOTLIBRC": str(settings)})):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPO), **extra}
        done = subprocess.run([sys.executable, "-c", DRAW_ALL], input=told, text=True, check=True,
                              capture_output=True, env=environment, timeout=120)  # fmt: skip
        assert not done.stderr
        seen.add(done.stdout)
    assert len(seen) == 1


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw("busbw", recorded()["busbw"])
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_is_loaded_only_for_a_chart() -> None:
    code = (
        "import sys; from reports.charts import draw_figures;"
        "draw_figures({'busbw': None}); assert 'matplotlib' not in sys.modules;"
        "draw_figures({'busbw': {'sizes': [1], 'busbw': [1]}}); assert 'matplotlib' in sys.modules;"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True, timeout=120)


def test_colours_are_variables_of_the_page_with_its_light_theme_as_fallback() -> None:
    style = (TEMPLATES / "style.css").read_text()
    light = dict(re.findall(r"--(\w+): (#\w+)", style.split("@media")[0]))
    names = {name.replace("passed", "pass"): color for name, color in vars(THEME).items()}
    assert names.items() <= light.items()
    svg = draw("busbw", recorded()["busbw"]).svg
    used = re.findall(r'(?:fill|stroke)="([^"]*)"', svg)
    assert all(re.fullmatch(r"none|var\(--\w+,#\w+\)", color) for color in used)
    for color in re.findall(r"var\(--(\w+),(#\w+)\)", svg):
        assert light[color[0]] == color[1]


def test_names_are_words_and_neither_markup_nor_mathematics() -> None:
    for name, values in malicious().items():
        figure = draw(name, values)
        assert "<script" not in figure.svg
        assert "<image" not in figure.svg
        assert not re.search("[\x00-\x1f\x7f-\x9f\u200b\u202e\ufffe\uffff]", figure.svg)
    said = " ".join(words(draw("terms", malicious()["terms"])))
    assert "$\\frac{1}{2}$" in said
    assert "<script>alert(1)</script>" in said
    assert "节点7" in said


def test_a_page_with_many_charts_has_no_id_twice() -> None:
    run = RECORDINGS / "healthy-atlas"
    page = render(load_summary(run), run)
    charts = re.findall(r"<svg[^>]*role=\"img\".*?</svg>", page, re.DOTALL)
    assert len(charts) == len(FIGURES) + 1, "that of page 2, on paper"
    assert not any(re.search(r"\s(id|class|style)=", chart) for chart in charts)


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_chart_of_four_nodes_is_below_30_kilobytes(name: str) -> None:
    assert 0 < len(draw(name, recorded("healthy-lab")[name]).svg.encode()) < 30_000


def test_a_legend_takes_as_many_rows_as_it_needs() -> None:
    keys = [Key(f"entry {at} of the legend", THEME.ink) for at in range(9)]
    with open_chart("t", "s", [*keys, Key("", THEME.ink)], 10) as chart:
        pass
    assert chart.svg.count("<text") == 9
    assert chart.top > 4 * FONT_SIZE
