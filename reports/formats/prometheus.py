"""Exports the record as metrics in Prometheus's text format, which is valid OpenMetrics too.

Each sample names its cluster.  The run's id is in `seatrial_run_info` alone, so that the next run
of a cluster continues its series.  A value and its limits have the same labels, so that
`seatrial_measurement < seatrial_limit_low` finds what is too low.  There are no time stamps of
samples, which node_exporter refuses: the end of the run is a metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from reports.acceptance import AcceptanceSummary
from reports.measurement import Measurement
from reports.run_folder.times import known_time
from reports.sanitize import clean, label_value

Labels = dict[str, str]
Item = TypeVar("Item")
ACCEPTED = "1 if the exit code is 0, otherwise 0. A rehearsal does not accept a cluster."
FINISHED = "Time at which the run ended; missing if it did not."
MEASURED = "Measured numbers, in the unit that the label `unit` names."
EXIT_CODES = (
    "Exit code: 0 accepted, 1 failed, 2 interrupted, 3 error outside the tests, 4 unusable or "
    "changed, 20 unproven."
)


def prometheus(summary: AcceptanceSummary) -> str:
    """Write the metrics of a run, for example for node_exporter's textfile collector."""
    cluster = {"cluster": summary.record.cluster_name}
    verdicts = _distinct(_verdicts(summary, cluster))
    values = list(_distinct(_measurements(summary, cluster)))
    lows = ((labels, m.limit.low) for labels, m in values if m.judged and m.limit)
    highs = ((labels, m.limit.high) for labels, m in values if m.judged and m.limit)
    lines = [
        *_run_lines(summary, cluster),
        *_metric("seatrial_verdict", "Verdict: 0 PASS, 1 MARGINAL, 2 UNPROVEN, 3 FAIL.", verdicts),
        *_metric("seatrial_measurement", MEASURED, ((labels, _number(m)) for labels, m in values)),
        *_metric("seatrial_limit_low", "Minimum value that passes.", lows),
        *_metric("seatrial_limit_high", "Maximum value that passes.", highs),
        "# EOF",
    ]
    return "\n".join(lines) + "\n"


def _run_lines(summary: AcceptanceSummary, cluster: Labels) -> Iterator[str]:
    """Yield the metrics that a run has once."""
    record, finished = summary.record, known_time(summary.record.finished)
    kind = {"rehearsal": _word(record.rehearsal), "partial": _word(record.partial)}
    run = {"run": record.id, "contract": record.contract.name, "tier": record.tier}
    labels, ended = {**cluster, **kind}, finished.timestamp() if finished else None
    info = [({**cluster, **run, **kind}, 1)]
    yield from _metric("seatrial_run_info", "Labels identify the run.", info)
    yield from _metric("seatrial_run_accepted", ACCEPTED, [(labels, int(summary.exit_code == 0))])
    yield from _metric("seatrial_exit_code", EXIT_CODES, [(labels, summary.exit_code)])
    yield from _metric("seatrial_run_finished_timestamp_seconds", FINISHED, [(labels, ended)])


def _word(reason: object) -> str:
    return "yes" if reason else "no"


def _verdicts(summary: AcceptanceSummary, cluster: Labels) -> Iterator[tuple[Labels, float]]:
    for row in summary.rows:
        about = {"criterion": row.criterion.id, "required": _word(row.criterion.required)}
        yield {**cluster, **about}, row.verdict.rank


def _measurements(
    summary: AcceptanceSummary, cluster: Labels
) -> Iterator[tuple[Labels, Measurement]]:
    """Yield the measurements that are numbers; `node` is empty if the subject is no node."""
    nodes = frozenset(summary.record.node_names)
    for result in summary.record.results:
        probe = result.probe.partition("::")[2]
        for m in result.measurements:
            if m.value is None or isinstance(m.value, str):
                continue
            what = {"criterion": result.criterion, "probe": probe, "measure": m.name}
            where = {"subject": m.subject, "node": m.subject if m.subject in nodes else ""}
            yield {**cluster, **what, **where, "unit": m.unit}, m


def _number(m: Measurement) -> float | None:
    """Return the value as a float; None if it is too large for one."""
    try:
        return float(m.value or 0)
    except OverflowError:
        return None


def _distinct(items: Iterable[tuple[Labels, Item]]) -> Iterator[tuple[Labels, Item]]:
    """Clean the labels; an `occurrence` label makes equal ones unique, as after a retry.

    One line that is there twice makes Prometheus refuse the whole file.
    """
    counts = Counter[tuple[str, ...]]()
    for labels, item in items:
        shown = {name: clean(value) for name, value in labels.items()}
        key = tuple(shown.values())
        counts[key] += 1
        yield shown | ({"occurrence": str(counts[key])} if counts[key] > 1 else {}), item


def _metric(name: str, text: str, samples: Iterable[tuple[Labels, float | None]]) -> Iterator[str]:
    """Yield the lines of a metric; a sample without a value is left out."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        if value is not None:
            words = ",".join(f'{key}="{label_value(label)}"' for key, label in labels.items())
            yield f"{name}{{{words}}} {value}"
