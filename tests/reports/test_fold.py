"""Which runs are read: schemas, and what is made of their events."""

from __future__ import annotations

from typing import Any

import pytest

from reports.record import SCHEMA
from reports.run_folder.event_log import UnreadableRun
from reports.run_folder.fold import fold_events


def event_line(kind: str, probe: str = "", **data: Any) -> dict[str, Any]:
    start = {
        "id": "r",
        "started": "2026-11-20T22:17:03.120Z",
        "command": "pytest probes",
        "tier": "quick",
        "schema_version": SCHEMA,
        "contract": {"name": "c", "criteria": []},
    }
    return {
        "event": kind,
        "probe": probe,
        "data": {**(start if kind == "run_started" else {}), **data},
    }


@pytest.mark.parametrize(
    ("schema", "reads"),
    [
        (SCHEMA, True),
        ("1.0", False),
        ("1.4", False),
        ("1.6", False),
        ("1.999", False),
        ("2.0", False),
        ("1", False),
        ("1.3.1", False),
        ("1.x", False),
        ("1.\u0663", False),  # a digit of another script
        ("1.000003", False),
    ],
)
def test_schemas_that_are_read_and_those_that_are_not(schema: str, reads: bool) -> None:
    start = event_line("run_started", schema_version=schema, versions={"seatrial": "9.9"})
    if reads:
        assert fold_events([start]).schema_version == schema
        return
    with pytest.raises(
        UnreadableRun, match=r"written by seatrial 9\.9. This version reads only 1\.5:"
    ):
        fold_events([start])


def test_who_wrote_a_newer_run_is_told_where_that_is_known() -> None:
    start = event_line("run_started", schema_version="2.0", versions="none")
    with pytest.raises(UnreadableRun, match=r"written by seatrial .unknown version."):
        fold_events([start])


def test_a_measurement_keeps_the_limit_that_it_had() -> None:
    limit = {"low": 1.0, "because": "agreed for this test"}
    record = fold_events(
        [
            event_line("run_started"),
            event_line("probe_started", "p", criterion="FABRIC"),
            event_line("measurement", "p", name="busbw", value=3.0, limit=limit),
            event_line("measurement", "p", name="busbw", value=3.0, limit=None),
            event_line("measurement", "p", name="busbw", value=3.0, limit=limit),
        ]
    )
    lows = [one.limit.low if one.limit else None for one in record.results[0].measurements]
    assert lows == [1.0, None, 1.0]
