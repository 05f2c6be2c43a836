"""CTRF, Prometheus, JSON schema, the sums, and the command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from reports.acceptance import load_summary
from reports.exports import ctrf, prometheus, render_all, write_all
from reports.record import RunRecord
from reports.redact import REDACTED, redact, redact_text
from tests.support.paths import RECORDINGS, REPO

RUNS = sorted(path.parent for path in RECORDINGS.glob("*/events.jsonl"))
every_run = pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)

# The keys that the CTRF schema requires and allows, written down from its documentation.
STATUSES = {"passed", "failed", "skipped", "pending", "other"}
TEST_KEYS = {"name", "status", "duration", "rawStatus", "message", "suite"}


@every_run
def test_ctrf_has_the_keys_its_schema_asks_for(run: Path) -> None:
    report = ctrf(load_summary(run))
    assert report["reportFormat"] == "CTRF"
    assert re.fullmatch(r"\d+\.\d+\.\d+", report["specVersion"])
    results = report["results"]
    assert set(results) <= {"tool", "summary", "tests", "environment", "extra"}
    assert all(type(value) is int for value in results["summary"].values())
    for test in results["tests"]:
        assert {"name", "status", "duration"} <= set(test) <= TEST_KEYS
        assert test["name"]
        assert type(test["duration"]) is int
    counts = Counter(test["status"] for test in results["tests"])
    assert {status: results["summary"][status] for status in STATUSES} == {
        status: counts[status] for status in STATUSES
    }


@every_run
def test_ctrf_has_no_failure_only_when_accepted(run: Path) -> None:
    summary = load_summary(run)
    assert (ctrf(summary)["results"]["summary"]["failed"] == 0) == (summary.exit_code == 0)


@every_run
def test_prometheus_has_each_label_set_once(run: Path) -> None:
    text = prometheus(load_summary(run))
    samples = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    assert text.endswith("\n")


def test_equal_measurements_stay_apart() -> None:
    assert 'occurrence="2"' in prometheus(load_summary(RECORDINGS / "retried"))


def test_the_schema_is_of_the_record(tmp_path: Path) -> None:
    run = shutil.copytree(RECORDINGS / "healthy-lab", tmp_path / "run")
    write_all(run, render_all(run, load_summary(run)))
    schema = json.loads((run / "record.schema.json").read_text())
    assert schema == RunRecord.model_json_schema()
    assert set(schema["properties"]) == set(RunRecord.model_fields)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD", "SSH_KEY", "apiKey",
     "GITHUB_TOKEN", "my_credentials", "PGPASSWORD", "REDIS_PWD", "authToken", "NGC_API_KEY"],
)  # fmt: skip
def test_secret_names(name: str) -> None:
    assert redact({name: "abc123"}) == {name: REDACTED}


@pytest.mark.parametrize(
    "name", ["NCCL_IB_PKEY", "PATH", "NCCL_DEBUG", "KEYBOARD", "HOME", "MONKEY", "PASSES"]
)
def test_ordinary_names(name: str) -> None:
    assert redact({name: "abc123"}) == {name: "abc123"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://joe:pw@host/x", f"https://{REDACTED}@host/x"),
        ("ray://token@10.0.0.1:10001", f"ray://{REDACTED}@10.0.0.1:10001"),
        ("run --token abc -v", f"run --token {REDACTED} -v"),
        ("run --verbose --api-key=abc", f"run --verbose --api-key={REDACTED}"),
        ("HF_TOKEN='a b' run", f"HF_TOKEN={REDACTED} run"),
        ("curl -H 'Authorization: Bearer abcdefghijk'", f"Bearer {REDACTED}"),
        ("pytest probes --cluster auto", "pytest probes --cluster auto"),
        ("the key question is speed", "the key question is speed"),
    ],
)
def test_secrets_in_text(text: str, kept: str) -> None:
    assert kept in redact_text(text)
    for secret in ("pw@", "abc ", "=abc", "'a b'", "abcdefghijk"):
        assert secret not in redact_text(text)


def test_nested_facts() -> None:
    facts = {"env": {"API_TOKEN": "x", "A": ["http://u:p@h"]}, "gpus": 8, "token_count": 3}
    assert redact(facts) == {
        "env": {"API_TOKEN": REDACTED, "A": [f"http://{REDACTED}@h"]},
        "gpus": 8,
        "token_count": 3,
    }


def test_it_needs_neither_ray_nor_torch_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, reports.text, reports.exports;"
        "heavy = {'ray', 'torch', 'matplotlib', 'pandas', 'jinja2', 'numpy'} & set(sys.modules);"
        "floors = {'probes', 'scaling', 'reference_trainer'} & set(sys.modules);"
        "sys.exit(f'{heavy} {floors}' if heavy | floors else 0)"
    )
    root = REPO
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
