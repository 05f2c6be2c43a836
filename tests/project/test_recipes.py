"""The recipes of docs/use/launch agree with the suite, with KubeRay's CRD and with each other.

No container engine is at hand: what Docker and Kubernetes do with them is not tested.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from probes.contract.contract import load
from probes.findings import CATALOGUE
from tests.project.test_kubernetes import (
    GPU,
    amount,
    faults,
    groups,
    has_the_claim_and_memory_of_its_own,
    schema,
)
from tests.support.doc_commands import FENCED, find_commands, find_wrong_words
from tests.support.paths import REPO

RECIPES = REPO / "docs" / "use" / "launch"
PAGES = sorted(RECIPES.glob("*.md"))
OWN_PAGES = [RECIPES / "docker.md", RECIPES / "kuberay.md"]
PREFIXES = "|".join(sorted({code.partition("-")[0] for code in CATALOGUE}))
CODE = re.compile(rf"(?<![\w-])(?:{PREFIXES})-[A-Z][A-Z-]*[A-Z]\b")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
MAX_WIDTH = 120  # of a line: as the other pages
FOLLOWED = {"K8sJobMode", "SidecarMode"}  # modes in which a pod shows the log of the run

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
own_page = pytest.mark.parametrize("page", OWN_PAGES, ids=lambda page: page.stem)


def read_documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((RECIPES / name).read_text()))


(CLAIM, CLUSTER), (JOB,) = read_documents("raycluster.yaml"), read_documents("rayjob.yaml")


def as_job(cluster: dict[str, Any]) -> dict[str, Any]:
    """Wrap a RayCluster's spec into a RayJob, for checks that read a job."""
    spec = {"entrypoint": "true", "rayClusterSpec": cluster["spec"]}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "x"}, "spec": spec}


JOBS = {"raycluster": as_job(CLUSTER), "rayjob": JOB}
both = pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))


def unknown_codes(text: str) -> list[str]:
    return [code for code in CODE.findall(text) if code not in CATALOGUE]


# ---------------------------------------------------------------------------------- the manifests


def test_kinds_and_versions() -> None:
    kinds = [(document["apiVersion"], document["kind"]) for document in (CLAIM, CLUSTER, JOB)]
    assert kinds == [
        ("v1", "PersistentVolumeClaim"),
        ("ray.io/v1", "RayCluster"),
        ("ray.io/v1", "RayJob"),
    ]


@pytest.mark.parametrize("document", [CLAIM, *JOBS.values()], ids=["claim", *JOBS])
def test_each_field_is_known(document: dict[str, Any]) -> None:
    assert list(faults(document, schema(document["kind"]), document["kind"])) == []


def test_the_job_runs_on_the_cluster_of_the_recipe() -> None:
    assert JOB["spec"]["rayClusterSpec"] == CLUSTER["spec"]


def test_all_pods_have_one_image() -> None:
    pods = [pod for job in JOBS.values() for _, pod in groups(job)]
    assert {container["image"] for pod in pods for container in pod["containers"]} == {"YOUR-IMAGE"}


@both
def test_each_pod_has_the_shared_folder_and_memory_of_its_own(job: dict[str, Any]) -> None:
    assert CLAIM["spec"]["accessModes"] == ["ReadWriteMany"]
    for _, pod in groups(job):
        has_the_claim_and_memory_of_its_own(pod, CLAIM)


@both
def test_pods_ask_for_what_they_may_use(job: dict[str, Any]) -> None:
    for _, pod in groups(job):
        resources = pod["containers"][0]["resources"]
        assert resources["requests"] == resources["limits"]


@both
def test_head_is_no_compute_node_and_workers_lock_memory(job: dict[str, Any]) -> None:
    (_, head), (count, worker) = groups(job)
    spec = job["spec"]["rayClusterSpec"]
    (workers,) = spec["workerGroupSpecs"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    assert GPU not in head["containers"][0]["resources"]["limits"]
    assert spec["enableInTreeAutoscaling"] is False
    assert count == workers["minReplicas"] == workers["maxReplicas"]
    contexts = [pod["containers"][0]["securityContext"] for pod in (head, worker)]
    assert [context["runAsUser"] for context in contexts] == [0, 0]
    assert contexts[1]["capabilities"]["add"] == ["IPC_LOCK"]


@both
def test_workers_have_what_the_template_orders(job: dict[str, Any]) -> None:
    ordered = load("h100-ndr400").cluster
    limits = groups(job)[1][1]["containers"][0]["resources"]["limits"]
    assert limits[GPU] == ordered.gpus_per_node
    assert amount(limits["cpu"]) >= ordered.cpus_per_node
    assert amount(limits["memory"]) >= ordered.ram_gib * 2**30


@pytest.mark.parametrize("name", ["raycluster", "rayjob"])
def test_what_is_to_be_adapted_is_a_comment(name: str) -> None:
    text = (RECIPES / f"{name}.yaml").read_text()
    for words in (r"rdma/\w+: 1", "hostNetwork: true", "dnsPolicy: ClusterFirstWithHostNet"):
        assert re.search(rf"^ +# {words}", text, re.MULTILINE), words


def test_a_failed_run_is_never_tried_again() -> None:
    spec = JOB["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["submissionMode"] in FOLLOWED
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["ttlSecondsAfterFinished"] > 0
    assert "clusterSelector" not in spec


def test_the_entry_point_is_a_run_in_a_fixed_folder() -> None:
    program, command, *words = JOB["spec"]["entrypoint"].split()
    assert (program, command) == ("seatrial", "run")
    assert find_wrong_words("seatrial", " ".join([command, *words])) == []
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given == {
        "--cluster": "auto",
        "--contract": "/shared/cluster.toml",
        "--run-dir": "/shared/acceptance",  # fixed: the suite refuses it for a second run
    }


# -------------------------------------------------------------------------------------- the pages


@every_page
def test_each_recipe_has_a_run(page: Path) -> None:
    assert any(words.startswith("run ") for _, words in find_commands(page.read_text()))


@every_page
def test_codes_are_in_the_catalogue(page: Path) -> None:
    assert unknown_codes(page.read_text()) == []


@own_page
def test_a_recipe_is_proven_by_hosts_and_launch(page: Path) -> None:
    text = page.read_text()
    assert any("--only HOSTS,LAUNCH" in words for _, words in find_commands(text))
    assert "Not run by seatrial's own tests" in text
    lines = text.splitlines()
    assert [n for n, line in enumerate(lines, 1) if len(line) > MAX_WIDTH] == []


def test_each_flag_of_docker_is_explained() -> None:
    start, _, proof = (RECIPES / "docker.md").read_text().partition("## Prove it")
    blocks = [block for block in FENCED.findall(start) if "ray start" in block or "flags=" in block]
    typed = {flag for block in blocks for flag in FLAG.findall(block)}
    typed -= {"--head", "--port", "--address", "--disable-usage-stats"}  # plain words of Ray
    rows = [line.split("|")[1] for line in start.splitlines() if line.startswith("| `--")]
    assert {flag for row in rows for flag in FLAG.findall(row)} == typed
    assert "docker exec" in proof


def test_each_rule_can_fail() -> None:
    assert unknown_codes("`HOST-SHARED`, HOST-SHARES, HOST-, LAUNCH") == ["HOST-SHARES"]
