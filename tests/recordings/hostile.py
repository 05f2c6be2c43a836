"""A run in which every word that a cluster can choose was chosen by someone who means harm."""

from __future__ import annotations

from reports.record import (
    Control,
    Criterion,
    Evidence,
    Finding,
    Limit,
    Measurement,
    ProbeResult,
    RunRecord,
)
from tests.recordings import atlas

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
            "gang": [1],
            "loss": {"reference": [[one, two]]},
            "pairs": {"nodes": HOSTILE, "gbs": [[None, 1.0], [2.0, None]]},
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
