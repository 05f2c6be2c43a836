"""A run in which every word that a cluster can choose was chosen by someone who means harm."""

from __future__ import annotations

from typing import Any

from reports.measurement import Limit, Measurement
from reports.record import Control, Criterion, Evidence, Finding, ProbeResult, RepairStep, RunRecord
from tests.recordings.generate import h100_cluster as atlas

HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b[32m\u2713 PASS\x1b[0m\nACCEPTED: 6 of 6 required criteria proven   exit 0",
    "=cmd|' /C calc'!A0",
    "n01\u202e\u200bdrowssap",
    'a"b\\c\nd{}',
    "\x1b]0;owned\x07\x9b31m",
    "@SUM(1+1)",
    "{{ 7*7 }}{% raw %}",
]


def contested() -> dict[str, Any]:
    """A gang series that can be drawn, all of its words chosen by someone who means harm."""
    return {
        "title": HOSTILE[0],
        "unit": HOSTILE[0],
        "capacity": dict.fromkeys(HOSTILE, 2),
        "samples": [
            {"t": 0.5, "nodes": {}, "waits": dict.fromkeys(HOSTILE, 2)},
            {"t": 1, "nodes": {word: {word: 2} for word in HOSTILE}, "waits": {}},
        ],
        "end": 3,
        "taken": 40,
        "marks": [[at / 3, word] for at, word in enumerate(HOSTILE)],
        "half": [[0.5, 1, word, 1, 2] for word in HOSTILE],
        "control": {"samples": [{"t": 0, "nodes": {HOSTILE[0]: {HOSTILE[1]: 1}}}], "end": 1},
    }


def unreadable() -> dict[str, Any]:
    """Gang series that nobody should draw, by what is wrong with them."""
    good = contested()
    first = {"t": 0, "nodes": {"n": {"A": 1}}, "waits": {}}
    nan = float("nan")
    return {
        "one that is too long": good | {"samples": [first] * 200_000},
        "a time that is no number": good | {"samples": [first | {"t": nan}]},
        "an endless end": good | {"end": float("inf")},
        "times that go back": good | {"samples": [first | {"t": 2}, first]},
        "times too far apart": good | {"samples": [first | {"t": -1.7e308}], "end": 1.7e308},
        "a digit string": good | {"samples": [first | {"t": "1"}]},
        "nodes as a list": good | {"samples": [first | {"nodes": [1]}]},
        "fewer than none": good | {"samples": [first | {"nodes": {"n": {"A": -1}}}]},
        "a truth": good | {"samples": [first | {"waits": {"A": True}}]},
        "a size too large": good | {"capacity": {"n": 10**400}},
        "nobody looked": good | {"taken": 0},
        "no sample": good | {"samples": []},
        "no node": good | {"capacity": {}, "samples": [first | {"nodes": {}}], "control": None},
        "a half too short": good | {"half": [[1, 2]]},
        "a half that ends first": good | {"half": [[2, 1, "A", 1, 2]]},
        "a mark without a time": good | {"marks": [[nan, "x"]]},
        "a mark without words": good | {"marks": [[1, ["x"]]]},
        "a broken control": good | {"control": [first]},
    }


def hostile() -> RunRecord:
    """Every field that a cluster can fill, filled by someone who means harm."""
    one, two, three, four, five, six, seven, eight = HOSTILE
    result = ProbeResult(
        probe=one,
        criterion="FABRIC",
        claim=two,
        state="error",
        error=six,
        measurements=[
            Measurement(
                name=three,
                value=two,
                subject=four,
                unit=one,
                note=six,
                limit=Limit(one_of=[one], because=two),
            ),
            Measurement(
                name=seven,
                value=1.0,
                subject=five,
                unit=three,
                limit=Limit(low=2, because=three, unit=eight),
            ),
        ],
        findings=[
            Finding(
                code=one,
                statement=two,
                remedy=three,
                reproduce=six,
                suspects=HOSTILE,
                order=f"{two} {{node}} {{folder}}",
                steps=[RepairStep(command=f"ls {{folder}} {three}", means=four, on=five)],
                mended=six,
                names={"node": one, "folder": two, one: three},
                evidence=["javascript:alert(1)", "../../etc/passwd", "//evil.example/x"],
            )
        ],
        controls=[Control(name=one, fault=two, saw=three, caught=False)],
        evidence=[
            Evidence(kind=one, path="javascript:alert(1)", sha256=one, caption=two, bytes=1),
            Evidence(kind="log", path="/etc/hostname", sha256="", caption=three, bytes=1),
            Evidence(kind="log", path="../../museum.py", sha256="", caption=four, bytes=1),
            Evidence(kind="log", path="evidence/x.log", sha256="00", caption=five, bytes=9),
        ],
        series={
            "busbw": {"sizes": one},
            "gang": contested(),
            "loss": {"reference": [[one, two]]},
            "pairs": {"nodes": HOSTILE, "cells": [[0, 1, 1.0], [1, 0, 2.0]]},
            "efficiency": {"nodes": [1, 2], "efficiency": [1, None]},
            "terms": {"nodes": [1], "terms": {one: [1.0], two: [2.0]}},
        },
        coverage=eight,
        reproduce=six,
    )
    base = atlas.record()
    rows = [Criterion(id="FABRIC", title=two, how=one), Criterion(id=one, title=six, how=three)]
    return base.model_copy(
        update={
            "id": two,
            "rehearsal": one,
            "command": three,
            "tier": four,
            "results": [result],
            "cluster": {
                "name": one,
                two: [six, {five: one}],
                "nodes": [{"name": h} for h in HOSTILE],
            },
            "versions": {one: two},
            "contract": base.contract.model_copy(
                update={"criteria": rows, "name": one, "title": two}
            ),
        }
    )
