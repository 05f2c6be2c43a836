"""The page in a browser: silent, readable, accessible, and page 1 on one sheet of paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from reports.acceptance import load_summary, summarize_acceptance
from reports.measurement import Measurement
from reports.page.render import render
from reports.record import Finding, RunRecord
from reports.run_folder.integrity import load
from tests.support.browser import find_chromium, open_chromium
from tests.support.paths import RECORDINGS
from tests.support.seen import NOT_RUN

LOOKED_AT = ["healthy-atlas", "healthy-lab", "tcp-fallback", "waived-fail", "partial", "hostile"]
SERIOUS = {"serious", "critical"}  # impacts of axe's rules
# What Jenkins sends with files of a build: nothing of the page's own style or script works.
JENKINS = "sandbox allow-same-origin; default-src 'none'; img-src 'self'; style-src 'self';"

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if find_chromium() is None:
        pytest.skip(f"{NOT_RUN}: no chromium: `make browser` as root installs it")
    with open_chromium() as browser:
        yield browser


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Iterator[Show]:
    """Show a page: show(html, width=1280, **options of the context) -> the browser's page."""
    contexts = []

    def open_page(html: str, width: int = 1280, policy: str = "", **how: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **how)
        contexts.append(context)
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        headers = {"Content-Type": "text/html; charset=utf-8"}
        headers |= {"Content-Security-Policy": policy} if policy else {}
        page.route("**/*", lambda route: route.fulfill(body=html, headers=headers))
        page.goto("http://report.test/report.html")
        return page

    yield open_page
    for context in contexts:
        context.close()


@cache  # drawing the charts takes longer than showing the page
def recorded(name: str) -> str:
    return render(load_summary(RECORDINGS / name), RECORDINGS / name)


def changed(name: str, **fields: Any) -> str:
    record = load(RECORDINGS / name).model_copy(update=fields)
    return render(summarize_acceptance(record), RECORDINGS / name)


@cache
def nine_findings() -> str:
    record = load(RECORDINGS / "tcp-fallback")
    found = [
        Finding(
            code=f"FAB-SLOW-{number}",
            statement=f"All links of atlas0{number} are slow in both directions, 41.2 GB/s of 340",
            suspects=[f"atlas0{number}"],
            remedy="Check rate, errors and cable of the named node's fabric link. " * 4,
            reproduce="pytest 'probes/fabric/test_fabric.py::test_allreduce_runs_at_line_rate' "
            "--cluster ray://10.20.0.1:10001 --contract h100-ndr400",
            evidence=["evidence/allreduce.txt", "evidence/nccl-atlas07.log"],
        )
        for number in range(9)
    ]
    results = [
        one.model_copy(update={"findings": found * (one.criterion == "FABRIC")})
        for one in record.results
    ]
    return changed("tcp-fallback", results=results)


@cache
def all_nodes(m: Measurement, count: int) -> Measurement:
    """The measurement as it is; of the number of nodes, that of a cluster of so many."""
    if m.name != "nodes" or m.limit is None:
        return m
    return m.model_copy(
        update={"value": count, "limit": m.limit.model_copy(update={"low": count, "high": count})}
    )


def many_nodes(count: int) -> str:
    """A run of so many nodes; without series, which have their own limits."""
    record: RunRecord = load(RECORDINGS / "healthy-atlas")
    (hosts,), others = record.results_of("HOSTS"), record.results[1:]
    names = [f"atlas{number:04d}" for number in range(count)]
    gpus = next(m for m in hosts.measurements if m.name == "gpus")
    own = [gpus.model_copy(update={"subject": name}) for name in names]
    rest = [all_nodes(m, count) for m in hosts.measurements if m.name != "gpus"]
    results = [hosts.model_copy(update={"measurements": [*own, *rest]}), *others]
    results = [one.model_copy(update={"series": {}}) for one in results]
    cluster = {**record.cluster, "nodes": [{"name": name, "gpus": 8} for name in names]}
    return changed("healthy-atlas", results=results, cluster=cluster)


SHEETS = {
    "healthy": lambda: recorded("healthy-atlas"),
    "rehearsal": lambda: recorded("healthy-lab"),
    "tcp-fallback": lambda: recorded("tcp-fallback"),
    "waived": lambda: recorded("waived-fail"),
    "nothing ran": lambda: recorded("empty"),
    "nine findings": nine_findings,
    "64 nodes": lambda: many_nodes(64),
    "1,024 nodes": lambda: many_nodes(1024),
}


def count_sheets(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf))


@pytest.mark.parametrize("name", LOOKED_AT)
def test_it_says_and_asks_for_nothing(show: Show, name: str) -> None:
    page = show(recorded(name))
    assert page.said == []
    assert page.asked == ["http://report.test/report.html"]


@pytest.mark.parametrize("name", LOOKED_AT)
def test_it_reads_the_same_without_scripts(show: Show, name: str) -> None:
    with_script = show(recorded(name)).inner_text("main")
    without = show(recorded(name), java_script_enabled=False).inner_text("main")
    assert with_script == without


@pytest.mark.parametrize("paper", ["A4", "Letter"])
@pytest.mark.parametrize("name", SHEETS)
def test_page_1_is_one_sheet_of_paper(show: Show, name: str, paper: str) -> None:
    page = show(SHEETS[name]())
    page.evaluate("document.querySelectorAll('main > :not(.page1)').forEach(part => part.remove())")
    page.evaluate("document.querySelector('.page1').style.breakAfter = 'auto'")
    assert count_sheets(page.pdf(format=paper, prefer_css_page_size=False)) == 1


def test_a_healthy_run_prints_few_sheets(show: Show) -> None:
    assert count_sheets(show(recorded("healthy-lab")).pdf(prefer_css_page_size=True)) <= 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_axe_finds_nothing_serious(show: Show, name: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = show(recorded(name), color_scheme=scheme, bypass_csp=True)
    found = Axe().run(page).response["violations"]
    serious = {one["id"]: one["nodes"][0]["html"] for one in found if one["impact"] in SERIOUS}
    assert serious == {}


@pytest.mark.parametrize("width", [1280, 800, 390])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_nothing_scrolls_sideways(show: Show, name: str, width: int) -> None:
    page = show(recorded(name), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", LOOKED_AT)
def test_jenkins_shows_its_words(show: Show, name: str) -> None:
    """Jenkins forbids the page's own style: words must not run together."""
    page = show(recorded(name), policy=JENKINS)
    rows = page.locator("table.decide tbody tr")
    summary = load_summary(RECORDINGS / name)
    assert rows.count() == len(summary.rows)
    for index, row in enumerate(summary.worst_first):
        words = rows.nth(index).inner_text().split()
        assert row.verdict.value in words
