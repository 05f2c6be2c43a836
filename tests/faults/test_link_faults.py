"""Links that lose, flap, take a detour or share an address are named; near misses are not.

One is in `make test`; `make soak CRITERION=links` has every case five times.
"""

from __future__ import annotations

import pytest

from reports.measurement import Verdict
from reports.record import Finding
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.support.trial import acceptance

FABRIC = "probes/fabric/test_fabric.py"
TIMES = 5  # of each case in a soak: a fault that comes and goes must be seen each time
# name: (the lab's fault, finding, suspects, what its sentence says)
FAULTS: dict[str, tuple[list[str], str, list[str], str]] = {
    "loss-sends": (
        ["lose-packets", "1", "sends", "3"],
        *("FAB-LOSS", ["node1"], "of the packets that it sends"),
    ),
    "flaps": (["flap-link", "2", "1", "6"], "FAB-LINK-FLAPS", ["node2"], "fab0 of node2 changed"),
    "same-address": (
        ["duplicate-address", "1", "2"],
        *("FAB-DUPLICATE-ADDRESS", ["node1", "node2"], "10.77.0.2"),
    ),
    "detour": (["detour", "1", "2"], "FAB-DETOUR", ["node1"], "leaves over eth0. Expected: fab0"),
    "loss-receives": (
        ["lose-packets", "2", "receives", "3"],
        *("FAB-LOSS", ["node2"], "of the packets that it receives"),
    ),
    "heavy-loss-sends": (
        ["lose-packets", "2", "sends", "10"],
        *("FAB-LOSS", ["node2"], "of the packets that it sends"),
    ),
    "heavy-loss-receives": (
        ["lose-packets", "1", "receives", "10"],
        *("FAB-LOSS", ["node1"], "of the packets that it receives"),
    ),
}
IN_MAKE_TEST = ("same-address",)
NEAR_MISSES = {
    "little-loss-sends": ["lose-packets", "1", "sends", "0.01"],
    "little-loss-receives": ["lose-packets", "2", "receives", "0.01"],
    "blinked": ["blink-link", "2"],  # before the run, and over
    "a-little-slow": ["slow-link", "1", "950mbit"],
}
# What links are judged by: a busy core may make the bandwidth marginal, and none of these.
LINKS = (
    "lost_packets",
    "link_changes",
    "interface_errors",
    "longest_stall",
    "links_on_other_networks",
)


def findings(lab: Lab, name: str, fault: list[str]) -> tuple[Verdict, list[Finding]]:
    """The verdict on FABRIC and all that is found with this fault in the lab."""
    inject(lab, *fault)
    record, trial = acceptance(lab, name, FABRIC)
    found = [one for result in record.results for one in result.findings]
    assert record.results, trial.log.read_text()[-3000:]
    return record.verdict("FABRIC"), found


def is_named(lab: Lab, name: str, run: str) -> None:
    """The fault is named by one finding, with its node and direction."""
    fault, code, suspects, said = FAULTS[name]
    verdict, found = findings(lab, run, fault)
    assert verdict is Verdict.FAIL
    told = [(one.code, one.suspects, one.statement) for one in found]
    assert [one[:2] for one in told] == [(code, suspects)], told
    assert said in told[0][2]


@pytest.mark.parametrize("name", IN_MAKE_TEST)
def test_a_bad_link_is_named(lab: Lab, name: str) -> None:
    is_named(lab, name, name)


@pytest.mark.soak(criterion="links")
@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_link_is_named_each_time(lab: Lab, name: str, time: int) -> None:
    is_named(lab, name, f"{name}-{time}")


@pytest.mark.soak(criterion="links")
@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_near_miss_accuses_nobody(lab: Lab, name: str, time: int) -> None:
    inject(lab, *NEAR_MISSES[name])
    record, trial = acceptance(lab, f"{name}-{time}", FABRIC)
    found = [one for result in record.results for one in result.findings]
    assert found == [], trial.log.read_text()[-3000:]
    assert record.verdict("FABRIC") in (Verdict.PASS, Verdict.MARGINAL)
    judged = {
        (one.name, one.verdict)
        for result in record.results
        for one in result.measurements
        if one.name in LINKS
    }
    assert judged == {(measure, Verdict.PASS) for measure in LINKS}
