"""A shared copy holds no name of the run, and says all that the run says."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from reports.acceptance import AcceptanceSummary, load_summary, summarize_acceptance
from reports.measurement import Limit, Measurement, Verdict
from reports.page.render import render
from reports.record import Control, Criterion, ProbeResult, RunRecord
from reports.share.shared_copy import KEPT, ShareRefused, share_record, write_shared
from tests.recordings.generate import h100_cluster as atlas
from tests.recordings.load import owing
from tests.support.paths import RECORDINGS

RUNS = sorted(path.parent for path in RECORDINGS.glob("*/events.jsonl"))
FILES = {
    "record.json",
    "report.html",
    "measurements.csv",
    "junit.xml",
    "ctrf.json",
    "metrics.prom",
}
HOST, FQDN, LONER = "gpu-orion-01", "gpu-orion-01.dc7.starcorp.com", "orionhead"
LOST = "gpu-orion-17"  # of no fact: it never answered
IP, FABRIC_IP, IPV6, MAC = (
    "10.66.7.11",
    "192.168.201.5",
    "fe80::9a03:9bff:fe12:3456",
    "98:03:9b:12:34:56",
)
GUID, UUID = "9803:9b03:0012:3456", "65d577c3-4e79-4a12-a483-298744f62dce"
MIG = "MIG-41b3a5cf-1f9e-5d1c-8a11-5f3c2a9d7e66"
GPU = "GPU-0fb1a5cf-1f9e-5d1c-8a11-5f3c2a9d7e55"
RAY_ID = "653dd10527c51599c5f6ceb6a7184f83d5b6c85a1ec26bfc5d6fc54a"
USER, MAIL, PERSON = "tvasquez", "t.vasquez@starcorp.com", "Tomasa Vasquez"
FOLDER, MOUNT = f"/home/{USER}/secret-project/run7", "/orionfs"
# What must not stand in any file, in lower case.  Parts of names too: a domain tells the company.
SECRETS = [
    *(HOST, FQDN, LONER, LOST, IP, FABRIC_IP, IPV6, MAC, GUID, UUID, GPU, MIG, RAY_ID, USER, MAIL),
    *(
        PERSON,
        FOLDER,
        MOUNT,
        "starcorp",
        "secret-project",
        "nebula-bucket",
        "orion-west",
        "orion-week-1",
        RAY_ID[:8],
    ),
]
TEXT = (
    f"{HOST}: lost {FQDN}, {HOST.upper()}, {LOST} and {LONER}. {HOST}:4121:4180 [0] NCCL INFO; "
    f"{HOST}/mlx5_0 {HOST}->{LONER} {FQDN} -> {HOST} node:{HOST} ray://{IP}:10001 {IP}:6379, "
    f"({FABRIC_IP}/24) [{IPV6}] {MAC} {GUID} {UUID} {GPU} {MIG} {RAY_ID}; cd {FOLDER}/x.log, "
    f"{MOUNT}, {MOUNT}/job ~{USER}/notes file://{FOLDER} https://{FQDN}/a/{USER} "
    f"s3://nebula-bucket/{USER}/x {MAIL} {USER}@{HOST} by {USER}: -I{FOLDER} b'x\\n{HOST}\\n{IP}' "
    f"%2F{HOST} node {RAY_ID[:8]} gpu-\u200borion-01 \x1b[31m{HOST}\x1b[0m orion-west"
)
# Fields of ids, codes and states, which nothing touches; what they hold here.
IDS: dict[str, Any] = {
    "RunRecord.schema_version": "1.5",
    "RunRecord.started": "2026-11-20T22:17:03.120Z",
    "RunRecord.finished": "2026-11-20T23:04:41.870Z",
    "RunRecord.state": "finished",
    "RunRecord.tier": "quick",
    "RunRecord.only": [],
    "RunRecord.head": "ab" * 32,
    "RunRecord.owed": [],
    "ContractFacts.sha256": "3f" * 32,
    "ContractFacts.tier": "quick",
    "ContractFacts.baseline": {"FABRIC.busbw": 2.0},
    "BaselineValue.criterion": "FABRIC",
    "BaselineValue.probe": "probes/fabric/test_fabric.py::test_it",
    "BaselineValue.measure": "busbw",
    "BaselineValue.unit": "GB/s",
    "Criterion.id": "FABRIC",
    "Waiver.id": "W-3",
    "Waiver.criterion": "FABRIC",
    "RunProblem.kind": "teardown",
    "ProbeResult.probe": "probes/fabric/test_fabric.py::test_it",
    "ProbeResult.criterion": "FABRIC",
    "ProbeResult.state": "finished",
    "Measurement.name": "busbw",
    "Measurement.unit": "GB/s",
    "Limit.unit": "GB/s",
    "Control.name": "wrong network",
    "Finding.code": "FAB-TCP",
    "Evidence.kind": "log",
    "Evidence.sha256": "9d" * 32,
}
NUMBERS: dict[str, Any] = {
    "BaselineValue.run": "orion-week-0",
    "Limit.low": 340.0,
    "Limit.one_of": None,
    "Measurement.value": 61.5,
}


def fill(model: type[BaseModel]) -> Any:
    """Build a part of a record with TEXT in every field that may hold text."""
    fields = {}
    for name, info in model.model_fields.items():
        where = f"{model.__name__}.{name}"
        known = {**IDS, **NUMBERS}
        fields[name] = known[where] if where in known else fill_field(info.annotation)
    return model(**fields)


def fill_field(annotation: Any) -> Any:
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    if get_origin(annotation) is list:
        return [fill_field(kinds[0])]
    if get_origin(annotation) is dict:
        return {TEXT: TEXT} if str in kinds[1:] else {TEXT: {"list": [TEXT, {HOST: 3}]}}
    if annotation is str or str in kinds:
        return TEXT
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return fill(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return next(iter(annotation))
    values = {bool: True, float: 3.0, int: 3, date: date(2027, 1, 1)}
    first = kinds[0] if kinds else annotation
    return values[first] if first in values else fill_field(first)


def full_record() -> RunRecord:
    """Build a record with names in every field that may hold one, known by its facts."""
    record: RunRecord = fill(RunRecord)
    facts = {
        "name": "orion-west",
        "nodes": [
            {"name": HOST, "host": FQDN, "node": RAY_ID, "boot_id": UUID, "gpus": [{"uuid": GPU}]},
            {"name": LONER, "interfaces": {"ib0": {"address": FABRIC_IP}}},
        ],
        "terms": {"shared": MOUNT},
    }
    result = record.results[0]
    subjects = [HOST, f"{HOST} -> {LOST}", f"rank 0 ({LONER}) in other", FQDN.upper(), MOUNT]
    series = {
        "pairs": {"nodes": [HOST, LONER], "cells": [[0, 1, 61.0], [1, 0, 372.0]]},
        "gang": {
            "title": TEXT,
            "unit": "GPU",
            "capacity": {HOST: 2, LONER: 2},
            "samples": [{"t": 0.5, "nodes": {HOST: {"A": 2}}, "waits": {"B": 2}}],
            "end": 3,
            "taken": 4,
            "marks": [[1, f"{HOST} is killed"]],
        },
    }
    named = [
        measured.model_copy(update={"subject": s})
        for measured in result.measurements
        for s in subjects
    ]
    results = [
        result.model_copy(update={"measurements": [*result.measurements, *named], "series": series})
    ]
    waiver = record.contract.waivers[0].model_copy(update={"name": PERSON})
    contract = record.contract.model_copy(update={"waivers": [waiver]})
    changes = {"id": "2026-11-20T221703Z-orion-west", "baseline": "orion-week-1"}
    changes |= {"cluster": {**record.cluster, **facts}}
    return record.model_copy(update={**changes, "results": results, "contract": contract})


def share(record: RunRecord, folder: Path) -> dict[str, str]:
    """Write the copy of a record; return its files' texts by name."""
    paths = write_shared(folder / "run", summarize_acceptance(record), folder / "copy")
    assert (
        {path.name for path in paths}
        == FILES
        == {path.name for path in (folder / "copy").iterdir()}
    )
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def stated(summary: AcceptanceSummary) -> list[Any]:
    """List what a copy must not change."""
    rows = [(row.criterion.id, row.verdict, row.key.value_text) for row in summary.rows]
    numbers = [
        [(m.name, m.unit, m.verdict, m.value, m.spread, m.samples) for m in result.measurements]
        for result in summary.record.results
        if not any(isinstance(m.value, str) for m in result.measurements)
    ]
    codes = [finding.code for finding in summary.findings]
    return [summary.headline, summary.exit_code, summary.shown_verdict, rows, numbers, codes]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


def test_no_name_of_a_run_is_in_any_file_of_its_copy(tmp_path: Path) -> None:
    record = full_record()
    assert TEXT in record.model_dump()["results"][0]["findings"][0]["remedy"]
    known = share_record(record)[1].known
    assert not [name for name in known if HOST in name.removeprefix(HOST)], "all of it is one name"
    files = share(record, tmp_path)
    for name, text in files.items():
        shown = html.unescape(text).lower() + json.dumps(text.lower())
        left = [secret for secret in SECRETS if secret.lower() in shown]
        assert not left, f"{name}: {left}"
    after = summarize_acceptance(RunRecord.model_validate_json(files["record.json"]))
    assert stated(after) == stated(summarize_acceptance(record))


def test_no_string_field_but_ids_is_kept() -> None:
    kept = {f"{model}.{field}" for model, fields in KEPT.items() for field in fields}
    owed = {f"OwedProbe.{name}" for name in ("probe", "criterion", "tier", "measures", "controls")}
    assert kept == IDS.keys() - {"RunRecord.owed"} | owed


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_recorded_runs_lose_their_names_and_keep_their_verdicts(run: Path, tmp_path: Path) -> None:
    summary = load_summary(run)
    if summary.integrity.problems:
        with pytest.raises(ShareRefused, match="does not verify"):
            write_shared(run, summary, tmp_path / "copy")
        summary = summarize_acceptance(summary.record)  # as if it did
    paths = write_shared(run, summary, tmp_path / "copy")
    after = summarize_acceptance(
        RunRecord.model_validate_json((tmp_path / "copy/record.json").read_text(encoding="utf-8")),
        summary.integrity,
    )
    assert stated(after)[:3] == stated(summary)[:3]
    assert stated(after)[4:] == stated(summary)[4:]
    facts = json.dumps(summary.record.cluster)
    names = {node["name"] for node in summary.record.cluster["nodes"]}
    names |= set(re.findall(r"\b10\.\d+\.\d+\.\d+\b", facts))
    assert names or run.name == "empty"
    dumped = summary.record.model_dump(mode="json")
    ids = set(strings([[r["probe"], r["criterion"], r["measurements"]] for r in dumped["results"]]))
    for path in paths:
        text = path.read_text(encoding="utf-8").lower()
        # The words of the hostile run are the ids of its probes and measures as well.
        assert not [n for n in names - ids if re.search(rf"\b{re.escape(n.lower())}\b", text)]


def agreed_host(value: str) -> RunRecord:
    """Build a run in which one measured word is held to one agreed name."""
    limit = Limit(one_of=["gpu-01"], because="the order")
    result = ProbeResult(
        probe="p",
        criterion="HOSTS",
        state="finished",
        measurements=[Measurement(name="head", value=value, limit=limit)],
        controls=[Control(name="c", fault="f", caught=True)],
    )
    cluster = {"nodes": [{"name": "gpu-01"}]}
    contract = atlas.contract().model_copy(
        update={"criteria": [Criterion(id="HOSTS", title="t", how="h")]}
    )
    changes = {"results": [result], "cluster": cluster, "contract": contract}
    return owing(atlas.record().model_copy(update=changes))


@pytest.mark.parametrize(
    ("value", "verdict"),
    [("gpu-01", Verdict.PASS), ("GPU-01", Verdict.FAIL), ("gpu-01.dc1.acme.com", Verdict.FAIL)],
)
def test_what_failed_for_its_name_fails_in_the_copy(
    value: str, verdict: Verdict, tmp_path: Path
) -> None:
    record = agreed_host(value)
    assert record.results[0].verdict is verdict
    files = share(record, tmp_path)
    copied = RunRecord.model_validate_json(files["record.json"])
    assert copied.results[0].verdict is verdict
    assert "gpu-01" not in files["report.html"].lower()


def test_words_that_cannot_be_seen_still_count() -> None:
    record = atlas.record().model_copy(update={"rehearsal": "\u200b\u200b"})
    after = summarize_acceptance(share_record(record)[0])
    assert after.word == summarize_acceptance(record).word
    assert "rehearsal" in after.word


def test_a_copy_that_would_say_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = load_summary(RECORDINGS / "tcp-fallback")
    better = share_record(load_summary(RECORDINGS / "healthy-atlas").record)
    monkeypatch.setattr("reports.share.shared_copy.share_record", lambda record: better)
    with pytest.raises(RuntimeError, match="nothing was written"):
        write_shared(tmp_path / "run", summary, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    summary = load_summary(RECORDINGS / "healthy-lab")
    (tmp_path / "run").mkdir()
    first = write_shared(tmp_path / "run", summary)
    assert {path.parent for path in first} == {tmp_path / "run-shared"}
    with pytest.raises(ShareRefused, match="already exists"):
        write_shared(tmp_path / "run", summary)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ShareRefused, match="already exists"):
        write_shared(tmp_path / "run", summary, tmp_path / "link")
    with pytest.raises(ShareRefused, match="cannot be written: No such file"):
        write_shared(tmp_path / "run", summary, tmp_path / "no" / "folder")
    assert not (tmp_path / "nowhere").exists()


def test_the_page_tells_that_no_evidence_comes_with_it(tmp_path: Path) -> None:
    run = RECORDINGS / "tcp-fallback"
    summary = load_summary(run)
    assert 'href="./evidence/' in render(summary, run)
    assert "Copy to hand over" not in render(summary, run)
    write_shared(run, summary, tmp_path / "copy")
    page = (tmp_path / "copy/report.html").read_text(encoding="utf-8")
    assert "Evidence files are not included." in page
    assert 'href="./' not in page
    assert "evidence/allreduce.txt" in page
    assert "NCCL INFO Channel" not in page
    assert summary.record.head in page


def test_a_run_that_does_not_verify_is_not_shared(tmp_path: Path) -> None:
    run = shutil.copytree(RECORDINGS / "healthy-atlas", tmp_path / "run")
    (run / "evidence" / "ras-atlas03.txt").write_text("added")
    summary = load_summary(run)
    assert summary.exit_code == 4
    with pytest.raises(ShareRefused, match=r"does not verify: .*\. No copy was written"):
        write_shared(run, summary)
    assert not (tmp_path / "run-shared").exists()


def test_secrets_are_not_in_the_copy(tmp_path: Path) -> None:
    record = atlas.record().model_copy(update={"command": "pytest --token hunter2-hunter2"})
    assert not [name for name, text in share(record, tmp_path).items() if "hunter2" in text]
