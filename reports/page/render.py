"""Renders one self-contained HTML page: the decision first, then everything that supports it.

The page works without scripts and uses no address outside the file. All text from the cluster is
escaped and cleaned.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports import orders
from reports.acceptance import AcceptanceSummary, summary_sentence
from reports.charts import Figure, draw_figures
from reports.frames.compare import compare
from reports.groups import group_pairs
from reports.measurement import Measurement, Verdict
from reports.numbers import number, quantity
from reports.page import decision, sections
from reports.record import EFFECT, NOT_RUN, Finding, ProbeResult, RunRecord
from reports.redact import redact_text
from reports.run_folder.times import seconds_between
from reports.sanitize import capitalise, clean, one_line
from reports.text import STYLES, acceptance_table
from reports.version import describe_version

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
SECTIONS = ("second.html.j2", "criteria.html.j2", "appendix.html.j2")  # after page 1
RUN_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")
MAX_NAME = 60  # letters of the cluster's name in the header
SENTENCE_END = re.compile(r"(?<=[.!?]) ")
MOST_FINDINGS = 3  # on page 1, which is one sheet of paper
PRINTED = ("busbw", "efficiency")  # figures of what passed that are on paper, too
MAX_PASSING = 4  # passing subjects of one measurement shown in its section; the appendix has all


# Measurements of one name on many subjects: those to show, and a sentence for the others.
Group = tuple[list[Measurement], str]


def render(
    summary: AcceptanceSummary,
    run: Path | None,
    baseline: AcceptanceSummary | None = None,
    evidence_at: str = ".",
) -> str:
    """Write the complete page. `run` is the folder with the evidence.

    Without `run`, the page is a copy to share: it has no evidence and no links to it, and states
    so. `evidence_at` is the path of the run folder as links on the page reach it.
    """
    record, reader = summary.record, sections.EvidenceReader(run, evidence_at)
    unexplained, untested = _unexplained_results(summary), _untested_items(summary)
    open_blocks = len(summary.findings) + len(unexplained) + len(record.regressions)
    is_shared, is_untested = run is None, bool(untested)
    agreed = [(row.criterion.id, one) for row in summary.rows for one in row.not_tested]
    step = decision.choose_next_step(
        summary, open_blocks=open_blocks, is_shared=is_shared, untested=is_untested
    )
    criteria = {row.criterion.id: row.criterion for row in summary.rows}
    failed = [row.criterion.id for row in summary.worst_first if row.verdict is Verdict.FAIL]
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    template = _jinja_environment(reader).get_template("report.html.j2")
    return template.render(
        sections=SECTIONS,
        record=record,
        summary=summary,
        is_shared=is_shared,
        view_evidence=reader.view,
        decision=_view_decision(summary, unexplained, step),
        planted=sections.planted_faults(record),
        matrix=sections.build_node_matrix(record),
        timeline=sections.build_timeline(record),
        inventory=sections.build_inventory(record.cluster),
        run_command=redact_text(record.command),
        unexplained=unexplained,
        untested=[*agreed, *untested],
        failed=failed,
        unproven=_unproven_criteria(summary, untested),
        anchors=sections.section_anchors(summary.rows),
        again=lambda shown: orders.again_command(record, shown),
        fill_in=lambda finding: orders.fill(finding, record.cluster),
        blast_of=lambda finding: sections.blast_text(finding, summary),
        gpus_of=lambda finding: sections.count_suspect_gpus(finding, record),
        problem_of=lambda result: summary_sentence(result, criteria[result.criterion]),
        time_to_test=lambda finding: _time_to_test(finding, record),
        kept_files={entry.path for result in record.results for entry in result.evidence},
        cause_of=lambda result: sections.cause_text(result, record),
        comparison=compare(summary, baseline) if baseline else None,
        figures_of=lambda result: draw_figures(_series_of(result, baseline)),
        printed=_printed_figures(summary),
        script=script,
        # For the page's content security policy, which allows only this script.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _view_decision(
    summary: AcceptanceSummary, unexplained: list[ProbeResult], step: decision.NextStep
) -> dict[str, Any]:
    """Collect what page 1 shows: the decision, what to do next, and what was not tested.

    `findings` and `unexplained` results are the first; `more` of them are in the appendix. `run`
    and `baseline` are the folders of both runs, as a command names them.
    """
    # Of a folder that was changed, what it says comes after the first page.
    most = 0 if summary.integrity.problems else MOST_FINDINGS
    first = summary.findings[:most]
    told = unexplained[0].criterion if unexplained and not first else ""
    return {
        "lead": decision.build_lead(summary, told),
        "reasons": decision.decision_reasons(summary, step),
        "facts": _header_facts(summary.record),
        "findings": first,
        "unexplained": unexplained[: most - len(first)],
        "more": max(0, len(summary.findings) + len(unexplained) - most),
        "step": step,
        "run": orders.run_argument(summary.record),
        "baseline": orders.baseline_argument(summary.record),
        "paste": acceptance_table(summary, decision_first=True),
    }


def _jinja_environment(reader: sections.EvidenceReader) -> Environment:
    """Build the template environment: it escapes all text and removes control characters."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.globals |= {"NOT_RUN": NOT_RUN, "PASS": Verdict.PASS}
    environment.filters |= {
        "glyph": lambda verdict: STYLES[verdict][0],
        "line": one_line,
        "titled": capitalise,
        "href": reader.link,
        "cited": sections.split_place,
        "number": number,
        "quantity": quantity,
        "bound": sections.bound_text,
        "command": lambda text: redact_text(one_line(text)),
        "groups": _group_by_name,
        "skipped": sections.group_skipped,
        "effect": EFFECT.__getitem__,
        "limit": sections.limit_text,
        "others": sections.others_text,
        "nodes": lambda suspects: orders.node_suspects(suspects)[: orders.MAX_LISTED],
        "controls": sections.count_controls,
        "first_sentence": lambda text: SENTENCE_END.split(text, maxsplit=1)[0],
        # Only for SVG that reports.charts.canvas wrote, and for the page's script: neither contains
        # foreign markup.
        "drawn": Markup,
    }
    return environment


def _header_facts(record: RunRecord) -> list[list[tuple[str, str]]]:
    """List (name, value) of the header: which cluster and when, then all others."""
    cluster, contract = record.cluster, record.contract
    took = seconds_between(record.started, record.finished)
    first = [
        ("cluster", str(cluster.get("name", "unknown"))[:MAX_NAME]),
        ("size", sections.cluster_size(cluster)),
        ("started", record.started[:19].replace("T", " ") + " UTC"),
    ]
    others = [
        ("fabric", str(cluster.get("fabric", ""))),
        ("run", record.id if RUN_NAME.fullmatch(record.id) else "not a valid name"),
        ("took", "" if took is None else _span_text(took)),
        ("tier", record.tier),
        ("contract", f"{contract.name} @ {contract.sha256[:12]}" if contract.agreed else "none"),
        ("baseline", record.baseline_text),
        ("suite", describe_version(record.versions)),
        ("operator", record.operator),
        ("nonce", record.nonce),
        ("pytest plugins", ", ".join(record.loaded)),
    ]
    return [[(name, value) for name, value in facts if value] for facts in (first, others)]


def _time_to_test(finding: Finding, record: RunRecord) -> str:
    """Write how long the probe of a finding took in this run; "" if it is another command."""
    for result in record.results:
        codes = [one.code for one in result.findings]
        if result.seconds and finding.reproduce == result.reproduce and finding.code in codes:
            return _span_text(result.seconds)
    return ""


def _span_text(duration: float) -> str:
    """Write a duration as `47 min 38 s`."""
    seconds = round(duration)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    parts = [(hours, "h"), (minutes, "min"), (seconds % 60, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"


def _series_of(result: ProbeResult, baseline: AcceptanceSummary | None) -> dict[str, Any]:
    """Return the result's series; that of bus bandwidth holds the baseline's sweep as well."""
    now, results = result.series.get("busbw"), baseline.record.results if baseline else []
    same = [one.series for one in results if one.probe == result.probe and "busbw" in one.series]
    if not same or not isinstance(now, dict):
        return result.series
    return {**result.series, "busbw": {**now, "baseline": same[-1]["busbw"]}}


def _printed_figures(summary: AcceptanceSummary) -> list[Figure]:
    """Draw the figures of what passed that are on paper: on a screen they are folded."""
    passed = [one for row in summary.rows for one in row.results if one.verdict is Verdict.PASS]
    series = [{k: v for k, v in one.series.items() if k in PRINTED} for one in passed]
    return [figure for one in series for figure in draw_figures(one) if figure.svg]


def _group_by_name(measurements: list[Measurement]) -> list[Group]:
    """Group by name, the worst group first.

    If more than MAX_PASSING of a name pass, the group has one of them and a sentence for the rest.
    """
    by_name = group_pairs((one.name, one) for one in measurements)
    groups = [_build_group(same_name) for same_name in by_name.values()]
    return sorted(groups, key=lambda group: -group[0][0].severity)


def _build_group(same_name: list[Measurement]) -> Group:
    worst_first = sorted(same_name, key=lambda m: -m.severity)
    good = [m for m in worst_first if not m.severity]
    if len(good) <= MAX_PASSING:
        return worst_first, ""
    values, unit = sorted({m.value for m in good if isinstance(m.value, int | float)}), good[0].unit
    span = f", {quantity(values[0], unit)} to {quantity(values[-1], unit)}" if values[1:] else ""
    hidden, passed = len(good) - 1, ", all pass" * all(m.judged for m in good)
    return worst_first[:-hidden], f"and {hidden} more values of {good[0].title}{passed}{span}"


def _unexplained_results(summary: AcceptanceSummary) -> list[ProbeResult]:
    """Find results that are not accepted and have no finding: they need a next step, too.

    What did not run is listed as not tested.  Of those of one criterion with the same error it is
    the first: a full disk ends many probes.
    """
    found: dict[tuple[str, str], ProbeResult] = {}
    for row in summary.worst_first:
        for result in row.results if not row.is_only_information else ():
            if result.state != NOT_RUN and not result.verdict.accepted and not result.findings:
                found.setdefault((row.criterion.id, result.error or result.probe), result)
    agreed = summary.record.contract.agreed  # otherwise the first step is a contract
    return [one for one in found.values() if agreed or not sections.only_lacks_limits(one)]


def _untested_items(summary: AcceptanceSummary) -> list[tuple[str, str]]:
    """List (criterion, reason) for everything that this run does not show."""
    record, rows = summary.record, summary.rows
    unprovable = [row.criterion for row in rows if row.criterion.not_provable]
    items = [(one.id, f"not provable here: {one.not_provable}") for one in unprovable]
    items += [(row.criterion.id, "no test ran") for row in rows if not row.results]
    informing = {row.criterion.id for row in rows if row.is_only_information}
    for row in rows:
        for reason, tests in sections.group_skipped(row.results):
            some = f"{len(tests)} of {len(row.results)} tests: "
            items.append((row.criterion.id, some * (len(tests) < len(row.results)) + reason))
    for result in record.results:
        if result.state not in ("finished", NOT_RUN):
            message = result.error or "the test did not finish"
            items.append((result.criterion, f"{result.state}: {message}"))
        if result.criterion not in informing:
            missed = [one for one in result.controls if not one.verdict.accepted]
            items += [(result.criterion, one.sentence()) for one in missed]
    if record.state != "finished":
        items.append(("tests after the interruption", "the run was stopped before its end"))
    return items


def _unproven_criteria(summary: AcceptanceSummary, untested: list[tuple[str, str]]) -> list[str]:
    """List the criteria that are unproven, or were not tested in every part; none that failed."""
    named = {criterion for criterion, _ in untested}
    others = [row for row in summary.worst_first if row.verdict is not Verdict.FAIL]
    ids = [(row.criterion.id, row.verdict is Verdict.UNPROVEN) for row in others]
    return [id for id, is_unproven in ids if is_unproven or id in named]
