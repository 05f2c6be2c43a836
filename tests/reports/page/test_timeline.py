"""The list of probes by time."""

from __future__ import annotations

from reports.page.sections import SPAN_WIDTH, build_timeline
from reports.record import ProbeResult, RunRecord
from reports.run_folder.integrity import load
from tests.support.paths import RECORDINGS


def run(*results: ProbeResult) -> RunRecord:
    record = load(RECORDINGS / "healthy-lab")
    began = {"started": "2026-11-20T09:00:00.000Z", "results": list(results)}
    return record.model_copy(update=began)


def probe(name: str, minute: int, seconds: float | None = 60.0) -> ProbeResult:
    started = f"2026-11-20T09:{minute:02d}:00.000Z"
    return ProbeResult(probe=name, criterion="GANG", started=started, seconds=seconds)


def test_probes_are_listed_by_their_start() -> None:
    spans = build_timeline(run(probe("second", 1, 120), probe("first", 0)))
    assert [(one.result.probe, one.began, one.seconds) for one in spans] == [
        ("first", 0.0, 60.0),
        ("second", 60.0, 120.0),
    ]
    assert [(one.left, one.width) for one in spans] == [
        (0.0, SPAN_WIDTH / 3),
        (SPAN_WIDTH / 3, 2 * SPAN_WIDTH / 3),
    ]


def test_a_short_probe_is_seen() -> None:
    short = build_timeline(run(probe("long", 0, 3600), probe("short", 59, 0.0)))[-1]
    assert short.width == 2
    assert short.left + short.width <= SPAN_WIDTH


def test_a_run_without_times_has_no_timeline() -> None:
    lacking = [
        probe("a", 0).model_copy(update={"started": ""}),
        probe("b", 0).model_copy(update={"started": "yesterday"}),
        probe("c", 0).model_copy(update={"started": "2026-11-20"}),
        probe("d", 0, None),
        probe("e", 0).model_copy(update={"started": "2025-01-01T00:00:00.000Z"}),
    ]
    assert build_timeline(run(*lacking)) == []
    assert build_timeline(run()) == []
    assert build_timeline(run(probe("instant", 0, 0.0)))[0].width


def test_a_run_records_when_each_probe_started() -> None:
    record = load(RECORDINGS / "healthy-lab")
    spans = build_timeline(record)
    assert [one.result.criterion for one in spans] == [one.criterion for one in record.results]
    ends = [one.began + one.seconds for one in spans]
    assert all(later.began >= end for end, later in zip(ends, spans[1:], strict=False))
