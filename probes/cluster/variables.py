"""Knows the variables whose values a record may have; of any other it has only that it is set.

A list of the names that are harmless is short and complete.  A list of the words that make a name
a secret is never complete: NCCL_KENNWORT, NCCL_X_DB_PW.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path

from probes.toml_tables import ClosedTable, read_tables, validate
from reports.redact import redact

VARIABLES = Path(__file__).with_name("variables.toml")
SET = "set"  # in place of the value of a variable that is not known


class KnownVariables(ClosedTable):
    """The file of variables: what follows NCCL_, other names, and prefixes of unlisted ones."""

    suffixes: str
    others: dict[str, str]  # what follows a prefix, by the prefix
    unlisted_prefixes: tuple[str, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """Complete names of NCCL's variables."""
        return frozenset(f"NCCL_{suffix}" for suffix in self.suffixes.split())

    @cached_property
    def shown(self) -> frozenset[str]:
        """Complete names of all variables whose values a record may have."""
        others = self.others.items()
        return self.names | {prefix + rest for prefix, text in others for rest in text.split()}


@cache
def known_variables() -> KnownVariables:
    """Read the file of variables, once.  Raises TableError."""
    return validate(KnownVariables, read_tables(VARIABLES), str(VARIABLES))


def withhold(name: str, value: str) -> str:
    """Return the value of a known variable without secrets in it, otherwise SET; "" stays ""."""
    return str(redact(value, name)) if name in known_variables().shown else SET if value else ""


def is_withheld(name: str, value: str) -> bool:
    """Return whether this stands for a value that was not recorded."""
    return value == SET and name not in known_variables().shown


def withhold_all(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables as a record may have them."""
    return {name: withhold(name, value) for name, value in variables.items()}
