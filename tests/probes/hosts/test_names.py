"""HOSTS: addresses and host names of the nodes, simulated."""

from __future__ import annotations

from typing import Any

import pytest

from probes.hosts.names import find_address_problem
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.simulated_hosts import findings, not_passed, verdicts
from tests.support.simulated_names import SimulatedNetwork, address_of, healthy_names, run_names

SOUND = {
    **{f"{name} n{i}": Verdict.PASS
       for name in ("address_elsewhere", "loopback_names", "nccl_interface") for i in range(3)},
    "closed_ports GCS port": Verdict.PASS,
    "closed_ports raylet ports": Verdict.PASS,
    "closed_ports object manager ports": Verdict.PASS,
    "closed_ports worker ports": Verdict.PASS,
    "closed_job_ports job ports": Verdict.PASS,
}  # fmt: skip
DEBIAN = {"addresses": ["127.0.1.1", "10.0.0.2"], "bindable": "127.0.1.1", "error": ""}


def changed(index: int = 1, nodes: int = 3, **names: Any) -> SimulatedNetwork:
    """A sound cluster with one node of which other names were read."""
    cluster = SimulatedNetwork(nodes)
    cluster.facts[index]["names"] = healthy_names(index, **names)
    return cluster


def interfaces(**addresses: Any) -> dict[str, Any]:
    return {name: {"up": True, "addresses": texts} for name, texts in addresses.items()}


def statements(result: ProbeResult) -> str:
    return " | ".join(finding.statement for finding in result.findings)


@pytest.mark.near_miss("HOSTS.address_elsewhere", "HOSTS.loopback_names")
def test_sound_nodes_pass_and_every_control_is_caught() -> None:
    cluster = SimulatedNetwork()
    result = run_names(cluster)
    assert verdicts(result) == SOUND
    assert findings(result) == []
    assert {one.name: (one.caught, one.proves) for one in result.controls} == {
        "loopback address": (True, ["address_elsewhere"]),
        "loopback name": (True, ["loopback_names"]),
        "loopback interface": (True, ["nccl_interface"]),
        "closed port": (True, ["closed_ports"]),
        "other listener": (True, ["closed_job_ports"]),
    }
    assert result.coverage == "each of 3 nodes tried the ports of all others"
    assert cluster.closed == ["id0", "id1", "id2"]


def test_what_informs_is_noted() -> None:
    notes = {m.name: m.value for m in run_names(SimulatedNetwork()).measurements if not m.judged}
    assert notes == {
        "host_names_resolved": "3 of 3",
        "dashboard_port_reached": 2,
        "ray_client_port_reached": 0,
    }


# Ray's address.


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"ray_address": "203.0.113.9"}, "203.0.113.9 is on no interface of the node. The node has "
         "eth0 10.0.0.2, fab0 10.77.0.2"),
        ({"ray_address": "127.0.0.1"}, "127.0.0.1 is the loopback"),
        ({"interfaces": {"eth0": {"up": False, "addresses": ["10.0.0.2"]}}},
         "10.0.0.2 is on eth0, which is down"),
        ({"interfaces": {}}, "10.0.0.2 is on no interface"),
    ],
)  # fmt: skip
def test_an_address_that_is_not_the_nodes_is_named(names: dict[str, Any], says: str) -> None:
    result = run_names(changed(**names))
    assert not_passed(result)["address_elsewhere n1"] == "FAIL"
    assert findings(result) == [("HOST-ADDRESS", ["n1"])]
    assert statements(result).startswith(f"n1: Ray's address {says}")


@pytest.mark.near_miss("HOSTS.address_elsewhere")
@pytest.mark.parametrize(
    "names",
    [
        {"interfaces": interfaces(eth0=["192.168.0.2", "10.0.0.2"])},  # a second address
        {"interfaces": interfaces(lo=["127.0.0.1", "10.0.0.2"])},  # routing on the host
        {"interfaces": {"bond0": {"up": True, "addresses": ["10.0.0.2"]},
                        "eth0": {"up": False, "addresses": ["10.0.0.2"]}}},
        {"ray_address": "2001:db8::2", "interfaces": interfaces(eth0=["2001:0db8:0::2"])},
    ],
)  # fmt: skip
def test_an_address_of_the_node_is_sound_wherever_it_is(names: dict[str, Any]) -> None:
    assert not_passed(run_names(changed(**names))) == {}


@pytest.mark.parametrize(
    "names",
    [
        {"interfaces": None},
        {"ray_address": "head.cluster.local"},
        {"interfaces": {"eth0": {"up": None, "addresses": ["10.0.0.2"]}}},
    ],
)
def test_what_cannot_be_read_of_an_address_is_not_proven(names: dict[str, Any]) -> None:
    result = run_names(changed(**names))
    assert not_passed(result)["address_elsewhere n1"] == "UNPROVEN"
    assert all(m.note for m in result.measurements if m.value is None and m.judged)


def test_a_fact_without_names_proves_nothing() -> None:
    cluster = SimulatedNetwork()
    del cluster.facts[2]["names"]
    cluster.facts.insert(0, cluster.facts.pop())  # the control is on the last
    assert not_passed(run_names(cluster)) == {
        "address_elsewhere n2": "UNPROVEN",
        "loopback_names n2": "UNPROVEN",
        "nccl_interface n2": "UNPROVEN",
    }


def test_a_node_that_gave_no_facts_proves_nothing() -> None:
    cluster = SimulatedNetwork(bystanders=1)
    del cluster.facts[1]
    del cluster.others[0]
    assert not_passed(run_names(cluster)) == {
        "address_elsewhere n1": "UNPROVEN",
        "address_elsewhere n3": "UNPROVEN",
        "loopback_names n1": "UNPROVEN",
        "nccl_interface n1": "UNPROVEN",
    }


def test_the_head_without_gpus_has_its_address_judged_too() -> None:
    cluster = SimulatedNetwork(bystanders=1)
    cluster.others[0]["names"] = healthy_names(3, ray_address="203.0.113.9")
    assert not_passed(run_names(cluster)) == {"address_elsewhere n3": "FAIL"}


def test_no_note_of_an_address_that_is_well() -> None:
    assert find_address_problem({"names": healthy_names(0)}) == ("", "")


# The own name.


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (DEBIAN, "resolves to 127.0.1.1"),
        ({"addresses": ["::1"], "bindable": "::1", "error": ""}, "resolves to ::1"),
        ({"addresses": [], "bindable": "", "error": "Name or service not known"},
         "resolves to no address of the node (Name or service not known)"),
        ({"addresses": ["10.9.9.9"], "bindable": "", "error": ""},
         "resolves to no address of the node (only to 10.9.9.9)"),
    ],
)  # fmt: skip
def test_a_name_on_the_loopback_is_named(own: dict[str, Any], says: str) -> None:
    result = run_names(changed(own=own, gloo_interface=""))
    assert not_passed(result) == {"loopback_names n1": "FAIL"}
    assert findings(result) == [("HOST-LOOPBACK-NAME", ["n1"])]
    assert f"The host name of n1 {says}, and GLOO_SOCKET_IFNAME" in statements(result)
    assert "the line `10.0.0.2 n1`" in result.findings[0].remedy


def test_nodes_with_the_same_name_fault_share_a_finding() -> None:
    cluster = SimulatedNetwork()
    for index, fact in enumerate(cluster.facts):
        fact["names"] = healthy_names(index, own=DEBIAN, gloo_interface="")
    assert findings(run_names(cluster)) == [("HOST-LOOPBACK-NAME", ["n0", "n1", "n2"])]


@pytest.mark.near_miss("HOSTS.loopback_names")
def test_debians_name_with_an_interface_for_gloo_is_only_noted() -> None:
    result = run_names(changed(own=DEBIAN))
    assert not_passed(result) == {}
    (note,) = [m for m in result.measurements if m.name == "own_name_on_loopback"]
    assert (note.subject, note.value, note.judged) == ("n1", "127.0.1.1, gloo uses fab0", False)


@pytest.mark.near_miss("HOSTS.loopback_names")
def test_a_name_that_leads_to_another_interface_of_the_node_is_sound() -> None:
    own = {"addresses": ["10.77.0.2"], "bindable": "10.77.0.2", "error": ""}
    assert not_passed(run_names(changed(own=own, gloo_interface=""))) == {}


def test_a_name_without_an_answer_is_not_proven() -> None:
    result = run_names(changed(own=None, gloo_interface=""))
    assert not_passed(result) == {"loopback_names n1": "UNPROVEN"}
    (one,) = [m for m in result.measurements if m.value is None and m.judged]
    assert one.note == "the name n1 was not resolved in time"


@pytest.mark.near_miss("HOSTS.loopback_names")
def test_a_name_without_an_answer_is_sound_where_gloo_has_an_interface() -> None:
    assert not_passed(run_names(changed(own=None))) == {}


@pytest.mark.near_miss("HOSTS.loopback_names")
def test_a_head_without_gpus_may_be_on_the_loopback_by_name() -> None:
    """No rank of a job runs there."""
    cluster = SimulatedNetwork(bystanders=1)
    cluster.others[0]["names"] = healthy_names(3, own=DEBIAN, gloo_interface="")
    assert not_passed(run_names(cluster)) == {}


def test_a_control_whose_node_does_not_answer_is_not_counted() -> None:
    cluster = SimulatedNetwork()
    cluster.silent = {"id2"}
    controls = {one.name: one.caught for one in run_names(cluster).controls}
    assert controls == dict.fromkeys(controls, None)
    assert len(controls) == 5


# One host, one node.


def test_raylets_of_one_host_are_judged_by_their_ports_alone() -> None:
    cluster = changed(ray_address="127.0.0.1", own=DEBIAN, gloo_interface="")
    cluster.kind = "local"
    result = run_names(cluster)
    assert {name.split(" ")[0] for name in verdicts(result)} == {
        "closed_ports",
        "closed_job_ports",
    }
    assert not_passed(result) == {}
    assert "all raylets share one host" in result.coverage


def test_one_node_meets_itself() -> None:
    result = run_names(changed(0, nodes=1, ray_address="127.0.0.1"))
    judged = {name.split(" ")[0] for name in verdicts(result)}
    assert judged == {"closed_ports", "closed_job_ports"}
    assert not_passed(result) == {}
    assert {one.name: one.caught for one in result.controls} == {
        "closed port": True,
        "other listener": True,
    }
    assert result.coverage == "one node: it tried its own ports"


def test_one_node_with_gpus_and_a_head_without() -> None:
    cluster = SimulatedNetwork(nodes=1, bystanders=1)
    cluster.facts[0]["names"] = healthy_names(0, own=DEBIAN, gloo_interface="")
    result = run_names(cluster)
    assert not_passed(result) == {}
    assert "closed_ports raylet ports" in verdicts(result)
    assert not any(name.startswith("loopback_names") for name in verdicts(result))


# Names of other nodes.


def test_a_name_that_no_other_node_knows_is_named() -> None:
    cluster = SimulatedNetwork()
    for asking in ("id0", "id1"):
        cluster.lookups[asking, "n2"] = {"addresses": [], "bindable": "", "error": "not known"}
    result = run_names(cluster, host_names=True)
    assert not_passed(result) == {"names_unresolved cluster": "FAIL"}
    assert findings(result) == [("HOST-NAMES", ["n2"])]
    assert statements(result) == "The host name n2 does not resolve to n2 on other nodes: not known"


def test_each_name_that_no_other_node_knows_is_told_with_its_own_problem() -> None:
    cluster = SimulatedNetwork(5)
    for name, error in (("n1", "not known"), ("n3", "a time-out")):
        for asking in {"id0", "id2", "id4", "id1", "id3"} - {f"id{name[1]}"}:
            cluster.lookups[asking, name] = {"addresses": [], "bindable": "", "error": error}
    found = run_names(cluster, host_names=True).findings
    assert [one.statement for one in found] == [
        "The host name n1 does not resolve to n1 on other nodes: not known",
        "The host name n3 does not resolve to n3 on other nodes: a time-out",
    ]


def test_a_node_that_knows_no_other_is_named() -> None:
    cluster = SimulatedNetwork(4)
    for name in ("n0", "n2", "n3"):
        answer = {"addresses": ["10.0.0.2"], "bindable": "", "error": ""}  # its own
        cluster.lookups["id1", name] = answer
    result = run_names(cluster, host_names=True)
    assert findings(result) == [("HOST-NAMES", ["n1"])]
    text = "On n1, the host names of other nodes do not resolve to their addresses"
    assert text in statements(result)


def test_one_wrong_name_is_a_pair() -> None:
    cluster = SimulatedNetwork()
    cluster.lookups["id0", "n1"] = {"addresses": ["10.0.0.3"], "bindable": "", "error": ""}
    result = run_names(cluster, host_names=True)
    (one,) = [m for m in result.measurements if m.name == "names_unresolved"]
    assert one.value == 1
    assert findings(result) == [("HOST-NAMES", ["n0", "n1"])]
    found = "On n0, the host name n1 does not resolve to n1: it resolves to 10.0.0.3"
    assert found in statements(result)


@pytest.mark.near_miss("HOSTS.names_unresolved")
def test_names_that_lead_to_the_fabric_or_to_several_addresses_are_sound() -> None:
    cluster = SimulatedNetwork()
    found = ["172.17.0.1", "10.77.0.2"]
    cluster.lookups["id0", "n1"] = {"addresses": found, "bindable": "", "error": ""}
    result = run_names(cluster, host_names=True)
    assert not_passed(result) == {}
    assert verdicts(result)["names_unresolved cluster"] is Verdict.PASS
    (control,) = [one for one in result.controls if one.name == "other name"]
    assert (control.caught, control.fault.split()[0]) == (True, "n2")


def test_an_address_that_both_nodes_have_leads_nowhere() -> None:
    cluster = SimulatedNetwork()
    for index, fact in enumerate(cluster.facts):
        here = interfaces(eth0=[address_of(index)], docker0=["172.17.0.1"])
        fact["names"] = healthy_names(index, interfaces=here)
    cluster.lookups["id0", "n1"] = {"addresses": ["172.17.0.1"], "bindable": "", "error": ""}
    assert findings(run_names(cluster, host_names=True)) == [("HOST-NAMES", ["n0", "n1"])]


def test_a_lookup_without_an_answer_is_not_proven() -> None:
    cluster = SimulatedNetwork()
    cluster.lookups["id0", "n1"] = None
    result = run_names(cluster, host_names=True)
    assert not_passed(result) == {"names_unresolved cluster": "UNPROVEN"}
    (one,) = [m for m in result.measurements if m.value is None and m.judged]
    assert one.note == "no answer from n0 about the host name n1"


def test_a_failed_lookup_counts_also_where_another_is_not_known() -> None:
    cluster = SimulatedNetwork()
    cluster.lookups["id0", "n1"] = None
    cluster.lookups["id0", "n2"] = {"addresses": [], "bindable": "", "error": "not known"}
    assert not_passed(run_names(cluster, host_names=True)) == {"names_unresolved cluster": "FAIL"}


def test_what_is_not_known_takes_no_blame_from_a_name() -> None:
    cluster = SimulatedNetwork(4)
    for asking in ("id0", "id1"):
        cluster.lookups[asking, "n2"] = {"addresses": [], "bindable": "", "error": "not known"}
    cluster.lookups["id3", "n2"] = None
    assert findings(run_names(cluster, host_names=True)) == [("HOST-NAMES", ["n2"])]


def test_of_many_reasons_three_are_named() -> None:
    cluster = SimulatedNetwork(5)
    for index in range(1, 5):
        cluster.lookups["id0", f"n{index}"] = None
    result = run_names(cluster, host_names=True)
    (one,) = [m for m in result.measurements if m.name == "names_unresolved"]
    assert one.note.endswith("no answer from n0 about the host name n3 and 1 more")


def test_a_name_cannot_be_compared_with_addresses_that_were_not_read() -> None:
    result = run_names(changed(interfaces=None), host_names=True)
    assert not_passed(result)["names_unresolved cluster"] == "UNPROVEN"
    (one,) = [m for m in result.measurements if m.name == "names_unresolved"]
    assert "the addresses of n0 or n1 were not read" in one.note


@pytest.mark.near_miss("HOSTS.closed_ports")
def test_pods_that_know_no_names_of_others_pass_where_none_are_agreed() -> None:
    cluster = SimulatedNetwork()
    for i in range(3):
        for j in range(3):
            cluster.lookups[f"id{i}", f"n{j}"] = {"addresses": [], "bindable": "", "error": "no"}
    result = run_names(cluster)
    assert not_passed(result) == {}
    (note,) = [m for m in result.measurements if m.name == "host_names_resolved"]
    assert note.value == "0 of 3"
