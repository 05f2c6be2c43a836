"""Reads the tables: phrases of NCCL for a problem, forms of its lines, causes and remedies.

Phrases are also those of RCCL and plugins, in all versions read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from probes.toml_tables import ClosedTable, LazyTable, Model, fill_shared, read_tables, validate
from reports.groups import group_pairs

FILE = Path(__file__).with_name("phrases.toml")
LINES = Path(__file__).with_name("lines.toml")
REMEDIES = Path(__file__).with_name("remedies.toml")
ANY_TEXT = re.compile("")


def _join_bytes(text: object) -> object:
    """Return a regular expression as bytes; a list has its alternatives."""
    text = "|".join(map(str, text)) if isinstance(text, list) else text
    return text.encode() if isinstance(text, str) else text


Regex = Annotated[re.Pattern[bytes], BeforeValidator(_join_bytes)]


def read_table(model: type[Model], file: Path) -> Model:
    """Read a file; what its table `shared` has is filled into all other texts.  Raises TableError.

    `{name}` stands for the shared text of this name.
    """
    tables = read_tables(file)
    validate(model, tables, str(file))
    return validate(model, fill_shared(tables, tables.get("shared", {})), str(file))


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


class ErrorCause(ClosedTable):
    """Cause of an error by the `pattern` of its text; the default `remedy` is the catalogue's."""

    pattern: re.Pattern[str] = ANY_TEXT
    reason: str
    remedy: str = ""


def _check_last(causes: list[ErrorCause]) -> list[ErrorCause]:
    if not causes or causes[-1].pattern != ANY_TEXT:
        raise ValueError("expected a last cause without a pattern, for any text")
    return causes


ErrorCauses = Annotated[list[ErrorCause], AfterValidator(_check_last)]


class Remedies(ClosedTable):
    """The file remedies.toml.

    It has `texts` by name, `phases` by that of a start, and `causes` by that of an event.
    `results` has the meanings of ncclResult_t.
    """

    shared: dict[str, str]
    texts: dict[str, str]
    results: dict[str, str]
    phases: dict[str, str]
    causes: dict[str, ErrorCauses]


@cache
def read_remedies() -> Remedies:
    """Read the file, once.  Raises TableError."""
    return read_table(Remedies, REMEDIES)


def say(name: str, **parts: object) -> str:
    """Fill parts into one of the texts."""
    return read_remedies().texts[name].format(**parts)


class LogForm(ClosedTable):
    """One form of a line: its `versions` are those of NCCL, where nothing else is named.

    `example` is a line of that form; a test reads it. `code` is that of the finding.
    """

    pattern: Regex
    versions: str
    example: str
    code: str = ""
    advice: str = ""


class Phrase(LogForm):
    """One way to report something.

    The text of a warning begins with the NCCL source file that it names: `nvls.cc Cuda ...`.
    One of the `words` is in each line of it; without `words`, only warnings are searched for it.

    The first row of a kind has the keys of the kind. With `code` and `problem` a line of it alone
    shows a fault: the code of the finding, and what is wrong with the host that wrote it. With
    `problem` alone it is one if a call of NCCL failed after it. `over` has less special kinds that
    do not count in the same line, and `note` the text for a fact that is no fault. `advice` is the
    remedy where that of the code does not fit. No rank is blamed for waiting where the kind
    `blocks`.
    """

    kind: str
    words: list[bytes] = []
    meaning: str
    severity: Literal["error", "retry", "follow-up", "news", "harmless"]
    problem: str = ""
    over: list[str] = []
    note: str = ""
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
    rows = group_pairs((phrase.kind, phrase.pattern.pattern) for phrase in read_phrases())
    return {kind: re.compile(b"|".join(patterns)) for kind, patterns in rows.items()}


def is_warning(kind: str) -> bool:
    """Return whether only a warning counts: a job that ends well may write the same as news."""
    return read_kinds()[kind].severity == "follow-up" and kind not in TRACES


def find_kinds(text: bytes) -> list[str]:
    """Find the kinds of phrases in a text, without those that another one overrides."""
    found = [kind for kind, pattern in read_patterns().items() if pattern.search(text)]
    less = {kind for special in found for kind in read_kinds()[special].over}
    return [kind for kind in found if kind not in less]
