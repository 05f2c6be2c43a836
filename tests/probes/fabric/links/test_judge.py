"""Links that lose, go away, stall or take a detour: who is named, in which direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from probes.check.declarations import Circumstances
from probes.check.owed import owed_by
from probes.check.recorder import Recorder
from probes.contract.contract import ClusterTerms, parse
from probes.fabric.links import (
    LinkGrowth,
    PortErrors,
    judge_loss,
    judge_networks,
    judge_ports,
    judge_stalls,
    links_off,
    unexplained,
)
from probes.fabric.node_pairs import PairSearch, run_pair_search
from probes.fabric.sweep import SweepResult
from reports.measurement import Limit, Verdict
from reports.numbers import percent
from reports.record import Finding, ProbeResult
from scaling.collectives.node_groups import RankMeetings
from tests.probes.fabric.conftest import LAB
from tests.support.controls import with_limit, write_control
from tests.support.rank_parts import Each, rounds_of
from tests.support.sweep_results import sweep_result

MAX_LOST = 1e-3
Link = tuple[str, str]


class Gang:
    """Stands in for one, a rank a node: pairs that meet lose what is planted, over which device."""

    def __init__(self, nodes: int, lost: Callable[[str, str], float | None], **more: Any) -> None:
        self.places = [SimpleNamespace(node=f"n{number}") for number in range(nodes)]
        self.names = {place.node: place.node for place in self.places}
        self.lost, self.size = lost, nodes
        self.device: Mapping[Link, str] = more.get("device", {})
        self.speed: Mapping[Link, float] = more.get("speed", {})
        self.met: list[Link] = []

    def run(self, function: Any, *_: Any, each: Each, **__: Any) -> list[RankMeetings]:
        found = [RankMeetings() for _ in self.places]
        for pairs in rounds_of(each):
            for pair in pairs:
                for a, b in (pair, pair[::-1]):
                    link = f"n{a}", f"n{b}"
                    self.met.append(link)
                    found[b].received[a] = self.speed.get(link, 0.1), 0
                    found[a].sent[b] = self.readings(link)
        return found

    def readings(self, link: Link) -> list[dict[str, Any]]:
        """Before and after six tries of 100,000 packets each."""
        share, device = self.lost(*link), self.device.get(link, "fab0")
        resent = [None if share is None else round(share * 1e5) * tried for tried in range(7)]
        return [
            {
                "bytes": {"fab0": 0, "eth0": 0, device: tried * 4 << 20},
                "tcp": {"sent": tried * 10**5, "resent": resent[tried], "twice": 0},
                "rdma": None,
            }
            for tried in range(7)
        ]

    def search(self) -> PairSearch:
        return run_pair_search(self, self.names, MAX_LOST)  # type: ignore[arg-type]  (a stand-in)


def sweep(
    pairs: Gang, in_sweep: float = 0.0, only: tuple[str, ...] = (), **row: Any
) -> SweepResult:
    """An all-reduce over the same nodes, of which each (or `only` these) lost this share."""
    nodes = [place.node for place in pairs.places]
    times = {"rank_seconds": [0.02] * len(nodes), "rank_worst": [0.03] * len(nodes)}
    run = sweep_result(0.1)
    shares = [0.0 if only and node not in only else in_sweep for node in nodes]
    readings = [
        [
            {
                "bytes": {"fab0": sent},
                "tcp": {"sent": sent, "resent": round(sent * share), "twice": 0},
                "rdma": None,
            }
            for sent in (0, 10**6)
        ]
        for share in shares
    ]
    run.rows[0].update(times | row | {"samples": 40})
    return SweepResult(
        len(nodes),
        "gloo",
        run.rows,
        run.sent,
        rank_nodes=nodes,
        readings=readings,
    )


def judged(measure: Recorder) -> ProbeResult:
    """What is judged; a control is there, for without one nothing is proven."""
    write_control(measure)
    return measure.finish("finished", 1.0)


def values(result: ProbeResult, name: str) -> list[tuple[Any, Verdict | None, str]]:
    return [(m.value, m.verdict, m.subject) for m in result.measurements if m.name == name]


def told(result: ProbeResult) -> list[tuple[str, list[str]]]:
    return [(found.code, found.suspects) for found in result.findings]


def loss_of(
    gang: Gang,
    recorder: Callable[..., Recorder],
    in_sweep: float = 0.0,
    *unstable: str,
    only: tuple[str, ...] = (),
) -> tuple[list[Finding], Verdict | None]:
    """What is found of loss in a run, and the verdict on all that was lost."""
    measure = recorder()
    judge_loss(sweep(gang, in_sweep, only), gang.search(), MAX_LOST, list(unstable), measure)
    result = judged(measure)
    verdicts = [verdict for _, verdict, _ in values(result, "lost_packets")]
    worst = max(verdicts, key=lambda one: list(Verdict).index(one) if one else -1)
    failed = Verdict.FAIL if Verdict.FAIL in verdicts else worst
    return result.findings, failed


@pytest.mark.parametrize("nodes", [2, 3, 4, 12])
@pytest.mark.parametrize(("bad", "way"), [("n1", "sends"), ("n1", "receives"), ("n0", "sends")])
@pytest.mark.parametrize("share", [0.03, 0.1])
def test_a_node_that_loses_packets_is_named_with_its_direction(
    recorder: Callable[..., Recorder], nodes: int, bad: str, way: str, share: float
) -> None:
    end = ("sends", "receives").index(way)
    gang = Gang(nodes, lambda *link: share if link[end] == bad else 0.0)
    (found,), verdict = loss_of(gang, recorder)
    assert verdict is Verdict.FAIL
    assert found.code == "FAB-LOSS"
    if nodes == 2:  # nobody else is there to tell which end of the link it is
        other = "n0" if bad == "n1" else "n1"
        sender, receiver = (bad, other) if way == "sends" else (other, bad)
        assert found.suspects == [sender, receiver]
        assert f"{sender} -> {receiver}: {percent(share)}" in found.statement
    else:
        assert found.suspects == [bad]
        assert f"{bad} loses {percent(share)} of the packets that it {way}" in found.statement


def test_of_two_bad_nodes_each_has_the_loss_of_its_own_links(
    recorder: Callable[..., Recorder],
) -> None:
    shares = {"n1": 0.03, "n3": 0.1}
    found, _ = loss_of(Gang(6, lambda *link: shares.get(link[0], 0.0)), recorder)
    assert [one.statement for one in found] == [
        f"{node} loses {percent(share)} of the packets that it sends"
        for node, share in shares.items()
    ]


def test_two_directions_of_one_node(recorder: Callable[..., Recorder]) -> None:
    (found,), _ = loss_of(Gang(4, lambda *link: 0.02 if "n2" in link else 0.0), recorder)
    assert found.suspects == ["n2"]
    assert "sends and receives" in found.statement


@pytest.mark.parametrize("nodes", [4, 12])
def test_one_link_that_loses_packets(recorder: Callable[..., Recorder], nodes: int) -> None:
    # The pair that meets first, so that few rounds see it.
    bad = "n0", f"n{nodes - 1}"
    (found,), verdict = loss_of(Gang(nodes, lambda *link: 0.02 * (link == bad)), recorder)
    assert verdict is Verdict.FAIL
    assert found.suspects == [*bad]
    assert f"{bad[0]} -> {bad[1]}: 2 % of the packets are lost" in found.statement


def test_many_links_that_lose_packets_are_one_finding(recorder: Callable[..., Recorder]) -> None:
    """As behind one uplink, where near pairs lose nothing."""
    gang = Gang(40, lambda a, b: 0.02 * ((int(a[1:]) < 20) != (int(b[1:]) < 20)))
    (found,), verdict = loss_of(gang, recorder)
    assert (verdict, found.code) == (Verdict.FAIL, "FAB-LOSS")
    assert found.statement.startswith("40 links between nodes lose 2 % of the packets: n0 -> n39")


@pytest.mark.parametrize(("share", "verdict"), [(0.0, Verdict.PASS), (1e-4, Verdict.PASS)])
@pytest.mark.parametrize("nodes", [2, 4, 12])
def test_what_sound_networks_lose_accuses_nobody(
    recorder: Callable[..., Recorder], nodes: int, share: float, verdict: Verdict
) -> None:
    assert loss_of(Gang(nodes, lambda *link: share), recorder, share) == ([], verdict)


def test_a_network_that_loses_everywhere_accuses_no_node(recorder: Callable[..., Recorder]) -> None:
    (found,), verdict = loss_of(Gang(4, lambda *link: 0.02), recorder)
    assert verdict is Verdict.FAIL
    assert (found.code, found.suspects) == ("FAB-LOSS-ALL", [])
    assert found.statement == "packets lost on every link: 2 %. Expected: at most 0.1 %"


def test_what_is_lost_only_when_all_send_is_told(recorder: Callable[..., Recorder]) -> None:
    text = "2 % of the sent packets are lost while all nodes send at once"
    (found,), verdict = loss_of(Gang(4, lambda *link: 0.0), recorder, 0.02)
    assert (verdict, found.code, found.suspects) == (Verdict.FAIL, "FAB-LOSS-ALL", [])
    assert f"every node: {text}" in found.statement
    for nodes, lossy in ((4, ("n1", "n2")), (2, ("n0", "n1"))):
        (found,), _ = loss_of(Gang(nodes, lambda *link: 0.0), recorder, 0.02, only=lossy)
        assert (found.code, found.suspects) == ("FAB-LOSS", [*lossy])
        assert text in found.statement
    findings, verdict = loss_of(Gang(4, lambda *link: 0.0), recorder, 0.02, "n1")
    assert (findings, verdict) == ([], Verdict.FAIL)  # n1's link went away: that is told apart


def test_packets_that_nobody_counts_prove_nothing(recorder: Callable[..., Recorder]) -> None:
    gang, measure = Gang(4, lambda *link: None if link == ("n1", "n2") else 0.0), recorder()
    judge_loss(sweep(gang), gang.search(), MAX_LOST, [], measure)
    found = values(judged(measure), "lost_packets")
    assert (None, Verdict.UNPROVEN, "n1 -> n2") in found
    assert (0.0, Verdict.PASS, "n0 -> n3") in found


def test_a_sweep_that_nobody_counted_proves_nothing(recorder: Callable[..., Recorder]) -> None:
    gang, measure = Gang(4, lambda *link: 0.0), recorder()
    run = sweep(gang)
    run.readings[:] = [[before, before] for before, _ in run.readings]
    judge_loss(run, gang.search(), MAX_LOST, [], measure)
    subjects = [
        subject for value, _, subject in values(judged(measure), "lost_packets") if value is None
    ]
    assert subjects == ["n0 in the all-reduce"]


def test_who_has_met_for_speed_does_not_meet_again_for_loss() -> None:
    gang = Gang(4, lambda *link: 0.0)
    gang.search()
    assert len(gang.met) == len(set(gang.met)) == 12


def ports(changes: int | None = 0, share: float | None = 0.0, packets: int = 10**6) -> Any:
    errors = share is not None and PortErrors("receives", "fab0", round(share * packets), packets)
    unstable = {"fab0": changes} if changes else {}
    found = {"changes": {"fab0": changes}, "unstable": unstable, "errors": errors or None}
    return SimpleNamespace(**found, evidence={})


def judge_nodes(recorder: Callable[..., Recorder], **nodes: Any) -> tuple[ProbeResult, list[str]]:
    measure = recorder()
    unstable = judge_ports(nodes, dict.fromkeys(nodes, "fab0"), measure)
    return judged(measure), unstable


def test_a_link_that_flaps_is_named_with_its_port(recorder: Callable[..., Recorder]) -> None:
    flapping = ports(changes=6, share=2e-4)
    result, unstable = judge_nodes(recorder, n0=ports(), n1=flapping, n2=ports())
    assert unstable == ["n1"]
    assert told(result) == [("FAB-LINK-FLAPS", ["n1"])]  # its errors come of it
    assert "fab0 of n1 went down or up 6 times" in result.findings[0].statement
    assert values(result, "link_changes") == [(6, Verdict.FAIL, "n1 fab0")]


def test_sound_ports_accuse_nobody(recorder: Callable[..., Recorder]) -> None:
    result, unstable = judge_nodes(recorder, n0=ports(), n1=ports(share=1e-6))
    assert (told(result), unstable) == ([], [])
    assert values(result, "link_changes") == [(0, Verdict.PASS, "n0 fab0")]
    assert [verdict for _, verdict, _ in values(result, "interface_errors")] == [Verdict.PASS]


def test_errors_of_a_port_are_named_with_their_direction(recorder: Callable[..., Recorder]) -> None:
    result, _ = judge_nodes(recorder, n0=ports(), n1=ports(share=3e-4))
    assert told(result) == [("FAB-LINK-ERRORS", ["n1"])]
    assert (
        "fab0 of n1 counts errors when it receives: 300 in 1000000" in result.findings[0].statement
    )


def test_errors_without_an_agreed_limit_accuse_nobody(recorder: Callable[..., Recorder]) -> None:
    limit = Limit(low=1, because="it names no largest share")
    measure = recorder(with_limit(LAB, "interface_errors", limit))
    found = {"n0": ports(), "n1": ports(share=3e-4)}
    assert judge_ports(found, dict.fromkeys(found, "fab0"), measure) == []
    result = judged(measure)
    assert told(result) == []
    assert (3e-4, "n1 fab0, when it receives") in [
        (value, subject) for value, _, subject in values(result, "interface_errors")
    ]


def test_of_hardly_any_packets_no_share_is_judged(recorder: Callable[..., Recorder]) -> None:
    """Nothing was sent, for packets of the fabric's size do not pass: that is told elsewhere."""
    result, _ = judge_nodes(recorder, n0=ports(), n1=ports(share=1.0, packets=24))
    assert values(result, "interface_errors") == [
        (0.0, Verdict.PASS, "n0 fab0, when it receives"),
        (None, Verdict.UNPROVEN, "n1 fab0, when it receives"),
    ]
    assert told(result) == []
    idle, _ = judge_nodes(recorder, n0=ports(packets=12))
    assert [one for _, one, _ in values(idle, "interface_errors")] == [Verdict.UNPROVEN]


@pytest.mark.parametrize("silent", [None, ports(None, None)])
def test_a_port_that_says_nothing_proves_nothing(
    recorder: Callable[..., Recorder], silent: Any
) -> None:
    result, _ = judge_nodes(recorder, n0=ports(), n1=silent)
    for name in ("link_changes", "interface_errors"):
        assert (None, Verdict.UNPROVEN, "n1 fab0") in values(result, name)


def stalls(
    recorder: Callable[..., Recorder],
    worst: list[float],
    explained: bool = False,
    in_sweep: float = 0.0,
) -> ProbeResult:
    gang, measure = Gang(4, lambda *link: 0.0), recorder()
    judge_stalls(sweep(gang, in_sweep, rank_worst=worst), explained, measure)
    return judged(measure)


def test_a_call_that_stalls_is_told_with_its_rank(recorder: Callable[..., Recorder]) -> None:
    result = stalls(recorder, [0.03, 1.4, 0.03, 0.03])
    ((value, verdict, subject),) = values(result, "longest_stall")
    assert (value, verdict) == (pytest.approx(1.36), Verdict.FAIL)
    assert subject == "rank 1 on n1, 1048576 bytes"
    assert told(result) == [("FAB-STALLS", [])]
    lossy = stalls(recorder, [0.03, 1.4, 0.03, 0.03], in_sweep=2e-4)
    assert told(lossy) == [("FAB-STALLS", ["n0", "n1", "n2", "n3"])]
    statements = [one.findings[0].statement for one in (result, lossy)]
    assert [one.partition(". Meanwhile, ")[2] for one in statements] == [
        "",
        "packets of n0, n1, n2, n3 were lost",
    ]
    assert told(stalls(recorder, [0.03, 1.4, 0.03, 0.03], True)) == []  # a link went away


def test_a_busy_core_is_no_stall(recorder: Callable[..., Recorder]) -> None:
    result = stalls(recorder, [0.03, 0.12, 0.03, 0.03])  # six times the median, as measured
    assert told(result) == []
    assert [verdict for _, verdict, _ in values(result, "longest_stall")] == [Verdict.PASS]


def networks_of(
    gang: Gang, recorder: Callable[..., Recorder], expected: str = "fab0"
) -> tuple[ProbeResult, PairSearch]:
    measure, pairs = recorder(), gang.search()
    usual = dict.fromkeys(pairs.sent, expected)
    off = links_off(pairs, usual)
    judge_networks(pairs, usual, dict.fromkeys(off, "10.77.0.3 via 10.78.0.3 dev eth0"), measure)
    return judged(measure), pairs


def test_a_detour_is_named_and_is_no_slow_link(recorder: Callable[..., Recorder]) -> None:
    detour = {("n1", "n2"): "eth0"}
    gang = Gang(4, lambda *link: 0.0, device=detour, speed={("n1", "n2"): 0.02})
    result, pairs = networks_of(gang, recorder)
    assert told(result) == [("FAB-DETOUR", ["n1"])]
    assert result.findings[0].statement == (
        "traffic of n1 to n2 leaves over eth0. Expected: fab0. "
        "Route: 10.77.0.3 via 10.78.0.3 dev eth0"
    )
    assert values(result, "links_on_other_networks") == [(1, Verdict.FAIL, "cluster")]
    assert pairs.speed.slow_links == [("n1", "n2")]
    assert unexplained(pairs, links_off(pairs, dict.fromkeys(pairs.sent, "fab0"))).slow_links == []


@pytest.mark.parametrize("nodes", [3, 4])
def test_a_node_that_uses_another_network_for_all_takes_no_detour(
    recorder: Callable[..., Recorder], nodes: int
) -> None:
    other = {("n1", f"n{peer}"): "eth0" for peer in range(nodes) if peer != 1}
    result, _ = networks_of(Gang(nodes, lambda *link: 0.0, device=other), recorder)
    assert told(result) == []  # FAB-WRONG-INTERFACE says so
    assert values(result, "links_on_other_networks") == [(nodes - 1, Verdict.FAIL, "cluster")]


def test_of_two_nodes_the_one_link_that_is_off_the_fabric_is_a_detour(
    recorder: Callable[..., Recorder],
) -> None:
    gang = Gang(2, lambda *link: 0.0, device={("n1", "n0"): "eth0"})
    result, _ = networks_of(gang, recorder)
    assert told(result) == [("FAB-DETOUR", ["n1"])]


def test_bytes_that_no_device_counted_prove_nothing(recorder: Callable[..., Recorder]) -> None:
    gang, measure = Gang(3, lambda *link: 0.0), recorder()
    pairs = gang.search()
    pairs.sent["n0", "n1"] = {}
    judge_networks(pairs, dict.fromkeys(pairs.sent, "fab0"), {}, measure)
    assert (None, Verdict.UNPROVEN, "n0 -> n1") in values(
        judged(measure), "links_on_other_networks"
    )


def test_a_slow_link_of_a_lossy_node_is_explained_and_others_are_not() -> None:
    slow = {(a, b): 0.03 for a in ("n1", "n3") for b in ("n0", "n1", "n2", "n3") if a != b}
    gang = Gang(4, lambda *link: 0.03 * (link[0] == "n1"), speed=slow)
    pairs = gang.search()
    assert pairs.speed.slow_nodes == {"n1": "sends", "n3": "sends"}
    assert unexplained(pairs, {}).slow_nodes == {"n3": "sends"}


# What nothing counts, as agreed.

REASON = "efa 2.13 of this image has no counters of the network"
UNCOUNTED = parse(
    "schema = 1\n"
    f'[FABRIC.lost_packets]\nnot_countable = "{REASON}"\n'
    f'[FABRIC.link_changes]\nnot_countable = "{REASON}"\n'.encode(),
    "f",
)


def rdma_gang(shares: Mapping[str, float | None]) -> Gang:
    """Nodes that send over RDMA; each sender counts this share as resent, or nothing."""
    links = {(a, b): "rdma" for a in shares for b in shares}
    return RdmaGang(3, lambda a, b: shares[a], device=links)


class RdmaGang(Gang):
    """Its senders count the packets of RDMA instead of TCP's."""

    def readings(self, link: Link) -> list[dict[str, Any]]:
        return [{**one, "rdma": one["tcp"], "tcp": {}} for one in super().readings(link)]


def rdma_sweep(shares: Mapping[str, float | None]) -> SweepResult:
    pairs = Gang(3, lambda *_: 0.0)
    run = sweep(pairs)
    counts: list[list[Any]] = [
        [
            {
                "bytes": {"rdma": sent},
                "rdma": {"sent": sent, "resent": None if share is None else int(sent * share)},
                "tcp": {},
            }
            for sent in (0, 10**6)
        ]
        for share in shares.values()
    ]
    sent: dict[str, dict[str, int | None]] = {
        node: {"rdma": int(run.expected_bytes)} for node in shares
    }
    return replace(run, readings=counts, sent=sent)


NONE: dict[str, float | None] = {"n0": None, "n1": None, "n2": None}


def lost_on_rdma(shares: Mapping[str, float | None], measure: Recorder) -> ProbeResult:
    judge_loss(rdma_sweep(shares), rdma_gang(shares).search(), MAX_LOST, [], measure)
    return judged(measure)


def test_what_no_driver_counts_is_unproven_and_says_which_driver_does(
    recorder: Callable[..., Recorder],
) -> None:
    result = lost_on_rdma(NONE, recorder())
    assert {verdict for _, verdict, _ in values(result, "lost_packets")} == {Verdict.UNPROVEN}
    for one in result.measurements:
        assert "EFA counts them from driver 2.17.0 on" in one.note
        assert "[FABRIC.lost_packets] not_countable" in one.note


def test_what_nothing_counts_is_not_judged_where_that_is_agreed(
    recorder: Callable[..., Recorder],
) -> None:
    measure = recorder(UNCOUNTED)
    assert values(lost_on_rdma(NONE, measure), "lost_packets") == []
    assert measure._coverage == []


@pytest.mark.parametrize(
    ("share", "verdicts"),
    [
        (0.02, {Verdict.FAIL, Verdict.UNPROVEN}),
        pytest.param(
            0.0,
            {Verdict.PASS, Verdict.UNPROVEN},
            marks=pytest.mark.near_miss("FABRIC.lost_packets"),
        ),
    ],
)
def test_an_agreement_has_no_effect_where_one_node_counts(
    recorder: Callable[..., Recorder], share: float, verdicts: set[Verdict]
) -> None:
    measure = recorder(UNCOUNTED)
    result = lost_on_rdma({**NONE, "n1": share}, measure)
    assert {verdict for _, verdict, _ in values(result, "lost_packets")} == verdicts
    (text,) = measure._coverage
    assert text.startswith("the contract says that nothing counts lost packets. But n1 -> n")
    assert " counts them, so all were judged" in text


def efa_ports(**changes: int | None) -> dict[str, LinkGrowth]:
    """What the EFA device of each node counted: its changes, and no error."""
    errors = PortErrors("receives", "efa_0/1", 0, 10**6)
    return {node: LinkGrowth({"efa_0/1": count}, errors, {}) for node, count in changes.items()}


@pytest.mark.parametrize(
    ("contract", "found", "verdicts"),
    [
        (LAB, efa_ports(n0=None, n1=None), [Verdict.UNPROVEN]),
        (UNCOUNTED, efa_ports(n0=None, n1=None), []),
        (UNCOUNTED, efa_ports(n0=None, n1=0), [Verdict.UNPROVEN, Verdict.PASS]),
        (UNCOUNTED, efa_ports(n0=0, n1=2), [Verdict.FAIL]),
        (UNCOUNTED, efa_ports(n0=0, n1=0), [Verdict.PASS]),
    ],
    ids=["not agreed", "agreed", "one counts", "a link that went away", "all count"],
)
def test_changes_of_a_link_may_be_agreed_as_not_countable(
    recorder: Callable[..., Recorder],
    contract: Any,
    found: dict[str, LinkGrowth],
    verdicts: list[Verdict],
) -> None:
    measure = recorder(contract)
    judge_ports(found, dict.fromkeys(found, "rdma"), measure)
    result = judged(measure)
    assert [verdict for _, verdict, _ in values(result, "link_changes")] == verdicts
    assert [verdict for _, verdict, _ in values(result, "interface_errors")] == [Verdict.PASS]
    ignored = contract is UNCOUNTED and bool(verdicts)
    assert ["so all were judged" in one for one in measure._coverage] == [True] * ignored
    if contract is LAB:
        (note,) = (m.note for m in result.measurements if m.name == "link_changes")
        assert note.startswith("ports without a count of link changes: 2. EFA counts them from")


def test_the_other_witnesses_must_agree_where_nothing_counts_lost_packets() -> None:
    here = Circumstances(
        "quick",
        ClusterTerms(fabric="rdma"),
        8,
        True,
        not_countable=frozenset(UNCOUNTED.not_countable),
    )
    (fabric,) = (one for one in owed_by(here) if one.criterion == "FABRIC")
    assert not {"lost_packets", "link_changes"} & {*fabric.measures}
    assert {"network", "agreeing_sources", "fabric_share", "log_errors"} <= {*fabric.measures}
    assert {"interface_errors", "longest_stall"} <= {*fabric.measures}
    assert {"bad sender", "doctored counters", "other report"} <= {*fabric.controls}


class FlappingGang(Gang):
    """One link loses packets in some tries of some of its meetings."""

    bad: tuple[str, str] = ("n0", "n1")
    meetings: tuple[tuple[int, ...], ...] = ()

    def readings(self, link: Link) -> list[dict[str, Any]]:
        """Count 5 % of a lossy try's packets as resent."""
        met = self.met.count(link) - 1
        lossy = self.meetings[met] if link == self.bad and met < len(self.meetings) else ()
        found, resent = super().readings(link), 0
        for tried, reading in enumerate(found):
            resent += 5000 * (tried - 1 in lossy)
            reading["tcp"]["resent"] = resent
        return found


@pytest.mark.parametrize(
    ("meetings", "lost", "met"),
    [
        (((1, 4),), 0.05, 2),  # again in the same meeting
        (((2,), (5,)), 0.05, 3),  # again in the next one, and the search asks once more
        (((0, 1, 2, 3, 4, 5), ()), 0.05, 2),  # the other meeting is clean
        (((3,), ()), 0.0, 2),  # one try of all: a queue that overflowed
        ((), 0.0, 1),
    ],
)
def test_a_loss_that_shows_again_counts_and_a_single_try_does_not(
    meetings: tuple[tuple[int, ...], ...], lost: float, met: int
) -> None:
    pairs = FlappingGang(4, lambda *_: 0.0)
    pairs.meetings = meetings
    found = pairs.search()
    assert found.lost["n0", "n1"] == lost
    assert bool(found.lossy.slow_links or found.lossy.slow_nodes) is (lost > MAX_LOST)
    assert pairs.met.count(("n0", "n1")) == met
