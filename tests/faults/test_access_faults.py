"""A cluster with token authentication: the suite joins it with the token alone, and HOSTS finds
an endpoint that takes orders without it, live."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from reports.measurement import Verdict
from reports.record import RunRecord
from tests.faults.launchers.injected_faults import all_caught, is_sound, said_of
from tests.faults.launchers.leftovers import nothing_left
from tests.lab import network
from tests.lab.faults import clear, inject
from tests.lab.lab import Lab
from tests.lab.node import token_file
from tests.support.paths import REPO
from tests.support.trial import Trial, acceptance, agreed, lab_of

LAB = {"nodes": 2, "name": "access", "auth": "token"}  # they ask for a token
PROBE = "probes/hosts/test_hosts.py::test_endpoints_keep_to_the_authentication"
AGREED = {'shared = "/shared"': 'shared = "/shared"\nauthentication = "token"'}
SOAK = pytest.mark.soak(criterion="hosts")
NEAR = pytest.mark.near_miss
ENDPOINTS = ("GCS", "raylets", "dashboard agents", "dashboard", "Ray client")


@pytest.fixture(scope="module")
def open_lab() -> Iterator[Lab]:
    """Two nodes without a token."""
    with lab_of(2, "trusted") as lab:
        yield lab


@pytest.fixture
def shell(lab: Lab) -> Iterator[Any]:
    """Change the driver's variables of authentication, for one test: None takes one away."""
    yield lambda **variables: lab.nodes[0].plant({"environment": variables})
    lab.nodes[0].plant({})


def judge_access(
    lab: Lab, name: str, *, contract: dict[str, str] | None = None
) -> tuple[RunRecord, Trial]:
    """Run the probe on the lab as it is, by the lab's contract with these lines."""
    record, trial = acceptance(lab, name, PROBE, contract=agreed(lab, contract or {}))
    keeps_the_token(lab, trial)
    return record, trial


def keeps_the_token(lab: Lab, trial: Trial) -> None:
    """Check that the token is in no file of the run, and not in its output."""
    if not lab.size.auth:
        return
    token = token_file(lab.home).read_bytes()
    files = [trial.log, *(path for path in trial.folder.rglob("*") if path.is_file())]
    assert [path.name for path in files if token in path.read_bytes()] == []


@SOAK
@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"RAY_AUTH_TOKEN_PATH": "/root/none"},
            "requires a token, but none was found in RAY_AUTH_TOKEN or /root/none",
        ),
        ({"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE is disabled here"),
        ({"RAY_AUTH_TOKEN": "another"}, "refuses the token of RAY_AUTH_TOKEN"),
    ],
)
def test_a_driver_without_the_token_gets_one_sentence(
    lab: Lab, shell: Any, variables: dict[str, str], says: str
) -> None:
    shell(**variables)
    node = lab.nodes[0]
    command = [sys.executable, "-m", "probes.cli.main", "run", "--contract", "lab"]
    done = subprocess.run(
        node.command(*command, "--run-dir", "/tmp/refused", cwd="/"),
        env={**node.environment(), "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 4, output
    assert says in output
    assert "RAY_AUTH_TOKEN_PATH" in output
    assert "Traceback" not in output
    assert token_file(lab.home).read_text() not in output


def reach_from_outside(lab: Lab) -> tuple[list[str], int]:
    """Run `seatrial reach` on the head in the lab's client namespace, which is no node."""
    words = [sys.executable, "-m", "probes.cli.main", "reach", network.address("eth0", 0)]
    space = f"--net=/run/netns/{network.namespace(lab.name, network.CLIENT)}"
    done = subprocess.run(
        ["nsenter", space, *words], cwd=REPO, capture_output=True, text=True, timeout=120
    )
    return done.stdout.splitlines(), done.returncode


@SOAK
def test_a_client_outside_reaches_endpoints_that_ask_for_a_token(lab: Lab) -> None:
    lines, code = reach_from_outside(lab)
    assert [line.partition("): ")[2] for line in lines] == ["reached, it requires a token"] * 4
    assert code == 0


@SOAK
def test_a_client_outside_can_give_orders_where_no_token_is_needed(open_lab: Lab) -> None:
    lines, code = reach_from_outside(open_lab)
    assert all(line.endswith("OPEN, it accepts commands without a token") for line in lines), lines
    assert code == 1


@SOAK
def test_a_proxy_that_adds_the_token_is_named(lab: Lab) -> None:
    inject(lab, "open-dashboard")
    record, trial = judge_access(lab, "proxy", contract=AGREED)
    assert record.verdict("HOSTS") is Verdict.FAIL, trial.log.read_text()
    ((code, suspects, statement),) = said_of(record)
    assert (code, suspects) == ("HOST-AUTH-OPEN", [])
    assert "submit address (10.78.0.1:8266) accepts requests without a token" in statement
    assert all_caught(record)


@NEAR("HOSTS.wrong_entrances", "HOSTS.stranger_jobs", "HOSTS.public_entrances")
@SOAK
@pytest.mark.parametrize("contract", [AGREED, {}])
@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"RAY_AUTH_MODE": None},  # as Ray itself: a token is there, and the cluster asks for it
        {"RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN_PATH": None, "RAY_AUTH_TOKEN": "the lab's"},
    ],
)
def test_a_cluster_with_a_token_passes(
    lab: Lab, shell: Any, variables: dict[str, str | None], contract: dict[str, str]
) -> None:
    if "RAY_AUTH_TOKEN" in variables:
        variables = {**variables, "RAY_AUTH_TOKEN": token_file(lab.home).read_text()}
    shell(**variables)
    name = f"sound-{len(variables)}-{len(contract)}"
    record, trial = judge_access(lab, name, contract=contract)
    is_sound(record, trial)
    (result,) = record.results
    judged = {one.subject for one in result.measurements if one.name == "wrong_entrances"}
    assert judged == set(ENDPOINTS)


@SOAK
def test_an_agreed_token_that_is_off_fails(open_lab: Lab) -> None:
    record, trial = judge_access(open_lab, "off", contract=AGREED)
    assert record.verdict("HOSTS") is Verdict.FAIL, trial.log.read_text()
    first, second = said_of(record)
    assert {first[0], second[0]} == {"HOST-AUTH-OPEN"}
    assert "Every endpoint of Ray (" in first[2]
    assert "A job without a token ran" in second[2]
    assert all_caught(record)


@NEAR("HOSTS.wrong_entrances", "HOSTS.public_entrances")
@SOAK
@pytest.mark.parametrize("time", [1, 2, 3])
def test_a_trusted_network_passes(open_lab: Lab, time: int) -> None:
    record, trial = judge_access(open_lab, f"trusted-{time}")
    is_sound(record, trial)
    (result,) = record.results
    noted = {one.name: one.value for one in result.measurements if not one.judged}
    assert noted["job_of_a_stranger"] == "ran"
    assert noted["dashboard_listens_on"] == "0.0.0.0"


@SOAK
def test_an_open_endpoint_at_a_public_address_is_not_proven(open_lab: Lab) -> None:
    inject(open_lab, "public-address", "1")
    try:
        record, trial = judge_access(open_lab, "public")
    finally:
        clear(open_lab)
    assert record.verdict("HOSTS") is Verdict.UNPROVEN, trial.log.read_text()
    ((code, suspects, statement),) = said_of(record)
    assert (code, suspects) == ("HOST-PUBLIC", ["node1"])
    assert "at 5.6.7.8" in statement


@NEAR("HOSTS.public_entrances")
@SOAK
def test_a_public_address_is_sound_with_a_token(lab: Lab) -> None:
    inject(lab, "public-address", "1")
    record, trial = judge_access(lab, "public")
    assert record.verdict("HOSTS") is Verdict.PASS, trial.log.read_text()


@pytest.mark.soak(criterion="suite")
def test_the_whole_suite_passes_with_a_token(lab: Lab) -> None:
    ((line, key),) = AGREED.items()
    contract = agreed(lab, {line: f"{key}\nray_client_port = 10001"})
    record, trial = acceptance(lab, "whole", "probes", contract=contract, seconds=600)
    assert trial.summary.exit_code == 0, trial.log.read_text()
    assert record.tier == "quick"
    keeps_the_token(lab, trial)
    nothing_left(lab)
