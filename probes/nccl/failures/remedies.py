"""Maps NCCL's error texts to causes, each with the remedy that fits it: remedies.toml."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from probes.toml_tables import ClosedTable, fill_shared, read_tables, validate

FILE = Path(__file__).with_name("remedies.toml")
ANY_TEXT = re.compile("")
CUDA_ERROR = re.compile(r"CUDA error|C(?:UDA|uda) failure")


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


class Causes(ClosedTable):
    """Causes of each event, in the order in which they are searched."""

    qp_setup: ErrorCauses
    qp_break: ErrorCauses
    connect: ErrorCauses


class Texts(ClosedTable):
    """Remedies by what was found."""

    gdr_distance: str
    desync: str
    timeout: str
    plugin: str
    start_size: str
    follow_up: str
    trace: str
    late: str
    family: str
    mesh: str
    collective: str


class Remedies(ClosedTable):
    """The file.  `errors` are by the kind of their phrase, `phases` by the phase of a start."""

    shared: dict[str, str]
    texts: Texts
    errors: dict[str, str]
    phases: dict[str, str]
    causes: Causes


@cache
def read_remedies() -> Remedies:
    """Read the file, once.  Raises TableError."""
    tables = read_tables(FILE)
    shared = validate(Remedies, tables, str(FILE)).shared
    return validate(Remedies, fill_shared(tables, shared), str(FILE))


def find_cause(causes: list[ErrorCause], text: str) -> ErrorCause:
    """Find the first cause whose pattern is in the text; the last cause matches any text."""
    return next(cause for cause in causes if cause.pattern.search(text))


def fix_of_cuda(errors: str) -> str:
    """Return the remedy for an error of CUDA that torch or nccl-tests report; "" for others."""
    fixes = read_remedies().errors
    if "driver version is insufficient" in errors:
        return fixes["cuda-driver"]
    if "no kernel image" in errors:
        return fixes["cuda-kernel"]
    return fixes["cuda"] if CUDA_ERROR.search(errors) else ""
