"""A measure, and a control, is named by its declaration: its name is a string in one place."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from probes.check.registry import CRITERIA
from tests.project.test_imports import source_files
from tests.support.paths import REPO

# Names that are also keys of what is recorded, or read on nodes: there they are no measure's name.
KEYS = {
    "efficiency", "exit_code", "export_error", "gpu_model", "locked_memory", "memory_errors", "mfu",
    "nvlink_errors", "open_files", "pcie_replays", "rank_cv", "ray_client", "resumed_from",
    "shared_memory", "tokens_per_s",
}  # fmt: skip


# It names measures as a contract does, and may not import their declarations.
DERIVED = "probes/contract/derived_limits.py"


def names_declared() -> set[str]:
    """Names of checks and controls that are no plain words."""
    names = {str(one) for row in CRITERIA.values() for one in (*row.checks, *row.planted)}
    return {name for name in names if "_" in name or " " in name} - KEYS


def count_strings(text: str, names: set[str]) -> Counter[str]:
    """Count the strings of a module that are one of these names; docstrings are none."""
    return Counter(
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    )


def test_each_name_is_written_once() -> None:
    names, places = names_declared(), dict[str, list[str]]()
    for path in source_files(REPO).values():
        for name in count_strings(path.read_text(), names).elements():
            places.setdefault(name, []).append(str(path.relative_to(REPO)))
    allowed = {f"probes/{id.lower()}/criterion.py" for id in CRITERIA} | {DERIVED}
    twice = {
        name: found
        for name, found in places.items()
        if not set(found) <= allowed or len(found) != len(set(found))
    }
    assert not twice


def test_a_name_that_stands_again_is_seen(tmp_path: Path) -> None:
    name = min(names_declared())
    assert count_strings(f'measure("{name}", 0)\n', {name}) == {name: 1}
    assert not count_strings(f'"""{name}"""\nmeasure("other", 0)\n', {"third"})
