"""Computes the acceptance decision of a record, its counts, and one row per criterion.

The terminal, the page, the exports and the exit code all read `AcceptanceSummary`, so they
always agree.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from reports import record as records
from reports.measurement import Measurement, Verdict, title_of
from reports.numbers import number, quantity
from reports.orders import run_argument
from reports.record import TIERS, Criterion, Finding, ProbeResult, RunRecord, Severity
from reports.regressions import Regression
from reports.run_folder.event_log import SUMS
from reports.run_folder.integrity import EventCheck, Integrity, read_run
from reports.run_folder.times import known_time
from reports.sanitize import capitalise, one_line

# By exit code; any other is NOT ACCEPTED.
WORDS = {0: "ACCEPTED", 2: "INTERRUPTED", 4: "DOES NOT VERIFY"}
NOT_DONE = (records.NOT_RUN, "skipped")  # states of a test that did not run
MAX_OTHERS = 8  # nodes named in a finding that stands for several
ENDS_RUN = ("HOST-HEAD", "HOST-NODE-LOST")  # findings that others follow from
NOT_READ = Integrity()  # of a record that was not read from a run folder
NOTHING_OWED = "the run does not list the tests of its tier, so nothing shows that all of them ran"
NO_FILE = "the run ended without writing this file, for example because the disk was full"
NO_SUMS = records.RunProblem(kind="rendering", where=SUMS, text=NO_FILE)
NO_CONTRACT = (
    "no contract was agreed, so nothing can be accepted. Write a contract with what was ordered "
    "(seatrial contract new --from {run}), and run seatrial again with this contract"
)


@dataclass(frozen=True)
class ReportRow:
    """Row of one criterion in the reports.

    `key` is the measurement that stands for it. `sentence` says what it shows; `claim_end`
    continues it with what is proven, or with the limit. `problem` is the main sentence that keeps
    the criterion from PASS. `label` qualifies the verdict (not provable here, not required,
    waived, not tested). `not_tested` has a sentence for each thing that was agreed not to be
    tested. `uncontrolled` lists (measure, reason) for the measures that no control turned red.
    `regressions` are measures that are worse than in the baseline run, or cannot be compared.
    """

    criterion: Criterion
    verdict: Verdict
    results: list[ProbeResult]
    key: Measurement
    sentence: str
    claim_end: str
    problem: str
    label: str
    not_tested: list[str]
    uncontrolled: list[tuple[str, str]]
    regressions: list[Regression]

    @property
    def claim(self) -> str:
        """Complete sentence of the row, without a full stop."""
        return self.sentence + self.claim_end

    @property
    def is_only_information(self) -> bool:
        """True if all probes finished, without FAIL, on a cluster that cannot prove it."""
        return _only_informs(self.criterion, self.results, self.verdict)

    @property
    def shows_limit(self) -> bool:
        """True if the limit of `key` belongs to the sentence: one on an earlier run has its own."""
        compared = [one.sentence for one in self.regressions]
        return not self.is_only_information and self.sentence not in compared

    @property
    def can_decide(self) -> bool:
        """True if the row can decide the run: it is required, or it failed."""
        return self.criterion.required or self.verdict is Verdict.FAIL


@dataclass(frozen=True)
class AcceptanceSummary:
    """Complete judgement of one record.

    `decision` is FAIL if any result failed, in the contract or not. Otherwise it is the worst
    verdict of the required criteria. `word` is the decision in words. Values of `exit_code`:

         0  accepted
         1  a probe result is FAIL
         2  interrupted by a signal, or the end is missing, as after SIGKILL
         3  a problem outside the probes: of the suite, of a disk, of the run folder
         4  the run folder does not verify
        20  a required criterion is unproven, or one of `reasons` prevents acceptance

    `counts` are of criteria: required, proven, failed (also outside the contract), unproven,
    marginal, consistent. `rows` follow the order of the contract, then criteria outside it.
    `worst_first` has rows that can decide first, and FAIL before PASS. `waiver_notes` are
    (criterion, sentence) pairs.
    """

    record: RunRecord
    integrity: Integrity
    decision: Verdict
    exit_code: int
    word: str
    reasons: list[str]
    counts: dict[str, int]
    rows: list[ReportRow]
    worst_first: list[ReportRow]
    findings: list[Finding]
    waiver_notes: list[tuple[str, str]]

    @property
    def counts_text(self) -> str:
        """Counts in words: proven criteria, criteria not required, owed probes that ran."""
        failed, unproven = (f"{self.counts[word]} {word}" for word in ("failed", "unproven"))
        if not self.record.contract.agreed:
            without = [row.criterion.id for row in self.rows if _lacks_a_limit(row)]
            met = self.counts["consistent"] - len(without)
            text = f"{met} of {len(self.rows)} criteria meet the limits derived from the cluster"
            text += f", {failed}" * bool(self.counts["failed"])
            text += f". Without a limit: {', '.join(map(one_line, without))}" * bool(without)
            sentences = ["No contract was agreed", text]
        else:
            text = f"{self.counts['proven']} of {self.counts['required']} required criteria proven"
            if close := self.counts["marginal"]:
                limits = "its limit" if close == 1 else "their limits"
                if self.record.contract.max_marginal is None:
                    limits += "; no maximum of MARGINAL measures was agreed"
                text += f" ({close} close to {limits})"
            rest = [words for words in (failed, unproven) if words[0] != "0"]
            sentences = [", ".join([text, *rest])]
        optional = [one_line(row.criterion.id) for row in self.rows if not row.criterion.required]
        if optional:
            sentences.append(f"Not required: {', '.join(optional)}")
        return ". ".join([*sentences, self._tier_text()])

    def _tier_text(self) -> str:
        """Format the tier, how many tests it has, and how many of them ran."""
        owed, tier = self.record.owed, f"Tier {one_line(self.record.tier)}"
        if not owed:
            return f"{tier}: {quantity(len(self.record.results), 'tests')} ran"
        ran = {one.probe for one in self.record.results if one.state not in NOT_DONE}
        count = sum(one.probe in ran for one in owed)
        some = f"{count} of {len(owed)} tests" if count < len(owed) else f"all {count} tests"
        return f"{tier}: {some if count != 1 or len(owed) != 1 else 'the only test'} ran"

    @property
    def headline(self) -> str:
        """Decision in one line: `NOT ACCEPTED: 3 of 5 required criteria proven, ...   exit 1`."""
        return f"{self.word}: {self.counts_text}   exit {self.exit_code}"

    @property
    def why_incomplete(self) -> str:
        """Say why not even an acceptance with conditions fits: not all was tested; "" if it was."""
        stopped = "the run was stopped before its end" * (self.record.state != "finished")
        return stopped or why_partial(self.record) or why_no_contract(self.record)

    @property
    def shown_verdict(self) -> Verdict:
        """Verdict that colours the decision; UNPROVEN unless the exit code is 0 or 1."""
        return self.decision if self.exit_code in (0, 1) else Verdict.UNPROVEN


def summarize_acceptance(record: RunRecord, integrity: Integrity = NOT_READ) -> AcceptanceSummary:
    """Compute the decision, counts and rows of a record. No other code decides.

    `integrity` is the verification result of the run folder, if the record was read from one.
    """
    waiver_notes = _waiver_notes(record)
    criteria = [*record.contract.criteria, *_unlisted_criteria(record)]
    rows = [_report_row(record, criterion, waiver_notes) for criterion in criteria]
    required = [record.verdict(criterion.id) for criterion in criteria if criterion.required]
    verdicts = [one.verdict for one in record.results] + [one.verdict for one in record.regressions]
    decision = Verdict.FAIL if Verdict.FAIL in verdicts else Verdict.worst(required)
    reasons = [*integrity.sentences, *_run_reasons(record)]
    exit_code = 4 if integrity.problems else _exit_code(record, decision, reasons)
    return AcceptanceSummary(
        record=record,
        integrity=integrity,
        decision=decision,
        exit_code=exit_code,
        word=_decision_word(record, exit_code),
        reasons=reasons,
        counts={
            "required": len(required),
            "proven": sum(verdict.accepted for verdict in required),
            "failed": sum(row.verdict is Verdict.FAIL for row in rows),
            "unproven": required.count(Verdict.UNPROVEN),
            "marginal": required.count(Verdict.MARGINAL),
            "consistent": sum(_is_consistent(row) for row in rows),
        },
        rows=rows,
        worst_first=sorted(rows, key=lambda row: (not row.can_decide, -row.verdict.rank)),
        findings=_unique_findings(record.results),
        waiver_notes=waiver_notes,
    )


def load_summary(run: Path, check: EventCheck | None = None) -> AcceptanceSummary:
    """Read a run folder or a record alone, verify it, and summarize it. Raises UnreadableRun."""
    record, integrity = read_run(run, check)
    if record.state == "finished" and run.is_dir() and not (run / SUMS).is_file():
        record = record.model_copy(update={"problems": [*record.problems, NO_SUMS]})
    return summarize_acceptance(record, integrity)


def with_problems(summary: AcceptanceSummary, problems: list[str]) -> AcceptanceSummary:
    """Summarize the run again, with `problems` added to those of its run folder."""
    integrity = summary.integrity
    found = dataclasses.replace(integrity, problems=[*integrity.problems, *problems])
    return summarize_acceptance(summary.record, found)


def _run_reasons(record: RunRecord) -> list[str]:
    """List the reasons against acceptance that concern the run and not one of its criteria."""
    contract, reasons = record.contract, [problem.sentence() for problem in record.problems]
    run = "the run that is judged again" if record.judged_again else "the run"
    reasons += [f"{run} cannot be verified: {reason}" for reason in record.unverified]
    if not record.owed:  # every tier owes probes
        reasons.append(NOTHING_OWED)
    reasons += filter(None, (why_partial(record), why_no_contract(record), why_marginal(record)))
    if contract.agreed and record.rehearsal and not contract.rehearsal:
        reasons += [f"this run is a rehearsal ({record.rehearsal}), but no rehearsal was agreed"]
    return reasons


def why_partial(record: RunRecord) -> str:
    """Say why a part of the suite is not accepted; "" for a complete run."""
    return f"PARTIAL run: {record.partial}. {whole_run_text(record)}" if record.partial else ""


def why_no_contract(record: RunRecord) -> str:
    """Say why a run without a contract is not accepted; "" if one was agreed."""
    return "" if record.contract.agreed else NO_CONTRACT.format(run=run_argument(record))


def why_marginal(record: RunRecord) -> str:
    """List the MARGINAL measures of required criteria if there are more than agreed; else ""."""
    most = record.contract.max_marginal
    required = {one.id for one in record.contract.criteria if one.required}
    of = [(one.criterion, m) for one in record.results for m in one.measurements]
    close = [(id, m.name) for id, m in of if id in required and m.verdict is Verdict.MARGINAL]
    names = sorted({one_line(f"{id}.{name}") for id, name in close})  # once for several nodes
    if most is None or len(names) <= most:
        return ""
    text = f"{quantity(len(names), 'measures')} MARGINAL: {', '.join(names)}"
    return f"{text}. Expected: at most {most} ([accept] max_marginal of the contract)"


def whole_run_text(record: RunRecord) -> str:
    """Say what an acceptance needs: the probes of the contract's tier, and their usual minutes."""
    tier = record.contract.tier
    tiers = TIERS[: TIERS.index(tier) + 1] if tier in TIERS else TIERS
    count = sum(one.tier in tiers for one in record.owed)
    probes = f"{quantity(count, 'tests')} of the tier {one_line(tier)}" if count else ""
    needs = ", ".join(filter(None, (probes, whole_run_time(record))))
    return "An acceptance needs a complete run" + f" ({needs})" * bool(needs)


def whole_run_time(record: RunRecord) -> str:
    """Say how long a complete run usually takes: `about 6 min`; "" where that is not known."""
    return f"about {math.ceil(record.full_run_s / 60)} min" if record.full_run_s else ""


def _exit_code(record: RunRecord, decision: Verdict, reasons: list[str]) -> int:
    if record.state != "finished":
        return 2
    if decision is Verdict.FAIL:
        return 1
    if record.problems:
        return 3
    return 0 if decision.accepted and not reasons else 20


def _decision_word(record: RunRecord, exit_code: int) -> str:
    """Return the decision in a few words, marked if the run is partial or a rehearsal."""
    if record.rehearsal and exit_code == 0:
        return "REHEARSAL PASSED"
    marks = ["PARTIAL"] * bool(record.partial) + ["rehearsal"] * bool(record.rehearsal)
    return WORDS.get(exit_code, "NOT ACCEPTED") + (f" ({', '.join(marks)})" if marks else "")


def is_consistent(result: ProbeResult) -> bool:
    """Return whether nothing contradicts a finished result; only limits may be missing."""
    judged = [m for m in result.measurements if m.judged]
    found = bool(result.controls) and all(one.verdict.accepted for one in result.controls)
    return result.state == "finished" and found and bool(judged) and all(map(_may_meet, judged))


def _may_meet(m: Measurement) -> bool:
    """Return whether a value meets its limit, or has none."""
    return m.value is not None if m.limit is None else m.severity <= Verdict.MARGINAL.rank


def _is_consistent(row: ReportRow) -> bool:
    """Return whether no result contradicts the criterion; only limits may be missing."""
    return bool(row.results) and all(map(is_consistent, row.results))


def _lacks_a_limit(row: ReportRow) -> bool:
    """Return whether nothing contradicts the criterion, and some value has no limit to meet."""
    measured = [m for result in row.results for m in result.measurements]
    return _is_consistent(row) and any(m.judged and m.limit is None for m in measured)


def _unlisted_criteria(record: RunRecord) -> list[Criterion]:
    """Find the criteria judged outside the contract. They are not required, but always shown."""
    known = {criterion.id for criterion in record.contract.criteria}
    judged = dict.fromkeys(r.criterion for r in record.results if r.criterion not in known)
    return [Criterion(id=id, title="not in the contract", how="", required=False) for id in judged]


def _unique_findings(results: list[ProbeResult]) -> list[Finding]:
    """List each finding once: what ended the run, what blocks an acceptance, the worst results'.

    Findings that differ only in their node or GPU become one.
    """
    alike: dict[tuple[str, str], list[Finding]] = {}
    for result in sorted(results, key=lambda result: -result.verdict.rank):
        for item in result.findings:
            same = alike.setdefault((item.code, _without_names(item)), [])
            if item.statement not in [one.statement for one in same]:
                same.append(item)
    return sorted(
        map(_join_findings, alike.values()),
        key=lambda item: (item.code not in ENDS_RUN, [*Severity].index(item.severity)),
    )


NUMBERED = re.compile(r"\bGPU -?\d+")


def _without_names(item: Finding) -> str:
    """Return the statement without the names of what it is about."""
    names = sorted({*item.suspects, *item.names.values()}, key=len, reverse=True)
    found = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names if name))
    return NUMBERED.sub("GPU", found.sub("", item.statement) if found.pattern else item.statement)


def _join_findings(alike: list[Finding]) -> Finding:
    """Make one finding of those that differ only in names: the first, with all suspects."""
    first, *more = alike
    if not more:
        return first
    suspects = list(dict.fromkeys(name for one in alike for name in one.suspects))
    others = [name for name in suspects if name not in first.suspects]
    where = f" on {', '.join(others[:MAX_OTHERS])}" if others else f" {len(more) + 1} times"
    left = len(others) - MAX_OTHERS
    where += f" and {quantity(left, 'others')}" * (left > 0)
    statement = f"{first.statement.rstrip('.')}. The same was found{where}"
    evidence = list(dict.fromkeys(path for one in alike for path in one.evidence))
    new = {"statement": statement, "suspects": suspects, "evidence": evidence}
    return first.model_copy(update=new)


def _report_row(
    record: RunRecord, criterion: Criterion, waiver_notes: list[tuple[str, str]]
) -> ReportRow:
    verdict = record.verdict(criterion.id)
    if criterion.not_provable and verdict.accepted:
        verdict = Verdict.UNPROVEN  # this cluster cannot prove the criterion
    reason, not_tested = criterion.not_provable, [*_not_tested(criterion, record)]
    why = f"not provable here: {reason}" if reason else "the contract does not require it"
    notes = [note for id, note in waiver_notes if id == criterion.id]
    results = record.results_of(criterion.id)
    key = key_measurement(results, criterion.headlines) or Measurement(name="")
    regressions = [one for one in record.regressions if one.criterion == criterion.id]
    worse = next((one.sentence for one in regressions if one.verdict is verdict), "")
    problem = _row_problem(criterion, results, verdict)
    is_unproven = verdict is Verdict.UNPROVEN and bool(problem)
    is_other = not results or bool(worse and not problem)
    is_other = is_other or (is_unproven and _has_other_reason(key, results))
    problem = problem or worse
    sentence = problem if is_other else headline_sentence(criterion, key, record.cluster)
    if reason and (_only_informs(criterion, results, verdict) or not any_ran(results)):
        is_other, sentence = True, "this cluster cannot prove it"
    elif results and not any_ran(results):
        is_other, sentence = True, "not tested"
        sentence += f": {results[0].error}" * (results[0].error != record.partial)
    owed = [one for one in record.owed if one.criterion == criterion.id]
    return ReportRow(
        criterion=criterion,
        verdict=verdict,
        results=results,
        key=key,
        sentence=sentence,
        claim_end="" if is_other else claim_end(criterion, key, verdict),
        problem=problem,
        label="; ".join([*[why] * (not criterion.required), *notes, *not_tested]),
        not_tested=not_tested,
        uncontrolled=records.uncontrolled_measures(results, owed),
        regressions=regressions,
    )


def _not_tested(criterion: Criterion, record: RunRecord) -> Iterator[str]:
    """Say what was agreed not to be tested, and was not: a value that was judged is a test."""
    results = record.results_of(criterion.id)
    judged = {m.name for result in results for m in result.measurements if m.judged}
    yield from filter(None, [criterion.not_tested])
    for name, reason in criterion.not_countable.items():
        if name not in judged:
            yield f"{title_of(name)} not tested, because nothing counts them: {reason}"


def _only_informs(criterion: Criterion, results: list[ProbeResult], verdict: Verdict) -> bool:
    ended = all(result.state == "finished" for result in results)
    return bool(criterion.not_provable and results) and ended and verdict is not Verdict.FAIL


def any_ran(results: list[ProbeResult]) -> bool:
    """Return whether any test of these results ran."""
    return any(result.state != records.NOT_RUN for result in results)


def _has_other_reason(key: Measurement, results: list[ProbeResult]) -> bool:
    """Return whether something else than `key` keeps these results from a proof."""
    unfinished = any(result.state != "finished" for result in results)
    return unfinished or not key.name or key.verdict is not Verdict.UNPROVEN


def _row_problem(criterion: Criterion, results: list[ProbeResult], verdict: Verdict) -> str:
    """Return the main sentence of the first result as bad as `verdict`; "" for PASS."""
    if not results:
        return "no test ran for this criterion"
    matching = [result for result in results if result.verdict is verdict]
    if not matching or verdict is Verdict.PASS:
        return ""
    if matching[0].state == records.NOT_RUN and any_ran(results):
        missing = sum(result.state == records.NOT_RUN for result in results)
        return f"{missing} of {len(results)} tests did not run"
    return summary_sentence(matching[0], criterion)


def summary_sentence(result: ProbeResult, criterion: Criterion) -> str:
    """Choose the main sentence of a result, in the words of its criterion.

    An unfinished, UNPROVEN result gives its state. Otherwise a missed limit comes first, then
    another problem, then the key measurement.
    """
    if result.state != "finished" and result.verdict is Verdict.UNPROVEN:
        return result.problems(criterion)[-1]
    key = key_measurement([result], criterion.headlines)
    if key is None or (key.verdict is Verdict.PASS and result.problems(criterion)):
        return next(iter(result.problems(criterion)), "nothing was measured")
    return criterion.sentence(key)


def _waiver_notes(record: RunRecord) -> list[tuple[str, str]]:
    """Describe each waiver on the day of the run, for example that it ended or is not needed.

    So a record always reads the same. Without a valid day, every waiver has ended.
    """
    notes = []
    started = known_time(record.started)
    day = started.date() if started else date.max
    for waiver in record.contract.waivers:
        verdict = record.verdict(waiver.criterion)
        if waiver.until < day:
            meaning = "EXPIRED before this run: it has no effect"
        elif verdict.accepted:
            meaning = "NO LONGER NEEDED: the criterion passes, remove the waiver"
        elif verdict is Verdict.UNPROVEN:
            meaning = "no effect: the criterion is unproven, not failed"
        else:
            meaning = "the verdict stays FAIL"
        text = f"waiver {waiver.id} by {waiver.name} until {waiver.until}: {waiver.reason}"
        notes.append((waiver.criterion, f"{text} ({meaning})"))
    return notes


def key_measurement(results: list[ProbeResult], headlines: Mapping[str, str]) -> Measurement | None:
    """Choose the judged measurement that stands for these results; None if none is judged.

    It has the worst verdict.  Of several, a headline comes first, in the order of `headlines`, and
    of one name the subject that is nearest to its limit.  Without a headline it is the one that is
    furthest outside its limit, and where all pass the first.
    """
    judged = [m for result in results for m in result.measurements if m.verdict is not None]
    worst = max((m.severity for m in judged), default=0)
    order = list(headlines)

    def rank(m: Measurement) -> tuple[int, float]:
        if m.name in order:
            return order.index(m.name), -distance_outside(m)
        return len(order), -distance_outside(m) if worst else 0.0

    return min((m for m in judged if m.severity == worst), key=rank, default=None)


def distance_outside(m: Measurement) -> float:
    """Return how far a value lies outside its limit: -1 to 1, as a share of value or bound.

    It is below 0 inside the limit, and 0 without a value or without bounds.
    """
    if m.limit is None or isinstance(m.value, str | None):
        return 0.0
    gaps = [m.limit.low - m.value] if m.limit.low is not None else []
    gaps += [m.value - m.limit.high] if m.limit.high is not None else []
    bounds = [abs(bound) for bound in (m.limit.low, m.limit.high) if bound is not None]
    scale = max([abs(m.value), *bounds], default=0.0)
    return max(gaps) / scale if gaps and scale else 0.0


def headline_sentence(criterion: Criterion, key: Measurement, cluster: Mapping[str, Any]) -> str:
    """Write the key measurement in the buyer's words: `All-reduce runs at 41.2 GB/s`."""
    template, work = criterion.template(key), work_text(key, cluster)
    return capitalise(key.observed(template, key.short_text, work=work))


def claim_end(criterion: Criterion, key: Measurement, verdict: Verdict) -> str:
    """Return how the sentence goes on: with what is proven, or with the limit that is not kept.

    The sentence of a fault that must not be says that already.
    """
    if verdict.accepted:
        return criterion.proven if key.name in criterion.headlines else ""
    says_it = key.limit is not None and key.limit.high == 0 and criterion.template(key)
    return f". Expected: {key.limit}" if key.limit is not None and not says_it else ""


def work_text(efficiency: Measurement, cluster: Mapping[str, Any]) -> str:
    """Write an efficiency as work: `64 GPUs (of 512) do the work of 33.4`.

    Without a number of nodes it is the value alone.
    """
    size = tested_size(efficiency, cluster)
    if size is None or isinstance(efficiency.value, str | None):
        return f"{efficiency.title} is {efficiency.value_text}"
    count, total, unit = size
    units = f"{count} {unit}" + f" (of {total})" * (total > count)
    return f"{units} do the work of {number(efficiency.value * count)}"


def tested_size(m: Measurement, cluster: Mapping[str, Any]) -> tuple[int, int, str] | None:
    """Return on how many GPUs it was measured, of how many; None where it names no nodes.

    The subject of the measurement begins with its number of nodes. They are counted where the GPUs
    are not known.
    """
    nodes = re.match(r"(\d+) nodes?\b", m.subject)
    if nodes is None:
        return None
    per_node, total = gpus_per_node(cluster), len(records.node_facts(cluster))
    each = per_node or 1
    return int(nodes[1]) * each, total * each, "GPUs" if per_node else "nodes"


def gpus_per_node(cluster: Mapping[str, Any]) -> int:
    """Return the number of GPUs that every node has; 0 where it is not known, or not the same."""
    boards = [node.get("gpus") for node in records.node_facts(cluster)]
    counts = {len(g) if isinstance(g, list) else g if type(g) is int else 0 for g in boards}
    return counts.pop() if len(counts) == 1 else 0
