"""Each code of the catalogue can be acted on: an order, steps to paste, and a proof of repair."""

from __future__ import annotations

import re
import shlex

import pytest

from probes.findings import CATALOGUE, NAMED_NODE, PLACES, Entry
from reports.orders import KINDS, LIST_KIND, PLACEHOLDER
from reports.record import RepairStep, Severity
from tests.project.test_text import bad_words, long_sentences
from tests.project.verbs import begins_with_verb

MAX_STEPS = 3
# Programs that steps run.
READERS = """
arping cat chronyc cpupower curl dcb dcgmi df dkms dmesg du env ethtool fi_info findmnt free
getent grep head hostname ibdiagnet id ibv_devinfo ip ipmitool journalctl last ldconfig lldpctl ls
lscpu lsmod lspci mlxlink modinfo nc nft nfsstat nvidia-imex-ctl nvidia-smi ofed_info pgrep ping
prlimit ps python3 quota ray resolvectl seatrial sha256sum show_gids sort ss sysctl systemctl tail
timedatectl top tr tracepath uname vmstat xargs
"""
# Commands that change something, by the word in which `means` says so.
CHANGES = {
    "chronyc makestep": "Sets",
    "ethtool -K": "Changes",
    "kill": "Ends",
    "modprobe": "Loads",
    "mount -o remount": "Changes",
    "nvidia-smi -i GPU -c": "Changes",
    "nvidia-smi -i GPU -e": "Changes",
    "nvidia-smi -r": "Resets",
    "ray get-auth-token --generate": "Makes",
    "ray start": "Starts",
    "touch": "Writes",
}
DANGEROUS = re.compile(r"(?:rm|mkfs|dd|reboot|shutdown|fdisk|wipefs|parted|poweroff|ray stop)\b")
SOFTWARE = re.compile(r"RESTART-|ENV-|HOST-STORAGE-|FAB-UNKNOWN-NET|SCALE-(?:TOKENS|EFFICIENCY)")
ONE_LIMIT = {"INIT-MEMLOCK", "HOST-OPEN-FILES", "HOST-LOCKED-MEMORY", "HOST-STACK",
             "HOST-LIMIT", "HOST-SETTING"}  # fmt: skip
ONE_READER = {"FAB-LINK-TYPES", "HOST-EXTRA"}


def placeholders(entry: Entry) -> set[str]:
    """List the kinds of names in an entry."""
    texts = [entry.order, entry.mended]
    texts += [text for s in entry.list_steps() for text in (s.command, s.means, s.on)]
    return {kind for text in texts for kind in PLACEHOLDER.findall(text)}


def unquoted(command: str) -> str:
    """Return a command without its quoted parts."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "", command)


def complaints(step: RepairStep) -> list[str]:
    """List what is wrong with a step."""
    command = PLACEHOLDER.sub(lambda match: match[1].upper(), step.command)
    found = []
    if set(unquoted(command)) & set(";&<>$`*?()[]{}!~\n\\#"):
        found.append("a character that a shell reads")
    if LIST_KIND in PLACEHOLDER.findall(step.command):
        found.append("a list of names in a command")
    for part in re.split(r"\s\|\s", re.sub(r"'[^']*'|\"[^\"]*\"", "Q", command)):
        program = shlex.split(part)[0]
        change = next((c for c in CHANGES if part.startswith(c)), None)
        if change and CHANGES[change] not in step.means:
            found.append(f"does not say that it changes: {change}")
        if not change and program not in READERS.split():
            found.append(f"unknown program {program}")
        if DANGEROUS.match(part):
            found.append("destroys something")
    return found


@pytest.mark.parametrize("code", CATALOGUE)
def test_a_technician_can_act_on_it(code: str) -> None:
    entry = CATALOGUE[code]
    assert isinstance(entry.severity, Severity)
    assert begins_with_verb(entry.order), "no verb of tests/project/verbs.py begins it"
    assert not entry.order.endswith(".")
    least = 1 if SOFTWARE.match(code) or code in ONE_LIMIT | ONE_READER else 2
    assert least <= len(entry.steps) <= MAX_STEPS, "a second step, or a row of ONE_LIMIT"
    assert placeholders(entry) <= {*KINDS, LIST_KIND}
    for text in (entry.mended, *(step.means for step in entry.steps)):
        assert text.endswith("."), text
        assert not long_sentences(text), text
        assert not bad_words(text), text
    for step in entry.list_steps():
        assert step.on in (NAMED_NODE, *PLACES.values())
        assert complaints(step) == [], step.command


def test_each_severity_is_used() -> None:
    used = dict.fromkeys(Severity, 0)
    for entry in CATALOGUE.values():
        used[entry.severity] += 1
    assert all(used.values())
    assert CATALOGUE["ENV-NOTE"].severity is Severity.NOTES


@pytest.mark.parametrize(
    ("command", "means", "complaint"),
    [
        ("ls {folder}; rm {folder}", "Reads.", "a character that a shell reads"),
        ("ls {nodes}", "Reads.", "a list of names in a command"),
        ("frobnicate {node}", "Reads.", "unknown program frobnicate"),
        ("ls | frobnicate", "Reads.", "unknown program frobnicate"),
        (
            "nvidia-smi -r -i {gpu}",
            "Helps.",
            "does not say that it changes: nvidia-smi -r",
        ),
        ("ray stop", "Helps.", "destroys something"),
    ],
)
def test_each_rule_of_steps_can_fail(command: str, means: str, complaint: str) -> None:
    assert complaint in complaints(RepairStep(command=command, means=means))


def test_steps_of_another_machine_name_it() -> None:
    steps = CATALOGUE["GANG-STUCK"].list_steps()
    assert [step.on for step in steps] == ["the head"] * 3
    assert not any("$" in step.command for step in steps)
