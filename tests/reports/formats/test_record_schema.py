"""The JSON schema of record.json describes each field and fits every record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from probes.cli.main import main
from reports.acceptance import load_summary
from reports.exports import read_schema
from reports.record import SCHEMA, RunRecord
from reports.run_folder.store import record_text
from tests.project.pages import build_schema
from tests.recordings.generate.goldens import GOLDENS
from tests.reports.formats.runs import every_run
from tests.support.paths import RECORDINGS

PUBLISHED = json.loads(read_schema())
VALID = jsonschema.Draft202012Validator(PUBLISHED)


def record_of(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(record_text(load_summary(run).record))
    return record


def fields(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of every model of the record, as `Model.field`."""
    for name, model in [("RunRecord", schema), *schema["$defs"].items()]:
        yield name, model
        yield from ((f"{name}.{key}", one) for key, one in model.get("properties", {}).items())


def test_what_is_published_is_what_the_models_say() -> None:
    assert json.loads(build_schema()) == PUBLISHED, "run `make docs`"


def test_it_says_which_schema_it_is() -> None:
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)
    assert PUBLISHED["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert PUBLISHED["$id"] == f"urn:seatrial:record:{SCHEMA}"


def test_every_model_and_field_has_a_description() -> None:
    listed = dict(fields(PUBLISHED))
    assert {f"RunRecord.{name}" for name in RunRecord.model_fields} < listed.keys()
    assert "Limit.because" in listed
    assert [name for name, one in listed.items() if len(one.get("description", "")) < 10] == []


@every_run
def test_every_record_fits(run: Path) -> None:
    VALID.validate(record_of(run))


@pytest.mark.parametrize("path", sorted(GOLDENS.glob("*/record.json")), ids=lambda p: p.parent.name)
def test_every_kept_record_fits(path: Path) -> None:
    VALID.validate(json.loads(path.read_text()))


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": "1.4"},
        {"schema_version": "1.6"},
        {"schema_version": "2.0"},
        {"schema_version": 1.5},
        {"a_new_field": 1},
        {"results": None},
        {"contract": {"name": "c"}},
    ],
)
def test_what_is_no_record_does_not_fit(change: dict[str, Any]) -> None:
    record = record_of(RECORDINGS / "healthy-lab")
    with pytest.raises(jsonschema.ValidationError):
        VALID.validate({**record, **change})


def test_the_command_prints_it() -> None:
    result = CliRunner().invoke(main, ["schema"])
    assert result.exit_code == 0
    assert json.loads(result.output) == PUBLISHED
