"""How limits, values, controls and comparisons read, word by word."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from reports.measurement import Limit, Measurement
from reports.numbers import quantity, size_text
from reports.record import Control, Criterion

WHY = "agreed"


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"low": 340, "unit": "GB/s"}, ">= 340 GB/s"),
        ({"high": 0}, "0"),
        ({"high": 0, "unit": "nodes"}, "0 nodes"),
        ({"high": 0, "unit": "ratio"}, "0 %"),
        ({"high": 1, "unit": "processes"}, "<= 1 process"),
        ({"low": 0.55, "unit": "ratio"}, ">= 55 %"),
        ({"low": 0.0023, "unit": "GB/s"}, ">= 2.3 MB/s"),
        ({"high": 0.5, "unit": "s"}, "<= 0.5 s"),
        ({"low": 2, "high": 4, "unit": "s"}, "2 to 4 s"),
        ({"low": 8, "high": 8, "unit": "nodes"}, "8 nodes"),
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


def test_what_a_template_names_beyond_its_words_stays_text() -> None:
    """A record from elsewhere may have any template."""
    m = Measurement(name="stall", subject="n1", value=2)
    assert m.observed("{subject} of {this} is {value}", "2 s") == "n1 of {this} is 2 s"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"value": 0.25}, "longest stall on n1: 0.25 s. Expected: <= 0.5 s (agreed)"),
        (
            {"value": 0.25, "spread": 0.01},
            "longest stall on n1: 0.25 +/- 0.01 s. Expected: <= 0.5 s (agreed)",
        ),
        (
            {"value": 0.25, "samples": 7},
            "longest stall on n1: 0.25 s (n=7). Expected: <= 0.5 s (agreed)",
        ),
        ({}, "longest stall on n1: not measured. Expected: <= 0.5 s (agreed)"),
        (
            {"note": "it died"},
            "longest stall on n1: not measured (it died). Expected: <= 0.5 s (agreed)",
        ),
        ({"value": 0.25, "judged": False}, "longest stall on n1: 0.25 s"),
        (
            {"limit": None, "note": "it died"},
            "longest stall on n1: not measured (it died). Expected: a value",
        ),
        (
            {"value": 0.25, "limit": None},
            "longest stall on n1: 0.25 s. It is UNPROVEN without a limit (none was agreed)",
        ),
        (
            {"value": 0.25, "limit": None, "note": "nobody said how fast"},
            "longest stall on n1: 0.25 s. It is UNPROVEN without a limit (nobody said how fast)",
        ),
        (
            {"value": 0.25, "limit": LIMIT.model_copy(update={"source": "derived"})},
            "longest stall on n1: 0.25 s. Expected: <= 0.5 s, derived (agreed)",
        ),
    ],
)
def test_a_measurement_is_one_sentence(fields: dict[str, Any], text: str) -> None:
    given = {"name": "longest_stall", "unit": "s", "subject": "n1", "limit": LIMIT, **fields}
    assert Measurement(**given).sentence() == text


@pytest.mark.parametrize(
    ("template", "fields", "start"),
    [
        ("a call stalled for {value}{on}", {}, "a call stalled for 0.7 +/- 0.1 s on n1 (n=7)"),
        ("{subject} stalled for {value}", {}, "n1 stalled for 0.7 +/- 0.1 s (n=7)"),
        ("a call stalled for {value}", {}, "a call stalled for 0.7 +/- 0.1 s on n1 (n=7)"),
        ("it stalled: {value}", {"subject": "cluster"}, "it stalled: 0.7 +/- 0.1 s (n=7)"),
        ("{work} ({value})", {}, "longest stall on n1: 0.7 +/- 0.1 s (n=7)"),
        ("it stalled: {value}", {"value": None, "note": "it died"},
         "longest stall on n1: not measured (it died)"),
    ],
)  # fmt: skip
def test_a_criterion_has_its_own_words_for_it(
    template: str, fields: dict[str, Any], start: str
) -> None:
    usual = {"value": 0.7, "spread": 0.1, "samples": 7, "unit": "s", "subject": "n1"}
    one = Measurement(name="longest_stall", limit=LIMIT, **{**usual, **fields})
    assert one.sentence(template) == f"{start}. Expected: <= 0.5 s (agreed)"


def test_only_a_failure_has_the_sentence_of_a_failure() -> None:
    row = Criterion(id="C", title="c", how="", headlines={"pace": "it runs at {value}"},
                    failing={"stall": "it stalled for {value}", "pace": "too slow"})  # fmt: skip
    texts = [
        row.sentence(Measurement(name=name, value=value, unit="s", limit=LIMIT)).split(".")[0]
        for name, value in (("stall", 3), ("stall", 0), ("pace", 3), ("pace", 0))
    ]
    assert texts == ["it stalled for 3 s", "stall: 0 s", "it runs at 3 s", "it runs at 0 s"]


SO = "so the test proves nothing"
MISSED = "the test did not find the planted fault"
UNPLANTED = "the fault was not planted, so the test proves nothing"


@pytest.mark.parametrize(
    ("caught", "saw", "text"),
    [
        (True, "it", "the test found the planted fault: a fault. Observed with the fault: it"),
        (
            True,
            "x: 8. Expected: 0 (agreed); y: 1. Expected: 2",
            "the test found the planted fault: a fault. Observed with the fault: x: 8. Expected "
            "without the fault: 0 (agreed); y: 1. Expected without the fault: 2",
        ),
        (True, "", "the test found the planted fault: a fault"),
        (False, "", f"{MISSED}, {SO}. Fault: a fault"),
        (False, "nothing", f"{MISSED}, {SO}. Fault: a fault. Observed with the fault: nothing"),
        (None, "no room", f"{UNPLANTED}. Fault: a fault. Reason: no room"),
    ],
)
def test_a_control_is_one_sentence(caught: bool | None, saw: str, text: str) -> None:
    assert Control(name="c", fault="a fault", caught=caught, saw=saw).sentence() == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.827, "ratio", "82.7 %"),
        (0.00005, "ratio", "0.005 %"),
        (1.0, "ratio", "100 %"),
        (0, "ratio", "0 %"),
        (11.62, "s", "11.6 s"),
        (0.0023, "s", "2.3 ms"),
        (0.0, "s", "0 s"),
        (0.0023, "GB/s", "2.3 MB/s"),
        (2.3e-7, "GB/s", "0.23 kB/s"),
        (371.25, "GB/s", "371 GB/s"),
        (2.5e9, "bytes/s", "2.5 GB/s"),
        (4.2e6, "bytes/s", "4.2 MB/s"),
        (1, "GPUs", "1 GPU"),
        (-1, "steps", "-1 step"),
        (4, "step", "step 4"),
        (1.0, "addresses", "1 address"),
        (1, "losses", "1 loss"),
        (2, "nodes", "2 nodes"),
        (1, "s", "1 s"),
        (1, "us", "1 us"),
        (1, "tokens/s per rank", "1 tokens/s per rank"),
        (1.5, "", "1.5"),
    ],
)
def test_a_number_reads_as_people_say_it(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_a_spread_has_the_unit_of_its_value() -> None:
    assert quantity(0.827, "ratio", spread=0.0184) == "82.7 +/- 1.8 %"
    assert quantity(0.0023, "GB/s", spread=0.0001) == "2.3 +/- 0.1 MB/s"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (8, "8 bytes"),
        (1025, "1025 bytes"),
        (2048, "2 KiB"),
        (1536 << 10, "1536 KiB"),
        (64 << 20, "64 MiB"),
        (8 << 30, "8 GiB"),
    ],
)
def test_sizes_have_the_unit_in_which_they_are_whole(size: int, text: str) -> None:
    assert size_text(size) == text
