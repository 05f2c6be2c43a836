"""Judges which entrances of Ray take requests without the cluster's token."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from probes.acceptance.measure import Recorder
from probes.cluster.access.entrances import (
    AGENT,
    CLIENT,
    DASHBOARD,
    GCS,
    NEEDS_TLS,
    RAYLET,
    REFUSED,
    SUBMIT,
    TAKEN,
    Answers,
    Entrance,
)
from probes.findings import finding, join_names
from reports.record import Finding

TOKEN, OFF = "token", "disabled"  # values of RAY_AUTH_MODE
KINDS = (GCS, RAYLET, AGENT, DASHBOARD, CLIENT, SUBMIT)
SUBJECTS = {GCS: "GCS", RAYLET: "raylets", AGENT: "dashboard agents"}
OPEN_TEXT = "takes requests without a token"
ANY_TEXT = "takes requests with a wrong token"
OWN_TEXT = "refuses the cluster's own token"
ASKS_TEXT = "asks for a token, and the cluster has none"
NO_CONTRAST = "the cluster's token is not known there, so a refusal proves nothing"


@dataclass(frozen=True)
class Asked:
    """An entrance and its answers."""

    entrance: Entrance
    answers: Answers


def find_mode(asked: Sequence[Asked], agreed: str | None) -> tuple[str, str]:
    """Find the authentication that the cluster must have, and why; ("", "") if it is not known.

    The contract comes first, then the driver's own RAY_AUTH_MODE, then what the GCS does.
    """
    if agreed == TOKEN:
        return TOKEN, "the contract agrees on it"
    kind = _telling_kind(asked)
    answers = {one.answers.without for one in asked if one.entrance.kind == kind}
    if REFUSED in answers:
        return TOKEN, f"the {kind} asks for a token"
    if os.environ.get("RAY_AUTH_MODE", "").lower() == TOKEN:
        return TOKEN, "RAY_AUTH_MODE of the driver is token"
    return (OFF, f"the {kind} asks for no token") if TAKEN in answers else ("", "")


def _telling_kind(asked: Sequence[Asked]) -> str:
    """Choose the entrance that shows the mode: the GCS, unless it asks for a certificate."""
    closed = {one.entrance.kind for one in asked if one.answers.without == NEEDS_TLS}
    return DASHBOARD if GCS in closed else GCS


def find_problem(one: Asked, mode: str) -> tuple[str | None, str]:
    """Find what an entrance does against the mode, "" for nothing; (None, reason) if unknown."""
    kind, answers = one.entrance.kind, one.answers
    if answers.without == NEEDS_TLS:
        return "", ""
    if not mode:
        return None, "whether the cluster asks for a token is not known"
    if mode == OFF:
        if answers.without == REFUSED:
            # A proxy in front of the dashboard may ask for a login of its own.
            return ("" if kind == SUBMIT else ASKS_TEXT), ""
        return ("", "") if answers.without == TAKEN else (None, answers.without)
    if TAKEN in (answers.without, answers.wrong):
        return (OPEN_TEXT if answers.without == TAKEN else ANY_TEXT), ""
    if answers.right == REFUSED:
        return OWN_TEXT, ""
    if answers == Answers(REFUSED, REFUSED, TAKEN):
        return "", ""
    unclear = [text for text in (answers.without, answers.wrong, answers.right) if text != REFUSED]
    return None, unclear[0] or NO_CONTRAST


def judge_entrances(asked: Sequence[Asked], mode: str, measure: Recorder) -> None:
    """Judge every entrance by the mode: with a token none is open, without it none refuses."""
    for kind in KINDS:
        rows = [one for one in asked if one.entrance.kind == kind]
        if not rows and kind != GCS:
            continue
        problems = [find_problem(one, mode) for one in rows]
        wrong = sum(bool(problem) for problem, _ in problems)
        unknown = [
            f"{one.entrance.text}: {reason}"
            for one, (problem, reason) in zip(rows, problems, strict=True)
            if problem is None
        ]
        note = join_names(unknown, 2) if rows else "the address of the GCS is not known"
        value = None if (unknown or not rows) and not wrong else wrong
        measure("wrong_entrances", value, on=SUBJECTS.get(kind, kind), note=note)
    measure.explain(explain_entrances(asked, mode))


def explain_entrances(asked: Sequence[Asked], mode: str) -> list[Finding]:
    """Explain the wrong entrances: one finding for those with the same problem."""
    groups: dict[str, list[Entrance]] = defaultdict(list)
    for one in asked:
        if problem := find_problem(one, mode)[0]:
            groups[problem].append(one.entrance)
    return [_explain_group(problem, rows, len(asked)) for problem, rows in groups.items()]


def _explain_group(problem: str, entrances: Sequence[Entrance], count: int) -> Finding:
    names = join_names([one.text for one in entrances], 6)
    nodes = list(dict.fromkeys(one.node for one in entrances if one.node))
    is_open = problem in (OPEN_TEXT, ANY_TEXT)
    if is_open and len(entrances) == count:
        names, nodes = f"Every entrance of Ray ({names})", []
    text = f"{names}: {problem}" if len(entrances) > 1 else f"{names} {problem}"
    code, first = "HOST-AUTH-OPEN" if is_open else "HOST-AUTH-DIFFERS", entrances[0]
    return finding(code, text, nodes, names={"node": first.node, "port": find_port(first.address)})


def find_port(address: str) -> int:
    """Find the port of host:port or of a URL; 0 if it has none."""
    return urlsplit(address if "//" in address else f"//{address}").port or 0


def describe_entrances(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """Describe every entrance and its answers, for the evidence."""
    return [{**vars(one.entrance), **vars(one.answers)} for one in asked]


def count_answers(asked: Sequence[Asked]) -> Mapping[str, int]:
    """Count the entrances by what they do without a token."""
    counts: dict[str, int] = defaultdict(int)
    for one in asked:
        counts[one.answers.without] += 1
    return counts
