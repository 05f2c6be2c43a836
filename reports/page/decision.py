"""Words of page 1: what was counted, the worst fact, what each row covered, and where it leads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reports.acceptance import AcceptanceSummary, ReportRow
from reports.headlines import gpus_per_node
from reports.measurement import Limit, Verdict
from reports.numbers import quantity
from reports.owed import NOT_RUN
from reports.record import Control, Finding, ProbeResult, RunRecord, Severity

MAX_SCOPE = 200  # letters of a row's scope on page 1; its section has all
ANCHOR = re.compile(r"[A-Z][A-Z0-9_]{0,30}")  # a criterion that is the name of its section


@dataclass(frozen=True)
class Lead:
    """First lines below the verdict: counts, the worst fact, and what the controls proved."""

    counts: str
    worst: str
    proof: str


def build_lead(summary: AcceptanceSummary) -> Lead:
    """Write the lines below the verdict."""
    caught, planted = count_controls(summary.record.results)
    deciding = [row for row in summary.worst_first if row.can_decide]
    open_rows = [row for row in deciding if not row.verdict.accepted]
    worst = open_rows[0].claim if open_rows else ""
    faults = quantity(planted, "planted faults")
    proof = f"The probes caught {caught} of {faults}." * bool(planted)
    return Lead(f"{summary.counts_text}.", worst, proof)


def count_controls(results: Sequence[ProbeResult]) -> tuple[int, int]:
    """Count the controls that were caught, and all controls."""
    controls = [control for result in results for control in result.controls]
    return sum(control.verdict.accepted for control in controls), len(controls)


def caught_text(row: ReportRow) -> str:
    """Write how many controls of a row were caught: `3 of 3`."""
    caught, planted = count_controls(row.results)
    return f"{caught} of {planted}" if planted else "none"


def scope_text(row: ReportRow) -> str:
    """Write the limit that a row was held to, its reason, and what its key probe covered.

    What is too long for page 1 ends with a whole part: parts are separated by semicolons.
    """
    key = row.key
    is_told = bool(row.claim_end) and not row.verdict.accepted  # the sentence ends with the limit
    limit = "" if is_told else f"Limit: {bound_text(key.limit)}, "
    held = [f"{limit}because {key.limit.because}"] if key.limit and key.name else []
    covered = [one.coverage for one in row.results if key in one.measurements and one.coverage]
    text = ". ".join(part[:1].upper() + part[1:] for part in [*held, *covered[:1]])
    if len(text) <= MAX_SCOPE:
        return text
    shown = text[: MAX_SCOPE - 3]
    whole = shown.rpartition("; ")[0]
    return f"{whole}; ..." if len(whole) >= MAX_SCOPE // 2 else f"{shown.rstrip()}..."


def bound_text(limit: Limit | None) -> str:
    """Write a limit, marked `(derived)` if it was not agreed."""
    return f"{limit}{' (derived)' if limit.derived else ''}" if limit else ""


def section_anchors(rows: Sequence[ReportRow]) -> dict[str, str]:
    """Name the section of each criterion: its id where that is plain, else its number."""
    return {
        row.criterion.id: row.criterion.id if ANCHOR.fullmatch(row.criterion.id) else f"c{number}"
        for number, row in enumerate(rows, 1)
    }


def blast_text(finding: Finding, summary: AcceptanceSummary) -> str:
    """Describe what a finding holds up: criteria that are not accepted, and GPUs of its nodes."""
    suspects = set(finding.suspects)
    held = [
        row.criterion.id
        for row in summary.rows
        if not row.verdict.accepted
        and any(
            other == finding or suspects & set(other.suspects)
            for result in row.results
            for other in result.findings
        )
    ]
    nodes = suspects & set(summary.record.node_names)
    gpus = gpus_per_node(summary.record.cluster) * len(nodes)
    parts = [f"holds up {join_words(held)}"] if held else []
    parts += [f"concerns {quantity(gpus, 'GPUs')}"] if gpus else []
    return ", ".join(parts)


def cause_text(result: ProbeResult, record: RunRecord) -> str:
    """Say what may have caused a problem without a finding: what a probe before it found, or none.

    Only a failure or an error may come from an earlier fault: what is unproven has its own reason.
    Empty where the probe did not run to its end: its state has the reason.
    """
    if result.state in (NOT_RUN, "skipped", "interrupted"):
        return ""
    codes: dict[str, list[str]] = {}
    for earlier in record.results[: record.results.index(result)]:
        blocking = [one.code for one in earlier.findings if one.severity is Severity.BLOCKS]
        if blocking:
            codes.setdefault(earlier.criterion, []).extend(blocking)
    if not codes or (result.state == "finished" and result.verdict is not Verdict.FAIL):
        return "No known cause matches."
    found = [f"{name} found ({', '.join(dict.fromkeys(codes[name]))})" for name in codes]
    return f"This may come from what {join_words(found)}: mend that first."


def join_words(words: Sequence[str]) -> str:
    """Join words as people do: `FABRIC, SCALING and GANG`."""
    return " and ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)


def planted_faults(summary: AcceptanceSummary) -> list[tuple[str, Verdict, Control]]:
    """List (criterion, verdict, control) of all controls, those that were missed first."""
    found = [
        (result.criterion, control.verdict, control)
        for result in summary.record.results
        for control in result.controls
    ]
    return sorted(found, key=lambda one: -one[1].rank)
