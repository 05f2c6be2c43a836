"""The environment lint: what the nodes tell NCCL, judged without touching a node.

`lint` takes what `probes.environment.collect.settings` saw on each node and returns flags: by the
table of `probes.environment.rules`, by how values are written, and by what differs over the nodes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from probes.environment.checks import Place, described
from probes.environment.collect import shown
from probes.environment.known_variables import meant
from probes.environment.rules import DIFFERING, OWN, RULES, WARN, Rule
from probes.environment.values import NUMERIC, canonical, name_list, plain_list
from probes.findings import listed
from reports.sanitize import one_line

Nodes = Mapping[str, Mapping[str, Any]]  # node name -> what settings() returned there

CODES = {"fail": "ENV-HARMFUL", "warn": "ENV-DOUBTFUL", "info": "ENV-NOTE"}
SEVERITIES = tuple(CODES)  # the gravest first
COMPARED = ("NCCL_", "TORCH_NCCL_", "GLOO_")
IS_NUMBER = re.compile(r"\s*[+-]?[0-9]")
UNSET = "(unset)"
BOUND = 2048  # characters of a value that are looked at; settings() keeps fewer
SHOWN = 80  # characters of a value in a sentence


@dataclass(frozen=True)
class Flag:
    """One thing that is wrong, doubtful or worth a note, and all nodes it is found on.

    `severity` is "fail", "warn" or "info"; `where` is "environment", a conf file's path, or what
    else was looked at.  Every word is on one line and free of secrets and control characters.
    """

    code: str
    severity: str
    variable: str
    value: str
    where: str
    why: str
    fix: str
    nodes: list[str] = field(default_factory=list)

    @property
    def statement(self) -> str:
        """One sentence: what, on which nodes, where it is set, why it is flagged, what to do."""
        name = self.variable or "a name of blanks"
        what = name if not self.value else f"{name}={self.value}"
        what = f"{name} {UNSET}" if self.value == UNSET else what
        return (
            f"{what} on {listed(map(one_line, self.nodes))} ({self.where}): {self.why}; {self.fix}"
        )


def lint(nodes: Nodes, fabric: str | None) -> list[Flag]:
    """All flags, the gravest first.

    `nodes` holds what `settings` returned on each node; `fabric` is "rdma", the name of the agreed
    interface, or None when nothing is agreed.
    """
    places = _places(nodes, fabric)
    found: list[Flag] = []
    for node, facts in nodes.items():
        place = places[node]
        for look in (_by_rules, _by_spelling, _by_name, _by_file, _by_library):
            found += [replace(flag, nodes=[node]) for flag in look(facts, place)]
    found += _one_host(nodes)
    found += _differing(nodes, places)
    return sorted(_merged(found), key=lambda f: (SEVERITIES.index(f.severity), f.variable))


def _places(nodes: Nodes, fabric: str | None) -> dict[str, Place]:
    machines = {node: _machine(node, facts) for node, facts in nodes.items()}
    carriers = defaultdict(set)  # NCCL_HOSTID -> machines
    for node, facts in nodes.items():
        carriers[_hostid(facts)].add(machines[node])
    return {
        node: Place(
            interfaces=tuple(facts.get("interfaces", ())),
            rdma=tuple(facts.get("rdma", ())),
            rdma_active=tuple(facts.get("rdma_active", ())),
            gpus=tuple(facts.get("gpus", ())),
            missing=facts.get("missing_files", {}),
            variables=frozenset(_effective(facts)),
            libraries=tuple(facts.get("libraries", ())),
            fabric=fabric,
            machines=len(set(machines.values())),
            hostid_shared=len(carriers[_hostid(facts)]) > 1,
        )
        for node, facts in nodes.items()
    }


def _machine(node: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells machines and containers apart; the node's name where that is not known."""
    host = facts.get("host", {})
    known = host.get("boot_id") and host.get("network")
    return (host.get("name", ""), host["boot_id"], host["network"]) if known else (node,)


def _effective(facts: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """variable -> (value, where), as NCCL or whoever reads it will see it; values bounded."""
    seen = facts.get("effective", {})
    return {name: (one["value"][:BOUND], one["where"]) for name, one in seen.items()}


def _hostid(facts: Mapping[str, Any]) -> str:
    return _effective(facts).get("NCCL_HOSTID", ("", ""))[0]


# One node.


def _by_rules(facts: Mapping[str, Any], place: Place) -> Iterator[Flag]:
    seen = _effective(facts)
    for rule in RULES:
        value, where = seen.get(rule.variable, ("", ""))
        idle = where != "environment" and not rule.variable.startswith("NCCL_")
        if not value or idle or (place.nccl is not None and place.nccl < rule.since):
            continue
        found = rule.wrong(value, place)
        if found:
            said = f"{rule.why}: {found}" if isinstance(found, str) else rule.why
            yield _flag(rule.grade.on(place.fabric), rule.variable, value, where, said, rule)


def _by_spelling(facts: Mapping[str, Any], place: Place) -> Iterator[Flag]:
    """Values that are read otherwise than they were meant."""
    for name, (value, where) in _effective(facts).items():
        if not name.startswith("NCCL_") or not value:
            continue
        number = bool(IS_NUMBER.match(value))
        if value[0] in "\"'" or value[-1] in "\"'":
            yield _flag("warn", name, value, where, "quotes are part of the value here",
                        "write it without quotes")  # fmt: skip
        elif not number and value != value.strip():
            yield _flag("warn", name, value, where, "blanks at its ends are part of the value",
                        "write it without them")  # fmt: skip
        elif not number and name.endswith(NUMERIC):
            yield _flag("warn", name, value, where, "it is no number, which NCCL reads as 0",
                        "write 0 or 1")  # fmt: skip
        elif ", " in value and name.endswith(("_IFNAME", "_HCA")):
            yield _flag("warn", name, value, where, "blanks are part of the names in the list",
                        "write it without them")  # fmt: skip


def _by_name(facts: Mapping[str, Any], place: Place) -> Iterator[Flag]:
    """Names that nobody reads."""
    for name, (value, where) in _effective(facts).items():
        close = meant(name)
        if re.search(r"\s", name):
            yield _flag("warn", name, value, where, "blanks are part of the name, so it is ignored",
                        "write NAME=value without blanks")  # fmt: skip
        elif where != "environment" and not name.startswith("NCCL_"):
            yield _flag("warn", name, value, where, "only NCCL reads this file, and it is no"
                        " variable of NCCL's", "export it instead")  # fmt: skip
        elif close:
            yield _flag("warn", name, value, where, "NCCL knows no such variable",
                        f"was {close} meant?")  # fmt: skip


def _by_file(facts: Mapping[str, Any], place: Place) -> Iterator[Flag]:
    """Conf files that NCCL cannot read, or not to their end."""
    for path, said in facts.get("trouble", {}).items():
        yield _flag("warn", "conf file", "", path, f"the file {said}", "mend it or remove it")


def _by_library(facts: Mapping[str, Any], place: Place) -> Iterator[Flag]:
    """Two versions of libnccl, where no variable brought one: see `another_libnccl` for those."""
    by_variable = ("LD_PRELOAD", "LD_LIBRARY_PATH")
    known = [x for x in place.libraries if x["version"] and x["found"] not in by_variable]
    if len({x["version"] for x in known}) < 2:
        return
    # One in the system's folders is not taken as long as torch brings its own.
    near = {x["version"] for x in known if x["found"] != "loader"}
    yield replace(
        _flag("warn" if len(near) > 1 else "info", "libnccl", "", "files",
              f"two versions are in reach: {described(known)}", "keep one"),
        code="ENV-TWO-LIBS",
    )  # fmt: skip


# All nodes.


def _one_host(nodes: Nodes) -> list[Flag]:
    """Containers that NCCL takes for one host: host name and boot id are the same."""
    alike = defaultdict(list)
    for node, facts in nodes.items():
        host = facts.get("host", {})
        if host.get("boot_id") and not _hostid(facts):
            alike[host.get("name", ""), host["boot_id"]].append(node)
    found = []
    for (name, _), group in alike.items():
        if len({_machine(node, nodes[node]) for node in group}) > 1:
            flag = _flag("fail", "host name", name, "host name and boot id",
                         "NCCL takes these containers for one host: it finds one GPU twice",
                         "give each container a host name of its own")  # fmt: skip
            found.append(replace(flag, nodes=group))
    return found


def _differing(nodes: Nodes, places: Mapping[str, Place]) -> list[Flag]:
    """Variables, and the libnccl that is likely to be taken, that are not the same everywhere."""
    seen = {node: _effective(facts) for node, facts in nodes.items()}
    names = sorted({name for variables in seen.values() for name in variables})
    found = []
    for name in names:
        if not name.startswith(COMPARED) or name in OWN:
            continue
        values = {
            node: variables.get(name, ("", "environment")) for node, variables in seen.items()
        }
        odd = _minority({n: canonical(name, value) for n, (value, _) in values.items()})
        for node, other in odd.items():
            found.append(_odd(name, values[node], values[other][0], node, places[node]))
    versions = {node: ".".join(map(str, place.nccl or ())) for node, place in places.items()}
    known = {node: version for node, version in versions.items() if version}
    for node, other in _minority(known).items():
        flag = _flag("fail", "libnccl", known[node], "files",
                     f"other nodes have {known[other]}, and ranks of two versions do not start",
                     "use one image on all nodes")  # fmt: skip
        found.append(replace(flag, code="ENV-TWO-LIBS", nodes=[node]))
    return found


def _odd(name: str, here: tuple[str, str], usual: str, node: str, place: Place) -> Flag:
    value, where = here
    severity = DIFFERING.get(name, WARN).on(place.fabric)
    why = f"other nodes have {_shown(name, usual) or UNSET}"
    if _named_otherwise(name, value, usual, place):
        severity, why = "info", f"{why}, which stands for nothing here"
    flag = _flag(severity, name, value or UNSET, where, why, "set one value everywhere")
    return replace(flag, code="ENV-DIFFERS", nodes=[node])


def _named_otherwise(name: str, value: str, usual: str, place: Place) -> bool:
    """Whether the usual list fits nothing of this node, and its own does: names differ in truth."""
    read = plain_list if name.startswith("GLOO_") else name_list
    present = place.rdma if name.endswith("_HCA") else place.interfaces
    own, others = read(value), read(usual)
    if not name.endswith(("_HCA", "_IFNAME")) or own is None or others is None:
        return False
    return bool(own.admitted(present)) and not others.admitted(present)


def _minority(values: Mapping[str, object]) -> dict[str, str]:
    """Each node whose value is not the usual one -> a node that has another value.

    Where no value is more frequent than all others, every node is named.
    """
    groups: dict[object, list[str]] = defaultdict(list)
    for node, value in values.items():
        groups[value].append(node)
    if len(groups) < 2:
        return {}
    first, second, *_ = sorted(groups.values(), key=len, reverse=True)
    odd = {node: first[0] for group in groups.values() if group is not first for node in group}
    if len(first) == len(second):
        odd |= dict.fromkeys(first, second[0])
    return odd


# Words.


def _flag(severity: str, variable: str, value: str, where: str, why: str, fix: str | Rule) -> Flag:
    rule = fix if isinstance(fix, Rule) else None
    return Flag(
        code=rule.code if rule and rule.code else CODES[severity],
        severity=severity,
        variable=_bounded(variable),
        value=_shown(variable, value),
        where=_bounded(where),
        why=one_line(why[:1000]),
        fix=rule.fix if rule else str(fix),
    )


def _shown(variable: str, value: str) -> str:
    """A value in a sentence: without secrets and control characters, and cut."""
    return _bounded(shown(variable[:200], value))


def _bounded(text: str) -> str:
    line = one_line(text[:2000])
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."


def _merged(flags: list[Flag]) -> list[Flag]:
    """Flags that say the same, as one with all their nodes."""
    first: dict[tuple[str, ...], Flag] = {}
    nodes: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for flag in flags:
        words = (flag.code, flag.severity, flag.variable, flag.value, flag.where, flag.why)
        first.setdefault(words, flag)
        nodes[words].update(dict.fromkeys(flag.nodes))
    return [replace(flag, nodes=list(nodes[words])) for words, flag in first.items()]
