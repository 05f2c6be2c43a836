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

from probes.environment.checks import NodeContext, describe_libraries
from probes.environment.collect import redact_value
from probes.environment.known_variables import suggest_spelling
from probes.environment.rules import DIFFERENCE_SEVERITY, LOCAL, RULES, WARN, Rule
from probes.environment.values import NUMERIC, canonical, name_list, plain_list
from probes.findings import join_names
from reports.sanitize import one_line

NodeSettings = Mapping[str, Mapping[str, Any]]  # node name -> what settings() returned there

SEVERITY_CODES = {"fail": "ENV-HARMFUL", "warn": "ENV-DOUBTFUL", "info": "ENV-NOTE"}
SEVERITIES = tuple(SEVERITY_CODES)  # the gravest first
COMPARED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_")
NUMBER_START = re.compile(r"\s*[+-]?[0-9]")
UNSET = "(unset)"
MAX_CHARS = 2048  # characters of a value that are looked at; settings() keeps fewer
MAX_SHOWN_CHARS = 80  # characters of a value in a sentence


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
        setting = name if not self.value else f"{name}={self.value}"
        setting = f"{name} {UNSET}" if self.value == UNSET else setting
        nodes = join_names(map(one_line, self.nodes))
        return f"{setting} on {nodes} ({self.where}): {self.why}; {self.fix}"


def lint(nodes: NodeSettings, fabric: str | None) -> list[Flag]:
    """All flags, the gravest first.

    `nodes` holds what `settings` returned on each node; `fabric` is "rdma", the name of the agreed
    interface, or None when nothing is agreed.
    """
    contexts = _node_contexts(nodes, fabric)
    flags: list[Flag] = []
    for node, facts in nodes.items():
        ctx = contexts[node]
        for check in (_check_rules, _check_spelling, _check_names, _check_files, _check_libraries):
            flags += [replace(flag, nodes=[node]) for flag in check(facts, ctx)]
    flags += _find_shared_hosts(nodes)
    flags += _find_differences(nodes, contexts)
    return sorted(_merge_flags(flags), key=lambda f: (SEVERITIES.index(f.severity), f.variable))


def _node_contexts(nodes: NodeSettings, fabric: str | None) -> dict[str, NodeContext]:
    machines = {node: _machine_id(node, facts) for node, facts in nodes.items()}
    machines_by_id = defaultdict(set)  # NCCL_HOSTID -> machines
    for node, facts in nodes.items():
        machines_by_id[_read_hostid(facts)].add(machines[node])
    return {
        node: NodeContext(
            interfaces=tuple(facts.get("interfaces", ())),
            rdma=tuple(facts.get("rdma", ())),
            rdma_active=tuple(facts.get("rdma_active", ())),
            gpus=tuple(facts.get("gpus", ())),
            missing_files=facts.get("missing_files", {}),
            variables=frozenset(_effective_values(facts)),
            libraries=tuple(facts.get("libraries", ())),
            fabric=fabric,
            machine_count=len(set(machines.values())),
            hostid_shared=len(machines_by_id[_read_hostid(facts)]) > 1,
        )
        for node, facts in nodes.items()
    }


def _machine_id(node: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells machines and containers apart; the node's name where that is not known."""
    host = facts.get("host", {})
    known = host.get("boot_id") and host.get("network")
    return (host.get("name", ""), host["boot_id"], host["network"]) if known else (node,)


def _effective_values(facts: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """variable -> (value, where), as NCCL or whoever reads it will see it; values bounded."""
    values = facts.get("effective", {})
    return {name: (entry["value"][:MAX_CHARS], entry["where"]) for name, entry in values.items()}


def _read_hostid(facts: Mapping[str, Any]) -> str:
    return _effective_values(facts).get("NCCL_HOSTID", ("", ""))[0]


# One node.


def _check_rules(facts: Mapping[str, Any], ctx: NodeContext) -> Iterator[Flag]:
    values = _effective_values(facts)
    for rule in RULES:
        value, where = values.get(rule.variable, ("", ""))
        ignored = where != "environment" and not rule.variable.startswith("NCCL_")
        if not value or ignored or (ctx.nccl is not None and ctx.nccl < rule.since):
            continue
        problem = rule.check(value, ctx)
        if problem:
            why = f"{rule.why}: {problem}" if isinstance(problem, str) else rule.why
            yield _flag(rule.severity.on(ctx.fabric), rule.variable, value, where, why, rule)


def _check_spelling(facts: Mapping[str, Any], ctx: NodeContext) -> Iterator[Flag]:
    """Values that are read otherwise than they were meant."""
    for name, (value, where) in _effective_values(facts).items():
        if not name.startswith("NCCL_") or not value:
            continue
        is_number = bool(NUMBER_START.match(value))
        if value[0] in "\"'" or value[-1] in "\"'":
            yield _flag("warn", name, value, where, "quotes are part of the value here",
                        "write it without quotes")  # fmt: skip
        elif not is_number and value != value.strip():
            yield _flag("warn", name, value, where, "blanks at its ends are part of the value",
                        "write it without them")  # fmt: skip
        elif not is_number and name.endswith(NUMERIC):
            yield _flag("warn", name, value, where, "it is no number, which NCCL reads as 0",
                        "write 0 or 1")  # fmt: skip
        elif ", " in value and name.endswith(("_IFNAME", "_HCA")):
            yield _flag("warn", name, value, where, "blanks are part of the names in the list",
                        "write it without them")  # fmt: skip


def _check_names(facts: Mapping[str, Any], ctx: NodeContext) -> Iterator[Flag]:
    """Names that nobody reads."""
    for name, (value, where) in _effective_values(facts).items():
        suggestion = suggest_spelling(name)
        if re.search(r"\s", name):
            yield _flag("warn", name, value, where, "blanks are part of the name, so it is ignored",
                        "write NAME=value without blanks")  # fmt: skip
        elif where != "environment" and not name.startswith("NCCL_"):
            yield _flag("warn", name, value, where, "only NCCL reads this file, and it is no"
                        " variable of NCCL's", "export it instead")  # fmt: skip
        elif suggestion:
            yield _flag("warn", name, value, where, "NCCL knows no such variable",
                        f"was {suggestion} meant?")  # fmt: skip


def _check_files(facts: Mapping[str, Any], ctx: NodeContext) -> Iterator[Flag]:
    """Conf files that NCCL cannot read, or not to their end."""
    for path, problem in facts.get("trouble", {}).items():
        yield _flag("warn", "conf file", "", path, f"the file {problem}", "mend it or remove it")


def _check_libraries(facts: Mapping[str, Any], ctx: NodeContext) -> Iterator[Flag]:
    """Two versions of libnccl, where no variable brought one: see `another_libnccl` for those."""
    by_variable = ("LD_PRELOAD", "LD_LIBRARY_PATH")
    known = [lib for lib in ctx.libraries if lib["version"] and lib["found"] not in by_variable]
    if len({lib["version"] for lib in known}) < 2:
        return
    # One in the system's folders is not taken as long as torch brings its own.
    versions = {lib["version"] for lib in known if lib["found"] != "loader"}
    yield replace(
        _flag("warn" if len(versions) > 1 else "info", "libnccl", "", "files",
              f"two versions are in reach: {describe_libraries(known)}", "keep one"),
        code="ENV-TWO-LIBS",
    )  # fmt: skip


# All nodes.


def _find_shared_hosts(nodes: NodeSettings) -> list[Flag]:
    """Containers that NCCL takes for one host: host name and boot id are the same."""
    groups = defaultdict(list)
    for node, facts in nodes.items():
        host = facts.get("host", {})
        if host.get("boot_id") and not _read_hostid(facts):
            groups[host.get("name", ""), host["boot_id"]].append(node)
    flags = []
    for (name, _), group in groups.items():
        if len({_machine_id(node, nodes[node]) for node in group}) > 1:
            flag = _flag("fail", "host name", name, "host name and boot id",
                         "NCCL takes these containers for one host: it finds one GPU twice",
                         "give each container a host name of its own")  # fmt: skip
            flags.append(replace(flag, nodes=group))
    return flags


def _find_differences(nodes: NodeSettings, contexts: Mapping[str, NodeContext]) -> list[Flag]:
    """Variables, and the libnccl that is likely to be taken, that are not the same everywhere."""
    by_node = {node: _effective_values(facts) for node, facts in nodes.items()}
    names = sorted({name for variables in by_node.values() for name in variables})
    flags = []
    for name in names:
        if not name.startswith(COMPARED_PREFIXES) or name in LOCAL:
            continue
        values = {
            node: variables.get(name, ("", "environment")) for node, variables in by_node.items()
        }
        outliers = _find_minority({n: canonical(name, value) for n, (value, _) in values.items()})
        for node, peer in outliers.items():
            flags.append(_odd_flag(name, values[node], values[peer][0], node, contexts[node]))
    versions = {node: ".".join(map(str, ctx.nccl or ())) for node, ctx in contexts.items()}
    known = {node: version for node, version in versions.items() if version}
    for node, peer in _find_minority(known).items():
        flag = _flag("fail", "libnccl", known[node], "files",
                     f"other nodes have {known[peer]}, and ranks of two versions do not start",
                     "use one image on all nodes")  # fmt: skip
        flags.append(replace(flag, code="ENV-TWO-LIBS", nodes=[node]))
    return flags


def _odd_flag(name: str, entry: tuple[str, str], usual: str, node: str, ctx: NodeContext) -> Flag:
    value, where = entry
    severity = DIFFERENCE_SEVERITY.get(name, WARN).on(ctx.fabric)
    why = f"other nodes have {_shorten_value(name, usual) or UNSET}"
    if _named_differently(name, value, usual, ctx):
        severity, why = "info", f"{why}, which stands for nothing here"
    flag = _flag(severity, name, value or UNSET, where, why, "set one value everywhere")
    return replace(flag, code="ENV-DIFFERS", nodes=[node])


def _named_differently(name: str, value: str, usual: str, ctx: NodeContext) -> bool:
    """Whether the usual list fits nothing of this node, and its own does: names differ in truth."""
    parse = plain_list if name.startswith("GLOO_") else name_list
    present = ctx.rdma if name.endswith("_HCA") else ctx.interfaces
    node_list, usual_list = parse(value), parse(usual)
    if not name.endswith(("_HCA", "_IFNAME")) or node_list is None or usual_list is None:
        return False
    return bool(node_list.admitted(present)) and not usual_list.admitted(present)


def _find_minority(values: Mapping[str, object]) -> dict[str, str]:
    """Each node whose value is not the usual one -> a node that has another value.

    Where no value is more frequent than all others, every node is named.
    """
    groups: dict[object, list[str]] = defaultdict(list)
    for node, value in values.items():
        groups[value].append(node)
    if len(groups) < 2:
        return {}
    first, second, *_ = sorted(groups.values(), key=len, reverse=True)
    outliers = {node: first[0] for group in groups.values() if group is not first for node in group}
    if len(first) == len(second):
        outliers |= dict.fromkeys(first, second[0])
    return outliers


# Words.


def _flag(severity: str, variable: str, value: str, where: str, why: str, fix: str | Rule) -> Flag:
    rule = fix if isinstance(fix, Rule) else None
    return Flag(
        code=rule.code if rule and rule.code else SEVERITY_CODES[severity],
        severity=severity,
        variable=_shorten_line(variable),
        value=_shorten_value(variable, value),
        where=_shorten_line(where),
        why=one_line(why[:1000]),
        fix=rule.fix if rule else str(fix),
    )


def _shorten_value(variable: str, value: str) -> str:
    """A value in a sentence: without secrets and control characters, and cut."""
    return _shorten_line(redact_value(variable[:200], value))


def _shorten_line(text: str) -> str:
    line = one_line(text[:2000])
    return line if len(line) <= MAX_SHOWN_CHARS else line[: MAX_SHOWN_CHARS - 3] + "..."


def _merge_flags(flags: list[Flag]) -> list[Flag]:
    """Flags that say the same, as one with all their nodes."""
    merged: dict[tuple[str, ...], Flag] = {}
    nodes: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for flag in flags:
        key = (flag.code, flag.severity, flag.variable, flag.value, flag.where, flag.why)
        merged.setdefault(key, flag)
        nodes[key].update(dict.fromkeys(flag.nodes))
    return [replace(flag, nodes=list(nodes[key])) for key, flag in merged.items()]
