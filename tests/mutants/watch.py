"""Watches which functions of our modules each test file runs: others cannot see them changed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
ALL = 0  # in place of a function's line: every one may be run
EVERY = ""  # in place of a module: each one
# By module and the line of a function: the tests that were seen to run it.
Runs = Mapping[str, Mapping[int, Sequence[str]]]
# Names the test that runs, also where it starts pytest, whose own name is another.
TEST = "MUTANTS_TEST"
# Writes a line once for each test.  In the module, so that what tests start is watched too: the
# environment names the test.
NOTE = """
def _note_call(line, module={module!r}, noted=set()):
    import os
    test = os.environ.get({name!r}, "")
    if (line, test) not in noted:
        noted.add((line, test))
        out = os.open({report!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(out, f"{{module}} {{line}} {{test!r}}\\n".encode())
        os.close(out)
"""


@dataclass(frozen=True)
class Watched:
    """Tests of one file, how long they take, and the lines of the functions that they run.

    `runs` has the tests that were seen to run a function, by its line.  What a fixture or a cache
    keeps is run by the first of several tests, so that others may notice a change as well.
    `each` has the seconds of single tests.
    """

    tests: tuple[str, ...]
    seconds: float
    runs: Mapping[int, Sequence[str]] = field(default_factory=dict)
    each: Mapping[str, float] = field(default_factory=dict)

    def sees(self, line: int | None) -> bool:
        """Return whether the function of this line is run; None is run by the import."""
        return line is None or not {ALL, line}.isdisjoint(self.runs)


def split_by_file(tests: Sequence[str], root: Path) -> list[tuple[str, ...]]:
    """Split tests (files, folders, or single tests of a file) by file, each test once."""
    found: dict[str, dict[str, None]] = {}
    for test in tests:
        name = test.partition("::")[0]
        files = sorted((root / name).rglob("test_*.py")) if (root / name).is_dir() else []
        for file in [str(one.relative_to(root)) for one in files] or [name]:
            found.setdefault(file, {})[file if files else test] = None
    return [(file,) if file in each else tuple(each) for file, each in found.items()]


def bodies_by_line(source: bytes) -> dict[int, range]:
    """Map the line of each function to the lines of its body, without those inside a function.

    Default values and decorators are computed by the import.
    """
    tree = ast.parse(source)
    return {
        one.lineno: range(one.body[0].lineno, (one.end_lineno or 0) + 1)
        for _, one in outermost(tree)
    }


def outermost(node: ast.AST, inside: str = "") -> Iterator[tuple[str, Function]]:
    """Yield functions and methods with their qualified names, without those inside a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield inside + child.name, child
        else:
            name = f"{child.name}." if isinstance(child, ast.ClassDef) else ""
            yield from outermost(child, inside + name)


def names_never_run(source: bytes, watched: Iterable[Watched]) -> set[str]:
    """Name the functions that none of these tests runs."""
    lines = set[int]().union(*(one.runs for one in watched))
    found = outermost(ast.parse(source))
    return set() if ALL in lines else {name for name, one in found if one.lineno not in lines}


def watch_calls(source: bytes, module: str, report: Path) -> bytes:
    """Return the module's source with a note at the begin of each function, written to `report`.

    It may have more lines: the notes are of the lines as they were.
    """
    tree = ast.parse(source)
    starts = [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    code, heads = (
        f"exec({NOTE.format(name=TEST, module=module, report=str(report))!r})",
        [*filter(_is_head, tree.body)],
    )
    texts = {_end(starts, heads[-1]): f"; {code}"} if heads else {0: f"{code}\n"}
    for _, one in outermost(tree):
        first, call = one.body[0], f"_note_call({one.lineno})"
        begin = starts[first.lineno - 1] + first.col_offset
        if is_text(first):
            texts[_end(starts, first)] = f"; {call}"
        elif hasattr(first, "body"):
            texts[begin] = f"{call}\n{' ' * first.col_offset}"
        else:
            texts[begin] = f"{call}; "
    return _insert(source, texts)


def _is_head(statement: ast.stmt) -> bool:
    """Return whether a statement must stand before all others."""
    future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    return future or is_text(statement)


def is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is only a text, as a docstring is."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _end(starts: Sequence[int], statement: ast.stmt) -> int:
    return starts[(statement.end_lineno or 0) - 1] + (statement.end_col_offset or 0)


def _insert(source: bytes, texts: dict[int, str]) -> bytes:
    parts, last = list[bytes](), 0
    for offset in sorted(texts):
        parts += [source[last:offset], texts[offset].encode()]
        last = offset
    return b"".join([*parts, source[last:]])


def read_report(report: Path) -> Runs:
    """Read what was noted, and remove the file."""
    runs: dict[str, dict[int, list[str]]] = {}
    for row in report.read_text().splitlines() if report.exists() else ():
        module, line, test = row.split(" ", 2)
        tests = runs.setdefault(module, {}).setdefault(int(line), [])
        tests.extend(filter(None, [ast.literal_eval(test)]))
    report.unlink(missing_ok=True)
    return runs
