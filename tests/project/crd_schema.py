"""Checks a document against a CRD's schema, cut down to what the manifests use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).parent / "schemas"
NUMBERS = {"integer": (int,), "number": (int, float)}
TYPES = {"object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), **NUMBERS}
KNOWN = {"type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
         "enum", "pattern", "x-kubernetes-int-or-string"}  # fmt: skip


def schema(kind: str) -> dict[str, Any]:
    """Read the schema of a kind."""
    return yaml.safe_load((SCHEMAS / f"{kind.lower()}.yaml").read_text())


def faults(value: Any, rule: dict[str, Any], path: str) -> Iterator[str]:
    """Find what does not fit, each as `path.of.field: what is wrong`."""
    kinds = (int, str) if "x-kubernetes-int-or-string" in rule else TYPES[rule["type"]]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        yield f"{path}: expected {rule.get('type', 'integer or string')}, found {value!r}"
    elif isinstance(value, dict):
        yield from object_faults(value, rule, path)
    elif isinstance(value, list):
        if not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)):
            yield f"{path}: {len(value)} items are too few or too many"
        for index, item in enumerate(value):
            yield from faults(item, rule["items"], f"{path}[{index}]")
    elif value not in rule.get("enum", [value]):
        yield f"{path}: expected one of {', '.join(rule['enum'])}, found {value!r}"
    elif "pattern" in rule and not re.match(rule["pattern"], str(value)):
        yield f"{path}: {value!r} is not of the form expected"


def object_faults(value: dict[str, Any], rule: dict[str, Any], path: str) -> Iterator[str]:
    """Find what does not fit in an object."""
    for key in rule.get("required", []):
        if key not in value:
            yield f"{path}.{key}: is required"
    fields, others = rule.get("properties", {}), rule.get("additionalProperties")
    for key, item in value.items():
        if key not in fields and others is None:
            yield f"{path}.{key}: is not a known field"
        else:
            yield from faults(item, fields.get(key, others), f"{path}.{key}")
