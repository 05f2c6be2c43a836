"""Checks tables of a contract: unknown keys, wrong values, and the sentence for each."""

from __future__ import annotations

from typing import Any

from probes.toml_tables import TableError, parse_tables, validate
from reports.sanitize import clean

MAX_BYTES = 64 << 10  # over 30 times the largest shipped; the TOML parser is slow on larger ones
MAX_LINE = 2048  # bytes; the TOML parser takes minutes for a key with more dots


class ContractError(TableError):
    """Error in a contract.  One line, cut if long: file, key, what was expected and found."""


def validate_terms(model: type[Any], value: Any, where: str) -> Any:
    """Validate a table of the file.  Raises ContractError for the first error.

    Strict: `true` and "340" are no numbers, and 8.0 is no integer.
    """
    try:
        return validate(model, value, where, strict=True)
    except TableError as error:
        raise ContractError(str(error)) from None


def has_words(text: str) -> bool:
    """Return whether a text has a visible letter or digit."""
    return any(char.isalnum() for char in clean(text))


def check_text(text: str, what: str) -> str:
    """Return `text` if it has words.  Raises ValueError if not."""
    if not has_words(text):
        raise ValueError(f"expected {what}, found {text!r}")
    return text


def parse_toml(content: bytes, file: str) -> dict[str, Any]:
    """Parse TOML whose size and lines are limited, so that it takes little time.

    Raises ContractError.
    """
    if len(content) > MAX_BYTES:
        raise ContractError(f"{file} is larger than {MAX_BYTES >> 10} KiB. Expected: a contract")
    longest = max(map(len, content.split(b"\n")))
    if longest > MAX_LINE:
        raise ContractError(f"{file}: expected lines of at most {MAX_LINE} bytes, found {longest}")
    try:
        return parse_tables(content, file)
    except TableError as error:
        raise ContractError(str(error)) from None
