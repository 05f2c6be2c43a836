"""The page: one file, decision first, readable without script, small, and in contrast."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from reports.acceptance import load_summary, summarize_acceptance
from reports.measurement import Limit, Measurement
from reports.page.render import TEMPLATES, render
from reports.record import Control, ProbeResult, RunRecord
from reports.run_folder.event_log import hash_file
from reports.run_folder.integrity import load
from tests.support.pairs import cells_of
from tests.support.paths import RECORDINGS

RUNS = sorted(path.parent for path in RECORDINGS.glob("*/events.jsonl"))
VOID = {"meta", "br", "link", "img", "input", "hr"}
OPTIONAL = {"td", "th", "tr"}


class Page(HTMLParser):
    """Collects tags, attributes and what is left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        while self.open[-1] in OPTIONAL and self.open[-1] != tag:
            self.open.pop()
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


@cache
def page(name: str, baseline: str = "") -> str:
    run = RECORDINGS / name
    return render(load_summary(run), run, load_summary(RECORDINGS / baseline) if baseline else None)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_well_formed_and_self_contained(run: Path) -> None:
    text = page(run.name)
    parsed = Page(text)
    assert parsed.open == []
    for _, attributes in parsed.tags:
        for name in ("src", "srcset", "action", "data", "poster"):
            assert name not in attributes
        assert not re.match(r"(?i)\s*[a-z][a-z0-9+.-]*:|//", attributes.get("href", ""))
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"(?i)@import|url\(|<link|<iframe|<img|<base", text)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_one_script_of_at_most_ten_lines_and_no_inline_style(run: Path) -> None:
    parsed = Page(page(run.name))
    assert len(parsed.all("script")) == 1
    assert not [tag for tag, attributes in parsed.tags if "style" in attributes]
    assert len((TEMPLATES / "report.js").read_text().splitlines()) <= 10


def test_ids_are_unique() -> None:
    ids = [a["id"] for _, a in Page(page("tcp-fallback")).tags if "id" in a]
    assert len(ids) == len(set(ids)) > 0


def test_the_decision_comes_first_and_the_environment_last() -> None:
    text = page("tcp-fallback", baseline="healthy-atlas")
    order = [
        '<h1 class="FAIL">',
        "<h2>Do next",
        "FAB-TCP",
        ">limit</th>",
        "<h2>Sign-off",
        "<nav",
        "<h2>Nodes and criteria",
        'id="FABRIC"',
        'id="HOSTS"',
        "<h2>Self-test",
        "<h2>Not tested",
        "<h2>Change since",
        "<h2>Every measurement",
        "<h2>Environment",
        "<h2>Glossary",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_who_ran_the_test_is_at_the_top_and_escaped() -> None:
    record = load_summary(RECORDINGS / "healthy-lab").record
    named = record.model_copy(update={"operator": "<b>Ada</b>"})
    text = render(summarize_acceptance(named), RECORDINGS / "healthy-lab")
    assert "<span>operator <b>&lt;b&gt;Ada&lt;/b&gt;</b></span>" in text
    assert text.index("<span>operator") < text.index("<h1")
    assert "<span>operator" not in page("healthy-lab")


def test_the_sweep_of_the_baseline_is_drawn_where_both_runs_have_one() -> None:
    assert "Baseline: at most" not in page("tcp-fallback")
    assert "Baseline: at most" in page("tcp-fallback", baseline="healthy-atlas")
    assert "Baseline: at most" not in page("tcp-fallback", baseline="resume-drifts")


def test_details_are_open_unless_passed() -> None:
    states = re.findall(r'<details class="criterion"( open)?>', page("tcp-fallback"))
    # FABRIC, SCALING, RESTART, GANG, LAUNCH, HOSTS, all measurements: the worst first
    assert states == [" open", " open", " open", "", "", "", ""]


def test_a_failure_shows_its_picture_and_its_bad_rows_first() -> None:
    text = page("tcp-fallback")
    section = text[text.index('<section id="FABRIC"') : text.index('<section id="SCALING"')]
    places = [
        section.index(part)
        for part in ("<figure>", ">busbw<", "7 more measurements,", "planted faults found: 1 of 1")
    ]
    assert places == sorted(places)
    assert section.index("wrong elements") > section.index("7 more measurements,")


def test_tests_that_did_not_run_are_one_line_of_their_criterion() -> None:
    text = page("not-run")
    assert text.count("Not tested (the run left this test out): ") == 1
    assert '<p class="broken">not run: ' not in text


def test_a_rehearsal_is_said_everywhere() -> None:
    text = page("healthy-lab")
    assert '<h1 class="PASS rehearsal">' in text
    assert text.count("REHEARSAL PASSED") == 3  # the window's title, the verdict, the ticket
    assert text.count('"banner" role="note">REHEARSAL: ') == 1
    assert '@top-center { content: "REHEARSAL' in text
    assert "REHEARSAL" not in page("healthy-atlas")


def test_derived_limits_are_said() -> None:
    text = page("no-contract")
    assert "No contract was agreed" in text
    assert "seatrial contract new --from" in text
    assert text.count("GB/s (derived)") == 4  # page 1, twice the criterion's section, the appendix
    assert "No contract was agreed" not in page("healthy-atlas")
    assert "(derived)" not in page("healthy-atlas")


def test_a_partial_run_is_said_everywhere() -> None:
    text = page("partial")
    assert "NOT ACCEPTED (PARTIAL)" in text
    assert text.count('"banner" role="note">PARTIAL: ') == 1
    assert "An acceptance needs a complete run (6 tests of the tier quick)" in text
    assert '@top-center { content: "PARTIAL' in text
    assert "only FABRIC was asked for" in text
    assert "PARTIAL" not in page("healthy-atlas")


def test_what_was_not_tested_is_said() -> None:
    assert "the run left this test out" in page("not-run")
    assert "pyarrow is not installed on the host that runs seatrial. " in page("skipped")
    assert "not provable here" in page("healthy-lab")
    assert "NOT FOUND" in page("control-missed")
    assert "the run was stopped before its end" in page("killed-run")


def test_every_broken_limit_is_on_the_page() -> None:
    text = page("tcp-fallback")
    for result in load(RECORDINGS / "tcp-fallback").results:
        for one in result.measurements:
            assert one.title in text
    assert text.count('class="verdict FAIL"') > 6


def test_the_signatures_are_for_the_last_event() -> None:
    run = RECORDINGS / "healthy-atlas"
    last = (run / "events.jsonl").read_bytes().splitlines()[-1]
    assert hashlib.sha256(last).hexdigest() in page("healthy-atlas")


def test_secrets_are_not_shown() -> None:
    text = page("healthy-atlas")
    assert "hf_abcdef" not in text
    assert "HF_TOKEN" in text


def test_secrets_in_commands_are_not_shown() -> None:
    record = load(RECORDINGS / "tcp-fallback")
    again = "pytest probes --cluster ray://joe:hunter2@10.0.0.1:10001"
    results = [
        result.model_copy(
            update={
                "reproduce": again,
                "findings": [f.model_copy(update={"reproduce": again}) for f in result.findings],
            }
        )
        for result in record.results
    ]
    told = record.model_copy(update={"results": results, "command": again})
    assert "hunter2" not in render(summarize_acceptance(told), None)


def test_evidence_that_is_missing_or_changed_is_said(tmp_path: Path) -> None:
    run = RECORDINGS / "tcp-fallback"
    (tmp_path / "evidence").mkdir()
    assert "the file is missing" in render(load_summary(run), tmp_path)
    (tmp_path / "evidence/allreduce.txt").write_text("nothing to see here\n")
    text = render(load_summary(run), tmp_path)
    assert "the file is not the file that the run wrote" in text
    assert "nothing to see here" not in text


def test_a_log_is_cut_to_its_last_lines(tmp_path: Path) -> None:
    run = RECORDINGS / "tcp-fallback"
    (tmp_path / "evidence").mkdir()
    path = tmp_path / "evidence/nccl-atlas07.log"
    path.write_text("\n".join(f"line {at} {'x' * 500}" for at in range(20000)))
    events = (run / "events.jsonl").read_text()
    old = hash_file(run / "evidence/nccl-atlas07.log")
    (tmp_path / "events.jsonl").write_text(events.replace(old, hash_file(path)))
    text = render(load_summary(tmp_path), tmp_path)
    assert "line 19999" in text
    assert "line 19959 " not in text
    assert len(text) < 200_000


def big(nodes: int) -> RunRecord:
    """A run on many nodes with every series and a log of each node."""
    record = load(RECORDINGS / "healthy-atlas")
    names = [f"atlas{at:03d}" for at in range(nodes)]
    limit = Limit(low=1, because="order 2026-114, position 1, table 3")
    seen = [
        Measurement(
            name=f"GPU {gpu} {what}", value=1.5 + at % 3, unit="GB/s", subject=name, limit=limit
        )
        for at, name in enumerate(names)
        for gpu in range(8)
        for what in ("link", "memory")
    ]
    table = [[None if a == b else 300.0 + (a * b) % 70 for b in range(nodes)] for a in range(nodes)]
    hosts = ProbeResult(
        probe="p", criterion="HOSTS", state="finished", measurements=seen,
        controls=[Control(name="c", fault="f", caught=True)],
        series={"pairs": {"nodes": names, "cells": cells_of(table)}},
    )  # fmt: skip
    node = record.cluster["nodes"][0]
    cluster = {**record.cluster, "nodes": [{**node, "name": n, "serial": n * 2} for n in names]}
    return record.model_copy(update={"results": [hosts, *record.results[1:]], "cluster": cluster})


def test_64_nodes_stay_under_2_megabytes() -> None:
    text = render(summarize_acceptance(big(64)), RECORDINGS / "healthy-atlas")
    assert len(text.encode()) < 2_000_000
    assert "and 63 more values of GPU 0 link, all pass" in text


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio of two colours."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_text_colour_has_contrast_in_light_and_dark_and_print() -> None:
    style = (TEMPLATES / "style.css").read_text()
    themes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(themes) == 3
    for theme in themes:
        colors = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", theme))
        for name in ("ink", "soft", "pass", "marginal", "unproven", "fail", "link"):
            for ground in ("paper", "panel"):
                assert contrast(colors[name], colors[ground]) >= 4.5, (name, ground)


@pytest.mark.parametrize(
    ("command", "seconds", "shown"),
    [
        ("", 94.2, "Test again (in this run, the test took 1 min 34 s):"),
        ("pytest another", 94.2, "Test again:"),
        ("", None, "Test again:"),
    ],
    ids=["its probe", "another command", "not timed"],
)
def test_a_finding_says_how_long_its_test_takes(
    command: str, seconds: float | None, shown: str
) -> None:
    record = load(RECORDINGS / "tcp-fallback")
    (fabric,) = (one for one in record.results if one.criterion == "FABRIC")
    again = fabric.findings[0].reproduce
    assert again
    timed = fabric.model_copy(update={"seconds": seconds, "reproduce": command or again})
    others = [one for one in record.results if one is not fabric]
    told = record.model_copy(update={"results": [timed, *others]})
    text = render(summarize_acceptance(told), None)
    assert re.findall(r"<p>(Test again[^<]*)</p>", text) == [shown]


def test_evidence_leads_to_its_file_and_names_its_line() -> None:
    record = load(RECORDINGS / "tcp-fallback")
    (fabric,) = (one for one in record.results if one.criterion == "FABRIC")
    kept = fabric.evidence[0].path
    places = [f"{kept}:12", "evidence/of-another-run.log:7", f"{kept}:x"]
    first = fabric.findings[0].model_copy(update={"evidence": places})
    told = fabric.model_copy(update={"findings": [first]})
    others = [one for one in record.results if one is not fabric]
    run = RECORDINGS / "tcp-fallback"
    text = render(summarize_acceptance(record.model_copy(update={"results": [told, *others]})), run)
    assert f'<a href="./{kept}">{kept}, line 12</a>' in text
    for unknown in places[1:]:
        assert f'<span class="broken">{unknown} (not a file of this run)</span>' in text
