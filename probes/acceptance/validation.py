"""Checks a contract's text; an error is one sentence: file, key, what was expected and found."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import date, time
from typing import Any

from pydantic import ValidationError

from probes.acceptance.component_placement import show
from probes.spelling import closest_name
from reports.sanitize import clean, one_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 64 << 10  # over 30 times the largest shipped; the TOML parser is slow on larger ones
MAX_LINE = 2048  # bytes; the TOML parser takes minutes for a key with more dots
MAX_SENTENCE = 600  # characters: names and paths have no bound, and people read the sentence
EXPECTED = {  # pydantic's error types, in words
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text in quotes",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "date_type": "a date without quotes, such as 2026-12-31",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than_equal": "{le:g} or less",
}


class ContractError(ValueError):
    """Error in a contract.  One line, cut if long: file, key, what was expected and found."""

    def __init__(self, sentence: str) -> None:
        line = one_line(sentence)
        super().__init__(line if len(line) <= MAX_SENTENCE else f"{line[:MAX_SENTENCE]}...")


def validate_terms(model: type[Any], value: Any, where: str) -> Any:
    """Validate a table of the file.  Raises ContractError for the first error.

    Strict: `true` and "340" are no numbers, and 8.0 is no integer.
    """
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        raise ContractError(f"{where}: {_complaint(error, model, value)}") from None


def _complaint(error: ValidationError, model: type[Any], value: Any) -> str:
    """Convert the first of pydantic's errors to a sentence for the user."""
    first, *others = error.errors()
    key = ".".join(str(part) for part in _key_path(first["loc"], value))
    if first["type"] == "extra_forbidden":
        return f"unknown key {show(key)}{spelling_hint(key, model.model_fields)}"
    if first["type"] == "missing":
        return f"{first['loc'][-1]!r} is missing"
    start = f"{show(key)}: " if key else ""
    if first["type"] == "value_error":  # raised by our own validators
        return start + first["msg"].removeprefix("Value error, ")
    # A value that may be of several types has an error for each of them.
    same = [other for other in others if _key_path(other["loc"], value)[:1] == (key.split(".")[0],)]
    kinds = dict.fromkeys(_expected_text(each) for each in [first, *same])
    found = [first, *same][-1]["input"]
    found = found.isoformat() if isinstance(found, date | time) else found
    return f"{start}expected {' or '.join(kinds)}, found {show(found)}"


def _expected_text(complaint: Any) -> str:
    return EXPECTED.get(complaint["type"], "another value").format(**complaint.get("ctx", {}))


def _key_path(loc: tuple[int | str, ...], value: Any) -> tuple[int | str, ...]:
    """Return the part of pydantic's path that is in the file: without pydantic's tags of types."""
    for depth, part in enumerate(loc):
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return loc[:depth]
    return loc


def has_words(text: str) -> bool:
    """Return whether a text has a visible letter or digit."""
    return any(char.isalnum() for char in clean(text))


def check_text(text: str, what: str) -> str:
    """Return `text` if it has words.  Raises ValueError if not."""
    if not has_words(text):
        raise ValueError(f"expected {what}, found {text!r}")
    return text


def spelling_hint(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'busbw'?` or nothing."""
    close = closest_name(word, known)
    return f", did you mean {close!r}?" if close else ""


def parse_toml(content: bytes, file: str) -> dict[str, Any]:
    """Parse TOML whose size and lines are limited, so that it takes little time.

    Raises ContractError.
    """
    if len(content) > MAX_BYTES:
        raise ContractError(f"{file}: expected a contract of {MAX_BYTES >> 10} KiB, found more")
    longest = max(map(len, content.split(b"\n")))
    if longest > MAX_LINE:
        raise ContractError(f"{file}: expected lines of {MAX_LINE} bytes, found one of {longest}")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        message = f"not TOML: {error}"
    except UnicodeDecodeError as error:
        message = f"expected text in UTF-8, found other bytes in line {_line_of(error)}"
    except RecursionError:
        message = "expected tables of values, found lists or tables nested without end"
    except ValueError:  # from Python's own types
        message = "not TOML: it has a number or a date that cannot be"
    raise ContractError(f"{file}: {message}")


def _line_of(error: UnicodeDecodeError) -> int:
    return error.object.count(b"\n", 0, error.start) + 1
