"""The acceptance table: one row per criterion, and the one sentence that decides.

Shared by the terminal, the page and the exports, so that all of them say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from reports.record import (
    Criterion,
    Finding,
    Measurement,
    ProbeResult,
    RunRecord,
    Verdict,
    Waiver,
    worst_verdict,
)


@dataclass(frozen=True)
class ReportRow:
    """One criterion as a reader sees it.

    `what` to `because` are those of the measurement that decides, `complaint` the worst
    sentence that keeps the criterion from PASS, `label` what must be said beside the verdict
    (not provable here, waived).
    """

    criterion: Criterion
    verdict: Verdict
    results: list[ProbeResult]
    measure_name: str
    subject: str
    measured: str
    unit: str
    limit: str
    because: str
    problem: str
    label: str

    @property
    def can_decide(self) -> bool:
        """Whether this row can decide: it is required, or it failed."""
        return self.criterion.required or self.verdict is Verdict.FAIL


def report_rows(record: RunRecord) -> list[ReportRow]:
    """One row per criterion of the contract in its order, then those found outside it."""
    return [_row(record, criterion) for criterion in [*record.contract.criteria, *unlisted(record)]]


def worst_first(table: list[ReportRow]) -> list[ReportRow]:
    """What decides before what does not, FAIL before PASS, else the order of the contract."""
    return sorted(table, key=lambda row: (not row.can_decide, -row.verdict.rank))


def unlisted(record: RunRecord) -> list[Criterion]:
    """Criteria that a probe judged and the contract does not name: not required, never hidden."""
    known = {criterion.id for criterion in record.contract.criteria}
    judged = dict.fromkeys(result.criterion for result in record.results)
    return [
        Criterion(id=id, title="not in the contract", how="", required=False)
        for id in judged
        if id not in known
    ]


def key_measurement(results: list[ProbeResult]) -> Measurement | None:
    """The measurement that tells most: the worst broken one, else the first judged one."""
    judged = [m for result in results for m in result.measurements if m.verdict is not None]
    return max(judged, key=lambda m: (m.verdict or Verdict.PASS).rank, default=None)


def summary_sentence(result: ProbeResult) -> str:
    """The sentence that tells most about a result: a broken limit, a complaint, or the first."""
    if result.state != "finished" and result.verdict is Verdict.UNPROVEN:
        return result.problems()[-1]
    key = key_measurement([result])
    if key is None or (key.verdict is Verdict.PASS and result.problems()):
        return next(iter(result.problems()), "nothing was measured")
    return key.sentence()


def decision_sentence(record: RunRecord) -> str:
    """`NOT ACCEPTED: 3 of 5 required criteria proven, 1 failed, 1 unproven   exit 1`."""
    required = [record.verdict(criterion.id) for criterion in record.required_criteria()]
    proven = sum(verdict.accepted for verdict in required)
    parts = [f"{proven} of {len(required)} required criteria proven"]
    parts += _verdict_counts(record, required)
    code = record.exit_code
    word = {0: "ACCEPTED", 2: "INTERRUPTED"}.get(code, "NOT ACCEPTED")
    if code == 1 and record.state != "finished":
        parts.append("the run was interrupted")
    return f"{word}{_rehearsal_suffix(record)}: {', '.join(parts)}   exit {code}"


def waiver_note(record: RunRecord, waiver: Waiver) -> str:
    """What a waiver means today: it covers a failure, has ended, or is no longer needed."""
    waiver_text = f"waiver {waiver.id} by {waiver.name} until {waiver.until}: {waiver.reason}"
    if waiver.until < _run_day(record):
        return f"{waiver_text} (ENDED before this run: it covers nothing)"
    if record.verdict(waiver.criterion).accepted:
        return f"{waiver_text} (NO LONGER NEEDED: the criterion passes, remove the waiver)"
    if record.verdict(waiver.criterion) is Verdict.UNPROVEN:
        return f"{waiver_text} (there is no failure to cover: the criterion is unproven)"
    return f"{waiver_text} (the failure stays a failure)"


def all_findings(record: RunRecord) -> list[Finding]:
    """All findings, those of the worst results first, each once."""
    ordered = sorted(record.results, key=lambda result: -result.verdict.rank)
    listed = [finding for result in ordered for finding in result.findings]
    return list({(item.code, item.statement): item for item in listed}.values())


def _row(record: RunRecord, criterion: Criterion) -> ReportRow:
    results = record.results_of(criterion.id)
    verdict = worst_verdict(result.verdict for result in results)
    if criterion.not_provable and verdict.accepted:
        verdict = Verdict.UNPROVEN  # what was seen here does not prove the title of the row
    key = key_measurement(results)
    limit = key.limit if key else None
    return ReportRow(
        criterion=criterion,
        verdict=verdict,
        results=results,
        measure_name=key.title if key else "",
        subject=key.subject if key and key.subject != "cluster" else "",
        measured=key.value_text if key else "not measured",
        unit=limit.unit if limit else "",
        limit=str(limit) if limit else "",
        because=limit.because if limit else "",
        problem=_row_problem(results, verdict),
        label=_row_label(record, criterion),
    )


def _row_problem(results: list[ProbeResult], verdict: Verdict) -> str:
    """The first complaint of a result that is as bad as the criterion."""
    if not results:
        return "no probe ran for this criterion"
    matching = [result for result in results if result.verdict is verdict]
    return summary_sentence(matching[0]) if matching and verdict is not Verdict.PASS else ""


def _row_label(record: RunRecord, criterion: Criterion) -> str:
    labels = []
    if not criterion.required:
        reason = criterion.not_provable or "the contract does not require it"
        labels.append(f"not provable here: {reason}" if criterion.not_provable else reason)
    labels += [
        waiver_note(record, w) for w in record.contract.waivers if w.criterion == criterion.id
    ]
    return "; ".join(labels)


def _verdict_counts(record: RunRecord, required: list[Verdict]) -> list[str]:
    """`1 failed`, `1 unproven`, `2 marginal`: zeros are not said, failures count wherever."""
    all_verdicts = [row.verdict for row in report_rows(record)]
    counts = {
        "failed": all_verdicts.count(Verdict.FAIL),
        "unproven": required.count(Verdict.UNPROVEN),
        "marginal": required.count(Verdict.MARGINAL),
    }
    return [f"{count} {word}" for word, count in counts.items() if count]


def _rehearsal_suffix(record: RunRecord) -> str:
    return " (rehearsal)" if record.rehearsal else ""


def _run_day(record: RunRecord) -> date:
    """The day of the run, so that an old record reads the same for ever.

    A run that does not say when it was is after every waiver's end.
    """
    try:
        return date.fromisoformat(record.started[:10])
    except ValueError:
        return date.max
