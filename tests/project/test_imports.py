"""Who imports whom: packages in one direction, and no circle of modules, late imports included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.paths import REPO

CRITERIA = {"hosts", "fabric", "gang", "launch", "restart", "scaling"}
JUDGING = {"check", "contract", "cluster", "findings", "toml_tables"}
# Package -> the packages of the same top level that it may import.
DIRECTIONS: dict[str, dict[str, set[str]]] = {
    "probes": {
        "findings": {"toml_tables"},
        "toml_tables": set(),
        "requirements": set(),
        "cluster": {"findings", "toml_tables"},
        "nccl": {"findings", "toml_tables"},
        "environment": {"cluster", "findings", "toml_tables"},
        "faults": {"cluster"},
        "check": {"contract", "cluster", "findings", "toml_tables"},
        "contract": {"check", "environment", "cluster", "findings", "toml_tables"},
        "session": JUDGING,
        "hosts": JUDGING | {"environment"},
        "launch": JUDGING | {"environment", "faults", "session"},
        "gang": JUDGING | {"faults", "session"},
        "restart": JUDGING | {"faults", "requirements", "session"},
        "fabric": JUDGING | {"environment", "nccl"},
        "scaling": JUDGING | {"fabric"},
        "doctor": JUDGING | {"launch", "requirements"},
        "submit": {"cluster", "requirements"},
        "leftovers": {"cluster", "submit"},
        "plugin": JUDGING | {"session", "requirements"},
        "cli": JUDGING
        | {"doctor", "scaling", "nccl", "session", "submit", "leftovers", "requirements"}
        | {"launch"},  # whose commands a contract brings
    },
    "scaling": {
        "bounds": set(),
        "collectives": {"bounds"},
        "ladder": {"bounds"},
        "loss": {"bounds", "ladder", "collectives"},
    },
}


def source_files(root: Path) -> dict[str, Path]:
    """Module name -> file, of the packages under `root`."""
    found = {}
    for package in ("probes", "scaling", "reference_trainer", "reports", "seatrial"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_modules(path: Path, modules: set[str]) -> set[str]:
    """Those of `modules` that a file imports, at its top or in its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                full if (full := f"{node.module}.{alias.name}") in modules else node.module
                for alias in node.names
            }
    return found & modules


def import_graph(root: Path) -> dict[str, set[str]]:
    """Module -> the modules that it imports."""
    files = source_files(root)
    return {name: imported_modules(path, set(files)) - {name} for name, path in files.items()}


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of imports, first module again at its end; empty without any."""
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name not in done:
            for imported in sorted(graph[name]):
                if circle := visit(imported, [*trail, name]):
                    return circle
            done.add(name)
        return []

    return next((circle for name in sorted(graph) if (circle := visit(name, []))), [])


def wrong_directions(graph: dict[str, set[str]]) -> list[str]:
    """Imports that DIRECTIONS does not have, `module imports module`."""
    wrong = []
    for name, imported in graph.items():
        top, _, rest = name.partition(".")
        package = rest.split(".")[0]
        if top in DIRECTIONS and package:
            assert package in DIRECTIONS[top], f"say in DIRECTIONS what {top}.{package} may import"
            allowed = DIRECTIONS[top][package] | {package}
            wrong += [
                f"{name} imports {other}"
                for other in imported
                if other.startswith(f"{top}.") and other.split(".")[1] not in allowed
            ]
    return sorted(wrong)


def test_packages_import_in_one_direction() -> None:
    assert wrong_directions(import_graph(REPO)) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert find_circle(import_graph(REPO)) == []


@pytest.mark.parametrize(
    ("imported", "line"),
    [
        ("probes/cluster/facts.py", "from probes.gang import judge"),
        ("scaling/ladder/rung.py", "def f():\n    import scaling.loss.causes"),
    ],
)
def test_an_import_upwards_is_seen(tmp_path: Path, imported: str, line: str) -> None:
    for name in ("probes/gang/judge.py", "scaling/loss/causes.py", imported):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert wrong_directions(import_graph(tmp_path)) == []
    (tmp_path / imported).write_text(line)
    assert len(wrong_directions(import_graph(tmp_path))) == 1


def test_a_circle_through_a_late_import_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "one.py").write_text("from reports import two")
    (folder / "two.py").write_text("from reports.three import f")
    (folder / "three.py").write_text("def f():\n    from reports.one import g")
    circle = ["reports.one", "reports.two", "reports.three", "reports.one"]
    assert find_circle(import_graph(tmp_path)) == circle
