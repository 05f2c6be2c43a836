"""Findings: faults by their code in the catalogue, with the suspects of this case.

Each folder of `probes` may have a file `findings.toml`. Its table `[about]` is an About; each other
table is an Entry, named by its code. `seatrial explain CODE` and docs/use/findings.md show them.
The files are read when a finding is first looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from probes import toml_tables
from probes.toml_tables import ClosedTable, LazyTable, TableError, show, validate
from reports.orders import node_suspects
from reports.record import Cause, Finding, RepairStep, Severity

PROBES = Path(__file__).parent
FILE = "findings.toml"
CODE = re.compile(r"[A-Z]+(?:-[A-Z]+)+")
# Prompt of a step -> where it is run.  Without a prompt: on the named node.
PLACES = {
    "driver": "the host that runs seatrial",
    "head": "the head",
    "other": "another node",
    "outside": "a machine outside the cluster",
    "peer": "{peer}",
}
NAMED_NODE = "{node}"
# Texts that stand in many commands, by the placeholder that stands for them in the files.
SHARED = {
    # Shows variables of the environment that workers of Ray inherit; a pattern for grep follows.
    "ray_environment": 'pgrep -o raylet | xargs -I % cat /proc/%/environ | tr "\\0" "\\n" | grep -E'
}
Text = Annotated[str, Field(min_length=1)]


class EntryStep(ClosedTable):
    """Command, and what its answers mean.

    A command of another machine than the named node begins with a prompt, as `head$ ray status`.
    """

    command: Text
    means: Text

    @field_validator("command")
    @classmethod
    def _check_prompt(cls, command: str) -> str:
        prompt, dollar, _ = command.rpartition("$ ")
        if dollar and prompt not in PLACES:
            raise ValueError(f"expected a prompt of {', '.join(PLACES)}, found {show(prompt)}")
        return command

    @property
    def repair(self) -> RepairStep:
        """The step of a finding, with its place."""
        prompt, _, command = self.command.rpartition("$ ")
        return RepairStep(command=command, means=self.means, on=PLACES.get(prompt, NAMED_NODE))


class Entry(ClosedTable):
    """Meaning, cause, severity, and what to do about one code."""

    meaning: Text
    cause: Cause
    severity: Severity
    order: Text  # what to do, with placeholders, as {node}
    steps: Annotated[list[EntryStep], Field(min_length=1)]
    mended: Text  # how to know that it is fixed
    remedy: Text  # the whole advice in sentences
    made_by: str = ""  # folder of the probes that make it, if it is another than the file's

    def list_steps(self) -> list[RepairStep]:
        """List the steps, with the place of each."""
        return [step.repair for step in self.steps]


class About(ClosedTable):
    """What all codes of a file have in common."""

    heading: Text  # of the page of findings
    place: Annotated[int, Field(strict=True)]  # of the heading among the others
    made_by: Text  # the probes that make the findings


@dataclass(frozen=True)
class Group:
    """The codes of one file."""

    file: Path
    about: About
    entries: Mapping[str, Entry]


def load_findings(file: Path) -> Group:
    """Load a file of findings.  Raises TableError: file, code, key, expected, found."""
    tables = toml_tables.fill_shared(toml_tables.read_tables(file), SHARED)
    if "about" not in tables:
        raise TableError(f"{file}: [about] is missing")
    about = validate(About, tables.pop("about"), f"{file}: [about]")
    for code in tables:
        if not CODE.fullmatch(code):
            raise TableError(f"{file}: expected a code such as HOST-GPUS, found {show(code)}")
    if not tables:
        raise TableError(f"{file}: expected at least one code, found none")
    entries = {code: validate(Entry, row, f"{file}: [{code}]") for code, row in tables.items()}
    return Group(file, about, entries)


def join_groups(groups: Iterable[Group]) -> dict[str, Group]:
    """Order groups by their place; return them by their folder.

    Raises TableError where a code is in two of them, or is made by a folder without findings.
    """
    in_order = sorted(groups, key=lambda group: (group.about.place, group.file))
    joined = {group.file.parent.name: group for group in in_order}
    first: dict[str, Group] = {}
    for group in in_order:
        for code, entry in group.entries.items():
            other = first.setdefault(code, group)
            if other is not group:
                raise TableError(f"{group.file}: [{code}] is in {other.file} too")
            if entry.made_by and entry.made_by not in joined:
                known, found = ", ".join(sorted(joined)), show(entry.made_by)
                where = f"{group.file}: [{code}]: 'made_by'"
                raise TableError(f"{where}: expected one of {known}, found {found}")
    return joined


@cache
def read_groups() -> Mapping[str, Group]:
    """Read the files of all folders of `probes`, once.  Raises TableError."""
    return join_groups(map(load_findings, PROBES.glob(f"*/{FILE}")))


@cache
def _read_entries() -> Mapping[str, Entry]:
    return {code: one for group in read_groups().values() for code, one in group.entries.items()}


CATALOGUE: Mapping[str, Entry] = LazyTable(_read_entries)  # in the order of the page


def find_makers(code: str) -> str:
    """Name the probes that make the findings of this code."""
    groups = read_groups()
    folder, group = next((name, one) for name, one in groups.items() if code in one.entries)
    return groups[group.entries[code].made_by or folder].about.made_by


MAX_NAMES = 8  # names listed in one finding


def join_names(names: Iterable[str], max_names: int = MAX_NAMES) -> str:
    """Join names as `a, b, c and 5 more`: the first `max_names` of them; "" for none."""
    all_names = list(names)
    suffix = f" and {len(all_names) - max_names} more" if len(all_names) > max_names else ""
    return ", ".join(all_names[:max_names]) + suffix


def describe_most(slow: Iterable[str], part: str, most: str, best: str, possible: str) -> str:
    """Say that most are slow, as the best shows: `part` is "3 of 4", `most` the slow ones' best."""
    who = f"most are slower than the best, {part} ({join_names(slow)}): {most} or less"
    return f"{who}. {best} shows that {possible} is possible"


def name_port(port: str) -> dict[str, str]:
    """Name an interface, or the device of an RDMA port, as `mlx5_0/1`."""
    device, slash, _ = port.partition("/")
    return {"device": device} if slash else {"interface": port}


def name_gpu(uuid: object, number: object, slot: object = "") -> dict[str, object]:
    """Name a GPU by its UUID, else by its number, and its slot."""
    return {"gpu": uuid or number, "slot": slot}


def finding(
    code: str,
    statement: str,
    suspects: list[str] | None = None,
    *,
    evidence: list[str] | None = None,
    remedy: str = "",
    names: Mapping[str, object] | None = None,
) -> Finding:
    """Build a finding of a catalogued code, with its cause and remedy.  Raises KeyError for others.

    A `remedy` that fits this case better replaces the catalogue's.  `names` are those of the
    placeholders; empty ones are left out.  The first node of the suspects is its `node`.
    """
    entry = CATALOGUE[code]
    known = {kind: str(name) for kind, name in (names or {}).items() if name not in (None, "")}
    nodes = node_suspects(suspects or [])
    return Finding(
        **entry.model_dump(include={"cause", "severity", "order", "mended"}),
        code=code,
        statement=statement,
        suspects=suspects or [],
        steps=entry.list_steps(),
        names={**({"node": nodes[0]} if nodes else {}), **known},
        remedy=remedy or entry.remedy,
        evidence=evidence or [],
    )
