"""Whose values a record has: those of known variables; of any other only that it is set."""

from __future__ import annotations

import json

import pytest

from probes.cluster import node_facts
from probes.cluster.variables import SET, is_withheld, known_variables, withhold
from probes.environment.checks import NUMERIC
from probes.environment.collect import EXACT_NAMES, FILE_VARIABLES, LIBRARY_VARIABLES
from probes.environment.lint import lint
from probes.environment.rules import DIFFERENCE_SEVERITY, LOCAL, RULES
from reports.redact import REDACTED
from tests.probes.environment.test_lint import node

SECRET = "hunter2"
# Names whose values were in records: no word in them says what they hold.
UNKNOWN = [
    "NCCL_X_DB_PW", "NCCL_KENNWORT", "TORCH_PAROLA", "CUDA_TEAM_PIN", "NCCL_FASTRAK_CONTRASENA",
    "FI_MOT_DE_PASSE", "UCX_NTFY_TOPIC", "OMP_X", "GLOO_Y", "nccl_net", "NCCL_NET ", " NCCL_NET",
]  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_of_an_unknown_variable_a_record_has_that_it_is_set(name: str) -> None:
    assert withhold(name, SECRET) == SET
    assert withhold(name, "") == "", "an empty value is no secret, and means unset to NCCL"


def test_what_was_withheld_is_known_by_its_name_and_value() -> None:
    assert is_withheld("NCCL_X_DB_PW", SET)
    assert not is_withheld("NCCL_X_DB_PW", "")  # it is not set
    assert not is_withheld("NCCL_NET", SET)  # this value it has


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"),
        ("NCCL_FASTRAK_IFNAME", "eth1,eth2"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("CUDA_VISIBLE_DEVICES", "GPU-5a1b2c3d-1111-2222-3333-444455556666"),
        ("FI_PROVIDER", "efa"),
        ("FI_EFA_USE_DEVICE_RDMA", "1"),
        ("UCX_TLS", "rc,cuda_copy"),
        ("OMP_NUM_THREADS", "8"),
        ("GLOO_SOCKET_IFNAME", "fab0"),
        ("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64"),
    ],
)
def test_what_is_judged_and_compared_keeps_its_value(name: str, value: str) -> None:
    assert withhold(name, value) == value


def test_each_variable_that_the_suite_judges_is_known() -> None:
    judged = {rule.variable for rule in RULES} | {*DIFFERENCE_SEVERITY, *LOCAL}
    judged |= {*EXACT_NAMES, *FILE_VARIABLES, *LIBRARY_VARIABLES}
    assert judged - known_variables().shown == set()


def test_facts_of_a_node_have_no_value_of_an_unknown_variable() -> None:
    environment = dict.fromkeys(UNKNOWN, SECRET) | {"NCCL_NET": "IB", "HOME": "/home/joe"}
    shown = node_facts.job_variables({**environment, "NCCL_PSK": SECRET})
    assert shown["NCCL_NET"] == "IB"
    assert shown["NCCL_KENNWORT"] == SET
    assert shown["NCCL_PSK"] == REDACTED, "it is known, and a secret"
    assert SECRET not in json.dumps(shown)
    assert "HOME" not in shown


@pytest.mark.parametrize("ending", NUMERIC)
def test_what_is_not_seen_is_not_accused(ending: str) -> None:
    name = f"NCCL_BRAND_NEW{ending}"
    assert lint({"n0": node({name: SET}), "n1": node({name: SET})}, "rdma") == []
    (flag,) = lint({"n0": node({name: SET}), "n1": node(), "n2": node()}, "rdma")
    assert flag.code == "ENV-DIFFERS", "that it is set differs"


def test_a_misspelt_name_is_found_without_its_value() -> None:
    (flag,) = lint({"n0": node({"NCCL_IB_HCAS": SET})}, "rdma")
    assert "did you mean NCCL_IB_HCA?" in flag.fix
