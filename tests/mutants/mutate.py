"""All single mutations of a module: where, what stands there, and what stands there instead."""

from __future__ import annotations

import ast
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
# Calls whose words and figures only inform a reader: nothing is judged by them, and what the page
# makes of them has tests of its own.
INFORMS = {"progress", "covered", "keep", "series", "note"}
CALLS = {"max": "min", "min": "max", "all": "any", "any": "all"}


@dataclass(frozen=True)
class Mutant:
    """One change of a module: `start` and `end` are offsets in its bytes."""

    start: int
    end: int
    line: int
    function: str
    before: str
    after: str

    @property
    def name(self) -> str:
        """`function: before -> after`, on one line: what a list of reasons knows it by."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.function}: {before} -> {after}"

    def apply(self, source: bytes) -> bytes:
        """Return the module with this change in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants(source: bytes) -> list[Mutant]:
    """List every mutation of a module's source, in the order of its lines."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda one: (one.start, one.end, one.after))


class _Finder(ast.NodeVisitor):
    """Walks the code that runs: no docstrings, annotations, f-strings, or imports for types."""

    def __init__(self, source: bytes) -> None:
        self.source, self.found = source, list[Mutant]()
        self.lines = [0]
        for line in source.split(b"\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)
        self.function = "module"

    def _add(self, node: ast.expr | ast.stmt, after: ast.AST | str) -> None:
        start = self.lines[node.lineno - 1] + node.col_offset
        end = self.lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        text = after if isinstance(after, str) else f"({ast.unparse(after)})"
        before = self.source[start:end].decode()
        self.found.append(Mutant(start, end, node.lineno, self.function, before, text))

    # What is not run, or says nothing.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before, self.function = self.function, node.name
        for part in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(part)
        for statement in node.body:
            self.visit(statement)
        self.function = before

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Their parts have no places of their own before Python 3.12."""

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.generic_visit(node)

    # What is changed.

    def _negate(self, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return  # its own mutation drops the `not`
        if not isinstance(test, ast.Compare):
            self._add(test, ast.UnaryOp(ast.Not(), test))

    def visit_While(self, node: ast.While) -> None:
        self.generic_visit(node)  # negated, most loops never end

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add(node, ast.IfExp(node.test, node.orelse, node.body))
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._add(test, "True")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, operator in enumerate(node.ops):
            if other := COMPARISONS.get(type(operator)):
                changed = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                self._add(node, ast.Compare(node.left, changed, node.comparators))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = OPERATIONS.get(type(node.op))
        if other and not any(isinstance(part, ast.JoinedStr) for part in (node.left, node.right)):
            self._add(node, ast.BinOp(node.left, other(), node.right))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            self._add(node.func, CALLS[node.func.id])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._add(node, repr(node.value + 1))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _informs(node.value):
            return  # a docstring, or as good as one
        if isinstance(node.value, ast.Call):
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not _is_none(node.value):
            self._add(node, "return None")
        self.generic_visit(node)


def _informs(node: ast.expr) -> bool:
    """`measure.progress(...)` and the like."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in INFORMS
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
