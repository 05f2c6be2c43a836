"""Finds what makes a guide fail for an ordinary user, or on the next cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probes.launch.path.guide import Command

BEGIN = r"(?:^|[;&|(]|\$\(|\bthen\b|\bdo\b)\s*"  # where a command may begin
ROOTS_COMMANDS = (
    "apt|apt-get|yum|dnf|zypper|apk|systemctl|service|modprobe|mount|umount|useradd|usermod|"
    "groupadd|chown|iptables|nft|visudo|swapoff"
)


@dataclass(frozen=True)
class LintRule:
    """What no line of a guide should have, and why."""

    pattern: re.Pattern[str]
    found: str
    why: str


@dataclass(frozen=True)
class GuideFault:
    """A line of the guide that breaks a rule."""

    line: int
    text: str
    found: str
    why: str


RULES = (
    LintRule(
        re.compile(BEGIN + r"(?P<it>sudo|su|doas|pkexec)\b"),
        "runs a command as root",
        "an ordinary user cannot",
    ),
    LintRule(
        re.compile(BEGIN + rf"(?P<it>(?:/usr)?(?:/s?bin/)?(?:{ROOTS_COMMANDS})|sysctl\s+-w)(?=\s)"),
        "changes the machine",
        "an ordinary user cannot",
    ),
    LintRule(
        re.compile(r"(?P<it>>{1,2}\s*/(?:etc|usr|opt|var|boot|lib)/\S*)"),
        "writes into the system",
        "an ordinary user cannot",
    ),
    LintRule(
        re.compile(BEGIN + r"(?P<it>ssh|scp|sftp|pdsh|clush|pssh|parallel-ssh)(?=\s)"),
        "logs in to another machine",
        "a user may have no account there, and a job no key",
    ),
    LintRule(
        re.compile(
            r"(?P<it>(?<![\w.])(?:/home/[\w.-]+|/root|/Users/[\w.-]+|~\w+)(?=/|\s|$|['\"]))"
        ),
        "names one user's home",
        "another user cannot read it: use $HOME",
    ),
    LintRule(
        re.compile(
            r"(?P<it>(?<![\w.])(?<!==)(?!127\.|0\.0\.0\.0)(?:25[0-5]|2[0-4]\d|1?\d?\d)"
            r"(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\w.]))"
        ),
        "names a fixed address",
        "it is wrong once the head runs elsewhere: use a name or a variable",
    ),
)


def lint_guide(commands: Iterable[Command], hosts: Sequence[str] = ()) -> list[GuideFault]:
    """Find the faults of each line, in order; `hosts` are the names of the cluster's nodes."""
    rules = [*RULES, *_host_rule(hosts)]
    return [
        GuideFault(command.line, command.text.strip(), f"{rule.found} ({match['it']})", rule.why)
        for command in commands
        if not command.text.lstrip().startswith("#")
        for rule in rules
        if (match := rule.pattern.search(command.text))
    ]


def _host_rule(hosts: Sequence[str]) -> list[LintRule]:
    short = {host.partition(".")[0] for host in hosts}
    short = {name for name in short if not name.isdecimal()}  # of a host that is its address
    # A name without a digit or hyphen may be any word of a command.
    names = "|".join(sorted(re.escape(name) for name in short if re.search(r"[-\d]", name)))
    if not names:
        return []
    return [
        LintRule(
            re.compile(rf"(?P<it>(?:(?<=//)|(?<![\w./-]))(?:{names})(?:\.[\w.-]+)?(?![\w-]))"),
            "names a node",
            "the job may run on others: let the scheduler choose",
        )
    ]
