"""Call sites name what the catalogue's placeholders need: known kinds, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from reports.orders import KINDS
from tests.support.paths import REPO

MAKERS = {"finding", "one_finding"}
LEAST_SITES = 45  # calls with names; fewer: the reader below no longer finds them


def named_dicts(tree: ast.AST) -> Iterator[ast.Dict]:
    """Yield the dicts that a call of a maker gets as `names`, also through a local variable."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        used = set()
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in MAKERS:
                for value in (k.value for k in call.keywords if k.arg == "names"):
                    if isinstance(value, ast.Dict):
                        yield value
                    elif isinstance(value, ast.Name):
                        used.add(value.id)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict | ast.Tuple):
                yield from _assigned(node, used)


def _assigned(node: ast.Assign, used: set[str]) -> Iterator[ast.Dict]:
    """Yield the dicts that an assignment gives to these variables."""
    target, value = node.targets[0], node.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=True))
    for name, given in pairs:
        if isinstance(name, ast.Name) and name.id in used and isinstance(given, ast.Dict):
            yield given


def kinds_of(tree: ast.AST) -> list[str]:
    return [
        key.value
        for one in named_dicts(tree)
        for key in one.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]


def sources() -> list[Path]:
    return [path for part in ("probes", "scaling") for path in sorted((REPO / part).rglob("*.py"))]


def test_call_sites_pass_known_kinds() -> None:
    kinds = {path: kinds_of(ast.parse(path.read_text())) for path in sources()}
    unknown = {path.name: set(found) - KINDS.keys() for path, found in kinds.items()}
    assert {name: found for name, found in unknown.items() if found} == {}
    assert sum(map(len, kinds.values())) >= LEAST_SITES


def test_an_unknown_kind_is_found() -> None:
    text = 'def f():\n    names = {"nod": 1}\n    a, b = 1, {"nic": 2}\n'
    text += '    finding("A", "b", names=names)\n    finding("A", "b", names=b)\n'
    text += '    one_finding("A", "b", names={"gqu": 3})\n    other(names={"x": 1})\n'
    assert sorted(kinds_of(ast.parse(text))) == ["gqu", "nic", "nod"]
