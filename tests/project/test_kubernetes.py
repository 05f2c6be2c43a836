"""The manifests fit their CRDs (cut down in schemas/), agree with each other, do what is said.

Other sources of docs/use/kubernetes.md: KubeRay's volcano_scheduler.go (PodGroup, minMember,
minResources), its raycluster_controller.go (when a cluster is `ready`) and API reference of 1.6.2.
Kueue's rayjob_controller.go and rayjob_webhook.go (pod sets, suspend, shutdownAfterJobFinishes),
its guide "Setup All-or-nothing with ready Pods", and its release notes of 0.19 and 0.20.  Ray's
guides for Kueue, Volcano and KAI, and job_supervisor.py of 2.60 (the message with the exit code).
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from probes.contract.contract import Contract, load
from probes.session.options import OPTIONS
from tests.project.crd_schema import KNOWN, SCHEMAS, faults, schema
from tests.support.paths import REPO

GUIDE = (REPO / "docs" / "use" / "kubernetes.md").read_text()
MANIFESTS = {
    path.stem: path for path in sorted((REPO / "docs" / "use" / "kubernetes").glob("*.yaml"))
}
GPU = "nvidia.com/gpu"
SUBMITTER = {"cpu": "500m", "memory": "200Mi"}  # what KubeRay's own submitter pod asks for
SUFFIX = {"m": 1e-3, "": 1, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def documents(manifest: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFESTS[manifest].read_text()))


def only(manifest: str, kind: str) -> dict[str, Any]:
    (document,) = (d for d in documents(manifest) if d["kind"] == kind)
    return document


def fenced(language: str) -> list[str]:
    """The guide's code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


CONFIGURATION = yaml.safe_load(fenced("yaml")[0])
EVERY = [*(d for name in MANIFESTS for d in documents(name)), CONFIGURATION]
every_document = pytest.mark.parametrize(
    "document", EVERY, ids=lambda d: f"{d['kind']}-{d.get('metadata', {}).get('name', 'guide')}"
)
both = pytest.mark.parametrize("manifest", MANIFESTS)


def found(document: dict[str, Any]) -> list[str]:
    return list(faults(document, schema(document["kind"]), document["kind"]))


@every_document
def test_a_document_fits_its_crd(document: dict[str, Any]) -> None:
    assert found(document) == []


def test_both_manifests_have_what_a_run_needs() -> None:
    common = ["ConfigMap", "PersistentVolumeClaim", "RayJob"]
    kinds = {name: [d["kind"] for d in documents(name)] for name in MANIFESTS}
    queue = ["ResourceFlavor", "ClusterQueue", "LocalQueue"]
    assert kinds == {"kueue": queue + common, "volcano": ["Queue", *common]}


@pytest.mark.parametrize("file", sorted(SCHEMAS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_schema_says_where_it_is_from_and_nothing_that_is_not_checked(file: Path) -> None:
    head = file.read_text().split("\ntype:")[0]
    assert re.match(r"# Reduced from [\w-]+/[\w-]+\n#   [\w/.-]+", head)
    assert re.search(r"at [0-9a-f]{40}$", head, re.MULTILINE)
    rules = [yaml.safe_load(file.read_text())]
    for rule in rules:
        assert set(rule) <= KNOWN
        assert set(rule.get("required", [])) <= set(rule.get("properties", {}))
        inner = [rule[key] for key in ("items", "additionalProperties") if key in rule]
        rules += [*inner, *rule.get("properties", {}).values()]


# --------------------------------------------------------------------- and the check can see faults


HEAD = "rayClusterSpec.headGroupSpec"
WORKERS = "rayClusterSpec.workerGroupSpecs.0"
MODES = "K8sJobMode, HTTPMode, InteractiveMode, SidecarMode"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("entrypoint", None, "entrypoint: is required"),
        (f"{WORKERS}.groupName", None, "workerGroupSpecs[0].groupName: is required"),
        ("shutDownAfterJobFinishes", True, "shutDownAfterJobFinishes: is not a known field"),
        (f"{HEAD}.rayStartParams.num-gpus", 0, "num-gpus: expected string, found 0"),
        ("backoffLimit", True, "backoffLimit: expected integer, found True"),
        ("submissionMode", "Job", f"submissionMode: expected one of {MODES}, found 'Job'"),
        (
            f"{HEAD}.template.spec.volumes.2.emptyDir.sizeLimit",
            "16GB",
            "volumes[2].emptyDir.sizeLimit: '16GB' is not of the form expected",
        ),
    ],
    ids=["deleted", "deleted deep", "misspelt", "type", "no integer", "enum", "quantity"],
)
def test_a_fault_is_named_by_its_path(field: str, value: Any, expected: str) -> None:
    document = only("kueue", "RayJob")
    spot: Any = document["spec"]
    *steps, last = field.split(".")
    for step in steps:
        spot = spot[int(step) if step.isdigit() else step]
    spot.pop(last, None)
    if value is not None:
        spot[last] = value
    path = re.sub(r"\.(\d+)", r"[\1]", f"RayJob.spec.{field}")
    (said,) = found(document)
    assert said.startswith(f"{path}: ")
    assert said.endswith(expected)


Place = tuple[Any, Any, dict[str, Any], str]


def visits(value: Any, rule: dict[str, Any], path: str) -> Iterator[Place]:
    """Every field: the object or list that holds it, its key there, the holder's rule, its path."""
    named = isinstance(value, dict)
    fields, others = rule.get("properties", {}), rule.get("additionalProperties")
    for key, item in list(value.items() if named else enumerate(value)):
        where = f"{path}.{key}" if named else f"{path}[{key}]"
        yield value, key, rule, where
        if isinstance(item, dict | list):
            yield from visits(item, fields.get(key, others) if named else rule["items"], where)


def delete(holder: Any, key: Any, rule: dict[str, Any], where: str) -> str:
    del holder[key]
    return where if key in rule.get("required", []) else ""


def misspell(holder: Any, key: Any, rule: dict[str, Any], where: str) -> str:
    if key not in rule.get("properties", {}):
        return ""
    holder[f"{key}s"] = holder.pop(key)
    return f"{where}s"


def mistype(holder: Any, key: Any, rule: dict[str, Any], where: str) -> str:
    holder[key] = 1.5  # none of our fields is a fraction
    return where


@every_document
@pytest.mark.parametrize("harm", [delete, misspell, mistype], ids=lambda harm: harm.__name__)
def test_harm_to_any_field_is_seen_there(document: dict[str, Any], harm: Any) -> None:
    kind, tried = document["kind"], 0
    rule = schema(kind)
    for index in range(len(list(visits(document, rule, kind)))):
        harmed = copy.deepcopy(document)
        place = list(visits(harmed, rule, kind))[index]
        if expected := harm(*place):
            tried += 1
            said = list(faults(harmed, rule, kind))
            assert any(line.startswith(f"{expected}: ") for line in said), (place, said)
    assert tried > 1


# --------------------------------------------------------------------- the documents fit each other


def amount(quantity: int | str) -> float:
    read = re.fullmatch(r"([0-9.]+)(\w*)", str(quantity))
    assert read, quantity
    return float(read[1]) * SUFFIX[read[2]]


def groups(job: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Head and workers: how many pods, and the pod's spec."""
    cluster = job["spec"]["rayClusterSpec"]
    workers = [(g["replicas"], g["template"]["spec"]) for g in cluster["workerGroupSpecs"]]
    return [(1, cluster["headGroupSpec"]["template"]["spec"]), *workers]


def asked(job: dict[str, Any], resource: str) -> float:
    """What all pods of a job ask for, its submitter's too."""
    return amount(SUBMITTER.get(resource, 0)) + sum(
        count * amount(container["resources"]["requests"].get(resource, 0))
        for count, pod in groups(job)
        for container in pod["containers"]
    )


def quota(manifest: str) -> dict[str, float]:
    if manifest == "volcano":
        room = only("volcano", "Queue")["spec"]["capability"]
        return {name: amount(most) for name, most in room.items()}
    (group,) = only("kueue", "ClusterQueue")["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert [quota["name"] for quota in flavor["resources"]] == group["coveredResources"]
    return {quota["name"]: amount(quota["nominalQuota"]) for quota in flavor["resources"]}


def test_the_queue_names_agree() -> None:
    (group,) = only("kueue", "ClusterQueue")["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == only("kueue", "ResourceFlavor")["metadata"]["name"]
    local = only("kueue", "LocalQueue")
    assert local["spec"]["clusterQueue"] == only("kueue", "ClusterQueue")["metadata"]["name"]
    labels = only("kueue", "RayJob")["metadata"]["labels"]
    assert labels == {"kueue.x-k8s.io/queue-name": local["metadata"]["name"]}
    labels = only("volcano", "RayJob")["metadata"]["labels"]
    queue = only("volcano", "Queue")["metadata"]["name"]
    assert labels == {"volcano.sh/queue-name": queue, "ray.io/scheduler-name": "volcano"}


@both
def test_the_job_fits_the_queue_and_no_pod_asks_for_what_it_does_not_cover(manifest: str) -> None:
    job, room = only(manifest, "RayJob"), quota(manifest)
    for _, pod in groups(job):
        for container in pod["containers"]:
            assert set(container["resources"]["requests"]) <= set(room)
            assert container["resources"]["requests"] == container["resources"]["limits"]
    assert all(asked(job, resource) <= most for resource, most in room.items())
    assert asked(job, GPU) == room[GPU] == 64


@both
def test_kueue_and_volcano_gang_a_fixed_number_of_workers(manifest: str) -> None:
    spec = only(manifest, "RayJob")["spec"]
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    assert spec["rayClusterSpec"]["enableInTreeAutoscaling"] is False
    assert spec["shutdownAfterJobFinishes"] is True  # or Kueue's webhook refuses it
    assert "suspend" not in spec  # or a second apply deletes the running cluster


def mounted(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Mount path -> the volume that is mounted there."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}


def has_the_claim_and_memory_of_its_own(pod: Any, claim: Any) -> None:
    """Assert it of /shared and /dev/shm."""
    volumes = mounted(pod)
    shared = volumes["/shared"]["persistentVolumeClaim"]
    assert shared == {"claimName": claim["metadata"]["name"]}
    shm = volumes["/dev/shm"]["emptyDir"]
    memory = amount(pod["containers"][0]["resources"]["limits"]["memory"])
    assert shm["medium"] == "Memory"
    # Ray's object store takes 30 % of the memory there; a full folder must not end the pod.
    assert 0.3 * memory < amount(shm["sizeLimit"]) < memory


@both
def test_head_and_workers_share_one_volume_and_have_memory_of_their_own(manifest: str) -> None:
    claim = only(manifest, "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for _, pod in groups(only(manifest, "RayJob")):
        has_the_claim_and_memory_of_its_own(pod, claim)


@both
def test_workers_may_pin_memory_and_the_head_has_no_gpu(manifest: str) -> None:
    job = only(manifest, "RayJob")
    (_, head), (_, worker) = groups(job)
    assert worker["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert GPU not in head["containers"][0]["resources"]["requests"]
    assert job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    assert re.search(r"^ +# rdma/\w+: 1", MANIFESTS[manifest].read_text(), re.MULTILINE)
    assert set(re.findall(r"image: (.*)", MANIFESTS[manifest].read_text())) == {"your-image:tag"}


def contract(manifest: str, folder: Path) -> Contract:
    file = folder / "contract.toml"
    file.write_text(only(manifest, "ConfigMap")["data"]["contract.toml"])
    return load(str(file))


@both
def test_the_contract_loads_and_orders_what_the_job_has(manifest: str, tmp_path: Path) -> None:
    read = contract(manifest, tmp_path)
    _, (count, worker) = groups(only(manifest, "RayJob"))
    gpus = worker["containers"][0]["resources"]["limits"][GPU]
    assert (read.cluster.nodes, read.cluster.gpus_per_node) == (count, gpus)
    assert read.cluster.shared == "/shared"
    assert read.cluster.queue == manifest
    assert (
        read.limit("GANG", "large_gang_wait") is not None
    )  # a declared queue without it proves nothing
    template = load("h100-ndr400")
    for criterion, limits in template.limits.items():
        for measure, limit in limits.items():
            mine = read.limits[criterion][measure]
            assert (mine.low, mine.one_of) == (limit.low, limit.one_of)


@both
def test_the_entrypoint_is_the_suite_with_the_mounted_contract(manifest: str) -> None:
    job = only(manifest, "RayJob")
    *words, option, contract_file, other, run_folder = job["spec"]["entrypoint"].split()
    assert (words, option, other) == (["seatrial", "run"], "--contract", "--run-dir")
    assert {option, other} <= {known.name for known in OPTIONS}
    file, folder = Path(contract_file), Path(run_folder)
    volumes, config = mounted(groups(job)[0][1]), only(manifest, "ConfigMap")
    assert volumes[str(file.parent)]["configMap"] == {"name": config["metadata"]["name"]}
    assert file.name in config["data"]
    assert "persistentVolumeClaim" in volumes[str(folder.parent)]


# ------------------------------------------------------------------------------- the guide is right


def test_files_that_the_guide_names_exist() -> None:
    named = set(re.findall(r"\b(?:docs|tests|probes)/[\w/.-]*\w", GUIDE))
    linked = {f"docs/use/{link}" for link in re.findall(r"\]\(([\w/.]+)\)", GUIDE)}
    assert {f"docs/use/kubernetes/{name}.yaml" for name in MANIFESTS} <= named & linked
    assert [name for name in named | linked if not (REPO / name).exists()] == []


def test_the_guide_knows_the_exit_codes() -> None:
    row = re.compile(r"^(\| \d+ \|) ", re.MULTILINE)
    page = REPO / "docs" / "reference" / "commands.md"
    assert row.findall(GUIDE) == row.findall(page.read_text())


def test_the_reader_pod_sees_the_run_folder() -> None:
    (said,) = re.findall(r"--overrides='(.*?)'", GUIDE, re.DOTALL)
    pod = json.loads(said)["spec"]
    rule = schema("RayJob")
    for field in ("spec", "rayClusterSpec", "headGroupSpec", "template", "spec"):
        rule = rule["properties"][field]
    assert list(faults(pod, rule, "spec")) == []
    claim = {"claimName": only("kueue", "PersistentVolumeClaim")["metadata"]["name"]}
    assert mounted(pod)["/shared"]["persistentVolumeClaim"] == claim
    for manifest in MANIFESTS:
        folder = only(manifest, "RayJob")["spec"]["entrypoint"].split()[-1]
        assert f"kubectl cp seatrial-reader:{folder} " in GUIDE


@both
def test_the_recipe_makes_two_jobs_of_75_percent(manifest: str, tmp_path: Path) -> None:
    (recipe,) = (block for block in fenced("sh") if "gang-a" in block)
    stub = 'kubectl() { [ "$1" != apply ] || cat > "$OUT/$job.yaml"; }\n'
    script = stub + recipe.replace("kueue.yaml", f"{manifest}.yaml").replace("grep", "true")
    environment = {**os.environ, "OUT": str(tmp_path)}
    subprocess.run(["bash", "-euc", script], cwd=REPO, env=environment, check=True, timeout=30)
    for name in ("gang-a", "gang-b"):
        *others, job = yaml.safe_load_all((tmp_path / f"{name}.yaml").read_text())
        assert others == documents(manifest)[:-1]
        assert (found(job), job["metadata"]["name"]) == ([], name)
        assert job["spec"]["entrypoint"].startswith("sleep")
        assert asked(job, GPU) == 0.75 * quota(manifest)[GPU]
        assert all(
            2 * asked(job, other) <= quota(manifest)[other] for other in SUBMITTER
        )  # only GPUs
    assert sum(count for count, _ in groups(job)) == 7  # as the guide says: a head, 6 workers


def test_the_guide_names_every_queue_that_a_contract_may_declare(tmp_path: Path) -> None:
    declared = set(re.findall(r'"(\w+)"', GUIDE[GUIDE.index("`queue = ") :].split("\n\n")[0]))
    text = only("kueue", "ConfigMap")["data"]["contract.toml"]
    for queue in declared:
        file = tmp_path / f"{queue}.toml"
        file.write_text(text.replace('queue = "kueue"', f'queue = "{queue}"'))
        assert load(str(file)).cluster.queue == queue
    assert declared == {"kueue", "volcano", "yunikorn", "kai"}
