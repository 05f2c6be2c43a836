"""Publishes the JSON schema of record.json. `make docs` writes its file from the models."""

from __future__ import annotations

import json
from importlib import resources

from reports.record import SCHEMA, RunRecord

SCHEMA_FILE = "record.schema.json"


def build_schema() -> str:
    """Build the schema from the fields of the record and their descriptions."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:seatrial:record:{SCHEMA}",
    }
    schema = {**head, **RunRecord.model_json_schema(), "title": "record.json of seatrial"}
    return json.dumps(schema, indent=1) + "\n"


def read_schema() -> str:
    """Read the published schema, which is the same with every version of pydantic."""
    return (resources.files("reports.formats") / SCHEMA_FILE).read_text(encoding="utf-8")
