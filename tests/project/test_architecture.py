"""House rules, kept by tests: floors, one list in four places, late imports, no magic paths."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from probes.check.registry import CRITERIA, run_order
from probes.contract.contract import load, shipped_contracts
from probes.findings import CATALOGUE
from probes.hosts.conditions import read_table
from probes.nccl.patterns import read_phrases
from probes.nccl.rows import read_rows
from tests.faults.live_faults import FAMILIES
from tests.support.paths import REPO

FLOORS = {  # package -> what of ours it may import
    "reports": {"reports"},
    "reference_trainer": {"reference_trainer"},
    "scaling": {"scaling", "reports", "reference_trainer"},
    "probes": {"probes", "scaling", "reports", "reference_trainer", "seatrial"},
    "seatrial": {"probes", "reports", "seatrial"},
}
HEAVY = {"torch", "ray", "pandas", "matplotlib", "numpy", "pynvml"}
# Imported only by functions of the same package, after the rank has been started.
LATE = {f"reference_trainer/{name}.py" for name in (
    "closing", "distributed", "train", "checkpoint/checkpointer", "checkpoint/save",
    "data/shard_stream", "model/export", "model/transformer",
    "telemetry/step_timer")}  # fmt: skip


def imports(path: Path, top_level_only: bool = False) -> set[str]:
    """First names of everything that a file imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


SOURCES = [path for package in FLOORS for path in sorted((REPO / package).rglob("*.py"))]
every_source = pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(REPO)))


@every_source
def test_imports_only_point_down(path: Path) -> None:
    ours = imports(path) & (FLOORS.keys() | {"tests"})
    assert ours <= FLOORS[path.relative_to(REPO).parts[0]], f"{path} imports {ours}"


@every_source
def test_heavy_imports_are_late(path: Path) -> None:
    if str(path.relative_to(REPO)) in LATE:
        return
    assert not imports(path, top_level_only=True) & HEAVY


def test_the_floor_check_sees_a_planted_import(tmp_path: Path) -> None:
    planted = tmp_path / "linerate.py"
    planted.write_text("def f():\n    from probes.cluster.cluster import Cluster\n")
    assert "probes" in imports(planted) - FLOORS["scaling"]
    planted.write_text("import os\nfrom torch import nn\ndef f():\n    import ray\n")
    assert imports(planted, top_level_only=True) & HEAVY == {"torch"}


PRIVATE = re.compile(r"ray\.(_|core\b|experimental\.internal_kv)")
# The one home of Ray's private parts, and scripts that run with nothing but Ray.
INTERNALS = {
    "probes/cluster/ray_internals.py", "probes/faults/spare_nodes.py", "probes/gang/job_driver.py",
}  # fmt: skip


def private_parts(text: str) -> set[str]:
    """Modules and attributes of Ray that are private, as a file names them."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {f"{node.module}.{alias.name}" for node in nodes
              if isinstance(node, ast.ImportFrom) for alias in node.names}  # fmt: skip
    names |= {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    return {name for name in names if PRIVATE.match(name)}


@every_source
def test_private_parts_of_ray_have_one_home(path: Path) -> None:
    found = private_parts(path.read_text())
    assert bool(found) is (str(path.relative_to(REPO)) in INTERNALS), found


def test_a_planted_private_part_is_seen() -> None:
    assert private_parts("def f():\n    from ray import _private") == {"ray._private"}
    assert "ray._private.worker" in private_parts("import ray\nray._private.worker.x()")
    assert private_parts("from ray.core.generated.gcs_pb2 import ActorTableData")
    assert private_parts("from ray.experimental.internal_kv import _internal_kv_get")
    assert not private_parts("import ray\nfrom ray.util import placement_group\nray.init()")


def test_who_may_import_early_does() -> None:
    assert all(imports(REPO / path, top_level_only=True) & HEAVY for path in LATE)


def test_one_list_in_four_places() -> None:
    probes = REPO / "probes"
    files = {p.relative_to(probes).parts[0].upper() for p in probes.rglob("test_*.py")}
    assert all((REPO / f"probes/{row}/test_{row}.py").exists() for row in map(str.lower, files))
    readme = re.findall(r"^\| ([A-Z]+) \|", (REPO / "README.md").read_text(), re.MULTILINE)
    assert files == set(CRITERIA) == set(run_order()) == set(readme)
    for name in shipped_contracts():
        assert [c.id for c in load(name).facts().criteria] == list(CRITERIA)


def test_every_finding_code_used_is_in_the_catalogue() -> None:
    kinds = "|".join(sorted({code.split("-")[0] for code in CATALOGUE}))
    tables = (*read_phrases(), *read_rows(), *read_table().rows.values())
    used = {row.code for row in tables} - {""}
    for path in (*(REPO / "probes").rglob("*.py"), *(REPO / "scaling").rglob("*.py")):
        used |= set(re.findall(rf'"((?:{kinds})-[A-Z-]+)"', path.read_text()))
    assert used == set(CATALOGUE)


def test_the_docs_show_the_documented_path_literally() -> None:
    from probes.launch.guide import own_guide

    launch = (REPO / "probes" / "launch" / "launch.md").read_text()
    block = re.search(r"```sh\n(.*?)```", launch, re.DOTALL)
    assert block
    assert block[1] in (REPO / "docs" / "use" / "training.md").read_text()
    first = [command.text.split()[0] for command in own_guide().commands]
    assert first == ["seatrial", "cd", "ray", "python", "--digest-start"]


@pytest.mark.parametrize(
    ("command", "own"),
    [
        (["-m", "probes.cli.main", "--help"], "click"),
        (["-m", "pytest", "probes", "--collect-only", "-q"], "_pytest.main"),
        (["-m", "reference_trainer", "--help"], "reference_trainer.config"),
    ],
    ids=["seatrial", "collect", "trainer"],
)
def test_help_and_collection_import_nothing_heavy(command: list[str], own: str) -> None:
    done = subprocess.run([sys.executable, "-X", "importtime", *command], cwd=REPO, text=True,
                          capture_output=True, check=True, timeout=120)  # fmt: skip
    loaded = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert own in loaded  # the list is read
    assert not loaded & {"torch", "ray", "pandas", "matplotlib"}


DOCS = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(REPO)))
def test_files_and_modules_that_the_docs_name_are_there(page: Path) -> None:
    text, tops = page.read_text(), "|".join([*FLOORS, "tests", "benchmarks", "docs"])
    paths = re.findall(rf"(?<![\w/])((?:{tops})/[\w./-]*\w)", text)
    paths += [name.replace(".", "/") for name in re.findall(rf"-m ((?:{tops})\b[\w.]*)", text)]
    missing = [name for name in paths if not list(REPO.glob(f"{name}*"))]
    assert not missing


def test_make_bench_names_benchmarks() -> None:
    (names,) = re.findall(r"for what in (.*?);", (REPO / "Makefile").read_text())
    assert all((REPO / "benchmarks" / f"{name}.py").exists() for name in names.split())


def test_each_group_of_long_tests_is_one_that_make_soak_knows() -> None:
    (known,) = re.findall(r"^SOAKS := (.*)$", (REPO / "Makefile").read_text(), re.MULTILINE)
    files = (REPO / "tests").rglob("*.py")
    named = {
        name
        for file in files
        for name in re.findall(r"mark\.soak\(criterion=[\"'](\w+)", file.read_text())
    }
    named |= {family.soak for family, _ in FAMILIES.values()}
    assert named == {*known.split()}
