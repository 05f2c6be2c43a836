"""Lists the probes in the order they ran, with a bar for when each ran."""

from __future__ import annotations

from dataclasses import dataclass

from reports.measurement import Verdict
from reports.record import ProbeResult, RunRecord
from reports.run_folder.store import parse_time

WIDTH, HEIGHT = 360, 14  # px: a column of the table
LEAST = 2  # px of a bar: a probe of a second is seen in a run of an hour


@dataclass(frozen=True)
class Span:
    """When one probe ran: seconds after the start of the run, and how long."""

    result: ProbeResult
    verdict: Verdict
    began: float
    seconds: float
    bar: str


def build_timeline(record: RunRecord) -> list[Span]:
    """List the probes that ran, by their start; a time that is no time is left out."""
    spans = []
    for result in record.results:
        try:
            began = (parse_time(result.started) - parse_time(record.started)).total_seconds()
        except (ValueError, TypeError):
            continue
        if result.seconds is not None and began >= 0:
            spans.append((began, result.seconds, result))
    total = max((began + seconds for began, seconds, _ in spans), default=0.0)
    return [
        Span(result, result.verdict, began, seconds, _draw_bar(began, seconds, total, result))
        for began, seconds, result in sorted(spans, key=lambda span: span[0])
    ]


def _draw_bar(began: float, seconds: float, total: float, result: ProbeResult) -> str:
    scale = WIDTH / total if total else 0.0
    width = max(seconds * scale, LEAST)
    return (
        f'<svg class="bar" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'aria-hidden="true"><rect class="all" y="6" width="{WIDTH}" height="2"/>'
        f'<rect class="{result.verdict.value}" x="{min(began * scale, WIDTH - width):.1f}" y="2" '
        f'width="{width:.1f}" height="10"/></svg>'
    )
