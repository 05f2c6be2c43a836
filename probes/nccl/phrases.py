"""Phrases with which NCCL, RCCL and plugins report a problem, in all versions: phrases.toml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from probes.toml_tables import ClosedTable, read_tables, validate

FILE = Path(__file__).with_name("phrases.toml")


class Phrase(ClosedTable):
    """One way to report something.

    The text of a warning begins with the NCCL source file that it names: `nvls.cc Cuda ...`.
    `versions` are those of NCCL, where nothing else is named.  `example` is a line of that form; a
    test reads it.
    """

    kind: str
    pattern: bytes
    versions: str
    meaning: str
    severity: Literal["error", "retry", "follow-up", "news", "harmless"]
    example: str


class Phrases(ClosedTable):
    """The file: its rows, in the order in which they are searched."""

    phrase: Annotated[list[Phrase], Field(min_length=1)]


@cache
def read_phrases() -> list[Phrase]:
    """Read the rows, once.  Raises TableError."""
    return validate(Phrases, read_tables(FILE), str(FILE)).phrase
