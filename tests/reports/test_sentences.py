"""How limits, values, controls and comparisons read, word by word."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from reports.measurement import Limit, Measurement
from reports.record import Control

WHY = "agreed"


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"low": 340, "unit": "GB/s"}, ">= 340 GB/s"),
        ({"high": 0}, "<= 0"),
        ({"low": 2, "high": 4, "unit": "s"}, "2 to 4 s"),
        ({"low": 8, "high": 8, "unit": "nodes"}, "exactly 8 nodes"),
        ({"one_of": ["fab0"]}, "fab0"),
        ({"one_of": ["fab0", "ib0"]}, "one of fab0, ib0"),
        ({}, "no bound"),
    ],
)
def test_a_limit_reads_as_people_say_it(bounds: dict[str, Any], text: str) -> None:
    assert str(Limit(because=WHY, **bounds)) == text


def test_a_reason_has_three_letters_at_least() -> None:
    assert Limit(high=0, because="why").because == "why"
    with pytest.raises(ValidationError):
        Limit(high=0, because="no")


LIMIT = Limit(high=0.5, unit="s", because=WHY)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"value": 0.25}, "longest stall on n1: 0.250 s, expected <= 0.500 s (agreed)"),
        (
            {"value": 0.25, "spread": 0.01},
            "longest stall on n1: 0.250 s +/- 0.010, expected <= 0.500 s (agreed)",
        ),
        (
            {"value": 0.25, "samples": 7},
            "longest stall on n1: 0.250 s (n=7), expected <= 0.500 s (agreed)",
        ),
        ({}, "longest stall on n1: not measured, expected <= 0.500 s (agreed)"),
        (
            {"note": "it died"},
            "longest stall on n1: not measured (it died), expected <= 0.500 s (agreed)",
        ),
        ({"value": 0.25, "judged": False}, "longest stall on n1: 0.250 s"),
        (
            {"limit": None, "note": "it died"},
            "longest stall on n1: not measured (it died), expected a value",
        ),
        (
            {"value": 0.25, "limit": None},
            "longest stall on n1: 0.250 s, expected a limit (the contract has none for it)",
        ),
        (
            {"value": 0.25, "limit": None, "note": "nobody said how fast"},
            "longest stall on n1: 0.250 s, expected a limit (nobody said how fast)",
        ),
        (
            {"value": 0.25, "limit": LIMIT.model_copy(update={"source": "derived"})},
            "longest stall on n1: 0.250 s, expected <= 0.500 s, derived (agreed)",
        ),
    ],
)
def test_a_measurement_is_one_sentence(fields: dict[str, Any], text: str) -> None:
    given = {"name": "longest_stall", "unit": "s", "subject": "n1", "limit": LIMIT, **fields}
    assert Measurement(**given).sentence() == text


@pytest.mark.parametrize(
    ("caught", "saw", "text"),
    [
        (True, "it", "control caught: a fault; saw it"),
        (True, "", "control caught: a fault"),
        (False, "", "control was NOT caught: a fault. This result cannot be trusted"),
        (
            *(False, "nothing"),
            "control was NOT caught: a fault. This result cannot be trusted (saw nothing)",
        ),
        (
            *(None, "no room"),
            "control was not run: a fault. This result cannot be trusted (saw no room)",
        ),
    ],
)
def test_a_control_is_one_sentence(caught: bool | None, saw: str, text: str) -> None:
    assert Control(name="c", fault="a fault", caught=caught, saw=saw).sentence() == text
