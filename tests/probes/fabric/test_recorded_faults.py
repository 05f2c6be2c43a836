"""A recorded sound fabric with one thing changed in what its nodes told: that fails, and only that.

And with as much changed as a sound one may show: nothing fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from reports.measurement import Verdict
from tests.recordings.tape.play import play
from tests.recordings.tape.synthetic import TAPES
from tests.recordings.tape.tape import Answers

SOUND = TAPES / "lab-sound" / "allreduce_takes_the_fabric_at_line_rate.tape.gz"
# Calls of `sweep`: the all-reduce, the five others, FSDP's at full size, and three controls.
SWEEP, COLLECTIVES, FULL_SIZE, WRONG_ELEMENT, SLOW_COLLECTIVE, LATE_CALL = range(6)
BEFORE, AFTER, LAST = 0, 1, 2  # looks at links: before, after, and the control's
Change = Callable[[Answers], None]


def of(question: str, at: int, change: Callable[[Any], Any]) -> Change:
    """Change one answer, in place."""

    def changed(told: Any) -> Any:
        change(told)
        return told

    return lambda answers: answers.change(question, changed, at)


def all_of(*changes: Change) -> Change:
    def change(answers: Answers) -> None:
        for each in changes:
            each(answers)

    return change


def rows(told: Any) -> list[dict[str, Any]]:
    """The rows of all ranks of a sweep of all-reduce."""
    return [row for rank in told for row in rank["sweeps"]["all_reduce"]["rows"]]


def slower(factor: float) -> Change:
    """Each call of every collective took so many times as long."""
    calls = (SWEEP, COLLECTIVES, FULL_SIZE, SLOW_COLLECTIVE)
    return all_of(*(slower_call(factor, at) for at in calls))


def slower_call(factor: float, at: int, only: str = "", ranks: Sequence[int] = ()) -> Change:
    """Calls of one sweep took so many times as long: of one collective, or on some ranks."""

    def change(told: Any) -> None:
        for number, rank in enumerate(told):
            for name, sweep in rank["sweeps"].items():
                for row in sweep["rows"] if only in ("", name) else ():
                    share = factor if not ranks or number in ranks else 1.0
                    row["times"] = [share * seconds for seconds in row["times"]]
                    row["slowest"] *= share

    return of("run sweep", at, change)


def stall(seconds: float) -> Change:
    """One call of rank 2 took so much longer than the others of its size."""

    def change(told: Any) -> None:
        row = told[2]["sweeps"]["all_reduce"]["rows"][-6]
        row["times"][1] += seconds

    return of("run sweep", SWEEP, change)


def lossy(share: float) -> Change:
    """Node 1 sent this share of its packets again, to each peer."""

    def change(told: Any) -> None:
        for readings in told[1].sent.values():
            for reading in readings:
                reading["tcp"]["resent"] += round(share * reading["tcp"]["sent"])

    return of("run pair_sweep", 0, change)


def detour(share: float) -> Change:
    """This share of what node 1 sent to node 2 left over eth0."""

    def change(told: Any) -> None:
        first = told[1].sent[2][0]["bytes"]
        for reading in told[1].sent[2]:
            moved = round(share * (reading["bytes"]["fab0"] - first["fab0"]))
            reading["bytes"]["fab0"] -= moved
            reading["bytes"]["eth0"] += moved

    return of("run pair_sweep", 0, change)


def slow_node(share: float) -> Change:
    """Each link of node 1 had this share of its speed."""

    def change(told: Any) -> None:
        for rank, meetings in enumerate(told):
            for peer, (speed, wrong) in meetings.received.items():
                if 1 in (rank, peer):
                    meetings.received[peer] = share * speed, wrong

    return of("run pair_sweep", 0, change)


def ports(change: Callable[[dict[str, Any]], None]) -> Change:
    """What the ports of one node counted, from the look after the sweep on."""

    def at_one(told: Any) -> None:
        change(told[sorted(told)[0]]["ports"])

    return all_of(*(of("on_each_node read_all", at, at_one) for at in (AFTER, LAST)))


def errors(share: float) -> Change:
    def change(found: dict[str, Any]) -> None:
        found["fab0"]["errors"]["receives"] += round(share * 85_000)

    return ports(change)


def flaps(port: str) -> Change:
    return ports(lambda found: found[port].update(changes=found[port]["changes"] + 6))


def more_bytes(device: str, share: float) -> Change:
    """One node sent this share of the expected bytes more, over this device."""

    def change(told: Any) -> None:
        told[3][device] += round(share * 1_278_693_370)

    return of("run read_counters", 1, change)


def mtu(port: str) -> Change:
    def change(told: Any) -> None:
        told[3]["interfaces"][port]["mtu"] = 9000

    return all_of(*(of("run read_node_ports", at, change) for at in range(3)))


def setting(variable: str, value: str) -> Change:
    """A variable is set on every node."""

    def change(told: Any) -> None:
        for node in told.values():
            node["environment"][variable] = value
            node["effective"][variable] = {"value": value, "where": "environment"}

    return all_of(
        of("on_each_node read_settings", 0, change),
        of("on_each_node read_doctored_settings", 0, change),
    )


def meet_twice_more(answers: Answers) -> None:
    """Whom the first meeting shows as bad meets others, and the same again: nothing has changed."""
    kept = answers.kept["run pair_sweep"]
    kept[1:1] = [kept[0]] * 2


def groups_meet(answers: Answers) -> None:
    """Where all are slow and no pair is, groups are tried: all of them are as fast."""
    answers.add("run group_sweep", *[[(0.06, 0)] * 4] * 4)


def route_is_told(answers: Answers) -> None:
    """The sender of a detour is asked for its route."""
    interfaces = answers.kept["run read_interfaces"]
    interfaces.insert(1, interfaces[0])
    answers.add("run read_route", ["10.77.0.3 via 10.78.0.3 dev eth0 src 10.78.0.2"])


def _unread(told: list[dict[str, Any]]) -> None:
    told[3]["rdma"] = None


UNREAD = all_of(*(of("run read_counters", at, _unread) for at in range(4)))


def _gateway(seen: dict[str, str]) -> None:
    seen.update(dict.fromkeys(seen, "42:01:0a:00:00:01"))


def other_witness(told: Any) -> None:
    """gloo's connections were those of the management network."""
    for rank in told:
        rank["connections"] = [
            (own.replace("10.77", "10.78"), peer.replace("10.77", "10.78"), *rest)
            for own, peer, *rest in rank["connections"]
        ]


RED: dict[str, tuple[Change, set[str], set[str]]] = {
    # Slow for all, and every pair is as fast as it was.
    "all are slow together": (
        all_of(slower(2.0), groups_meet),
        *({"busbw"}, {"FAB-SLOW"}),
    ),
    "the all-gather is slow": (
        slower_call(2.0, FULL_SIZE, "all_gather"),
        *({"all_gather_against_all_reduce"}, {"FAB-SLOW-COLLECTIVE"}),
    ),
    "the reduce-scatter is slow": (
        slower_call(2.0, FULL_SIZE, "reduce_scatter"),
        *({"reduce_scatter_against_all_reduce"}, {"FAB-SLOW-COLLECTIVE"}),
    ),
    "one rank is sooner than the others": (
        slower_call(0.7, SWEEP, ranks=[3]),
        *({"rank_cv"}, set()),
    ),
    "a call stalls": (stall(0.9), {"longest_stall"}, {"FAB-STALLS"}),
    "a node loses packets": (all_of(lossy(0.01), meet_twice_more), {"lost_packets"}, {"FAB-LOSS"}),
    "a link's bytes leave over eth0": (
        all_of(detour(1.0), route_is_told),
        *({"links_on_other_networks"}, {"FAB-DETOUR"}),
    ),
    "a node's links are slow": (
        all_of(slow_node(0.5), meet_twice_more),
        {"slowest_pair"},
        {"FAB-SLOW-LINK"},
    ),
    "a port has errors": (errors(1e-3), {"interface_errors"}, {"FAB-LINK-ERRORS"}),
    "a link goes away": (flaps("fab0"), {"link_changes"}, {"FAB-LINK-FLAPS"}),
    "bytes are missing": (more_bytes("fab0", -0.1), {"fabric_share"}, set()),
    # Most of them took the agreed one, so that no node is named for it.
    "bytes take another road too": (more_bytes("eth0", 0.3), {"share_on_other_networks"}, set()),
    "a node has an MTU of its own": (mtu("fab0"), {"mtu_mismatches"}, {"FAB-MTU"}),
    "a setting cripples NCCL": (
        setting("NCCL_P2P_DISABLE", "1"),
        *({"harmful_settings"}, {"ENV-HARMFUL"}),
    ),
}


@pytest.mark.parametrize("name", RED)
def test_what_is_changed_fails_and_nothing_else(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    change, fails, codes = RED[name]
    played = play(SOUND, monkeypatch, change)
    assert played.failed == fails, played.result.problems()
    assert {one.code for one in played.result.findings} == codes
    assert [one.name for one in played.result.controls if not one.caught] == []


def test_witnesses_that_disagree_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    played = play(SOUND, monkeypatch, of("run sweep", SWEEP, other_witness))
    assert played.failed == set()
    assert played.result.verdict is Verdict.UNPROVEN
    (agreeing,) = [m for m in played.result.measurements if m.name == "agreeing_sources"]
    assert (agreeing.value, agreeing.verdict) == (None, Verdict.UNPROVEN)


def near(name: str, change: Change, *measures: str) -> Any:
    marks = pytest.mark.near_miss(*(f"FABRIC.{measure}" for measure in measures))
    return pytest.param(change, marks=marks, id=name)


NEAR = [
    near("a seventh slower", slower(1.15), "busbw"),
    near(
        "the all-gather is a little slower",
        slower_call(1.2, FULL_SIZE, "all_gather"),
        "all_gather_against_all_reduce",
    ),
    near(
        "the reduce-scatter is a little slower",
        slower_call(1.2, FULL_SIZE, "reduce_scatter"),
        "reduce_scatter_against_all_reduce",
    ),
    near("a rank is a little sooner", slower_call(0.93, SWEEP, ranks=[3]), "rank_cv"),
    near("a call that a busy core held up", stall(0.28), "longest_stall"),
    near("a few packets are lost", lossy(4e-4), "lost_packets", "wrong_elements"),
    near("some bytes of other jobs leave over eth0", detour(0.05), "links_on_other_networks"),
    near("a node is an eighth slower", slow_node(0.88), "slowest_pair"),
    near("an error in a hundred thousand", errors(1e-5), "interface_errors"),
    near("the management link goes away", flaps("eth0"), "link_changes"),
    near("packets were sent again", more_bytes("fab0", 0.08), "fabric_share"),
    near("other jobs use eth0", more_bytes("eth0", 0.08), "share_on_other_networks", "network"),
    near("another MTU on the management network", mtu("eth0"), "mtu_mismatches"),
    near("packets over the fabric's own MTU are not tried", mtu("eth0"), "pairs_below_mtu"),
    near(
        "a gateway answers for every address",
        of("run read_arp", 0, lambda told: [_gateway(seen) for seen in told] and None),
        "duplicate_addresses",
    ),
    near(
        "an RDMA port that counts nothing, beside the fabric",
        UNREAD,
        "network",
        "share_on_other_networks",
    ),
    near("a setting that does no harm", setting("NCCL_DEBUG", "WARN"), "harmful_settings"),
    near("both say the same", lambda _: None, "agreeing_sources"),
]


@pytest.mark.parametrize("change", NEAR)
def test_what_a_sound_fabric_may_show_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    played = play(SOUND, monkeypatch, change)
    assert played.failed == set()
    assert played.result.findings == []
    assert played.result.verdict in (Verdict.PASS, Verdict.MARGINAL), played.result.problems()


def as_sound(question: str, control: int, sound: int) -> Change:
    """What a control asked is answered as it was without its fault."""

    def change(answers: Answers) -> None:
        answers.kept[question][control] = answers.kept[question][sound]

    return change


BLIND: dict[str, tuple[Change, set[str]]] = {
    "the changed element was not seen": (
        of("run sweep", WRONG_ELEMENT, lambda told: [_clean(rank) for rank in told]),
        {"wrong element"},
    ),
    "the closed door was open": (as_sound("run check_tcp", 1, 0), {"closed door"}),
    "the large packets passed": (as_sound("run check_udp", 3, 2), {"large packets"}),
    "the late call was not late": (
        of("run sweep", LATE_CALL, lambda told: [_punctual(rank) for rank in told]),
        {"late call"},
    ),
    "the collectives were not slow": (
        as_sound("run sweep", SLOW_COLLECTIVE, COLLECTIVES),
        {"slow collective"},
    ),
    "nothing was counted on the doctored ports": (
        as_sound("on_each_node read_all", LAST, AFTER),
        {"doctored counters"},
    ),
    "the variable was not set": (
        as_sound("on_each_node read_doctored_settings", 0, 0),
        set(),
    ),
}


def _clean(rank: dict[str, Any]) -> None:
    for sweep in rank["sweeps"].values():
        for row in sweep["rows"]:
            row["wrong"], row["first_wrong"] = 0, None


def _punctual(rank: dict[str, Any]) -> None:
    for row in rank["sweeps"]["all_reduce"]["rows"]:
        row["times"] = [min(row["times"])] * len(row["times"])


@pytest.mark.parametrize("name", BLIND)
def test_a_control_that_sees_nothing_takes_the_pass_away(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, missed = BLIND[name]
    result = play(SOUND, monkeypatch, change).result
    assert {one.name for one in result.controls if not one.caught} == missed
    assert result.verdict is (Verdict.UNPROVEN if missed else Verdict.PASS)
