"""The renderings of a run, and the redaction of secrets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reports.acceptance import load_summary
from reports.exports import read_schema, render_all, write_all
from reports.redact import REDACTED, redact, redact_text
from tests.support.paths import RECORDINGS, REPO

RUNS = sorted(path.parent for path in RECORDINGS.glob("*/events.jsonl"))


def test_a_run_folder_has_the_schema_of_its_record(tmp_path: Path) -> None:
    write_all(tmp_path, render_all(None, load_summary(RECORDINGS / "healthy-lab")))
    assert (tmp_path / "record.schema.json").read_text() == read_schema()


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
        "import sys, reports.text, reports.exports, reports.formats.github;"
        "heavy = {'ray', 'torch', 'matplotlib', 'pandas', 'jinja2', 'numpy'} & set(sys.modules);"
        "floors = {'probes', 'scaling', 'reference_trainer'} & set(sys.modules);"
        "sys.exit(f'{heavy} {floors}' if heavy | floors else 0)"
    )
    root = REPO
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
