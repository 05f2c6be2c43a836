"""Judges a run by another contract.  Needs no cluster: the record has what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probes.acceptance.contract import Contract
from probes.rejudge.limit_check import LimitCheck
from probes.rejudge.new_judge import NewJudge
from reports.acceptance import NO_SUMS, load_summary, summarize_acceptance
from reports.exports import render_all, write_all
from reports.record import RunRecord
from reports.run_folder.event_log import EventReader
from reports.run_folder.files import SUMS, UnreadableRun, open_regular
from reports.run_folder.integrity import read_run
from reports.run_folder.store import PRIVATE, Store, write_new


def rejudge_run(run: Path, contract: Contract) -> Path:
    """Write `<run>-by-<contract>` next to `run` and return it; existing folders stay unchanged.

    Limits that came from the probe's own set-up (such as a save interval) are kept: no contract
    gives them.  Raises UnreadableRun, also where `run` does not verify, because the new folder
    would.
    """
    before = load_summary(run, LimitCheck(run))
    if problems := before.integrity.problems:
        raise UnreadableRun(f"{run} does not verify: {problems[0]}")
    run, record = run.resolve(), before.record  # "." has no name
    store = Store(_make_folder(run.with_name(f"{run.name}-by-{contract.name}")))
    _copy_evidence(run, record, store.path)
    doubts = [*record.unverified, *before.integrity.doubts]
    for kind, probe, data in _judge_again(run, contract, store.path.name):
        if kind == "run_started":
            store.start(contract.text, **{**data, "unverified": doubts, "judged_again": record.id})
        else:
            store.event(kind, probe, **data)
    store.save()
    summary = summarize_acceptance(*read_run(store.path))
    write_all(store.path, render_all(store.path, summary))
    store.close()
    return store.path


def _judge_again(
    run: Path, contract: Contract, new_id: str
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (kind, probe, data) of each event under the new contract."""
    judge = NewJudge(contract, new_id)
    for event in EventReader(run):
        kind, probe, data = event["event"], event.get("probe", ""), dict(event["data"])
        yield kind, probe, judge.replace(kind, probe, data)
    if judge.finished and not (run / SUMS).is_file():  # its end was never written
        yield "run_problem", "", NO_SUMS.model_dump()


def _copy_evidence(run: Path, record: RunRecord, target: Path) -> None:
    """Copy the files that the record names, unchanged."""
    for entry in (entry for result in record.results for entry in result.evidence):
        with open_regular(run / entry.path) as old:
            write_new(target / entry.path, old.read())


def _make_folder(wanted: Path) -> Path:
    """Make this folder; if it exists, the first free one of `-2`, `-3` and so on."""
    number, target = 1, wanted
    while True:
        try:
            target.mkdir(mode=PRIVATE)
        except FileExistsError:
            number += 1
            target = wanted.with_name(f"{wanted.name}-{number}")
        else:
            return target
