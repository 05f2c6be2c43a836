"""Compiles the phrases with which NCCL reports a problem, and the forms of its lines.

Phrases are also those of RCCL and plugins, in all versions read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from probes import toml_tables
from probes.toml_tables import ClosedTable, LazyTable, TableError
from reports.groups import group_pairs

FILE = Path(__file__).with_name("phrases.toml")
LINES = Path(__file__).with_name("lines.toml")
Model = TypeVar("Model", bound=BaseModel)


def _compile_bytes(text: str | list[str]) -> re.Pattern[bytes]:
    """Compile a regular expression; a list has its alternatives."""
    return re.compile((text if isinstance(text, str) else "|".join(text)).encode())


Regex = Annotated[re.Pattern[bytes], BeforeValidator(_compile_bytes)]


def read_table(model: type[Model], file: Path) -> Model:
    """Read a file; what its table `shared` has is filled into all other texts.  Raises TableError.

    `{name}` stands for the shared text of this name.
    """
    tables = toml_tables.read_tables(file)
    toml_tables.validate(model, tables, str(file))
    filled = toml_tables.fill_shared(tables, tables.get("shared", {}))
    return toml_tables.validate(model, filled, str(file))


class NoiseForm(ClosedTable):
    """What is no part of a text: `pattern`, in a line that has the `sign`; `by` replaces it."""

    sign: bytes
    pattern: Regex
    by: bytes = b""


class PlaceForm(ClosedTable):
    """One form of a prefix: its groups are parts of an Origin, and `label` is what `task` counts.

    `example` is such a prefix, and `place` is what it names.
    """

    source: str
    pattern: re.Pattern[str]
    example: str
    place: str
    label: str = ""


class FormTable(ClosedTable):
    """The file lines.toml: regular expressions by name, and sets of `words`.

    Those of `line` are for bytes of a log, those of `text` for decoded names and messages.  Of two
    forms of a `place` that name one part of an Origin, the later one counts.
    """

    shared: dict[str, str]
    words: dict[str, frozenset[bytes]]
    line: dict[str, Regex]
    noise: list[NoiseForm]
    text: dict[str, re.Pattern[str]]
    place: Annotated[list[PlaceForm], Field(min_length=1)]


@cache
def read_form_table() -> FormTable:
    """Read the file, once.  Raises TableError."""
    return read_table(FormTable, LINES)


WORDS = LazyTable(lambda: read_form_table().words)
LINE = LazyTable(lambda: read_form_table().line)
TEXT = LazyTable(lambda: read_form_table().text)


class Phrase(ClosedTable):
    """One way to report something.

    The text of a warning begins with the NCCL source file that it names: `nvls.cc Cuda ...`.
    One of the `words` is in each line of it; without `words`, only warnings are searched for it.
    `versions` are those of NCCL, where nothing else is named.  `example` is a line of that form; a
    test reads it.

    The first row of a kind has the keys of the kind. With `code` and `problem` a line of it alone
    shows a fault: the code of the finding, and what is wrong with the host that wrote it. With
    `problem` alone it is one if a call of NCCL failed after it. `over` has less special kinds that
    do not count in the same line, and `note` the text for a fact that is no fault. `advice` is the
    remedy where that of the code does not fit. No rank is blamed for waiting where the kind
    `blocks`.
    """

    kind: str
    pattern: bytes
    words: list[bytes] = []
    versions: str
    meaning: str
    severity: Literal["error", "retry", "follow-up", "news", "harmless"]
    example: str
    code: str = ""
    problem: str = ""
    over: list[str] = []
    note: str = ""
    advice: str = ""
    blocks: bool = False


class Phrases(ClosedTable):
    """The file: its rows, in the order in which they are searched."""

    phrase: Annotated[list[Phrase], Field(min_length=1)]


@cache
def read_phrases() -> list[Phrase]:
    """Read the rows, once.  Raises TableError."""
    return read_table(Phrases, FILE).phrase


@cache
def read_kinds() -> Mapping[str, Phrase]:
    """Read the first row of each kind, once.  Raises TableError."""
    return {phrase.kind: phrase for phrase in reversed(read_phrases())}


@cache
def read_plain_errors(network: bool = False) -> Mapping[str, tuple[str, str]]:
    """Read code and problem of each kind that alone shows a fault, once.  Raises TableError.

    Those of a `network` (FAB-*) are faults where traffic leaves the host. Kinds with a code of
    their own come before those of NCCL-ERROR: they say what to fix.
    """
    coded = [one for one in read_phrases() if one.code and one.code.startswith("FAB-") == network]
    found = sorted(coded, key=lambda one: one.code == OTHER)
    return {one.kind: (one.code, one.problem) for one in found}


OTHER = "NCCL-ERROR"  # the code of errors that have none of their own
TRACES = {"trace", "socket-trace"}  # NCCL never writes them as warnings


@cache
def read_hints() -> frozenset[bytes]:
    """Read all words, once: a line without any of them is not searched.  Raises TableError."""
    return frozenset(word for phrase in read_phrases() for word in phrase.words)


@cache
def read_patterns() -> Mapping[str, re.Pattern[bytes]]:
    """Compile the phrases of each kind to one pattern, once.  Raises TableError."""
    rows = group_pairs((phrase.kind, phrase.pattern) for phrase in read_phrases())
    return {kind: _compile(kind, b"|".join(patterns)) for kind, patterns in rows.items()}


def _compile(kind: str, pattern: bytes) -> re.Pattern[bytes]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise TableError(f"{FILE}: {kind}: expected a regular expression: {error}") from None


def is_warning(kind: str) -> bool:
    """Return whether only a warning counts: a job that ends well may write the same as news."""
    return read_kinds()[kind].severity == "follow-up" and kind not in TRACES


def find_kinds(text: bytes) -> list[str]:
    """Find the kinds of phrases in a text, without those that another one overrides."""
    found = [kind for kind, pattern in read_patterns().items() if pattern.search(text)]
    less = {kind for special in found for kind in read_kinds()[special].over}
    return [kind for kind in found if kind not in less]
