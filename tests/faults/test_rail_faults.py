"""Bad rails, nodes that are slow inside and slow uplinks are named; sound ones and near misses not.

`make soak CRITERION=rails` runs all of it, in a lab of 4 nodes with 4 rails and one of 8 nodes on 2
leaves.  What these labs answered is on tapes, which `make test` plays.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reports.measurement import Verdict
from reports.record import Finding
from tests.lab.faults import clear, inject
from tests.lab.lab import Lab
from tests.support.paths import REPO
from tests.support.trial import acceptance, agreed, lab_of

pytestmark = pytest.mark.soak(criterion="rails")

FABRIC = "probes/fabric/test_fabric.py"
TIMES = range(3)
FOUR_RAILS = REPO / "tests" / "recordings" / "tapes" / "lab-rails.toml"
EIGHT_NODES = {
    "line_rate_gbps = 1.0": "line_rate_gbps = 0.4",
    "at_least = 0.090\nmarginal = 0.100": "at_least = 0.036\nmarginal = 0.040",
}
# name: (the lab's fault, finding, suspects, what its sentence says)
FAULTS: dict[str, tuple[list[str], str, list[str], str]] = {
    "slow-port": (
        ["slow-link", "2:fab1", "60mbit"],
        *("FAB-SLOW-LINK", ["node2", "fab1 on node2"], "every link of fab1 on node2 is slow"),
    ),
    "lossy-port": (
        ["lose-packets", "1:fab2", "sends", "3"],
        *("FAB-LOSS", ["node1", "fab2 on node1"], "of the packets that it sends"),
    ),
    "dead-port": (
        ["cut-node", "3:fab3"],
        *("FAB-LINK-DOWN", ["node3", "fab3 on node3"], "fab3 is down"),
    ),
    "swapped-rails": (
        ["swap-rails", "2", "fab1", "fab2"],
        "FAB-RAILS-SWAPPED",
        ["node2", "fab1 on node2", "fab2 on node2"],
        "fab1 is plugged into the switch of fab2",
    ),
}
NEAR_MISSES = {
    "a-port-a-little-slow": ["slow-link", "2:fab1", "185mbit"],
    "a-port-that-loses-little": ["lose-packets", "1:fab2", "sends", "0.01"],
    "a-node-a-little-slow-inside": ["slow-inside", "1", "370mbit"],
}


@pytest.fixture(scope="module")
def rails() -> Iterator[Lab]:
    with lab_of(4, "rails", rails=4) as lab:
        yield lab


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Heal the lab after each test."""
    yield
    for name in ("rails", "leaves"):
        if name in request.fixturenames:
            clear(request.getfixturevalue(name))


def fabric(lab: Lab, name: str) -> tuple[Verdict, list[Finding], str]:
    """FABRIC's verdict, all findings, and what the run printed at its end."""
    contract = str(FOUR_RAILS) if lab.size.rails > 1 else agreed(lab, EIGHT_NODES)
    record, trial = acceptance(lab, name, FABRIC, contract=contract)
    found = [one for result in record.results for one in result.findings]
    return record.verdict("FABRIC"), found, trial.log.read_text()[-3000:]


def is_named(lab: Lab, name: str, case: tuple[list[str], str, list[str], str]) -> None:
    """The fault is named by one finding, with its node and rail."""
    fault, code, suspects, said = case
    inject(lab, *fault)
    verdict, found, _ = fabric(lab, name)
    assert verdict is Verdict.FAIL
    told = [(one.code, one.suspects, one.statement) for one in found]
    assert [one[:2] for one in told] == [(code, suspects)], told
    assert said in told[0][2]


@pytest.mark.parametrize("time", TIMES)
def test_sound_rails_are_not_accused(rails: Lab, time: int) -> None:
    verdict, found, log = fabric(rails, f"rails-sound-{time}")
    assert found == [], log
    assert verdict in (Verdict.PASS, Verdict.MARGINAL)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_rail_is_named_with_its_node(rails: Lab, name: str, time: int) -> None:
    is_named(rails, f"rails-{name}-{time}", FAULTS[name])


def test_a_node_that_is_slow_inside_is_named(rails: Lab) -> None:
    said = "all-reduce inside node1: "
    case = ["slow-inside", "1", "150mbit"], "FAB-SLOW-INSIDE", ["node1"], said
    is_named(rails, "rails-slow-inside", case)


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_near_miss_accuses_nobody(rails: Lab, name: str) -> None:
    inject(rails, *NEAR_MISSES[name])
    verdict, found, log = fabric(rails, f"rails-{name}")
    assert found == [], log
    assert verdict in (Verdict.PASS, Verdict.MARGINAL)


@pytest.fixture(scope="module")
def leaves() -> Iterator[Lab]:
    # Two cores carry eight nodes at this rate with room to spare.
    with lab_of(8, "leaves", leaves=2, fabric="400mbit") as lab:
        yield lab


NODES = [f"node{at}" for at in range(8)]


def test_leaves_behind_sound_uplinks_are_not_accused(leaves: Lab) -> None:
    verdict, found, log = fabric(leaves, "leaves-sound")
    assert found == [], log
    assert verdict in (Verdict.PASS, Verdict.MARGINAL)


def test_a_slow_uplink_is_named_and_no_link_of_a_node(leaves: Lab) -> None:
    fault = ["slow-uplink", "1", "120mbit"]
    said = "links between groups of nodes are slow"
    is_named(leaves, "leaves-slow-uplink", (fault, "FAB-SLOW-UPLINK", NODES, said))


def test_an_uplink_that_is_too_narrow_for_all_nodes_at_once_is_named(leaves: Lab) -> None:
    fault = ["slow-uplink", "1", "800mbit"]  # of four nodes with 400 Mbit/s each
    said = "pairs of nodes are slow when they send at once"
    is_named(leaves, "leaves-crowded-uplink", (fault, "FAB-SLOW-UPLINK", NODES, said))
