"""JSON that gives back what it was made of: tuples, sets, bytes, dataclasses of ours."""

from __future__ import annotations

import base64
import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

OURS = ("probes.", "scaling.", "reference_trainer.", "reports.", "tests.recordings.")
KIND, VALUE = "__kind__", "value"


def dump(value: Any) -> str:
    """Write a value.  TypeError for what is no data."""
    return json.dumps(_pack(value), separators=(",", ":"))


def load(text: str) -> Any:
    """Read it back; of code it runs the classes' own constructors only, and only ours."""
    return _unpack(json.loads(text))


def _pack(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_pack(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and KIND not in value:
            return {key: _pack(item) for key, item in value.items()}
        return {KIND: "dict", VALUE: [[_pack(k), _pack(v)] for k, v in value.items()]}
    if isinstance(value, tuple | set | frozenset):
        return {KIND: type(value).__name__, VALUE: [_pack(item) for item in value]}
    if isinstance(value, Path):
        return {KIND: "path", VALUE: str(value)}
    if isinstance(value, bytes):
        return {KIND: "bytes", VALUE: base64.b64encode(value).decode()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        module = type(value).__module__
        if module.startswith(OURS):
            fields = {
                f.name: _pack(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init
            }
            return {KIND: f"{module}:{type(value).__qualname__}", VALUE: fields}
    raise TypeError(f"{type(value).__name__} is no data: {value!r:.80}")


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if KIND not in value:
        return {key: _unpack(item) for key, item in value.items()}
    kind, content = value[KIND], value[VALUE]
    if kind == "dict":
        return {_unpack(key): _unpack(item) for key, item in content}
    if kind == "path":
        return Path(content)
    if kind == "bytes":
        return base64.b64decode(content)
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(_unpack, content))
    module, _, name = kind.partition(":")
    if not module.startswith(OURS):
        raise ValueError(f"{kind} is no class of ours")
    return getattr(importlib.import_module(module), name)(
        **{key: _unpack(item) for key, item in content.items()}
    )
