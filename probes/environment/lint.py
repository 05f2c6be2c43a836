"""The environment lint: judges the nodes' NCCL settings without access to a node.

`lint` takes what `probes.environment.collect.read_settings` returned on each node and returns
flags.  They come from the table of `probes.environment.rules`, from how values are written, and
from differences between nodes.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from probes.cluster.variables import is_withheld, known_variables
from probes.environment import checks
from probes.environment.checks import NUMERIC, NodeContext, canonical, describe_libraries
from probes.environment.collect import redact_value
from probes.environment.rules import DIFFERENCE_SEVERITY, LOCAL, RULES, WARN
from probes.findings import join_names
from reports.groups import group_pairs
from reports.sanitize import one_line

NodeSettings = Mapping[str, Mapping[str, Any]]  # node name -> what read_settings() returned there

SEVERITY_CODES = {"fail": "ENV-HARMFUL", "warn": "ENV-DOUBTFUL", "info": "ENV-NOTE"}
SEVERITIES = tuple(SEVERITY_CODES)  # most severe first
COMPARED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_")
NUMBER_START = re.compile(r"\s*[+-]?[0-9]")
UNSET = "(unset)"
LISTED = ("interfaces", "rdma", "rdma_active", "gpus", "libraries")  # names of a node's parts
MAX_CHARS = 2048  # characters of a value that are checked; read_settings() keeps fewer
MAX_SHOWN_CHARS = 80  # characters of a value in a sentence


@dataclass(frozen=True)
class Flag:
    """One setting that is wrong, doubtful or notable, and all nodes on which it was found.

    `severity` is "fail", "warn" or "info".  `where` is "environment", a conf file's path, or
    another source.  Every text is one line, free of secrets and control characters.
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
        """One sentence: setting, nodes, where it is set, why it is flagged, what to do."""
        name = self.variable or "a name of spaces"
        setting = name if not self.value else f"{name}={self.value}"
        setting = f"{name} {UNSET}" if self.value == UNSET else setting
        nodes = join_names(map(one_line, self.nodes))
        return f"{setting} on {nodes} ({self.where}): {self.why}; {self.fix}"


def lint(nodes: NodeSettings, fabric: str | None) -> list[Flag]:
    """Find all flags, most severe first.

    `nodes` holds what `read_settings` returned on each node.  `fabric` is "rdma", the name of the
    agreed interface, or None when nothing is agreed.
    """
    contexts = _node_contexts(nodes, fabric)
    flags: list[Flag] = []
    for node, ctx in contexts.items():
        for check in (_check_rules, _check_spelling, _check_names, _check_files, _check_libraries):
            flags += [replace(flag, nodes=[node]) for flag in check(ctx)]
    flags += _find_shared_hosts(nodes, contexts)
    flags += _find_differences(contexts)
    return sorted(_merge_flags(flags), key=lambda f: (SEVERITIES.index(f.severity), f.variable))


def _node_contexts(nodes: NodeSettings, fabric: str | None) -> dict[str, NodeContext]:
    values = {node: _effective_values(facts) for node, facts in nodes.items()}
    machines = {node: _machine_id(node, facts) for node, facts in nodes.items()}
    machines_by_id = group_pairs((_hostid(values[node]), machines[node]) for node in nodes)
    return {
        node: NodeContext(
            **{key: tuple(facts.get(key, ())) for key in LISTED},
            missing_files=facts.get("missing_files", {}),
            problems=facts.get("trouble", {}),
            variables=values[node],
            fabric=fabric,
            machine_count=len(set(machines.values())),
            hostid_shared=len({*machines_by_id[_hostid(values[node])]}) > 1,
        )
        for node, facts in nodes.items()
    }


def _machine_id(node: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Identify machine or container by host name, boot id and network, else by the node's name."""
    host = facts.get("host", {})
    known = host.get("boot_id") and host.get("network")
    return (host.get("name", ""), host["boot_id"], host["network"]) if known else (node,)


def _effective_values(facts: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    values = facts.get("effective", {})
    return {name: (entry["value"][:MAX_CHARS], entry["where"]) for name, entry in values.items()}


def _hostid(variables: Mapping[str, tuple[str, str]]) -> str:
    return variables.get("NCCL_HOSTID", ("", ""))[0]


# One node.


def _check_rules(ctx: NodeContext) -> Iterator[Flag]:
    for rule in RULES:
        value, where = ctx.variables.get(rule.variable, ("", ""))
        ignored = where != "environment" and not rule.variable.startswith("NCCL_")
        if not value or ignored or (ctx.nccl is not None and ctx.nccl < rule.since):
            continue
        if problem := rule.check(value, ctx):
            why = f"{rule.why}: {problem}" if isinstance(problem, str) else rule.why
            severity = rule.severity.on(ctx.fabric)
            yield _flag(severity, rule.variable, value, where, why, rule.fix, code=rule.code)


def _check_spelling(ctx: NodeContext) -> Iterator[Flag]:
    """Flag values that NCCL reads differently from what was probably meant."""
    for name, (value, where) in ctx.variables.items():
        if not name.startswith("NCCL_") or not value or is_withheld(name, value):
            continue
        is_number = bool(NUMBER_START.match(value))
        if value[0] in "\"'" or value[-1] in "\"'":
            why, fix = "NCCL reads the quotes as part of the value", "write it without quotes"
        elif not is_number and value != value.strip():
            why, fix = "NCCL reads spaces before or after a value as part of it", "remove them"
        elif not is_number and name.endswith(NUMERIC):
            why, fix = "the value is not a number, and NCCL reads it as 0", "write a number"
        elif ", " in value and name.endswith(("_IFNAME", "_HCA")):
            why, fix = "NCCL reads the spaces as part of the names", "remove the spaces"
        else:
            continue
        yield _flag("warn", name, value, where, why, fix)


def _check_names(ctx: NodeContext) -> Iterator[Flag]:
    """Flag names that no library reads."""
    for name, (value, where) in ctx.variables.items():
        if re.search(r"\s", name):
            why = "the name contains spaces, so it is ignored"
            fix = "write NAME=value without spaces"
        elif where != "environment" and not name.startswith("NCCL_"):
            why = "only NCCL reads this file, and this is not an NCCL variable"
            fix = "export the variable instead"
        elif suggestion := suggest_spelling(name):
            why, fix = "NCCL has no such variable", f"did you mean {suggestion}?"
        else:
            continue
        yield _flag("warn", name, value, where, why, fix)


MAX_NAME_LENGTH = 64  # characters; no real name is longer


def suggest_spelling(name: str) -> str:
    """Suggest the known name that this one is close to; "" if it is known or close to none."""
    known = known_variables()
    unlisted = not name.startswith("NCCL_") or name.startswith(known.unlisted_prefixes)
    suffix, suffixes = name.removeprefix("NCCL_"), known.suffixes.split()
    if unlisted or suffix in suffixes or len(name) > MAX_NAME_LENGTH:
        return ""
    # Without the common NCCL_, which would make all names similar.
    matches = difflib.get_close_matches(suffix.upper(), sorted(suffixes), n=1, cutoff=0.85)
    return f"NCCL_{matches[0]}" if matches else ""


def _check_files(ctx: NodeContext) -> Iterator[Flag]:
    """Flag conf files that NCCL cannot read, or cannot read completely."""
    for path, problem in ctx.problems.items():
        yield _flag("warn", "conf file", "", path, f"the file {problem}", "fix or remove the file")


def _check_libraries(ctx: NodeContext) -> Iterator[Flag]:
    """Flag two versions of libnccl that no variable brings (those: `conflicting_libnccl`)."""
    by_variable = ("LD_PRELOAD", "LD_LIBRARY_PATH")
    known = [lib for lib in ctx.libraries if lib["version"] and lib["found"] not in by_variable]
    if len({lib["version"] for lib in known}) < 2:
        return
    # A libnccl in the system's folders is not loaded as long as torch has its own.
    versions = {lib["version"] for lib in known if lib["found"] != "loader"}
    severity = "warn" if len(versions) > 1 else "info"
    why = f"two versions can be loaded: {describe_libraries(known)}"
    yield _flag(severity, "libnccl", "", "files", why, "keep one version", code="ENV-TWO-LIBS")


# All nodes.


def _find_shared_hosts(nodes: NodeSettings, contexts: Mapping[str, NodeContext]) -> Iterator[Flag]:
    """Flag containers that NCCL takes for one host: host name and boot id are the same."""
    groups = defaultdict(list)
    for node, facts in nodes.items():
        host = facts.get("host", {})
        if host.get("boot_id") and not _hostid(contexts[node].variables):
            groups[host.get("name", ""), host["boot_id"]].append(node)
    for (name, _), group in groups.items():
        if len({_machine_id(node, nodes[node]) for node in group}) > 1:
            yield _flag("fail", "host name", name, "host name and boot id",
                        "NCCL treats these containers as one host: it finds one GPU twice",
                        "give each container its own host name", nodes=group)  # fmt: skip


def _find_differences(contexts: Mapping[str, NodeContext]) -> Iterator[Flag]:
    """Flag variables, and the likely libnccl, that differ between nodes."""
    for name in sorted({name for ctx in contexts.values() for name in ctx.variables}):
        if not name.startswith(COMPARED_PREFIXES) or name in LOCAL:
            continue
        values = {n: ctx.variables.get(name, ("", "environment")) for n, ctx in contexts.items()}
        outliers = find_minority({n: canonical(name, value) for n, (value, _) in values.items()})
        for node, peer in outliers.items():
            yield _odd_flag(name, values[node], values[peer][0], node, contexts[node])
    versions = {node: ".".join(map(str, ctx.nccl or ())) for node, ctx in contexts.items()}
    known = {node: version for node, version in versions.items() if version}
    for node, peer in find_minority(known).items():
        why = f"other nodes have {known[peer]}, and ranks with different versions do not start"
        yield _flag("fail", "libnccl", known[node], "files", why, "use one image on all nodes",
                    code="ENV-TWO-LIBS", nodes=[node])  # fmt: skip


def _odd_flag(name: str, entry: tuple[str, str], usual: str, node: str, ctx: NodeContext) -> Flag:
    value, where = entry
    severity = DIFFERENCE_SEVERITY.get(name, WARN).on(ctx.fabric)
    why = f"other nodes have {_shorten_value(name, usual) or UNSET}"
    if _named_differently(name, value, usual, ctx):
        severity, why = "info", f"{why}, which matches nothing on this node"
    return _flag(severity, name, value or UNSET, where, why, "set one value everywhere",
                 code="ENV-DIFFERS", nodes=[node])  # fmt: skip


def _named_differently(name: str, value: str, usual: str, ctx: NodeContext) -> bool:
    """Return whether only the node's own list matches its devices: names really differ there."""
    parse = checks.plain_list if name.startswith("GLOO_") else checks.name_list
    present = ctx.rdma if name.endswith("_HCA") else ctx.interfaces
    node_list, usual_list = parse(value), parse(usual)
    if not name.endswith(("_HCA", "_IFNAME")) or node_list is None or usual_list is None:
        return False
    return bool(node_list.admitted(present)) and not usual_list.admitted(present)


def find_minority(values: Mapping[str, object]) -> dict[str, str]:
    """Map each node whose value is not the most frequent one to a node that has another value.

    Where no value is more frequent than all others, every node is included.
    """
    groups = group_pairs((value, node) for node, value in values.items())
    if len(groups) < 2:
        return {}
    first, second, *_ = sorted(groups.values(), key=len, reverse=True)
    outliers = {node: first[0] for group in groups.values() if group is not first for node in group}
    if len(first) == len(second):
        outliers |= dict.fromkeys(first, second[0])
    return outliers


# Texts.


def _flag(
    severity: str, variable: str, value: str, where: str, why: str, fix: str,
    code: str = "", nodes: Sequence[str] = (),
) -> Flag:  # fmt: skip
    return Flag(
        code=code or SEVERITY_CODES[severity],
        severity=severity,
        variable=_shorten_line(variable),
        value=_shorten_value(variable, value),
        where=_shorten_line(where),
        why=one_line(why[:1000]),
        fix=fix,
        nodes=list(nodes),
    )


def _shorten_value(variable: str, value: str) -> str:
    """Redact a value and truncate it to one short line without control characters."""
    return _shorten_line(redact_value(variable[:200], value))


def _shorten_line(text: str) -> str:
    line = one_line(text[:2000])
    return line if len(line) <= MAX_SHOWN_CHARS else line[: MAX_SHOWN_CHARS - 3] + "..."


def _merge_flags(flags: list[Flag]) -> list[Flag]:
    """Merge flags with the same text into one with all their nodes."""
    same = group_pairs(
        ((f.code, f.severity, f.variable, f.value, f.where, f.why), f) for f in flags
    )
    return [
        replace(of[0], nodes=list(dict.fromkeys(node for flag in of for node in flag.nodes)))
        for of in same.values()
    ]
