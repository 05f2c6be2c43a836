"""A run folder that was changed is reported, by whatever command reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from probes.cli.main import main
from probes.contract.contract import load, parse
from probes.session.rejudge import read_summary, read_whole
from probes.submit.verify import Submitted, find_differences
from reports.run_folder.event_log import hash_file, write_checksums
from tests.support.run_edits import (
    Edit,
    add_file,
    append_event,
    append_run,
    change_time,
    drop_event,
    drop_sum,
    edit_events,
    exchange_evidence,
    first_event,
    link_evidence,
    loosen_limit,
    put_value,
    remove_file,
    rename_event,
    rename_measure,
    repeat_event,
    replace_text,
    swap_events,
)
from tests.support.run_folders import Events, chain, read_lines, rewrite, without_chain, write_lines
from tests.support.sound_run import write_sound_run

COMMANDS = (("show",), ("report",), ("compare",), ("rejudge", "--contract", "lab"))


def seatrial(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound_run(tmp_path_factory.mktemp("sound") / "run", nonce="blue whale")


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "run")


# Of the log: the chain tells it, also where the sums were made again.
LOG_EDITS: dict[str, Edit] = {
    "a value": edit_events(put_value("measurement", "value", 0.09, "busbw")),
    "a limit": edit_events(loosen_limit),
    "a control": edit_events(put_value("control", "saw", "something else")),
    "a finding of a probe taken out": edit_events(drop_event("control")),
    "a series": edit_events(put_value("series", "values", [1])),
    "what is owed": edit_events(put_value("run_owes", "owed", [])),
    "the tier": edit_events(put_value("run_started", "tier", "soak")),
    "the nonce": edit_events(put_value("run_started", "nonce", "red fox")),
    "the contract's criteria": edit_events(put_value("run_started", "rehearsal", "")),
    "the last event": edit_events(
        put_value("run_finished", "finished", "2026-11-21T00:00:00.000Z")
    ),
    "two events exchanged": edit_events(swap_events),
    "an event twice": edit_events(repeat_event),
    "an event taken out": edit_events(drop_event("measurement")),
    "the first event taken out": edit_events(lambda lines: lines[1:]),
    "the hash of an event's evidence": edit_events(put_value("evidence", "sha256", "0" * 64)),
    "a healthy run appended": edit_events(append_run),
    "an event after the end": edit_events(append_event),
    "an event of another kind": edit_events(rename_event),
    "a time": edit_events(change_time),
    "half a line after the end": lambda run: (
        (run / "events.jsonl").write_text((run / "events.jsonl").read_text() + '{"seq": 9') and None
    ),
    "the numbers taken away": edit_events(
        lambda lines: [{k: v for k, v in x.items() if k not in ("seq", "prev")} for x in lines]
    ),
}
# Of other files: the events or the other files tell it, also where the sums were made again.
FILE_EDITS: dict[str, Edit] = {
    "the contract": replace_text("contract.toml", "at_least = 0.090", "at_least = 0.001"),
    "the contract taken out": remove_file("contract.toml"),
    "evidence": replace_text("evidence/GANG.log", "GANG", "gang"),
    "evidence taken out": remove_file("evidence/GANG.log"),
    "evidence put in": add_file("evidence/more.log"),
    "evidence exchanged": exchange_evidence,
    "a link in place of evidence": link_evidence,
    "the record's head": lambda run: (
        (run / "record.json").write_text(
            (run / "record.json").read_text().replace('"head": "', '"head": "0000')
        ) and None
    ),
    "the record taken out": lambda run: (run / "record.json").write_text("{}\n") and None,
}  # fmt: skip
# Of what is rendered, and of the sums themselves: the sums tell it.
SUM_EDITS: dict[str, Edit] = {
    "the page": replace_text("report.html", "REHEARSAL PASSED", "ACCEPTED"),
    "junit.xml": lambda run: (run / "junit.xml").write_text("<testsuites/>") and None,
    "a rendering taken out": remove_file("ctrf.json"),
    "a file put in": add_file("ACCEPTED.txt"),
    "a sum taken out": drop_sum,
    "sums that are none": lambda run: (run / "SHA256SUMS").write_bytes(b"\xff\xfe") and None,
    "a log without an event": lambda run: (run / "events.jsonl").write_text("") and None,
}


def test_the_sound_run_verifies(run: Path) -> None:
    summary = read_summary(run)
    assert (summary.exit_code, summary.integrity.sentences) == (0, [])
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    codes = {name: seatrial(name, run, *more).exit_code for name, *more in commands(run)}
    assert codes == dict.fromkeys(codes, 0)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    assert not run.with_name("run-report").exists()


def commands(run: Path) -> list[tuple[Any, ...]]:
    return [(name, *more, *([run] if name == "compare" else [])) for name, *more in COMMANDS]


def assert_reported(run: Path) -> None:
    """Every command ends with 4 and says so in a sentence; the page says so first."""
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and not p.is_symlink()}
    for name, *more in commands(run):
        told = seatrial(name, run, *more)
        assert told.exit_code == 4, (name, told.output)
        assert "Traceback" not in told.output
        assert told.output.strip()
    after = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and not p.is_symlink()}
    assert after == before
    page = run.with_name("run-report") / "report.html"
    if page.exists():  # else the folder could not even be read
        assert "the run folder does not verify" in page.read_text()
        assert "</span> DOES NOT VERIFY" in page.read_text()


@pytest.mark.parametrize("edit", [*LOG_EDITS, *FILE_EDITS, *SUM_EDITS])
def test_an_edit_is_reported(run: Path, edit: str) -> None:
    (LOG_EDITS | FILE_EDITS | SUM_EDITS)[edit](run)
    assert_reported(run)


@pytest.mark.parametrize("edit", [*LOG_EDITS, *FILE_EDITS])
def test_an_edit_whose_sums_were_made_again_is_reported(run: Path, edit: str) -> None:
    (LOG_EDITS | FILE_EDITS)[edit](run)
    if not edit.startswith("a link"):  # whoever makes sums of a link sums what it points to
        write_checksums(run)
    assert_reported(run)


def test_what_was_taken_out_is_told_by_its_number(run: Path) -> None:
    LOG_EDITS["an event taken out"](run)
    taken = len(read_lines(run)) - sum(
        line["seq"] == number for number, line in enumerate(read_lines(run), 1)
    )
    first_wrong = len(read_lines(run)) - taken + 1
    problem = f"events.jsonl: line {first_wrong} has event number {first_wrong + 1}, expected"
    assert read_summary(run).integrity.problems[0].startswith(problem)


@pytest.mark.parametrize(
    "name", ["report.html", "junit.xml", "ctrf.json", "metrics.prom", "record.json"]
)
def test_a_rendering_whose_sums_were_made_again_is_reported(run: Path, name: str) -> None:
    (run / name).write_text((run / name).read_text() + " ")
    write_checksums(run)
    for command in ("show", "report"):
        told = seatrial(command, run)
        assert told.exit_code == 4
        assert f"{name} does not match events.jsonl" in " ".join(told.output.split())


@pytest.mark.parametrize("name", ["report.html", "record.json"])
def test_a_rendering_that_is_gone_is_reported(run: Path, name: str) -> None:
    (run / name).unlink()
    write_checksums(run)
    assert seatrial("report", run).exit_code == 4


def test_a_folder_that_was_added_is_reported(run: Path) -> None:
    (run / "ACCEPTED").mkdir()
    assert_reported(run)


SOUND_TERMS = {
    "shared": ('shared = "/shared"', 'shared = "/data"'),
    "pace": ("pace_seconds = 0.25", "pace_seconds = 0.5"),
    "management": ("management_gbps = 0.2", "management_gbps = 0.1"),
    "no shared": ('shared = "/shared"\n', ""),
    "without a name": ('name = "lab"\n', ""),
    "nodes": ("gpus_per_node = 1", "gpus_per_node = 1\nnodes = 4"),
}


@pytest.mark.parametrize("terms", SOUND_TERMS)
def test_what_rejudge_wrote_verifies(run: Path, tmp_path: Path, terms: str) -> None:
    """Also under terms by which less is proven."""
    contract = tmp_path / "atlas.toml"
    contract.write_text(load("lab").text.decode().replace(*SOUND_TERMS[terms]))
    assert seatrial("rejudge", run, "--contract", contract).exit_code in (0, 20)
    (judged,) = (path for path in tmp_path.iterdir() if path.name.startswith("run-by-"))
    assert seatrial("report", judged).exit_code in (0, 20)


@pytest.mark.parametrize(
    "edit",
    [
        ('name = "lab"\n', ""),
        ('"/shared"', '"/shared/token=abc123def"'),
        ("Rehearsal", "U: h\u00f6"),
    ],
)
def test_a_sound_run_by_another_contract_verifies(tmp_path: Path, edit: tuple[str, str]) -> None:
    """Without a name, with words that look like a secret, with other letters."""
    text = load("lab").text.decode().replace(*edit)
    run = write_sound_run(tmp_path / "run", contract=parse(text.encode(), "atlas.toml"))
    summary = read_whole(run)
    assert (summary.integrity.sentences, summary.exit_code) == ([], 0)


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1"])
def test_a_terminal_of_another_locale_accuses_nobody(
    run: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: encoding)
    monkeypatch.setattr("locale.getencoding", lambda: encoding, raising=False)  # new in 3.11
    assert read_whole(run).exit_code == 0


def test_other_libraries_accuse_nobody(run: Path) -> None:
    """pydantic, or jinja2, may word a rendering otherwise."""

    def other(lines: Events) -> None:
        first_event(lines, "run_started")["data"]["versions"]["seatrial_libraries"] = "pydantic 2.6"

    rewrite(run, lambda lines: other(lines) or lines)
    assert read_whole(run).integrity.problems == []


def test_the_page_of_a_run_never_overwrites_another_run(run: Path) -> None:
    other = shutil.copytree(run, run.with_name("run-report"))
    before = {p: p.read_bytes() for p in other.rglob("*") if p.is_file()}
    assert seatrial("report", run, "--baseline", run).exit_code == 4
    assert {p: p.read_bytes() for p in other.rglob("*") if p.is_file()} == before


def test_a_run_without_its_sums_has_no_end(run: Path) -> None:
    """A full disk leaves the same: it is our own 3, and never accepted."""
    (run / "SHA256SUMS").unlink()
    assert {seatrial(name, run).exit_code for name in ("show", "report")} == {3}


def test_half_a_run_is_interrupted(run: Path) -> None:
    write_lines(run, read_lines(run)[:-1])
    write_checksums(run)
    assert seatrial("show", run).exit_code in (2, 4)


OWES_OTHER = "the run lists other tests than its contract requires"
# Chain, sums, record and renderings were made again: what is left is what must fit together.
WHOLE: dict[str, tuple[Callable[[Events], Any], str]] = {
    "a looser limit": (loosen_limit, "was judged by >= 1 MB/s"),
    "no limit": (put_value("measurement", "limit", None, "busbw"), "was judged by no limit"),
    "less is owed": (put_value("run_owes", "owed", []), OWES_OTHER),
    "another tier": (put_value("run_started", "tier", "soak"), OWES_OTHER),
    "real accelerators": (
        lambda lines: first_event(lines, "run_started")["data"]["contract"].update(rehearsal=False),
        "the contract in the run's events differs from contract.toml",
    ),
    "a criterion that is not required": (
        lambda lines: first_event(lines, "run_started")["data"]["contract"]["criteria"][0].update(
            required=False
        ),
        "the contract in the run's events differs from contract.toml",
    ),
    "a healthy run appended": (append_run, "starts a second run"),
    "an event of another kind": (rename_event, "has an unknown kind of event: 'measured'"),
    "an event after the end": (append_event, "is after the end of the run"),
    "a contract that a later event gives": (
        put_value("run_finished", "contract", {"name": "x", "criteria": []}),
        "has keys that a",
    ),
    "an owed list that a later event gives": (
        put_value("run_finished", "owed", []), "has keys that a",
    ),
    "measurements that the end of a probe gives": (
        put_value("probe_finished", "measurements", []), "has keys that a",
    ),
    "no rehearsal": (put_value("run_started", "rehearsal", ""), "is not marked as a rehearsal"),
    "no event of what is owed": (drop_event("run_owes"), "no event lists the tests that the run"),
    "evidence that no event knows": (drop_event("evidence"), "no event in events.jsonl names it"),
}  # fmt: skip


@pytest.mark.parametrize("edit", WHOLE)
def test_a_folder_written_anew_must_still_fit_its_contract(run: Path, edit: str) -> None:
    change, sentence = WHOLE[edit]
    rewrite(run, lambda lines: change(lines) or lines)
    told = seatrial("show", run)
    assert told.exit_code == 4
    assert sentence in " ".join(told.output.split())


def test_a_file_that_many_events_name_is_hashed_once_and_reported(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small archive could otherwise cost hours: 2000 events, each of 256 MiB of zeros."""
    (run / "evidence" / "large").write_bytes(bytes(1 << 20))
    entry = {"kind": "log", "path": "evidence/large", "caption": "x", "bytes": 1 << 20}
    entry["sha256"] = hash_file(run / "evidence" / "large")

    def change(lines: Events) -> Events:
        at = next(i for i, line in enumerate(lines) if line["event"] == "evidence")
        return [*lines[:at], *[{**lines[at], "data": entry}] * 500, *lines[at:]]

    rewrite(run, change)
    hashed: list[str] = []

    def count(path: Path) -> str:
        hashed.append(path.name)
        return hash_file(path)

    monkeypatch.setattr("reports.run_folder.event_log.hash_file", count)
    [*problems, last] = read_summary(run).integrity.problems
    assert last == "two events name 'evidence/large' as evidence, and only one may"
    assert {*problems} == {last}
    found = find_differences(run, Submitted("blue whale", contract=load("lab").text), 0)
    assert found[0] == "two events name evidence/large as evidence, and only one may"
    assert hashed.count("large") <= 3


@pytest.mark.parametrize("path", ["evidence/../contract.toml", "evidence/", "other/log"])
def test_evidence_lies_in_its_folder(run: Path, path: str) -> None:
    entry = {"kind": "log", "path": path, "caption": "x", "bytes": 1, "sha256": "0" * 64}

    def change(lines: Events) -> Events:
        at = next(i for i, line in enumerate(lines) if line["event"] == "evidence")
        return [*lines[:at], {**lines[at], "data": entry}, *lines[at:]]

    rewrite(run, change)
    problem = f"{path!r} is not in the folder evidence/"
    assert problem in read_summary(run).integrity.problems


@pytest.mark.parametrize("kind", ["measurement", "control", "probe_started"])
def test_what_was_taken_out_of_a_folder_written_anew_is_owed(run: Path, kind: str) -> None:
    def change(lines: Events) -> Events:
        out = first_event(lines, kind)
        probe = out["probe"] if kind == "probe_started" else None
        return [line for line in lines if line is not out and line.get("probe", "") != probe]

    rewrite(run, change)
    assert read_summary(run).exit_code in (4, 20)


def test_a_measure_under_another_name_is_owed(run: Path) -> None:
    rewrite(run, lambda lines: rename_measure(lines) or lines)
    assert read_summary(run).exit_code == 20


def test_a_log_without_a_chain_does_not_verify(run: Path) -> None:
    write_lines(run, without_chain(read_lines(run)))
    write_checksums(run)
    told = seatrial("show", run)
    assert told.exit_code == 4
    assert "line 1 has event number None, expected 1" in " ".join(told.output.split())


def test_another_version_of_seatrial_accuses_nobody(run: Path) -> None:
    """It may compute a limit otherwise: that is a doubt."""

    def older(lines: Events) -> None:
        loosen_limit(lines)
        other = {"seatrial": "0.0.9", "seatrial_sources": "0123456789abcdef"}
        first_event(lines, "run_started")["data"]["versions"].update(other)

    rewrite(run, lambda lines: older(lines) or lines)
    text = " ".join(seatrial("show", run).output.split())
    assert "another build of seatrial (0.0.9" in text
    assert read_summary(run).integrity.doubts


@pytest.mark.parametrize(
    "version", ["2.0", "0.9", "1.0", "1.99", "1", "x", "1.2.3", "1." + "9" * 5000]
)
def test_another_schema_is_refused_with_what_to_do(run: Path, version: str) -> None:
    lines = read_lines(run)
    lines[0]["data"]["schema_version"] = version
    write_lines(run, chain(lines))
    told = seatrial("show", run)
    assert told.exit_code == 4
    assert "use the version that wrote the run (`pip install .` in its checkout)" in told.output
    assert len(told.output.splitlines()) == 1


def test_a_log_that_goes_on_from_another_line_has_no_beginning(run: Path) -> None:
    """Numbers and hashes fit each other: only the first line names one that is not there."""
    write_lines(run, chain(read_lines(run), head="f" * 64))
    write_checksums(run)
    shown = seatrial("show", run)
    assert shown.exit_code == 4
    assert "line 1 is not the first of the run" in " ".join(shown.output.split())


def test_a_killed_run_verifies_as_far_as_it_goes(tmp_path: Path) -> None:
    run = write_sound_run(tmp_path / "run", end=False)
    (run / "events.jsonl").write_text((run / "events.jsonl").read_text() + '{"seq": 9')
    assert seatrial("show", run).exit_code == 2
    lines = (run / "events.jsonl").read_text().splitlines()
    (run / "events.jsonl").write_text("\n".join(lines[:4] + lines[5:]))
    assert seatrial("show", run).exit_code == 4


def test_the_record_is_the_events(run: Path) -> None:
    record = json.loads((run / "record.json").read_text())
    assert record["head"] == read_summary(run).integrity.head
    assert record["nonce"] == "blue whale"
