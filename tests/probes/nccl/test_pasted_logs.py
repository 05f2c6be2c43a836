"""Pieces of logs as people post them: forty lines of one rank, prefixes, torch's text.

SYNTHETIC: each case is written by us in the shape of public threads; none is copied.
"""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest
from click.testing import CliRunner

from probes.cli.main import main
from probes.nccl.patterns import Phrase, find_kinds, read_phrases
from probes.nccl.rows import LineRow, Reported, RowReader, read_rows
from tests.probes.nccl.pasted.bare import BARE
from tests.probes.nccl.pasted.causes import CAUSED
from tests.probes.nccl.pasted.counts import COUNTS
from tests.probes.nccl.pasted.endings import ENDINGS
from tests.probes.nccl.pasted.errors import ERRORS
from tests.probes.nccl.pasted.exceptions import EXCEPTIONS, HINTS
from tests.probes.nccl.pasted.failed_calls import FAILED_CALLS, SOUND_CALLS
from tests.probes.nccl.pasted.lines import BEGIN, info, size_line, start, warn
from tests.probes.nccl.pasted.networks import NO_NETWORK_TO_ACCUSE
from tests.probes.nccl.pasted.node_errors import NODE_ERRORS
from tests.probes.nccl.pasted.places import PLACES
from tests.probes.nccl.pasted.processes import PROCESSES
from tests.probes.nccl.pasted.programs import PROGRAMS
from tests.probes.nccl.pasted.ras import RAS
from tests.probes.nccl.pasted.shapes import SHAPES
from tests.probes.nccl.pasted.starts import CUT_STARTS
from tests.probes.nccl.pasted.stores import STORES
from tests.probes.nccl.pasted.torch_text import OF_TORCH
from tests.probes.nccl.pasted.watchdog import WATCHDOG
from tests.probes.nccl.pasted.wraps import WRAPS
from tests.recordings.generate import nccl_logs
from tests.recordings.generate.nccl_logs import Job, socket
from tests.support.nccl_report import by_rank, codes, told

GROUPS = {
    "start": CUT_STARTS,
    "error": {**ERRORS, **NODE_ERRORS},
    "call": FAILED_CALLS,
    "torch": OF_TORCH,
    "network": NO_NETWORK_TO_ACCUSE,
    "shape": SHAPES,
    "watchdog": WATCHDOG,
    "program": PROGRAMS,
    "count": COUNTS,
    "bare": BARE,
    "store": STORES,
    "cause": CAUSED,
    "ras": RAS,
    "end": ENDINGS,
    "process": PROCESSES,
    "place": PLACES,
    "exception": EXCEPTIONS,
    "hint": HINTS,
    "wrap": WRAPS,
}
CASES = {
    f"{group}: {name}": case for group, cases in GROUPS.items() for name, case in cases.items()
}
MIN_CASES = 60


@pytest.mark.parametrize("name", CASES)
def test_a_piece_says_what_it_can_show(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = told(tmp_path, case.text)
    assert codes(found) == case.only, case.why
    text = found.text(1000)
    assert case.says in text, case.why
    doubt = "".join(found.unproven[:1])
    ways = [one.code for one in found.findings]
    ways = ways or ["note: ", f"not proven: {doubt}", doubt or "no fault found"]
    assert " ".join(text.split()).startswith(tuple(" ".join(way.split()) for way in ways))
    assert not re.search(r"(?:^|\D)0 (?:ranks|of)\b", text), "a count that says nothing"
    assert not case.transport or found.transport == case.transport, case.why
    assert found.exit_code == (1 if case.only else found.exit_code)


def test_there_are_many_cases_each_with_its_reason() -> None:
    assert len(CASES) >= MIN_CASES
    assert all(case.why for case in CASES.values())


SOUND = {
    *SOUND_CALLS,
    "P2P that cannot be enabled",
    "a driver's library that is not found",
    "a GPU that a peer does not see",
    "a scanner of ports",
    "a harmless trace",
    "a call that goes on",
    "a failed call of a rank that is done",
    "an unknown warning that nothing follows",
    "two of four ranks, one a line behind",
    "P2P that is off",
    "advice of RCCL",
    "a status that torch writes now and then",
    "a watchdog that is announced",
    "settings with the word error",
    "an internal error of another library",
    "a call without an error",
    "a table of texts",
}


def test_a_broken_run_is_never_fine() -> None:
    for group in (ERRORS, NODE_ERRORS, FAILED_CALLS, OF_TORCH, WATCHDOG, PROGRAMS):
        assert {name for name, case in group.items() if not case.only} <= SOUND


def all_read(reader: RowReader) -> list[Reported]:
    """What was found, also what only counts where nothing else is."""
    return [*reader.found, *chain(*reader.asides.values())]


@pytest.mark.parametrize("row", read_rows(), ids=lambda row: row.example[:60])
def test_one_line_of_each_row_alone_is_shown(tmp_path: Path, row: LineRow) -> None:
    reader = RowReader()
    reader.read(f"{row.example}\n".encode(), 1)
    assert row in [one.row for one in all_read(reader)], "a special row stands before it"
    found = told(tmp_path, f"{row.example}\n")
    assert "nccl.log:1" in found.text(), "what is read is shown"
    assert bool(row.code) == (row.role in ("cause", "follow-up"))
    assert not row.code or codes(found) == {row.code}


def test_each_row_has_a_case() -> None:
    reader = RowReader()
    for case in CASES.values():
        reader.read(f"{case.text}\n".encode(), 1)
    read = {one.row.example for one in all_read(reader)}
    assert [row.example for row in read_rows() if row.example not in read] == []
    files = [*Path(__file__).parent.glob("test_*.py"), Path(nccl_logs.__file__)]
    tests = "".join(path.read_text() for path in files)
    texts = "\n".join([tests, *(case.text for case in CASES.values())]).encode()
    seen = re.sub(rb":\d+ (?:\(\w+\) )?(?:NCCL WARN )?", b" ", texts)  # as the reader sees them
    pieces = re.split(rb"\n|NCCL INFO |NCCL WARN |\"(?!iommu)", texts + seen)
    missing = [
        phrase.example
        for phrase in read_phrases()
        if not any(re.search(phrase.pattern, piece) for piece in pieces)
    ]
    assert missing == [], missing


@pytest.mark.parametrize("phrase", read_phrases(), ids=lambda phrase: phrase.example[:60])
def test_a_warning_of_each_kind_is_told(tmp_path: Path, phrase: Phrase) -> None:
    """On one host, where no network is accused: in a finding, a note, or as not proven."""
    place, _, text = phrase.example.partition(" ")
    named = re.fullmatch(r"[\w./]+\.(?:cc|h)", place)
    words = f"{place}:9 {text}" if named else f"src/any.cc:9 {phrase.example}"
    found = told(tmp_path, warn(words))
    assert "nccl.log:1" in found.text()
    assert found.exit_code in (1, 20)


@pytest.mark.parametrize("phrase", read_phrases(), ids=lambda phrase: phrase.example[:60])
def test_each_row_reads_its_example(phrase: Phrase) -> None:
    assert phrase.kind in find_kinds(phrase.example.encode()), phrase.example
    assert phrase.versions
    assert phrase.meaning


def test_the_logs_of_all_ranks_show_a_hang(tmp_path: Path) -> None:
    job = Job("2.28.9", last="graph")
    assert codes(by_rank(tmp_path, job)) == {"INIT-HANG"}
    assert told(tmp_path, job.text()).exit_code == 20, "one file may have been cut there"


GATHERED = "Bootstrap timings total 0.9 (create 0.1, send 0.2, recv 0.3, ring 0.1, delay 0.0)"


@pytest.mark.parametrize("line", ["", GATHERED, size_line(0, 4, 2)])
def test_no_rank_is_missed_where_one_has_heard_of_all(tmp_path: Path, line: str) -> None:
    logs = [info(*BEGIN, start(n, 4), pid=50 + n, device=n) for n in range(3)]
    logs[0] += info(line, pid=50) if line else ""
    assert ("INIT-MISSING-RANK" in codes(told(tmp_path, *logs))) == (not line)


def test_who_left_the_others_is_what_to_look_at(tmp_path: Path) -> None:
    (named,) = told(tmp_path, OF_TORCH["a rank that left"].text).findings
    assert named.suspects == ["rank 7"]
    assert "did not call the collective in which the other ranks wait" in named.remedy
    (plain,) = told(tmp_path, OF_TORCH["a store that went"].text).findings
    assert "did not call the collective" not in plain.remedy


def test_all_connections_that_gloo_lost_are_one_finding(tmp_path: Path) -> None:
    lost = STORES["gloo lost a peer"].text
    (named,) = told(tmp_path, lost + lost.replace("10.1.0.1", "10.1.0.2")).findings
    assert named.suspects == ["10.1.0.1", "10.1.0.2"]
    assert named.evidence == ["nccl.log:1", "nccl.log:2"]


def test_nobody_asks_whether_a_job_went_on_after_a_process_was_killed(tmp_path: Path) -> None:
    killed = PROCESSES["a process that was killed, in a job that had started"]
    assert told(tmp_path, killed.text).unproven == []


def test_efa_with_gpudirect_has_no_note(tmp_path: Path) -> None:
    found = told(tmp_path, Job("2.28.9", network=lambda host: "AWS Libfabric").text())
    assert (codes(found), found.notes) == (set(), [])


def nccl_log(text: str, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["nccl-log", *words, "-"], input=text.encode())
    return done.exit_code, done.output


def test_standard_input_is_read() -> None:
    code, text = nccl_log(Job("2.28.9", network=socket).text())
    assert code == 1
    assert "FAB-TCP" in text
    assert "stdin:" in text


def test_a_file_that_is_whole_shows_a_hang() -> None:
    text = Job("2.28.9", last="graph", stops={2: "topology"}).text()
    code, said = nccl_log(text)
    assert (code, "INIT-HANG" in said) == (20, False)
    assert "--whole" in said
    code, said = nccl_log(text, "--whole")
    assert (code, "INIT-HANG" in said) == (1, True)


def test_a_log_without_a_line_of_nccl_says_only_that() -> None:
    code, text = nccl_log("step 1 loss 2.3\n")
    assert code == 20
    assert len(text.split(". ")) <= 2
    assert "transport" not in text
    assert "found no line of NCCL's" in " ".join(text.split())


def test_a_finding_is_explained_where_asked() -> None:
    code, text = nccl_log(CASES["error: one rank twice"].text, "--explain")
    assert code == 1
    assert "LAUNCH-ENV" in text
    assert "Set the rendezvous variables of every rank" in text
