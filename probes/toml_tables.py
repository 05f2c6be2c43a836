"""Reads tables from TOML; an error is one sentence: file, key, what was expected and found."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, time
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from reports.sanitize import closest_name, one_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_SENTENCE = 600  # characters: names and paths have no bound, and people read the sentence
MAX_SHOWN_CHARS = 40  # characters of a user's value in a sentence
SHORT_REPR = reprlib.Repr()
SHORT_REPR.maxstring = SHORT_REPR.maxlong = SHORT_REPR.maxother = MAX_SHOWN_CHARS
EXPECTED = {  # pydantic's error types, in words
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text in quotes",
    "string_too_short": "text in quotes",
    "bytes_type": "text in quotes",
    "pattern_type": "text in quotes",
    "pattern_regex": "a regular expression",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "{min_length} or more entries",
    "dict_type": "a table",
    "model_type": "a table",
    "date_type": "a date without quotes, such as 2026-12-31",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than_equal": "{le:g} or less",
}


class TableError(ValueError):
    """Error in a file.  One line, cut if long: file, key, what was expected and found."""

    def __init__(self, sentence: str) -> None:
        line = one_line(sentence)
        super().__init__(line if len(line) <= MAX_SENTENCE else f"{line[:MAX_SENTENCE]}...")


class ClosedTable(BaseModel):
    """Table of a file of ours: no other keys may be in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Model = TypeVar("Model", bound=BaseModel)
Row = TypeVar("Row")


class LazyTable(Mapping[str, Row]):
    """Rows by name that are read at the first access, so that an import reads no file.

    `read` remembers what it read.
    """

    def __init__(self, read: Callable[[], Mapping[str, Row]]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> Row:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def read_tables(path: Path) -> dict[str, Any]:
    """Read a file of TOML.  Raises TableError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}") from None
    return parse_tables(content, str(path))


def parse_tables(content: bytes, file: str) -> dict[str, Any]:
    """Parse TOML.  Raises TableError."""
    try:
        return tomllib.loads(content.decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        message = f"not TOML: {error}"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message = f"expected text in UTF-8, found other bytes in line {line}"
    except RecursionError:
        message = "expected tables of values, found lists or tables nested too deeply"
    except ValueError:  # from Python's own types
        message = "not TOML: it has an impossible number or date"
    raise TableError(f"{file}: {message}")


def validate(model: type[Model], value: Any, where: str, *, strict: bool = False) -> Model:
    """Validate a table of a file.  Raises TableError for the first error.

    Strict: `true` and "340" are no numbers, and 8.0 is no integer.
    """
    try:
        return model.model_validate(value, strict=strict or None)
    except ValidationError as error:
        raise TableError(f"{where}: {_complaint(error, model, value)}") from None


def fill_shared(value: Any, shared: Mapping[str, str]) -> Any:
    """Fill shared texts into all texts of a table: that of `name` replaces `{name}`."""
    if isinstance(value, dict):
        return {key: fill_shared(one, shared) for key, one in value.items()}
    if isinstance(value, list):
        return [fill_shared(one, shared) for one in value]
    if isinstance(value, str):
        for name, text in shared.items():
            value = value.replace(f"{{{name}}}", text)
    return value


def show(value: object) -> str:
    """Write a user's value in at most MAX_SHOWN_CHARS characters, true and false as in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    try:
        text = SHORT_REPR.repr(value)
    except ValueError:  # an int with more digits than Python converts
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 3]}..."


def spelling_hint(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'busbw'?` or nothing."""
    close = closest_name(word, known)
    return f", did you mean {close!r}?" if close else ""


def _complaint(error: ValidationError, model: type[BaseModel], value: Any) -> str:
    """Convert the first of pydantic's errors to a sentence for the user."""
    first, *others = error.errors()
    key = ".".join(str(part) for part in _key_path(first["loc"], value))
    if first["type"] == "extra_forbidden":
        return f"unknown key {show(key)}{spelling_hint(key, model.model_fields)}"
    start = f"{show(key)}: " if key else ""
    if first["type"] == "missing":
        return f"{start}{first['loc'][-1]!r} is missing"
    if first["type"] == "value_error":  # raised by our own validators
        return start + first["msg"].removeprefix("Value error, ")
    # A value that may be of several types has an error for each of them.
    same = [other for other in others if _key_path(other["loc"], value)[:1] == (key.split(".")[0],)]
    kinds = dict.fromkeys(_expected_text(each) for each in [first, *same])
    found = [first, *same][-1]["input"]
    found = found.isoformat() if isinstance(found, date | time) else found
    return f"{start}expected {' or '.join(kinds)}, found {show(found)}"


def _expected_text(complaint: Any) -> str:
    return EXPECTED.get(complaint["type"], "a different value").format(**complaint.get("ctx", {}))


def _key_path(loc: tuple[int | str, ...], value: Any) -> tuple[int | str, ...]:
    """Return the part of pydantic's path that is in the file: without pydantic's tags of types."""
    for depth, part in enumerate(loc):
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return loc[:depth]
    return loc
