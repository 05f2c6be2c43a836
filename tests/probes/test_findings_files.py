"""Files of findings: what is wrong in one is a sentence that names file, code and key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from probes import findings
from probes.findings import SHARED, Group, find_makers, join_groups, load_findings, read_groups
from probes.toml_tables import TableError
from reports.record import Cause, RepairStep, Severity
from tests.support.paths import REPO

ABOUT = """\
[about]
heading = "NOISE"
place = 9
made_by = "NOISE (probes/noise)"
"""
ENTRY = """\
[NOISE-LOUD]
meaning = "A node is loud."
cause = "HARDWARE"
severity = "notes"
order = "Replace the fan of {node}"
steps = [
  { command = "head$ ipmitool sensor", means = "A fan above 9000 rpm: replace it." },
  { command = '{ray_environment} "FAN"', means = "A line: unset it." },
]
mended = "The node is quiet."
remedy = "Replace the fan."
"""
GOOD = f"{ABOUT}\n{ENTRY}"
READS_LATE = """
import os, sys
read = {}
sys.addaudithook(lambda name, args: read.update({os.path.basename(str(args[0])): 1})
                 if name == "open" and str(args[0]).endswith(".toml") else None)
import probes.findings, probes.nccl.report
print("imported", *read)
"HOST-GPUS" in probes.findings.CATALOGUE
print(*read)
"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Group]:
    """Load a file with this text from a folder of probes."""

    def load_text(text: str, folder: str = "noise") -> Group:
        (tmp_path / folder).mkdir(exist_ok=True)
        file = tmp_path / folder / "findings.toml"
        file.write_text(text)
        return load_findings(file)

    return load_text


def test_a_folder_of_somebody_else_has_findings(load: Callable[..., Group]) -> None:
    group = load(GOOD)
    entry = group.entries["NOISE-LOUD"]
    assert (group.about.heading, group.about.place) == ("NOISE", 9)
    assert (entry.cause, entry.severity) == (Cause.HARDWARE, Severity.NOTES)
    assert entry.list_steps() == [
        RepairStep(
            command="ipmitool sensor", means="A fan above 9000 rpm: replace it.", on="the head"
        ),
        RepairStep(
            command=f'{SHARED["ray_environment"]} "FAN"', means="A line: unset it.", on="{node}"
        ),
    ]
    assert [*join_groups([group, *read_groups().values()])] == [*read_groups(), "noise"]


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('meaning = "A', 'meening = "A', "[NOISE-LOUD]: 'meaning' is missing"),
        ('mended = "', 'mend = 1\nmended = "', "unknown key 'mend', did you mean 'mended'?"),
        ('remedy = "Replace the fan."', "", "[NOISE-LOUD]: 'remedy' is missing"),
        ('"A node is loud."', '""', "[NOISE-LOUD]: 'meaning': expected text in quotes, found ''"),
        ('"A node is loud."', "7", "[NOISE-LOUD]: 'meaning': expected text in quotes, found 7"),
        (
            '"HARDWARE"',
            '"HARDWEAR"',
            "[NOISE-LOUD]: 'cause': expected 'HARDWARE', 'INFRASTRUCTURE', 'APPLICATION', "
            "'NO_PROGRESS' or 'UNKNOWN', found 'HARDWEAR'",
        ),
        (
            '"notes"',
            '"loud"',
            "[NOISE-LOUD]: 'severity': expected 'blocks', 'degrades' or 'notes', found 'loud'",
        ),
        (
            "head$",
            "haed$",
            "[NOISE-LOUD]: 'steps.0.command': expected a prompt of driver, head, other, outside, "
            "peer, found 'haed'",
        ),
        ("mended =", "steps = 1\nmended =", "not TOML: "),
        ('sensor", means', 'sensor", maens', "'steps.0': 'means' is missing"),
        ('rpm: replace it."', 'rpm.", on = "x"', "unknown key 'steps.0.on'"),
        (ENTRY, "", "expected at least one code, found none"),
        ("[NOISE-LOUD]", "[noise]", "expected a code such as HOST-GPUS, found 'noise'"),
        ("[NOISE-LOUD]", "[NOISE]\n[NOISE.LOUD]", "a code such as HOST-GPUS, found 'NOISE'"),
        (ENTRY, "NOISE-LOUD = 1", "[about]: unknown key 'NOISE-LOUD'"),
        (GOOD, f"NOISE-LOUD = 1\n{ABOUT}", "[NOISE-LOUD]: expected a table, found 1"),
        (GOOD, GOOD + ENTRY, "not TOML: "),
        (ABOUT, "", "[about] is missing"),
        (GOOD, "", "[about] is missing"),
        ("place = 9", 'place = "9"', "[about]: 'place': expected a whole number, found '9'"),
        ("place = 9", "", "[about]: 'place' is missing"),
        ("heading", "header", "[about]: 'heading' is missing"),
        ("steps = [", "steps = [ [", "not TOML: "),
        (GOOD, GOOD[:100], "not TOML: "),
    ],
)
def test_a_wrong_file_is_one_sentence(
    load: Callable[..., Group], before: str, after: str, complaint: str
) -> None:
    assert before in GOOD
    with pytest.raises(TableError) as raised:
        load(GOOD.replace(before, after))
    sentence = str(raised.value)
    assert "noise/findings.toml: " in sentence
    assert complaint in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("steps", "expected"), [("[]", "1 or more entries"), ("1", "a list"), ('["ls"]', "a table")]
)
def test_steps_are_tables(load: Callable[..., Group], steps: str, expected: str) -> None:
    start, _, rest = ENTRY.partition("steps = [")
    with pytest.raises(TableError, match=f"'steps[.0]*': expected {expected}, found "):
        load(f"{ABOUT}{start}steps = {steps}{rest.partition(']')[2]}")


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "findings.toml"
    with pytest.raises(TableError, match=r"findings\.toml: No such file"):
        load_findings(file)
    file.write_bytes(b"# \xff\n")
    with pytest.raises(TableError, match=r"findings\.toml: expected text in UTF-8"):
        load_findings(file)


def test_a_code_in_two_files_is_refused(load: Callable[..., Group]) -> None:
    one, two = load(GOOD), load(GOOD, "other")
    with pytest.raises(TableError) as raised:
        join_groups([one, two])
    assert str(raised.value) == f"{two.file}: [NOISE-LOUD] is in {one.file} too"


def test_a_maker_without_findings_is_refused(load: Callable[..., Group]) -> None:
    group = load(GOOD.replace("order =", 'made_by = "nccll"\norder ='))
    with pytest.raises(TableError, match=r"'made_by': expected one of .*nccl.*, found 'nccll'"):
        join_groups([group, *read_groups().values()])


def test_each_folder_with_a_file_is_found(
    load: Callable[..., Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(GOOD)
    monkeypatch.setattr(findings, "PROBES", tmp_path)
    assert [*read_groups.__wrapped__()] == ["noise"]


def test_the_reader_of_logs_makes_some_findings_of_fabric() -> None:
    assert read_groups()["fabric"].entries["FAB-TCP"].made_by == "nccl"
    assert find_makers("FAB-TCP") == find_makers("INIT-QP")
    assert find_makers("FAB-LINK-DOWN") == "FABRIC (probes/fabric)"


def test_no_file_is_read_before_a_finding_is_looked_up() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS_LATE], cwd=REPO, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.split(), done.returncode) == (["imported", "findings.toml"], 0)
