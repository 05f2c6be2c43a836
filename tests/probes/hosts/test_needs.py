"""HOSTS on what jobs load: one image, models, ways out, RDMA devices."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, patch

import pytest

from probes.cluster.network_facts import try_closed_target
from probes.hosts import criterion as check
from probes.hosts.needs import judge_images, try_client
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.simulated_hosts import findings, not_passed, verdicts
from tests.support.simulated_needs import CLOSED, DEVICES, UBUNTU, USUAL, StandInNeeds

HUB, TRACKER = "https://hub.example:443/models", "tracker.example:5000"
WEIGHTS = "/models/llama"
ALL = {"fabric": "rdma", "rails": 8, "egress": [HUB, TRACKER], "model_files": [WEIGHTS]}
NAMES = ("image_differences", "egress_closed", "model_differences", "rdma_closed")


def statements(result: ProbeResult) -> list[str]:
    return [finding.statement for finding in result.findings]


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in NAMES))
def test_sound_nodes_pass_and_each_control_is_caught() -> None:
    result = StandInNeeds().run(**ALL)
    assert result.verdict is Verdict.PASS
    assert not findings(result)
    assert {c.name: (c.caught, c.proves) for c in result.controls} == {
        "other image": (True, ["image_differences"]),
        "hidden devices": (True, ["rdma_closed"]),
        "closed target": (True, ["egress_closed"]),
        "changed file": (True, ["model_differences"]),
    }
    each = {f"{name} n{index}" for name in NAMES[1:] for index in range(3)}
    assert verdicts(result).keys() == each | {"image_differences cluster"}
    assert "1 MiB of each 256 MiB" in result.coverage


def test_what_no_contract_asks_for_is_not_judged() -> None:
    result = StandInNeeds().run()
    assert verdicts(result).keys() == {"image_differences cluster"}
    assert [control.name for control in result.controls] == ["other image"]


def test_embedded_nodes_share_the_image_and_devices_of_their_host() -> None:
    cluster = StandInNeeds()
    cluster.kind = "local"
    result = cluster.run(**ALL)
    assert {name.split()[0] for name in verdicts(result)} == {"egress_closed", "model_differences"}
    assert "images are not compared" in result.coverage


def test_one_node_has_no_other_to_compare_with() -> None:
    result = StandInNeeds(1).run(**ALL)
    assert verdicts(result).keys() == {f"{name} n0" for name in NAMES[1:]}
    assert result.verdict is Verdict.PASS
    assert {control.name for control in result.controls} == {"hidden devices", "closed target"}


# Images.


def test_a_node_with_other_packages_is_named_with_them() -> None:
    cluster = StandInNeeds()
    cluster.packages["id1"] = ["numpy 1.26.4", "ray 2.56.1", "torch 2.13.0", "vllm 0.6.0"]
    result = cluster.run()
    assert not_passed(result) == {"image_differences cluster": "FAIL"}
    assert findings(result) == [("HOST-IMAGE", ["n1"])]
    assert statements(result) == [
        "n1: additional Python packages: numpy 1.26.4, vllm 0.6.0; "
        "missing Python packages: numpy 2.1.0. Expected: as on n0"
    ]


def test_the_first_node_may_be_the_odd_one() -> None:
    cluster = StandInNeeds()
    cluster.packages["id0"] = [*USUAL, "vllm 0.6.0"]
    text = "n0: additional Python packages: vllm 0.6.0. Expected: as on n1"
    assert statements(cluster.run()) == [text]


def test_a_node_with_another_system_is_named() -> None:
    cluster = StandInNeeds()
    cluster.facts[2]["image"]["os"] = UBUNTU
    result = cluster.run()
    assert not_passed(result) == {"image_differences cluster": "FAIL"}
    assert findings(result) == [("HOST-IMAGE", ["n2"])]
    assert f"n2: operating system {UBUNTU} instead of Debian" in statements(result)[0]


def test_of_two_nodes_neither_image_is_the_usual_one() -> None:
    cluster = StandInNeeds(2)
    cluster.packages["id1"] = ["ray 2.56.1"]
    result = cluster.run()
    (measurement,) = [m for m in result.measurements if m.name == "image_differences"]
    assert (measurement.value, measurement.verdict) == (2, Verdict.FAIL)
    assert findings(result) == [("HOST-IMAGE", ["n1"])]
    text = "n1: missing Python packages: numpy 2.1.0, torch 2.13.0."
    assert statements(result)[0].startswith(text)


def test_packages_are_asked_of_few_nodes() -> None:
    cluster = StandInNeeds(12)
    for index in range(6, 12):
        cluster.packages[f"id{index}"] = [f"ray 2.{index}"]
    result = cluster.run()
    assert set(cluster.asked) == {"id0", "id6", "id7", "id8", "id9"}
    texts = statements(result)
    assert len(texts) == 6 - 4 + 3
    assert "n10, n11: different Python packages (3 installed). Expected: as on n0" in texts


def test_packages_that_cannot_be_asked_for_still_fail() -> None:
    cluster = StandInNeeds()
    cluster.packages["id1"] = []
    cluster.silent = {"id1"}
    cluster.facts[1]["image"]["digest"] = "another"
    result = cluster.run()
    assert statements(result) == ["n1: different Python packages (3 installed). Expected: as on n0"]


@pytest.mark.parametrize("fact", [{"image": {}}, {"image": None}])
def test_an_image_that_was_not_read_proves_nothing(fact: dict[str, Any]) -> None:
    cluster = StandInNeeds()
    cluster.facts[1] |= fact
    result = cluster.run()
    assert not_passed(result) == {"image_differences cluster": "UNPROVEN"}
    (found,) = [m for m in result.measurements if m.name == "image_differences"]
    assert found.note == "packages were not read on n1"


def test_no_node_at_all_proves_nothing() -> None:
    measure = Mock()
    judge_images(StandInNeeds(), [], measure)
    measure.assert_called_once_with(check.IMAGE_DIFFERENCES, None, note="no node answers")


def test_no_node_with_facts_proves_nothing() -> None:
    cluster = StandInNeeds()
    cluster.facts.clear()
    (found,) = [m for m in cluster.run().measurements if m.name == "image_differences"]
    assert found.verdict is Verdict.UNPROVEN
    assert found.note == "packages were not read on n0, n1, n2"


def test_a_node_without_facts_proves_nothing_of_image_and_devices() -> None:
    cluster = StandInNeeds()
    del cluster.facts[1]
    result = cluster.run(fabric="rdma", rails=8)
    assert not_passed(result) == {
        "image_differences cluster": "UNPROVEN",
        "rdma_closed n1": "UNPROVEN",
    }


# Ways out.


def test_a_target_that_one_node_does_not_reach_is_named() -> None:
    cluster = StandInNeeds()
    cluster.problems["id1"] = {HUB: "Connection refused"}
    result = cluster.run(**ALL)
    assert not_passed(result) == {"egress_closed n1": "FAIL"}
    assert findings(result) == [("HOST-EGRESS", ["n1"])]
    assert statements(result) == [
        f"{HUB} from n1: Connection refused. Expected: a connection",
    ]


@pytest.mark.parametrize("taken", ["https://127.0.0.1:1", "127.0.0.1:1"])
def test_a_control_with_one_open_way_is_missed(taken: str) -> None:
    cluster = StandInNeeds()
    answer = cluster._answer

    def open_one(function: Any, id: str, *arguments: Any) -> Any:
        found = answer(function, id, *arguments)
        return {**found, taken: ""} if function is try_closed_target else found

    with patch.object(cluster, "_answer", open_one):
        (control,) = [c for c in cluster.run(egress=[HUB]).controls if c.name == "closed target"]
    assert not control.caught


def test_the_only_node_is_named() -> None:
    cluster = StandInNeeds(1)
    cluster.problems["id0"] = {HUB: "Connection refused"}
    assert f"{HUB} from n0: Connection refused" in statements(cluster.run(egress=[HUB]))[0]
    cluster = StandInNeeds(2)
    for problems in cluster.problems.values():
        problems[HUB] = "timed out"
    assert f"{HUB} from each node: timed out" in statements(cluster.run(egress=[HUB]))[0]


def test_a_target_that_no_node_reaches_is_one_finding() -> None:
    cluster = StandInNeeds()
    for problems in cluster.problems.values():
        problems[TRACKER] = "timed out"
    result = cluster.run(**ALL)
    assert len(not_passed(result)) == 3
    assert statements(result) == [f"{TRACKER} from each node: timed out. Expected: a connection"]


def test_a_silent_node_proves_nothing() -> None:
    cluster = StandInNeeds()
    cluster.silent = {"id2"}
    result = cluster.run(egress=[HUB], model_files=[WEIGHTS])
    assert not_passed(result)["egress_closed n2"] == "UNPROVEN"
    assert not_passed(result)["model_differences n2"] == "UNPROVEN"
    planted = [one for one in result.controls if one.name in ("closed target", "changed file")]
    assert all("n1 " in control.fault and control.caught for control in planted)


# Models.


def with_model(node: int, **changes: Any) -> StandInNeeds:
    cluster = StandInNeeds()
    cluster.models[f"id{node}"] |= changes
    return cluster


FILES: list[tuple[dict[str, str], str, int]] = [
    ({"config.json": "700 aa"}, "model-1.safetensors is missing", 1),
    (
        {"config.json": "700 aa", "model-1.safetensors": "4999 cc"},
        "model-1.safetensors has 4999 bytes instead of 5000000000", 1,
    ),
    (
        {"config.json": "700 ab", "model-1.safetensors": "5000000000 bc"},
        "config.json has different content, model-1.safetensors has different content", 2,
    ),
    (
        {"config.json": "700 aa", "model-1.safetensors": "5000000000 bb", "x": "1 a"},
        "x is missing on most nodes", 1,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("files", "text", "count"), FILES)
def test_a_file_that_differs_on_one_node_is_named(
    files: dict[str, str], text: str, count: int
) -> None:
    result = with_model(1, files=files).run(model_files=[WEIGHTS])
    assert not_passed(result) == {"model_differences n1": "FAIL"}
    assert findings(result) == [("HOST-MODEL-FILES", ["n1"])]
    assert statements(result) == [
        f"{WEIGHTS} on n1: {text}. Expected: the same on every node",
    ]
    (value,) = [m.value for m in result.measurements if m.subject == "n1"]
    assert value == count


def test_a_path_that_cannot_be_read_fails_there() -> None:
    result = with_model(2, files={}, error="No such file or directory").run(model_files=[WEIGHTS])
    assert not_passed(result) == {"model_differences n2": "FAIL"}
    assert "No such file or directory" in statements(result)[0]


def test_files_that_were_not_all_read_prove_nothing() -> None:
    result = with_model(1, unknown="only 3 files were read").run(model_files=[WEIGHTS])
    assert not_passed(result) == {"model_differences n1": "UNPROVEN"}


def test_of_two_versions_as_common_none_is_right() -> None:
    cluster = StandInNeeds(2)
    cluster.models["id1"]["files"] = {**cluster.models["id1"]["files"], "config.json": "1 cc"}
    result = cluster.run(model_files=[WEIGHTS])
    assert set(not_passed(result)) == {"model_differences n0", "model_differences n1"}
    assert findings(result) == [("HOST-MODEL-FILES", ["n0", "n1"])]
    assert "config.json is not the same on all nodes" in statements(result)[0]


def test_of_two_nodes_one_may_be_given_a_changed_file() -> None:
    (control,) = [
        c for c in StandInNeeds(2).run(model_files=[WEIGHTS]).controls if c.name == "changed file"
    ]
    assert control.caught


def test_of_two_nodes_the_one_without_the_file_is_wrong() -> None:
    cluster = StandInNeeds(2)
    cluster.models["id1"]["files"] = {"config.json": "700 aa"}
    result = cluster.run(model_files=[WEIGHTS])
    assert not_passed(result) == {"model_differences n1": "FAIL"}


# RDMA devices.


def with_closed(count: int) -> StandInNeeds:
    cluster = StandInNeeds()
    closed = {name: CLOSED.format(i) for i, name in enumerate(DEVICES) if i < count}
    cluster.facts[1]["rdma_access"] |= closed
    return cluster


def test_closed_devices_are_named() -> None:
    result = with_closed(2).run(fabric="rdma", rails=8)
    assert not_passed(result) == {"rdma_closed n1": "FAIL"}
    assert findings(result) == [("HOST-RDMA-CLOSED", ["n1"])]
    assert statements(result) == [
        "n1: 6 RDMA devices can be opened; mlx5_0: /dev/infiniband/uverbs0: Operation not "
        "permitted, mlx5_1: /dev/infiniband/uverbs1: Operation not permitted. "
        "Expected: 8 devices, one for each rail"
    ]


@pytest.mark.near_miss("HOSTS.rdma_closed")
def test_a_pod_may_open_only_the_devices_of_its_own_rails() -> None:
    assert with_closed(6).run(fabric="rdma", rails=2).verdict is Verdict.PASS
    assert with_closed(7).run(fabric="rdma").verdict is Verdict.PASS


def test_without_an_agreed_number_one_device_must_open() -> None:
    result = with_closed(8).run(fabric="rdma")
    assert not_passed(result) == {"rdma_closed n1": "FAIL"}
    assert statements(result)[0].endswith("Expected: at least one")


def test_a_node_that_lists_no_device_proves_nothing() -> None:
    cluster = StandInNeeds()
    cluster.facts[1]["rdma_access"] = {}
    assert not_passed(cluster.run(fabric="rdma")) == {"rdma_closed n1": "UNPROVEN"}


def test_peer_memory_is_noted() -> None:
    cluster = StandInNeeds()
    cluster.facts[1]["peer_memory"] = ""
    notes = {
        m.subject: m.value
        for m in cluster.run(fabric="rdma").measurements
        if m.name == "gpu_peer_memory"
    }
    assert notes == {"n0, n2": "nvidia_peermem", "n1": "neither nvidia_peermem nor DMA-BUF"}


# The Ray client.


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (("", "no answer within 60 s"), "no answer within 60 s"),
        (("ffff1111", ""), "the task ran on node ffff1111 of another cluster"),
    ],
)
def test_a_program_that_cannot_join_is_named(answer: tuple[str, str], says: str) -> None:
    closed = ("", "no answer within 10 s")
    with patch("probes.hosts.needs.try_client", side_effect=[answer, closed]):
        result = StandInNeeds().run(ray_client_port=10001)
    assert not_passed(result) == {"ray_client cluster": "FAIL"}
    assert findings(result) == [("HOST-RAY-CLIENT", [])]
    assert statements(result) == [
        f"A program cannot join through ray://10.0.0.0:10001: {says}",
    ]


@pytest.mark.near_miss("HOSTS.ray_client")
def test_a_task_on_this_cluster_is_proof_and_a_closed_port_is_seen() -> None:
    answers = [("id2", ""), ("", "no answer within 10 s")]
    with patch("probes.hosts.needs.try_client", side_effect=answers) as tried:
        result = StandInNeeds().run(ray_client_port=10001)
    assert result.verdict is Verdict.PASS
    assert {control.name: control.caught for control in result.controls}["closed client"]
    assert [call.args[1] for call in tried.call_args_list] == [60, 10]
    _, _, closed = tried.call_args_list[1].args[0].rpartition(":")
    assert int(closed) >= 1024, "any user can hold it"


def test_without_a_head_nothing_is_known_of_the_client() -> None:
    cluster = StandInNeeds()
    nodes = [{**node, "alive": node["head"] is False} for node in cluster.known_nodes()]
    cluster.known_nodes = lambda: nodes  # type: ignore[method-assign]
    result = cluster.run(ray_client_port=10001)
    assert not_passed(result)["ray_client cluster"] == "UNPROVEN"
    (note,) = [m.note for m in result.measurements if m.name == "ray_client"]
    assert note == "Ray lists no head"


def test_a_client_takes_no_address_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.9.9.9:6379")
    program = "import os; print('2 CPUs'); print('node', os.environ.get('RAY_ADDRESS', 'none'))"
    with patch("probes.hosts.needs.PROGRAM", program):
        assert try_client("ray://127.0.0.1:1", 20) == ("none", "")


def test_a_client_is_bounded_and_says_why_it_failed() -> None:
    assert try_client("ray://127.0.0.1:1", 0.1) == ("", "no answer within 0.1 s")
    with patch("probes.hosts.needs.PROGRAM", "raise SystemExit('versions differ')"):
        assert try_client("ray://127.0.0.1:1", 20) == ("", "versions differ")
    with patch("probes.hosts.needs.PROGRAM", "print('node abc'); raise SystemExit(3)"):
        assert try_client("ray://127.0.0.1:1", 20) == ("", "exit code 3")
    with patch("probes.hosts.needs.PROGRAM", "print('node abc\\n\\nbye now')"):
        assert try_client("ray://127.0.0.1:1", 20) == ("abc", "")


def test_no_digest_of_a_file_is_recorded() -> None:
    """A digest tells who guesses whether he is right, be the file a model or none."""
    digests = ("0123456789abcdef", "fedcba9876543210")
    files = [{"config.json": f"700 {digest}"} for digest in digests]
    result = with_model(1, files=files[0]).run(model_files=[WEIGHTS])
    assert "config.json has different content" in " ".join(statements(result))
    text = result.model_dump_json()
    assert not [digest for digest in digests if digest in text]


@pytest.mark.parametrize(
    ("terms", "missed"),
    [
        ({"egress": [HUB]}, "closed target"),
        ({"model_files": [WEIGHTS]}, "changed file"),
        ({"fabric": "rdma"}, "hidden devices"),
        ({}, "other image"),
    ],
)
def test_a_control_without_an_answer_is_missed(terms: dict[str, Any], missed: str) -> None:
    cluster = StandInNeeds()
    answer = cluster._answer

    def lose_control(function: Any, id: str, *arguments: Any) -> Any:
        names = (
            "try_closed_target",
            "read_changed_file",
            "read_hidden_devices",
            "read_other_image",
        )
        return None if function.__name__ in names else answer(function, id, *arguments)

    cluster._answer = lose_control  # type: ignore[method-assign]
    cluster.errors["id2"] = "WorkerCrashedError"
    (control,) = [c for c in cluster.run(**terms).controls if c.name == missed]
    assert not control.caught
