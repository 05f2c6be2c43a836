"""Watches which functions of a module each test file runs: others cannot see them changed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
ALL = 0  # in place of a function's line: every one may be run
# Writes a line once in each process.  In the module, so that what tests start is watched too.
NOTE = """
def _note_call(line, noted=set()):
    if line not in noted:
        import os
        noted.add(line)
        out = os.open({report!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(out, b"%d\\n" % line)
        os.close(out)
"""


@dataclass(frozen=True)
class Watched:
    """Tests of one file, how long they take, and the lines of the functions that they run."""

    tests: tuple[str, ...]
    seconds: float
    lines: frozenset[int] = field(default_factory=frozenset)

    def sees(self, line: int | None) -> bool:
        """Return whether the function of this line is run; None is run by the import."""
        return line is None or not {ALL, line}.isdisjoint(self.lines)


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
    lines = frozenset[int]().union(*(one.lines for one in watched))
    found = outermost(ast.parse(source))
    return set() if ALL in lines else {name for name, one in found if one.lineno not in lines}


def watch_calls(source: bytes, report: Path) -> bytes:
    """Return the module with a note at the begin of each function, written into `report`.

    It may have more lines: the notes are of the lines as they were.
    """
    tree = ast.parse(source)
    starts = [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    code, heads = f"exec({NOTE.format(report=str(report))!r})", [*filter(_is_head, tree.body)]
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


def read_report(report: Path) -> frozenset[int]:
    """Read the lines that were noted, and remove the file."""
    lines: Iterable[str] = report.read_text().split() if report.exists() else ()
    report.unlink(missing_ok=True)
    return frozenset(map(int, lines))
