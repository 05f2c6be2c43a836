"""HOSTS on endpoints of Ray: which take orders without the token, and where they listen."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.endpoints import GCS, NEEDS_TLS, REFUSED, TAKEN, EndpointAnswers
from probes.contract.contract import load
from probes.hosts.endpoints import (
    METRICS,
    RAN,
    StrangerJob,
    find_port,
    note_listeners,
    read_agent_address,
    read_gcs_address,
)
from reports.measurement import Limit, Verdict
from reports.record import ProbeResult
from tests.support.controls import recorder
from tests.support.simulated_exposure import GUARDED, INGRESS, OPEN, SimulatedEndpoints
from tests.support.simulated_exposure import run_exposure as run
from tests.support.simulated_hosts import findings, not_passed, verdicts

TOKEN = "token"
KINDS = ("GCS", "raylets", "dashboard agents", "dashboard", "Ray client")
PUBLIC = "5.6.7.8"


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr("probes.hosts.endpoints.POLL_SECONDS", 0.001)


def notes(result: ProbeResult) -> dict[str, object]:
    return {one.name: one.value for one in result.measurements if not one.judged}


def words(result: ProbeResult) -> str:
    return " ".join(finding.statement for finding in result.findings)


def control_of(result: ProbeResult) -> tuple[bool | None, int]:
    (control,) = result.controls
    return control.caught, len(control.observed)


@pytest.mark.near_miss("HOSTS.wrong_entrances", "HOSTS.public_entrances")
def test_a_trusted_network_needs_no_token() -> None:
    result = run(SimulatedEndpoints())
    assert not_passed(result) == {}
    assert findings(result) == []
    assert notes(result)["job_of_a_stranger"] == "ran"
    assert "anyone who reaches an endpoint can run code" in result.coverage
    assert "the GCS requires no token" in result.coverage
    assert "stranger_jobs" not in {one.name for one in result.measurements}
    assert control_of(result) == (True, 1)


@pytest.mark.near_miss("HOSTS.wrong_entrances", "HOSTS.stranger_jobs")
@pytest.mark.parametrize("agreed", [None, TOKEN])
def test_a_cluster_with_a_token_passes(agreed: str | None) -> None:
    result = run(SimulatedEndpoints(GUARDED), authentication=agreed)
    assert not_passed(result) == {}
    assert {f"wrong_entrances {kind}" for kind in KINDS} < set(verdicts(result))
    assert verdicts(result)["stranger_jobs dashboard"] is Verdict.PASS
    assert findings(result) == []
    assert "a token is required" in result.coverage
    assert "run code" not in result.coverage
    assert control_of(result) == (True, 2)


def test_an_agreed_token_that_is_off_is_a_failure_of_all() -> None:
    result = run(SimulatedEndpoints(), authentication=TOKEN)
    failed = {f"wrong_entrances {kind}": "FAIL" for kind in KINDS}
    assert not_passed(result) == {**failed, "stranger_jobs dashboard": "FAIL"}
    assert findings(result) == [("HOST-AUTH-OPEN", []), ("HOST-AUTH-OPEN", [])]
    assert "Every endpoint of Ray (" in words(result)
    assert "accepts requests without a token" in words(result)
    assert "A job without a token ran: http://10.0.0.1:8265 accepts jobs from anyone" in words(
        result
    )
    assert control_of(result) == (True, 2)


WRONG_IS_TAKEN = "(10.0.0.2:52365) accepts requests with a wrong token"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (OPEN, "dashboard agent of n1 (10.0.0.2:52365) accepts requests without a token"),
        (EndpointAnswers(REFUSED, TAKEN), "(10.0.0.2:52365) accepts requests with a wrong token"),
        (
            EndpointAnswers(REFUSED, TAKEN, TAKEN),
            "(10.0.0.2:52365) accepts requests with a wrong token",
        ),
    ],
)
def test_one_open_endpoint_is_named(answers: EndpointAnswers, says: str) -> None:
    cluster = SimulatedEndpoints(GUARDED)
    cluster.other["dashboard agent", "n1"] = answers
    result = run(cluster)
    assert not_passed(result) == {"wrong_entrances dashboard agents": "FAIL"}
    assert findings(result) == [("HOST-AUTH-OPEN", ["n1"])]
    assert says in words(result)


def test_several_open_endpoints_are_one_finding() -> None:
    cluster = SimulatedEndpoints(GUARDED)
    for node in ("n1", "n2"):
        cluster.other["dashboard agent", node] = OPEN
    result = run(cluster)
    assert findings(result) == [("HOST-AUTH-OPEN", ["n1", "n2"])]
    assert "n2 (10.0.0.3:52365): accepts requests without a token" in words(result)
    (failed,) = [one for one in result.measurements if one.verdict is Verdict.FAIL]
    assert failed.value == 2


@pytest.mark.parametrize(
    ("usual", "answers", "says"),
    [
        (GUARDED, EndpointAnswers(REFUSED, REFUSED, REFUSED), "refuses the cluster's own token"),
        (OPEN, GUARDED, "requires a token, but the cluster has none"),
        (OPEN, EndpointAnswers(REFUSED, REFUSED), "requires a token, but the cluster has none"),
    ],
)
def test_a_node_of_another_mode_or_token_is_named(
    usual: EndpointAnswers, answers: EndpointAnswers, says: str
) -> None:
    cluster = SimulatedEndpoints(usual)
    cluster.other["raylet", "n2"] = answers
    result = run(cluster)
    assert not_passed(result) == {"wrong_entrances raylets": "FAIL"}
    assert findings(result) == [("HOST-AUTH-DIFFERS", ["n2"])]
    assert f"raylet of n2 (10.0.0.3:40000) {says}" in words(result)


def test_a_proxy_that_adds_the_token_is_found() -> None:
    cluster = SimulatedEndpoints(GUARDED)
    cluster.dashboard = INGRESS
    cluster.other["submit address", ""] = OPEN
    result = run(cluster)
    assert not_passed(result) == {"wrong_entrances submit address": "FAIL"}
    assert findings(result) == [("HOST-AUTH-OPEN", [])]
    assert f"submit address ({INGRESS}) accepts requests without a token" in words(result)


@pytest.mark.near_miss("HOSTS.wrong_entrances")
@pytest.mark.parametrize("usual", [OPEN, GUARDED])
def test_a_proxy_may_ask_for_a_login(usual: EndpointAnswers) -> None:
    cluster = SimulatedEndpoints(usual)
    cluster.dashboard = INGRESS
    cluster.other["submit address", ""] = GUARDED
    assert not_passed(run(cluster)) == {}


@pytest.mark.parametrize(
    ("usual", "answers", "note"),
    [
        (OPEN, EndpointAnswers("DEADLINE_EXCEEDED: late"), "DEADLINE_EXCEEDED: late"),
        (GUARDED, EndpointAnswers("HTTP 500"), "HTTP 500"),
        (GUARDED, EndpointAnswers(REFUSED, "HTTP 500", TAKEN), "HTTP 500"),
        (GUARDED, EndpointAnswers(REFUSED, REFUSED, "timed out"), "timed out"),
        (GUARDED, EndpointAnswers(REFUSED, REFUSED), "a refusal proves nothing"),
        (GUARDED, EndpointAnswers(REFUSED, "", TAKEN), "a refusal proves nothing"),
    ],
)
def test_an_unclear_answer_proves_nothing(
    usual: EndpointAnswers, answers: EndpointAnswers, note: str
) -> None:
    cluster = SimulatedEndpoints(usual)
    cluster.other["raylet", "n0"] = answers
    result = run(cluster)
    assert not_passed(result) == {"wrong_entrances raylets": "UNPROVEN"}
    (unproven,) = [one for one in result.measurements if one.verdict is Verdict.UNPROVEN]
    assert "raylet of n0 (10.0.0.1:40000)" in unproven.note
    assert note in unproven.note
    assert findings(result) == []


def test_an_open_endpoint_counts_beside_an_unclear_one() -> None:
    cluster = SimulatedEndpoints(GUARDED)
    cluster.other["raylet", "n0"] = EndpointAnswers("timed out")
    cluster.other["raylet", "n1"] = OPEN
    assert not_passed(run(cluster)) == {"wrong_entrances raylets": "FAIL"}


@pytest.mark.parametrize("lost", ["silent head", "no GCS", "GCS unclear"])
def test_without_the_gcs_no_mode_is_known(lost: str) -> None:
    cluster = SimulatedEndpoints()
    if lost == "silent head":
        cluster.silent.add("id0")
    elif lost == "no GCS":
        cluster.gcs = ""
    else:
        cluster.other["GCS", "n0"] = EndpointAnswers("UNAVAILABLE: no")
    result = run(cluster)
    wrong = {name: word for name, word in not_passed(result).items() if name.startswith("wrong")}
    assert set(wrong.values()) == {"UNPROVEN"}
    assert "wrong_entrances GCS" in wrong
    assert "it is not known whether a token is required" in result.coverage
    assert control_of(result)[0] is not True


def test_a_driver_that_insists_on_tokens_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    result = run(SimulatedEndpoints())
    assert verdicts(result)["wrong_entrances GCS"] is Verdict.FAIL
    assert "RAY_AUTH_MODE is token on the host that runs seatrial" in result.coverage


@pytest.mark.parametrize(
    ("job", "verdict", "codes"),
    [
        (StrangerJob(RAN), "FAIL", ["HOST-AUTH-OPEN"]),
        (StrangerJob("accepted", "it is PENDING after 60 s"), "FAIL", ["HOST-AUTH-OPEN"]),
        (StrangerJob("no answer", "HTTP 500"), "UNPROVEN", []),
    ],
)
def test_a_job_without_the_token(job: StrangerJob, verdict: str, codes: list[str]) -> None:
    cluster = SimulatedEndpoints(GUARDED)
    cluster.job = job
    result = run(cluster)
    assert not_passed(result) == {"stranger_jobs dashboard": verdict}
    assert [code for code, _ in findings(result)] == codes
    assert job.detail in words(result) or job.detail in str(result.measurements)


def test_a_cluster_without_a_dashboard_or_agents_is_judged_by_the_rest() -> None:
    cluster = SimulatedEndpoints(GUARDED)
    cluster.own_dashboard = cluster.dashboard = ""
    cluster.agents = False
    result = run(cluster, authentication=TOKEN)
    assert not_passed(result) == {"stranger_jobs cluster": "UNPROVEN"}
    assert "wrong_entrances dashboard" not in verdicts(result)


@pytest.mark.near_miss("HOSTS.wrong_entrances")
@pytest.mark.parametrize("problem", ["Connection refused", "another program answers"])
def test_a_cluster_without_a_ray_client_is_sound(problem: str) -> None:
    cluster = SimulatedEndpoints()
    cluster.other["Ray client", "n0"] = EndpointAnswers(f"UNAVAILABLE: {problem}")
    result = run(cluster)
    assert "no Ray client answers at port 10001" in result.coverage
    assert not_passed(result) == {}
    assert "wrong_entrances Ray client" not in verdicts(result)


@pytest.mark.near_miss("HOSTS.wrong_entrances")
@pytest.mark.parametrize("usual", [OPEN, GUARDED])
def test_endpoints_that_ask_for_a_certificate_are_closed(usual: EndpointAnswers) -> None:
    """With RAY_USE_TLS, dashboard and agents still speak HTTP: they show the mode."""
    cluster = SimulatedEndpoints(usual)
    for kind, node in [("GCS", "n0"), ("Ray client", "n0")] + [
        ("raylet", f"n{number}") for number in range(3)
    ]:
        cluster.other[kind, node] = EndpointAnswers(NEEDS_TLS)
    result = run(cluster)
    assert not_passed(result) == {}
    assert findings(result) == []
    word = "no token" if usual == OPEN else "a token"
    assert f"the dashboard requires {word}" in result.coverage
    assert control_of(result)[0] is True


def test_a_ray_client_of_another_port_is_that_of_the_driver() -> None:
    cluster = SimulatedEndpoints(GUARDED)
    cluster.kind, cluster.address = "client", "ray://head:20001"
    cluster.other["Ray client", "n0"] = OPEN
    result = run(cluster)
    assert not_passed(result) == {"wrong_entrances Ray client": "FAIL"}
    assert "Ray client of n0 (10.0.0.1:20001)" in words(result)
    agreed = run(cluster, ray_client_port=20002)
    assert "Ray client of n0 (10.0.0.1:20002)" in words(agreed)


def test_embedded_raylets_have_no_address_of_their_own() -> None:
    cluster = SimulatedEndpoints()
    cluster.kind = "local"
    result = run(cluster)
    assert not_passed(result) == {}
    assert "public_entrances cluster" not in verdicts(result)
    assert "wrong_entrances Ray client" not in verdicts(result)
    assert "Ray client" not in result.coverage


def give_address(cluster: SimulatedEndpoints, address: str) -> None:
    cluster.facts[1]["names"]["interfaces"]["eth1"] = {"up": True, "addresses": [address]}


@pytest.mark.parametrize(("address", "listens"), [
    (PUBLIC, ["0.0.0.0"]), (PUBLIC, ["::"]), (PUBLIC, [PUBLIC]), ("2a00:1450::1", ["::"]),
])  # fmt: skip
def test_an_open_endpoint_at_a_public_address_is_not_proven(
    address: str, listens: list[str]
) -> None:
    cluster = SimulatedEndpoints()
    give_address(cluster, address)
    cluster.listens = listens
    result = run(cluster)
    assert not_passed(result) == {"public_entrances cluster": "UNPROVEN"}
    assert findings(result) == [("HOST-PUBLIC", ["n1"])]
    assert f"raylet of n1 (10.0.0.2:40000) at {address}" in words(result)
    (found,) = result.findings
    assert (found.names["address"], found.names["port"]) == (address, "40000"), "of the first one"


@pytest.mark.near_miss("HOSTS.public_entrances")
def test_a_contract_may_agree_on_a_firewall() -> None:
    cluster = SimulatedEndpoints()
    give_address(cluster, PUBLIC)
    contract = load("h100-ndr400")
    limit = Limit(high=2, unit="endpoints", because="a firewall closes them")
    limits = {**contract.limits, "HOSTS": {"public_entrances": limit}}
    result = run(cluster, contract.model_copy(update={"limits": limits}))
    assert not_passed(result) == {}
    (found,) = [one for one in result.measurements if one.name == "public_entrances"]
    assert found.value == 2, "the raylet and the dashboard agent of n1"


@pytest.mark.near_miss("HOSTS.public_entrances")
@pytest.mark.parametrize(("usual", "address", "listens"), [
    (GUARDED, PUBLIC, ["0.0.0.0"]),
    (OPEN, PUBLIC, ["10.0.0.2"]),
    (OPEN, "2a00:1450::1", ["0.0.0.0"]),
    (OPEN, "10.1.2.3", ["0.0.0.0"]),
    (OPEN, "100.64.0.1", ["0.0.0.0"]),
    (OPEN, "fe80::1%eth1", ["::"]),
    (OPEN, "fd00::1", ["::"]),
])  # fmt: skip
def test_private_or_guarded_addresses_are_sound(
    usual: EndpointAnswers, address: str, listens: list[str]
) -> None:
    cluster = SimulatedEndpoints(usual)
    give_address(cluster, address)
    cluster.listens = listens
    result = run(cluster)
    assert verdicts(result)["public_entrances cluster"] is Verdict.PASS
    assert findings(result) == []


@pytest.mark.parametrize("lost", ["table", "socket", "interfaces"])
def test_an_unread_address_proves_nothing(lost: str) -> None:
    cluster = SimulatedEndpoints()
    give_address(cluster, PUBLIC)
    if lost == "interfaces":
        cluster.facts[1]["names"]["interfaces"] = None
    else:
        cluster.listens = None if lost == "table" else []
    result = run(cluster)
    assert not_passed(result) == {"public_entrances cluster": "UNPROVEN"}
    assert findings(result) == []


def test_where_the_head_listens_is_noted() -> None:
    found = notes(run(SimulatedEndpoints()))
    names = ("dashboard", "ray_client", "gcs", "metrics")
    assert {found[f"{name}_listens_on"] for name in names} == {"0.0.0.0"}


def test_the_head_may_be_any_node() -> None:
    measure = recorder("HOSTS")
    ports = {"n0": {METRICS: 44000}, "n1": {GCS: 6379, METRICS: 44001}}
    listeners = {"n0": {44000: ["10.0.0.1"]}, "n1": {6379: ["0.0.0.0"], 44001: ["10.0.0.2"]}}
    note_listeners(ports, listeners, measure)
    found = measure.result("finished", 1.0).measurements
    assert [(one.name, one.value, one.subject) for one in found] == [
        ("gcs_listens_on", "0.0.0.0", "n1 port 6379"),
        ("metrics_listens_on", "10.0.0.2", "n1 port 44001"),
    ]


def test_a_stand_in_that_does_not_start_is_no_control() -> None:
    cluster = SimulatedEndpoints()
    cluster.stands_in = False
    result = run(cluster)
    assert result.controls[0].caught is None
    assert result.controls[0].saw == "no worker starts"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (json.dumps(["10.0.0.1", 52365, 40001]), "10.0.0.1:52365"),
        (json.dumps(["fd00::1", 52365, 40001]), "[fd00::1]:52365"),
        (json.dumps(["10.0.0.1", -1, 40001]), ""),
        (json.dumps([]), ""),
        (json.dumps(["10.0.0.1", None]), ""),
        ("no JSON", ""),
        (None, ""),
    ],
)
def test_the_address_of_an_agent(
    stored: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def get(key: bytes, namespace: bytes) -> bytes | None:
        asked.append((key, namespace))
        return stored.encode() if stored else None

    monkeypatch.setattr("ray.experimental.internal_kv._internal_kv_get", get)
    assert read_agent_address("ab12") == expected
    assert asked == [(b"DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX:ab12", b"dashboard")]


@pytest.mark.parametrize(("address", "port"), [
    ("10.0.0.1:6379", 6379), ("[fd00::1]:6379", 6379), ("http://10.0.0.1:8265", 8265),
    ("https://ray.example.org", 0),
])  # fmt: skip
def test_the_port_of_an_endpoint(address: str, port: int) -> None:
    assert find_port(address) == port


@pytest.mark.parametrize(("known", "address"), [("10.0.0.1:6379", "10.0.0.1:6379"), (None, "")])
def test_the_gcs_is_where_rays_workers_know_it(
    known: str | None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(gcs_address=known)
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    assert read_gcs_address() == address
