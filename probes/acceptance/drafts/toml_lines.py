"""Writes the lines of a contract: keys with comments, and limits with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reports.measurement import Limit
from reports.sanitize import one_line

MAX_COMMENT = 500  # characters: a comment must not list the names of a thousand nodes
Line = tuple[str, Any, str]  # key, value, comment; people fill in a value that is None


def marginal_bound(limit: Limit) -> float | None:
    """Return the bound of the warning band of a one-sided limit."""
    return limit.marginal_low if limit.high is None else limit.marginal_high


def bound_lines(limit: Limit) -> Iterator[str]:
    """Yield the lines of one limit as a contract file has them."""
    pairs = {"at_least": limit.low, "at_most": limit.high, "marginal": marginal_bound(limit)}
    yield from (f"{key} = {bound:.6g}" for key, bound in pairs.items() if bound is not None)
    if limit.one_of:
        yield f"one_of = [{', '.join(map(toml_text, limit.one_of))}]"
    if limit.unit:
        yield f"unit = {toml_text(limit.unit)}"
    yield f"because = {toml_text(limit.because.removeprefix('no contract: '))}"


def format_line(line: Line) -> str:
    """Format `key = value  # comment`; without a value the complete line is a comment."""
    key, value, comment = line
    text = _value_text(value)
    note = f"  # {one_line(comment)[:MAX_COMMENT]}" if comment else ""
    return f"# {key} ={note}" if value is None else f"{key} = {text}{note}"


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value_text, value))}]"
    return toml_text(value) if isinstance(value, str) else str(value)


def toml_text(text: str) -> str:
    """Write `text` as a basic string of TOML; any character may occur in it."""
    escaped = "".join(
        char if char.isprintable() and char not in '"\\' else f"\\U{ord(char):08X}"
        for char in text.encode("utf-8", "replace").decode()
    )
    return f'"{escaped}"'
