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
    worst,
)


@dataclass(frozen=True)
class Row:
    """One criterion as a reader sees it.

    `what` to `because` are those of the measurement that decides, `complaint` the worst
    sentence that keeps the criterion from PASS, `label` what must be said beside the verdict
    (not provable here, waived).
    """

    criterion: Criterion
    verdict: Verdict
    results: list[ProbeResult]
    what: str
    subject: str
    measured: str
    unit: str
    limit: str
    because: str
    complaint: str
    label: str

    @property
    def counts(self) -> bool:
        """Whether this row can decide: it is required, or it failed."""
        return self.criterion.required or self.verdict is Verdict.FAIL


def rows(record: RunRecord) -> list[Row]:
    """One row per criterion of the contract in its order, then those found outside it."""
    return [_row(record, criterion) for criterion in [*record.contract.criteria, *strays(record)]]


def worst_first(table: list[Row]) -> list[Row]:
    """What decides before what does not, FAIL before PASS, else the order of the contract."""
    return sorted(table, key=lambda row: (not row.counts, -row.verdict.rank))


def strays(record: RunRecord) -> list[Criterion]:
    """Criteria that a probe judged and the contract does not name: not required, never hidden."""
    known = {criterion.id for criterion in record.contract.criteria}
    ids = dict.fromkeys(result.criterion for result in record.results)
    return [
        Criterion(id=id, title="not in the contract", how="", required=False)
        for id in ids
        if id not in known
    ]


def key_measurement(results: list[ProbeResult]) -> Measurement | None:
    """The measurement that tells most: the worst broken one, else the first judged one."""
    judged = [m for result in results for m in result.measurements if m.verdict is not None]
    return max(judged, key=lambda m: (m.verdict or Verdict.PASS).rank, default=None)


def headline(result: ProbeResult) -> str:
    """The sentence that tells most about a result: a broken limit, a complaint, or the first."""
    if result.state != "finished" and result.verdict is Verdict.UNPROVEN:
        return result.complaints()[-1]
    key = key_measurement([result])
    if key is None or (key.verdict is Verdict.PASS and result.complaints()):
        return next(iter(result.complaints()), "nothing was measured")
    return key.sentence()


def decision_sentence(record: RunRecord) -> str:
    """`NOT ACCEPTED: 3 of 5 required criteria proven, 1 failed, 1 unproven   exit 1`."""
    required = [record.verdict(criterion.id) for criterion in record.required()]
    proven = sum(verdict.accepted for verdict in required)
    parts = [f"{proven} of {len(required)} required criteria proven"]
    parts += _counted(record, required)
    code = record.exit_code
    word = {0: "ACCEPTED", 2: "INTERRUPTED"}.get(code, "NOT ACCEPTED")
    if code == 1 and record.state != "finished":
        parts.append("the run was interrupted")
    return f"{word}{_rehearsed(record)}: {', '.join(parts)}   exit {code}"


def waiver_note(record: RunRecord, waiver: Waiver) -> str:
    """What a waiver means today: it covers a failure, has ended, or is no longer needed."""
    who = f"waiver {waiver.id} by {waiver.name} until {waiver.until}: {waiver.reason}"
    if waiver.until < _day(record):
        return f"{who} (ENDED before this run: it covers nothing)"
    if record.verdict(waiver.criterion).accepted:
        return f"{who} (NO LONGER NEEDED: the criterion passes, remove the waiver)"
    if record.verdict(waiver.criterion) is Verdict.UNPROVEN:
        return f"{who} (there is no failure to cover: the criterion is unproven)"
    return f"{who} (the failure stays a failure)"


def findings(record: RunRecord) -> list[Finding]:
    """All findings, those of the worst results first, each once."""
    ordered = sorted(record.results, key=lambda result: -result.verdict.rank)
    found = [finding for result in ordered for finding in result.findings]
    return list({(one.code, one.statement): one for one in found}.values())


def _row(record: RunRecord, criterion: Criterion) -> Row:
    results = record.of(criterion.id)
    verdict = worst(result.verdict for result in results)
    if criterion.not_provable and verdict.accepted:
        verdict = Verdict.UNPROVEN  # what was seen here does not prove the title of the row
    key = key_measurement(results)
    limit = key.limit if key else None
    return Row(
        criterion=criterion,
        verdict=verdict,
        results=results,
        what=key.what if key else "",
        subject=key.subject if key and key.subject != "cluster" else "",
        measured=key.shown if key else "not measured",
        unit=limit.unit if limit else "",
        limit=str(limit) if limit else "",
        because=limit.because if limit else "",
        complaint=_complaint(results, verdict),
        label=_label(record, criterion),
    )


def _complaint(results: list[ProbeResult], verdict: Verdict) -> str:
    """The first complaint of a result that is as bad as the criterion."""
    if not results:
        return "no probe ran for this criterion"
    bad = [result for result in results if result.verdict is verdict]
    return headline(bad[0]) if bad and verdict is not Verdict.PASS else ""


def _label(record: RunRecord, criterion: Criterion) -> str:
    labels = []
    if not criterion.required:
        why = criterion.not_provable or "the contract does not require it"
        labels.append(f"not provable here: {why}" if criterion.not_provable else why)
    labels += [
        waiver_note(record, w) for w in record.contract.waivers if w.criterion == criterion.id
    ]
    return "; ".join(labels)


def _counted(record: RunRecord, required: list[Verdict]) -> list[str]:
    """`1 failed`, `1 unproven`, `2 marginal`: zeros are not said, failures count wherever."""
    every = [row.verdict for row in rows(record)]
    counts = {
        "failed": every.count(Verdict.FAIL),
        "unproven": required.count(Verdict.UNPROVEN),
        "marginal": required.count(Verdict.MARGINAL),
    }
    return [f"{count} {word}" for word, count in counts.items() if count]


def _rehearsed(record: RunRecord) -> str:
    return " (rehearsal)" if record.rehearsal else ""


def _day(record: RunRecord) -> date:
    """The day of the run, so that an old record reads the same for ever.

    A run that does not say when it was is after every waiver's end.
    """
    try:
        return date.fromisoformat(record.started[:10])
    except ValueError:
        return date.max
