"""HOSTS: the ports of Ray and of jobs between nodes, simulated."""

from __future__ import annotations

import random

import pytest

from probes.cluster.network_facts import MOST_ALL_PAIRS, TriedPort, choose_peers
from probes.hosts.names import blame_nodes, count_closed, find_closed
from probes.hosts.port_round import GCS, JOB, RAY_PORTS, Connection
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.simulated_hosts import findings, not_passed, verdicts
from tests.support.simulated_names import (
    DROPPED,
    REFUSED,
    SimulatedNetwork,
    run_names,
    start_round,
)

OBJECTS = "object manager"
ALL_CLOSED = {
    f"closed_ports {what}": "FAIL"
    for what in ("GCS port", "raylet ports", "object manager ports", "worker ports")
}


def blocked(
    kind: str, source: str | None, target: str | None, nodes: int = 3, problem: str = DROPPED
) -> ProbeResult:
    """The probe over a network that blocks a kind of ports between two nodes, or all (None)."""
    cluster = SimulatedNetwork(nodes)
    cluster.blocked[kind, source, target] = problem
    return run_names(cluster)


def value_of(result: ProbeResult, name: str) -> object:
    (value,) = [m.value for m in result.measurements if f"{m.name} {m.subject}" == name]
    return value


# Which nodes connect.


@pytest.mark.parametrize("nodes", [2, 3, MOST_ALL_PAIRS])
def test_up_to_64_nodes_each_connects_to_all_others(nodes: int) -> None:
    for index in range(nodes):
        assert sorted([*choose_peers(index, nodes), index]) == list(range(nodes))
    assert choose_peers(0, nodes)[:1] == [1]


def test_a_node_without_others_connects_to_itself() -> None:
    assert choose_peers(0, 1) == [0]


@pytest.mark.parametrize("nodes", [65, 100, 128, 1000])
def test_above_each_node_is_tried_by_as_many_near_and_far(nodes: int) -> None:
    peers = {index: choose_peers(index, nodes) for index in range(nodes)}
    counts = {len(set(chosen)) for chosen in peers.values()}
    assert counts == {len(peers[0])}
    assert len(peers[0]) <= 2 * nodes.bit_length()
    assert all(index not in chosen for index, chosen in peers.items())
    tried = [target for chosen in peers.values() for target in chosen]
    assert {tried.count(index) for index in range(nodes)} == {len(peers[0])}
    assert max(min(t, nodes - t) for t in peers[0]) > nodes / 4
    assert {1, nodes - 1} <= set(peers[0])


def test_a_large_cluster_says_what_was_not_tried() -> None:
    cluster = SimulatedNetwork(100)
    result = run_names(cluster)
    assert result.verdict is Verdict.PASS
    assert "each of 100 nodes tried the ports of 12 others" in result.coverage
    assert "the other pairs were not tried" in result.coverage
    assert cluster.tried < 100 * (4 * 12 + 1 + 2) + 100


# What is closed.


@pytest.mark.parametrize("kind", [OBJECTS, "raylet", "worker"])
def test_a_node_that_no_other_reaches_is_one_finding(kind: str) -> None:
    result = blocked(kind, None, "id1", nodes=4)
    assert not_passed(result) == {f"closed_ports {kind} ports": "FAIL"}
    assert value_of(result, f"closed_ports {kind} ports") == 3
    (finding,) = result.findings
    assert (finding.code, finding.suspects) == ("HOST-PORT-CLOSED", ["n1"])
    assert finding.statement.startswith("No other node connects to n1: ")
    assert DROPPED in finding.statement


def test_the_port_is_in_the_statement() -> None:
    (finding,) = blocked(OBJECTS, None, "id1").findings
    assert finding.statement == (
        f"No other node connects to n1: object manager port 41000 ({DROPPED})"
    )


def test_a_node_that_reaches_no_other_is_one_finding() -> None:
    result = blocked("raylet", "id2", None, nodes=4)
    assert findings(result) == [("HOST-PORT-CLOSED", ["n2"])]
    expected = f"n2 cannot connect to other nodes: raylet port ({DROPPED})"
    assert result.findings[0].statement == expected


def test_one_pair_that_does_not_connect_is_a_pair() -> None:
    result = blocked("worker", "id0", "id1", nodes=4)
    assert value_of(result, "closed_ports worker ports") == 1
    assert findings(result) == [("HOST-PORT-CLOSED", ["n0", "n1"])]
    assert "n0 does not connect to n1: port of a Ray worker 10002" in result.findings[0].statement


def test_each_pair_has_its_own_ports_and_reason() -> None:
    cluster = SimulatedNetwork(4)
    cluster.blocked["worker", "id0", "id1"] = DROPPED
    cluster.blocked["raylet", "id2", "id3"] = REFUSED
    assert [one.statement for one in run_names(cluster).findings] == [
        f"n2 does not connect to n3: raylet port 40000 ({REFUSED})",
        f"n0 does not connect to n1: port of a Ray worker 10002 ({DROPPED})",
    ]


def test_of_two_nodes_none_is_singled_out() -> None:
    result = blocked(OBJECTS, None, "id1", nodes=2)
    assert findings(result) == [("HOST-PORT-CLOSED", ["n0", "n1"])]


def test_the_head_that_no_other_reaches() -> None:
    result = blocked(GCS, None, None)
    assert not_passed(result) == {"closed_ports GCS port": "FAIL"}
    assert value_of(result, "closed_ports GCS port") == 2
    assert findings(result) == [("HOST-PORT-CLOSED", ["n0"])]
    assert "No other node connects to n0: GCS port 6379" in result.findings[0].statement


def test_a_port_that_is_closed_everywhere_is_one_finding_with_all_nodes() -> None:
    result = blocked(OBJECTS, None, None, nodes=4)
    assert value_of(result, "closed_ports object manager ports") == 12
    assert findings(result) == [("HOST-PORT-CLOSED", ["n0", "n1", "n2", "n3"])]


def test_several_ports_of_one_node_are_one_finding() -> None:
    cluster = SimulatedNetwork(4)
    for kind in ("raylet", OBJECTS, "worker"):
        cluster.blocked[kind, None, "id3"] = DROPPED
    result = run_names(cluster)
    assert findings(result) == [("HOST-PORT-CLOSED", ["n3"])]
    assert "raylet port 40000, object manager port 41000" in result.findings[0].statement


def test_two_nodes_with_different_ports_are_two_findings() -> None:
    cluster = SimulatedNetwork(5)
    cluster.blocked["raylet", None, "id1"] = DROPPED
    cluster.blocked["worker", None, "id2"] = DROPPED
    assert sorted(findings(run_names(cluster))) == [
        ("HOST-PORT-CLOSED", ["n1"]),
        ("HOST-PORT-CLOSED", ["n2"]),
    ]


def test_a_port_for_jobs_is_a_measure_of_its_own() -> None:
    result = blocked(JOB, None, "id1")
    assert not_passed(result) == {"closed_job_ports job ports": "FAIL"}
    assert findings(result) == [("HOST-PORT-CLOSED", ["n1"])]
    assert "port that the kernel picked for a job 33000" in result.findings[0].statement


def test_a_listener_that_answers_as_another_is_no_connection() -> None:
    """As where a proxy or an address translation answers in its place."""
    cluster = SimulatedNetwork(4)
    cluster.blocked[JOB, None, "id1"] = "another program answers"
    result = run_names(cluster)
    assert not_passed(result) == {"closed_job_ports job ports": "FAIL"}
    assert "(another program answers)" in result.findings[0].statement


@pytest.mark.near_miss("HOSTS.closed_ports", "HOSTS.closed_job_ports")
def test_a_closed_dashboard_is_only_noted() -> None:
    cluster = SimulatedNetwork()
    cluster.blocked["", None, None] = DROPPED
    result = run_names(cluster)
    assert not_passed(result) == {}
    notes = {m.name: m.value for m in result.measurements if not m.judged}
    assert notes["dashboard_port_reached"] == 0


@pytest.mark.near_miss("HOSTS.closed_ports")
def test_ray_over_tls_proves_its_ports_by_the_connection_alone() -> None:
    cluster = SimulatedNetwork()
    cluster.tls = True
    assert not_passed(run_names(cluster)) == {}


@pytest.mark.near_miss("HOSTS.closed_job_ports")
def test_a_contract_may_agree_that_jobs_fix_their_port() -> None:
    kind = Connection(JOB, "id0", "id1", 1, DROPPED)
    assert count_closed([kind]) == (1, "")
    assert verdicts(run_names(SimulatedNetwork()))["closed_job_ports job ports"] is Verdict.PASS


# What is not known.


def test_nothing_tried_proves_nothing() -> None:
    assert count_closed([]) == (None, "no connection was tried")


def test_a_node_whose_worker_does_not_answer_proves_nothing() -> None:
    cluster = SimulatedNetwork()
    cluster.silent = {"id1"}
    result = run_names(cluster)
    kinds = [f"{kind} ports" for kind in ("raylet", OBJECTS, "worker")]
    assert not_passed(result) == {
        "closed_ports GCS port": "UNPROVEN",
        **{f"closed_ports {kind}": "UNPROVEN" for kind in kinds},
        "closed_job_ports job ports": "UNPROVEN",
    }
    notes = {m.note for m in result.measurements if m.value is None and m.judged}
    assert notes == {"n1 does not answer: no answer within 90 s"}
    assert findings(result) == []


def test_a_fault_counts_also_where_another_node_does_not_answer() -> None:
    cluster = SimulatedNetwork(4)
    cluster.silent = {"id1"}
    cluster.blocked["raylet", None, "id2"] = DROPPED
    result = run_names(cluster)
    assert not_passed(result)["closed_ports raylet ports"] == "FAIL"
    assert findings(result) == [("HOST-PORT-CLOSED", ["n2"])]


def test_a_node_that_cannot_listen_proves_nothing_of_job_ports() -> None:
    cluster = SimulatedNetwork()
    cluster.closed_to_listen["id1"] = "Cannot assign requested address"
    result = run_names(cluster)
    assert not_passed(result) == {"closed_job_ports job ports": "UNPROVEN"}
    (one,) = [m for m in result.measurements if m.value is None and m.judged]
    assert one.note == "n1 cannot listen on its address 10.0.0.2: Cannot assign requested address"


def test_ports_that_ray_does_not_give_prove_nothing() -> None:
    cluster = SimulatedNetwork()
    cluster.known[1]["ports"]["raylet"] = None
    cluster.worker_port = None
    result = run_names(cluster)
    assert not_passed(result) == {
        "closed_ports raylet ports": "UNPROVEN",
        "closed_ports worker ports": "UNPROVEN",
    }
    notes = [m.note for m in result.measurements if m.value is None and m.judged]
    assert notes[0] == "n1 reports no raylet port"


def test_an_address_of_the_gcs_that_is_none_proves_nothing() -> None:
    class NoHead(SimulatedNetwork):
        def open_ports(self, id: str, address: str) -> dict[str, object]:
            return {**super().open_ports(id, address), "gcs": ""}

    assert not_passed(run_names(NoHead())) == {"closed_ports GCS port": "UNPROVEN"}


def test_no_node_counts_as_reaching_a_dashboard_that_none_tried() -> None:
    cluster = SimulatedNetwork()
    cluster.known[0]["head"] = False
    notes = {m.name: m.value for m in run_names(cluster).measurements if not m.judged}
    assert notes["dashboard_port_reached"] is None
    cluster = SimulatedNetwork()
    cluster.silent = {"id1", "id2"}
    notes = {m.name: m.value for m in run_names(cluster).measurements if not m.judged}
    assert notes["dashboard_port_reached"] is None


def test_a_head_that_is_not_known_is_still_reached() -> None:
    cluster = SimulatedNetwork()
    cluster.known[0]["head"] = False
    assert not_passed(run_names(cluster)) == {}
    cluster.blocked[GCS, None, None] = DROPPED
    result = run_names(cluster)
    assert value_of(result, "closed_ports GCS port") == 3
    assert "Ray's head" in result.findings[0].statement


# Controls.


def test_a_control_is_caught_only_where_it_is_planted() -> None:
    class Blind(SimulatedNetwork):
        def _try_port(self, source: str, one: TriedPort) -> str:
            return ""

    controls = {one.name: one.caught for one in run_names(Blind()).controls}
    assert controls["closed port"] is False
    assert controls["other listener"] is False


def test_a_control_that_is_caught_in_part_is_not_caught() -> None:
    class HalfBlind(SimulatedNetwork):
        def _try_port(self, source: str, one: TriedPort) -> str:
            return "" if source == "id0" else super()._try_port(source, one)

    controls = {one.name: one.caught for one in run_names(HalfBlind()).controls}
    assert controls["closed port"] is False
    assert controls["other listener"] is False


@pytest.mark.parametrize(("unseen", "caught"), [("job", (True, False)), ("raylet", (False, True))])
def test_each_control_is_judged_by_its_own_ports(unseen: str, caught: tuple[bool, bool]) -> None:
    class BlindForOne(SimulatedNetwork):
        def _try_port(self, source: str, one: TriedPort) -> str:
            blind = source == "id0" and one.kind == unseen
            return "" if blind else super()._try_port(source, one)

    controls = {one.name: one.caught for one in run_names(BlindForOne()).controls}
    assert (controls["closed port"], controls["other listener"]) == caught


def test_a_node_that_falls_silent_after_it_opened_its_ports_proves_nothing() -> None:
    class Lost(SimulatedNetwork):
        def open_ports(self, id: str, address: str) -> dict[str, object]:
            self.silent = {"id1"} if id == "id2" else set()  # the last to be asked
            return super().open_ports(id, address)

    result = run_names(Lost())
    assert set(not_passed(result).values()) == {"UNPROVEN"}
    notes = {m.note for m in result.measurements if m.value is None and m.judged}
    assert notes == {"n1 does not answer: no answer within 90 s"}


def test_coverage_says_from_how_many_nodes_on_pairs_are_left_out() -> None:
    texts = {n: start_round(SimulatedNetwork(n)).coverage() for n in (64, 65)}
    assert texts[64] == "each of 64 nodes tried the ports of all others"
    assert "not tried" in texts[65]


# Who is to blame.


def links(nodes: int) -> list[tuple[str, str]]:
    names = [chr(ord("a") + i) for i in range(nodes)]
    return [(a, b) for a in names for b in names if a != b]


def test_nothing_failed_blames_nothing() -> None:
    blame = blame_nodes(links(4), [])
    assert (blame.unreached, blame.unreaching, blame.pairs) == ([], [], [])


def test_a_node_that_is_cut_both_ways_is_blamed_for_both() -> None:
    failed = [link for link in links(4) if "b" in link]
    blame = blame_nodes(links(4), failed)
    assert (blame.unreached, blame.unreaching, blame.pairs) == (["b"], ["b"], [])


def test_a_pair_is_left_where_one_node_explains_the_rest() -> None:
    failed = [("a", "b"), ("c", "b"), ("d", "b"), ("a", "c")]
    blame = blame_nodes(links(4), failed)
    assert (blame.unreached, blame.unreaching, blame.pairs) == (["b"], [], [("a", "c")])


def test_a_node_with_a_sound_link_is_not_blamed() -> None:
    failed = [("a", "b"), ("a", "c")]
    blame = blame_nodes(links(4), failed)
    assert (blame.unreached, blame.unreaching, blame.pairs) == ([], [], failed)


def test_a_node_whose_failures_others_explain_is_not_blamed() -> None:
    """All links of `a` fail, and but for one of them each leads to a node that none reaches."""
    tried = [("a", "b"), ("a", "c"), ("d", "b"), ("e", "b"), ("d", "c")]
    blame = blame_nodes(tried, [("a", "b"), ("d", "b"), ("e", "b"), ("a", "c")])
    assert (blame.unreached, blame.unreaching, blame.pairs) == (["b"], [], [("a", "c")])


def test_a_thousand_nodes_with_all_ports_closed_are_judged_quickly() -> None:
    peers = {i: choose_peers(i, 1000) for i in range(1000)}
    rows = [
        Connection(kind, f"{i}", f"{j}", 1, DROPPED)
        for i in peers
        for j in peers[i]
        for kind in (*RAY_PORTS[1:], JOB)
    ]
    (finding,) = find_closed(rows, {f"{i}": f"n{i}" for i in peers})
    assert len(finding.suspects) == 1000


def test_the_order_of_failures_does_not_matter() -> None:
    failed = [link for link in links(5) if link[1] in ("b", "d") or link == ("a", "c")]
    wanted = blame_nodes(links(5), failed)
    for seed in range(5):
        mixed = random.Random(seed).sample(failed, len(failed))
        found = blame_nodes(links(5), mixed)
        assert (found.unreached, found.unreaching) == (wanted.unreached, wanted.unreaching)
        assert set(found.pairs) == set(wanted.pairs)
