"""Secrets out of what is kept and shown: environment variables, commands, cluster facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "<redacted>"

SECRET_NAME = re.compile(
    r"(?:^|[^a-z])(?:api_?key|key|keys|token|pass|passphrase|pwd|cred|creds|auth|authorization"
    r"|cookie|signature|sas)(?:$|[^a-z])"
    r"|apikey|accesskey|secretkey|privatekey|passwo?r?d|secret|credential|tokens?$",
    re.IGNORECASE,
)
USERINFO = re.compile(r"(?<=://)[^/\s@'\"]+@")
WORD = r"(?:\"[^\"]*\"|'[^']*'|[^\s\"';&|]+)"
ASSIGNMENT = re.compile(rf"(?P<name>[A-Za-z_][\w.-]*)(?P<sep>=)(?P<value>{WORD})")
OPTION = re.compile(rf"(?<![\w-])--?(?P<name>[A-Za-z][\w-]*)(?P<sep>\s+)(?P<value>(?!-){WORD})")
BEARER = re.compile(
    r"(?P<name>\b(?:bearer|basic))(?P<sep>\s+)(?P<value>[\w.~+/=-]{8,})", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name is likely to hold a secret."""
    return bool(SECRET_NAME.search(re.sub(r"([a-z])([A-Z])", r"\1_\2", name)))


def redact_text(text: str) -> str:
    """Free text, such as a command line: URL users and `--token VALUE`, `TOKEN=VALUE` go."""
    text = USERINFO.sub(REDACTED + "@", text)
    text = BEARER.sub(lambda match: f"{match['name']}{match['sep']}{REDACTED}", text)
    return OPTION.sub(_redact_match, ASSIGNMENT.sub(_redact_match, text))


def redact(value: Any, name: str = "") -> Any:
    """Replace keys, tokens, passwords and the like in nested facts, by the names of their keys.

    A URL keeps its host and loses its user and password.
    """
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, name) for item in value]
    if isinstance(value, str):
        return REDACTED if value and is_secret_name(name) else redact_text(value)
    return value


def _redact_match(match: re.Match[str]) -> str:
    """The same words, without the value when the name says that it is a secret."""
    if not is_secret_name(match["name"]):
        return match[0]
    return match[0][: match.start("value") - match.start()] + REDACTED
