"""The first lines of page 1, and the next step: what to do with a run, and by which command."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NamedTuple

from reports import acceptance
from reports.acceptance import AcceptanceSummary, any_ran
from reports.measurement import Verdict
from reports.numbers import quantity
from reports.orders import CONTRACT, VALUE, run_argument, same_command, whole_command
from reports.page.sections import MAX_NAMED, count_controls, join_words, only_lacks_limits
from reports.run_folder.times import known_time
from reports.sanitize import one_line

CLEANUP_OPTION = re.compile(f" --(?:cluster|contract){VALUE}")
DRAFT = "seatrial.toml"  # a contract that is written from a run
# What a problem outside the tests means for the run, by its kind.
PROBLEMS = {
    "teardown": "a test did not remove all that it made",
    "collection": "not all tests could be loaded",
    "internal": "seatrial had an error",
    "rendering": "the run folder is incomplete",
    "disk": "the run folder is incomplete",
    "cleanup": "the suite could not remove all that it made",
}


class Lead(NamedTuple):
    """First lines: why the decision is what it is, the worst fact, counts, what controls proved."""

    why: str
    worst: str
    counts: str
    proof: str


def build_lead(summary: AcceptanceSummary, told: str = "") -> Lead:
    """Write the lines below the verdict; `told` is the criterion with which the next step begins.

    Its fact is not the worst one once more.
    """
    deciding = [row for row in summary.worst_first if row.can_decide]
    open_rows = [row for row in deciding if any_ran(row.results) and not row.verdict.accepted]
    if not summary.record.contract.agreed:
        open_rows = [row for row in open_rows if not all(map(only_lacks_limits, row.results))]
    worst = ""
    if open_rows and not bool(summary.integrity.problems) and open_rows[0].criterion.id != told:
        worst = f"{open_rows[0].criterion.id}: {open_rows[0].claim}"
    proof = count_controls(summary.record.results).sentence
    return Lead(_decision_reason(summary), worst, f"{summary.counts_text}.", proof)


def decision_reasons(summary: AcceptanceSummary, step: NextStep) -> list[str]:
    """List the reasons against an acceptance; the problems of the folder are one of them.

    The reason that the next step answers is left out.
    """
    problems, reasons = summary.integrity.problems, summary.reasons
    if not problems:
        return [reason for reason in reasons if reason != step.answers]
    more = len(problems) - MAX_NAMED
    text = f"the run folder does not verify: {'; '.join(problems[:MAX_NAMED])}"
    return [text + f"; and {more} more" * (more > 0), *reasons[len(problems) :]]


def _decision_reason(summary: AcceptanceSummary) -> str:
    """Say in a few words why the decision is what it is; "" for a plain acceptance."""
    names = _criteria_with(summary, Verdict.UNPROVEN)
    unproven = f"{_name_some(names)} not proven" if names else ""
    match summary.exit_code:
        case 0:
            close = _criteria_with(summary, Verdict.MARGINAL)
            text = f"{_name_some(close)} close to the limit" if close else ""
            return " and ".join([text] * bool(text) + _sizes_tested(summary))
        case 1:
            text = f"{_name_some(_criteria_with(summary, Verdict.FAIL), '')} failed"
            return text + f", {unproven}" * bool(unproven)
        case 2:
            return "nothing is accepted"
        case 3:
            kind = summary.record.problems[0].kind
            return PROBLEMS.get(kind, "the run had an error outside its tests")
        case 4:
            return "do not sign"
    if not summary.record.contract.agreed:
        return "no contract was agreed"
    unproven = unproven or "too many MARGINAL" * bool(acceptance.why_marginal(summary.record))
    return "only a part was tested" if summary.record.partial else unproven


def _sizes_tested(summary: AcceptanceSummary) -> list[str]:
    """Say which criteria were measured on a part of the GPUs only."""
    cluster = summary.record.cluster
    sizes = {row.criterion.id: acceptance.tested_size(row.key, cluster) for row in summary.rows}
    parts = {one_line(id): size for id, size in sizes.items() if size and size[0] < size[1]}
    return [f"{id} was measured on {n} of {total} {unit}" for id, (n, total, unit) in parts.items()]


def _criteria_with(summary: AcceptanceSummary, verdict: Verdict) -> list[str]:
    """List the criteria that can decide and have this verdict."""
    rows = [row for row in summary.rows if row.can_decide]
    return [one_line(row.criterion.id) for row in rows if row.verdict is verdict]


def _name_some(criteria: list[str], verb: str = "is") -> str:
    """Name the criteria, or count them: `GANG is`, `GANG and HOSTS are`, `5 criteria are`."""
    many = len(criteria) > MAX_NAMED
    names = quantity(len(criteria), "criteria") if many else join_words(criteria)
    return f"{names} {'are' if verb and len(criteria) > 1 else verb}".rstrip()


class Action(NamedTuple):
    """What to do, and the command for it; may be empty."""

    text: str
    command: str = ""


class NextStep(NamedTuple):
    """What to do with the run, before and after the steps of its findings.

    `answers` is the reason against an acceptance that it answers.
    """

    first: tuple[Action, ...]
    answers: str = ""
    last: tuple[Action, ...] = ()


def choose_next_step(
    summary: AcceptanceSummary, *, open_blocks: int, is_shared: bool, untested: bool
) -> NextStep:
    """Choose what to do with the run.

    `open_blocks` counts the findings and failures that have their own steps, `is_shared` is true if
    this is a copy, and `untested` if something was not shown.
    """
    record, run = summary.record, run_argument(summary.record)
    command, whole = same_command(record), whole_command(record)
    if summary.integrity.problems:
        text = "Do not sign. Ask for the original run folder, or run again. See what differs:"
        return _one(text, f"seatrial show {run}")
    if not record.contract.agreed:
        draft = f"seatrial contract new --from {run} {DRAFT}"
        judged = f"{CONTRACT.sub('', whole)} --contract {DRAFT}"
        correct = (
            f"{DRAFT} then has what this run measured. In this file, change each limit and each "
            "count to what was ordered, and let the other party agree. Then remove `draft = true`, "
            "and run with this contract:"
        )
        steps = Action("Draft a contract from this run:", draft), Action(correct, judged)
        return NextStep(steps, acceptance.why_no_contract(record))
    if open_blocks:
        several, is_bad = open_blocks > 1, summary.findings or summary.decision is Verdict.FAIL
        what = f"the {open_blocks} problems below" if several else "the problem below"
        mend = "Fix" if summary.findings else "Find the cause of"
        fix = f"{mend} {what}, and test again" if several or is_bad else "Do the step below"
        text = f"{fix}. Then do a complete run: only a complete run can be accepted."
        took = f" ({time})" if (time := acceptance.whole_run_time(record)) else ""
        return NextStep((Action(text),), last=(Action(f"Complete run{took}:", whole),))
    if summary.shown_verdict.accepted and record.rehearsal:
        text = (
            "Run the suite on the head node of the real cluster. CONTRACT is the agreed file "
            "(seatrial contract new writes one):"
        )
        return _one(text, "seatrial run --cluster auto --contract CONTRACT")
    if summary.shown_verdict.accepted:
        return NextStep(_choose_signature(summary, run, "the original of " * is_shared))
    if record.state != "finished":
        return _one("The run was stopped before its end. Run it again:", command)
    if record.partial:
        return _one(f"{acceptance.whole_run_text(record)}:", whole, acceptance.why_partial(record))
    if untested:
        return _one("Run the missing tests. They are listed below, under Not tested.")
    again = Action("Run the suite again:", command)
    if any(problem.kind == "teardown" for problem in record.problems):
        on = "".join(found[0] for found in CLEANUP_OPTION.finditer(command))
        look = Action("Show what the test left on the cluster:", f"seatrial cleanup{on}")
        remove = (
            f"Remove what the test left{_an_hour_after(record.finished)} (cleanup keeps what "
            "changed in the last hour):"
        )
        return NextStep((look, Action(remove, f"seatrial cleanup{on} --remove"), again))
    if close := acceptance.why_marginal(record):
        mend = "Find why each measure is close to its limit, and correct that. Then run again:"
        return _one(mend, again.command, close)
    return NextStep((again,))


def _an_hour_after(finished: str | None) -> str:
    """Write the time of day an hour later; "" where it is not known."""
    time = known_time(finished)
    return f" at {time + timedelta(hours=1):%Y-%m-%d %H:%M} UTC or later" if time else ""


def _one(text: str, command: str = "", answers: str = "") -> NextStep:
    return NextStep((Action(text, command),), answers)


def _choose_signature(summary: AcceptanceSummary, run: str, of: str) -> tuple[Action, ...]:
    """Write how to sign an accepted run; with a condition, too, if the decision has a reason."""
    text = f"Sign {of}this run, on paper or with your ssh key (KEY: the file of the key)"
    sign = f"seatrial sign {run} --as customer --key KEY --decision"
    if not (why := _decision_reason(summary)):
        return (Action(f"{text}:", f"{sign} accepted"),)
    conditional = (
        f"To accept the run with a condition, because {why} (TEXT: the condition, such as a "
        "second test within 30 days):"
    )
    plain = Action(f"{text}. To accept the run:", f"{sign} accepted")
    return plain, Action(conditional, f"{sign} conditions --condition TEXT")
