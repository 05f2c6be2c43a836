"""The sections of the page: decision, evidence, inventory, nodes and timeline."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from reports import record as records
from reports.acceptance import AcceptanceSummary, ReportRow, gpus_per_node, is_consistent
from reports.groups import group_pairs
from reports.measurement import Limit, Measurement, Verdict
from reports.numbers import quantity
from reports.record import NOT_RUN, Control, Evidence, Finding, ProbeResult, RunRecord, Severity
from reports.redact import redact
from reports.run_folder.event_log import MISSING, open_regular
from reports.run_folder.integrity import compare_hash
from reports.run_folder.times import seconds_between
from reports.sanitize import clean, probe_words, relative_link

MAX_NAMED = 3  # criteria, or problems of the folder, named beside the decision
ANCHOR = re.compile(r"[A-Z][A-Z0-9_]{0,30}")  # a criterion that is the name of its section


class ControlCounts(NamedTuple):
    """Planted faults: how many were found, how many were missed, and how many never planted."""

    found: int
    missed: int
    not_run: int

    @property
    def share(self) -> str:
        """Of those that were planted: `3 of 3`; "none" where none was."""
        planted = self.found + self.missed
        return f"{self.found} of {planted}" if planted else "none"

    @property
    def text(self) -> str:
        """The share, and how many were not planted: `3 of 3, 2 not planted`."""
        return self.share + f", {self.not_run} not planted" * bool(self.not_run)

    @property
    def sentence(self) -> str:
        """What page 1 says of them; "" where the run has none."""
        planted = self.found + self.missed
        rest = f"Not planted: {quantity(self.not_run, 'faults')} (reasons: section Self-test)."
        parts = [rest] * bool(self.not_run)
        if planted:
            word = "failed" if self.missed else "passed"
            parts = [f"Self-test {word} (planted faults found: {self.share}).", *parts]
        return " ".join(parts)


def count_controls(results: Sequence[ProbeResult]) -> ControlCounts:
    """Count the controls by what became of them."""
    controls = [control for result in results for control in result.controls]
    found = sum(control.verdict.accepted for control in controls)
    not_run = sum(control.caught is None for control in controls)
    return ControlCounts(found, len(controls) - found - not_run, not_run)


def group_skipped(results: Sequence[ProbeResult]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Group the tests that did not run by their reason: (reason, [(name in words, probe)])."""
    skipped = [one for one in results if one.state == NOT_RUN]
    found = group_pairs((one.error, (probe_words(one.probe), one.probe)) for one in skipped)
    return list(found.items())


def limit_text(row: ReportRow) -> str:
    """Write the limit that a row's sentence is held to; "" where there is no value to hold."""
    shown = row.key.value is not None and row.shows_limit
    if shown and row.key.judged and row.key.limit is None:
        return "none was given"
    return bound_text(row.key.limit) if shown else ""


def bound_text(limit: Limit | None) -> str:
    """Write a limit, marked `(derived)` if it was not agreed."""
    return f"{limit}{' (derived)' if limit.derived else ''}" if limit else ""


def others_text(row: ReportRow) -> str:
    """Name what failed besides the row's own value: `Also failed: network (eth0), slow nodes`."""
    failed = [m for one in row.results for m in one.measurements if m.verdict is Verdict.FAIL]
    names = [m.name for m in failed]
    once = {m.name: f"{m.title} ({m.short_text})" for m in failed if names.count(m.name) == 1}
    titles = [*dict.fromkeys(once.get(m.name, m.title) for m in failed if m.name != row.key.name)]
    more = f" and {len(titles) - MAX_NAMED} more" * (len(titles) > MAX_NAMED)
    return f"Also failed: {', '.join(titles[:MAX_NAMED])}{more}" if titles else ""


def section_anchors(rows: Sequence[ReportRow]) -> dict[str, str]:
    """Name the section of each criterion: its id where that is plain, else its number."""
    return {
        row.criterion.id: row.criterion.id if ANCHOR.fullmatch(row.criterion.id) else f"c{number}"
        for number, row in enumerate(rows, 1)
    }


def blast_text(finding: Finding, summary: AcceptanceSummary) -> str:
    """Write which criteria a finding keeps from an acceptance: `Failed: FABRIC.`"""
    suspects = set(finding.suspects)
    held = []
    for row in summary.rows:
        found = (other for result in row.results for other in result.findings)
        is_held = any(other == finding or suspects & set(other.suspects) for other in found)
        if is_held and not row.verdict.accepted:
            word = "Failed" if row.verdict is Verdict.FAIL else "Not proven"
            held.append((word, row.criterion.id))
    return " ".join(f"{word}: {join_words(ids)}." for word, ids in group_pairs(held).items())


def count_suspect_gpus(finding: Finding, record: RunRecord) -> int:
    """Count the GPUs of the nodes that a finding names."""
    return gpus_per_node(record.cluster) * len(set(finding.suspects) & set(record.node_names))


def cause_text(result: ProbeResult, record: RunRecord) -> str:
    """Say what may have caused a problem without a finding: what a probe before it found, or none.

    Only a failure or an error may come from an earlier fault: what is unproven has its own reason.
    Empty where the probe did not run to its end: its state has the reason.
    """
    if result.state == "skipped":
        return "Do this, then test again:"
    if result.state in (NOT_RUN, "interrupted"):
        return ""
    earlier = record.results[: record.results.index(result)]
    found = [(one.criterion, finding) for one in earlier for finding in one.findings]
    blocking = group_pairs((id, f.code) for id, f in found if f.severity is Severity.BLOCKS)
    if result.state == "finished" and result.verdict is not Verdict.FAIL:
        return _unproven_text(result)
    if not blocking:
        return _no_cause(result)
    causes = [f"{id} found ({', '.join(dict.fromkeys(codes))})" for id, codes in blocking.items()]
    return f"First fix what {join_words(causes)}: it can be the cause of this problem."


def _unproven_text(result: ProbeResult) -> str:
    """Say what to do about a result that is not bad, and not proven."""
    if any(not control.verdict.accepted for control in result.controls):
        missed = any(control.caught is False for control in result.controls)
        fails = "the test misses the fault" if missed else "the fault cannot be planted"
        return (
            f"Test again. If {fails} a second time, something on the cluster undoes the fault, or "
            "the test is wrong: send the run folder to the authors of the suite."
        )
    if only_lacks_limits(result):
        return "Write the agreed limit into the contract."
    return _no_cause(result)


def _no_cause(result: ProbeResult) -> str:
    return f"seatrial found no cause. Read the section {result.criterion}, and test again."


def only_lacks_limits(result: ProbeResult) -> bool:
    """Return whether a result is unproven because the contract has no limit, and only so."""
    problems = [m for m in result.measurements if m.severity]
    return bool(problems) and is_consistent(result) and all(m.limit is None for m in problems)


def join_words(words: Sequence[str]) -> str:
    """Join words as people do: `FABRIC, SCALING and GANG`."""
    return " and ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)


def planted_faults(record: RunRecord) -> list[tuple[str, Control]]:
    """List (criterion, control) of all controls, those that were missed first."""
    found = [(result.criterion, one) for result in record.results for one in result.controls]
    return sorted(found, key=lambda pair: -pair[1].verdict.rank)


LINES, COLUMNS = 40, 240
TAIL_BYTES = 64 * 1024
MAX_TAIL_CHARS = 500_000  # characters of all tails in one page, so that it can be mailed
LINE_OF_FILE = re.compile(r"(.+):(\d{1,9})", re.DOTALL)
TEXT_KINDS = {"table", "log", "series", "command"}


class EvidenceView(NamedTuple):
    """View of one entry. `problem` is the reason why the file cannot be trusted or shown."""

    link: str | None
    problem: str = ""
    tail: str = ""


class EvidenceReader:
    """Reader of the evidence in one run folder; it reads no file outside."""

    def __init__(self, run: Path | None, linked_at: str = ".") -> None:
        """Read from `run`, the folder that links on the page reach as `linked_at`."""
        self.run, self.linked_at = run, quote(linked_at)
        self.chars_left = MAX_TAIL_CHARS

    def link(self, path: str) -> str | None:
        """Return the link to a file of the run folder; None if the path points anywhere else."""
        link = relative_link(path)
        return link and self.linked_at + link.removeprefix(".")

    def view(self, entry: Evidence) -> EvidenceView:
        """Return the view of an entry: its link, the check of its hash, the end of its text."""
        link = self.link(entry.path)
        if link is None:
            problem = "the path is outside the run folder, so the file was not read"
            return EvidenceView(None, problem)
        if self.run is None:
            return EvidenceView(None)
        path = self.run / entry.path
        if problem := compare_hash(path, entry.sha256):
            return EvidenceView(None if problem == MISSING else link, f"the file {problem}")
        return EvidenceView(link, "", self._tail(path, entry))

    def _tail(self, path: Path, entry: Evidence) -> str:
        """Return the last lines of a text file; "" if it is not text or the page has no room."""
        if entry.kind not in TEXT_KINDS or self.chars_left <= 0:
            return ""
        text = read_tail(path)
        self.chars_left -= len(text)
        return text


def split_place(place: str) -> tuple[str, str]:
    """Split `evidence/nccl.log:12` into path and line number; without a number the line is ""."""
    found = LINE_OF_FILE.fullmatch(place)
    return (found[1], found[2]) if found else (place, "")


def read_tail(path: Path) -> str:
    """Read the last LINES lines of a file, each cut to COLUMNS characters.

    A first line `... the last N lines` marks a file that is longer.
    """
    with open_regular(path) as file:
        total = file.seek(0, 2)
        file.seek(max(0, total - TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = clean(text).rstrip("\n").split("\n")
    kept = [line if len(line) <= COLUMNS else line[:COLUMNS] + " ..." for line in lines[-LINES:]]
    if len(lines) > LINES or total > TAIL_BYTES:
        kept.insert(0, f"... the last {len(kept)} lines")
    return "\n".join(kept)


MAX_VALUE_CHARS = 160  # of one fact in its cell; the record has the complete value


class Inventory(NamedTuple):
    """Inventory: `facts` of the cluster, facts `common` to all nodes, a table of the others."""

    facts: list[tuple[str, str]]
    common: list[tuple[str, str]]
    header: list[str]
    rows: list[list[str]]


def build_inventory(cluster: Mapping[str, Any]) -> Inventory:
    """Convert nested facts, without secrets, to two lists and one table."""
    facts = redact(cluster)
    nodes = [flatten(node) for node in _node_facts(facts)]
    cluster_facts = {key: value for key, value in facts.items() if not (nodes and key == "nodes")}
    keys = list(dict.fromkeys(key for node in nodes for key in node))
    common = [key for key in keys if len(nodes) > 1 and len({node.get(key) for node in nodes}) == 1]
    header = [key for key in keys if key not in common]
    header.sort(key=lambda key: key != "name")
    return Inventory(
        facts=list(flatten(cluster_facts).items()),
        common=[(key, nodes[0][key]) for key in common],
        header=header,
        rows=[[node.get(key, "-") for key in header] for node in nodes],
    )


def flatten(value: Any, name: str = "") -> dict[str, str]:
    """Convert `{"a": {"b": 1}}` to `{"a.b": "1"}`; lists become one line."""
    if isinstance(value, Mapping):
        pairs: dict[str, str] = {}
        for key, item in value.items():
            pairs |= flatten(item, f"{name}.{key}" if name else str(key))
        return pairs
    return {name: fact_text(value)}


def fact_text(value: Any) -> str:
    """Format one fact: a list of words with commas, nested lists as JSON, cut if too long."""
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = _list_text(value) if isinstance(value, list) else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + " ..."


def _list_text(value: list[Any]) -> str:
    """Join words with commas; eight equal GPUs are `8 x {...}`."""
    if all(isinstance(item, str | int | float) for item in value):
        return ", ".join(map(str, value))
    items = [json.dumps(item, sort_keys=True, default=str) for item in value]
    if len(set(items)) == 1 and len(items) > 1:
        return f"{len(items)} x {items[0]}"
    return ", ".join(items)


def cluster_size(cluster: Mapping[str, Any]) -> str:
    """Format the size as `8 nodes, 64 GPUs`, as far as it is known."""
    nodes, ranks = _node_facts(cluster), cluster.get("ranks")
    boards = [node.get("gpus") for node in nodes]
    gpus = sum(len(g) if isinstance(g, list) else g for g in boards if isinstance(g, list | int))
    counts = {"nodes": len(nodes), "GPUs": gpus}
    if not gpus and isinstance(ranks, int):
        counts[f"{cluster.get('resource') or 'rank'}s"] = ranks
    return ", ".join(quantity(n, unit) for unit, n in counts.items() if n) or "size unknown"


def _node_facts(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the facts of the nodes; none where one has another form: all are then one fact."""
    nodes = records.node_facts(cluster)
    return nodes if nodes == cluster.get("nodes") else []


MAX_NAMES = 3  # measures named in a cell; the criterion's section has all


class NodeCell(NamedTuple):
    """Verdict of one criterion on one node; None where nothing was measured on the node alone.

    `failed` names the measures that are not accepted there.  `suspected` is true if a finding
    names the node.
    """

    verdict: Verdict | None
    failed: str
    suspected: bool


class NodeMatrix(NamedTuple):
    """Criteria as columns, and (node, cells) as rows.  Nodes without a problem come last."""

    header: list[str]
    rows: list[tuple[str, list[NodeCell]]]


def build_node_matrix(record: RunRecord) -> NodeMatrix:
    """Sort what the probes measured by node and criterion.  Without node facts it has no rows."""
    names = dict.fromkeys(record.node_names)
    known, criteria = set(names), list(dict.fromkeys(r.criterion for r in record.results))
    measured = defaultdict[tuple[str, str], list[Measurement]](list)
    suspects = {(s, r.criterion) for r in record.results for f in r.findings for s in f.suspects}
    for result in record.results:
        for m in result.measurements:
            nodes = _nodes_of(m.subject, known) if m.judged else set()
            accused = {node for node in nodes if (node, result.criterion) in suspects}
            # A finding can tell which end of a bad pair has the fault.
            for node in (accused or nodes) if m.severity else nodes:
                measured[node, result.criterion].append(m)
    rows = [
        (name, [_cell(measured[name, id], (name, id) in suspects) for id in criteria])
        for name in names
    ]
    return NodeMatrix(criteria, sorted(rows, key=lambda row: -_severity(row[1])))


def _nodes_of(subject: str, known: set[str]) -> set[str]:
    """Return the nodes that a subject names: a node, a pair, or a part of a node."""
    return known & {subject, *re.split(r" - | to | -> |, | ", subject)}


def _cell(measurements: list[Measurement], suspected: bool) -> NodeCell:
    verdicts = [m.verdict for m in measurements if m.verdict is not None]
    failed = list(dict.fromkeys(m.title for m in measurements if m.severity))
    more = f" and {len(failed) - MAX_NAMES} more" if len(failed) > MAX_NAMES else ""
    names = ", ".join(failed[:MAX_NAMES]) + more
    return NodeCell(Verdict.worst(verdicts) if verdicts else None, names, suspected)


def _severity(cells: list[NodeCell]) -> int:
    return max((cell.verdict.rank if cell.verdict else 0) + cell.suspected for cell in cells)


SPAN_WIDTH = 360  # px: a column of the table
LEAST = 2  # px of a bar: a probe of a second is seen in a run of an hour


class Span(NamedTuple):
    """When one probe ran: seconds after the start of the run, and how long; its bar in px."""

    result: ProbeResult
    began: float
    seconds: float
    left: float
    width: float


def build_timeline(record: RunRecord) -> list[Span]:
    """List the probes that ran, by their start; a time that is no time is left out."""
    spans = []
    for result in record.results:
        began = seconds_between(record.started, result.started)
        if result.seconds is not None and began is not None and began >= 0:
            spans.append((began, result.seconds, result))
    total = max((began + seconds for began, seconds, _ in spans), default=0.0)
    scale, shown = SPAN_WIDTH / total if total else 0.0, []
    for began, seconds, result in sorted(spans, key=lambda span: span[0]):
        width = max(seconds * scale, LEAST)
        shown.append(Span(result, began, seconds, min(began * scale, SPAN_WIDTH - width), width))
    return shown
