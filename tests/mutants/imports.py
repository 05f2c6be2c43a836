"""Reads which of our modules import which: what a mutant cannot change is imported once."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

Graph = Mapping[str, Collection[str]]  # module -> modules that it imports, anywhere in its code


def read_imports(root: Path, packages: Iterable[str]) -> dict[str, set[str]]:
    """Read the imports between the modules of these packages."""
    files = {
        name_of(file.relative_to(root)): file
        for package in packages
        for file in (root / package).rglob("*.py")
    }
    return {
        name: {
            part
            for found in [name, *_imported(ast.parse(file.read_bytes()))]  # its own parents too
            for part in _with_parents(found)
            if part in files and part != name
        }
        for name, file in files.items()
    }


def name_of(path: Path) -> str:
    """Return the dotted name of a module's file."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> Iterator[str]:
    """Yield `a`, `a.b` and `a.b.c`: the last import runs all three."""
    parts = name.split(".")
    return (".".join(parts[: end + 1]) for end in range(len(parts)))


def reached(graph: Graph, start: Iterable[str]) -> set[str]:
    """Return `start` and all that it leads to."""
    found, left = set[str](), [*start]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += graph.get(name, ())
    return found


def reverse(graph: Graph) -> dict[str, set[str]]:
    """Turn the arrows of a graph around."""
    turned: dict[str, set[str]] = {}
    for name, others in graph.items():
        for other in others:
            turned.setdefault(other, set()).add(name)
    return turned


def keep_warm(graph: Graph, mutated: str, tests: Iterable[str]) -> None:
    """Import what the tests need and the mutated module cannot change; forget the rest of ours.

    Raises RuntimeError if that imported the mutated module, or one that needs it.
    """
    changed = reached(reverse(graph), [mutated])
    for name in changed & set(sys.modules):
        parent, _, last = name.rpartition(".")
        del sys.modules[name]
        with suppress(KeyError, AttributeError):  # `from parent import last` would find it there
            delattr(sys.modules[parent], last)
    for name in sorted(reached(graph, tests) - changed):
        # pytest imports these itself, and rewrites their asserts.
        if not name.rpartition(".")[2].startswith(("test_", "conftest")):
            # What fails or skips here does so again in the tests, where it counts.
            with suppress(Exception, SystemExit, pytest.skip.Exception):
                importlib.import_module(name)
    if early := sorted(changed & set(sys.modules)):
        raise RuntimeError(f"{early[0]} was imported before {mutated} was mutated: no test sees it")
