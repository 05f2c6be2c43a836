"""Draws who held which accelerators over time."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import cycle, pairwise
from typing import Any, NamedTuple

from reports.charts import canvas
from reports.charts.canvas import THEME, Box, Chart, Figure, Key, TimeAxis, brief_number, shorten
from reports.groups import group_pairs
from reports.numbers import number

MAX_ROWS = 60  # rows of the table at most; the record has all of them
MAX_SAMPLES, MAX_HELD = 50_000, 500_000  # more than a probe can record
Held = tuple[float, float, tuple[tuple[str, float], ...]]  # start, end, (job, amount) in order
Holder = tuple[str, str | None]  # (job, node it holds units on); node is None: it waits


class JobSpan(NamedTuple):
    """Period in seconds in which a job held, or waited for, a constant amount."""

    job: str
    node: str | None  # None: the job waited
    start: float
    end: float
    amount: float


class PartialAllocation(NamedTuple):
    """Period in seconds in which a job held only a part of its gang."""

    start: float
    end: float
    job: str
    held: float
    need: float

    @property
    def held_text(self) -> str:
        """Held and needed amount as text: `1 of 3`."""
        return f"{number(self.held)} of {number(self.need)}"


class Event(NamedTuple):
    """Action at a point in time. `fault` is True if it was a fault in the cluster or a job."""

    time_s: float
    label: str
    fault: bool = False


class Panel(NamedTuple):
    """One run on the cluster: the scenario or its control. Times are in seconds."""

    start: float
    last: float  # end of the last span, partial gang or mark: nothing changed after it
    spans: list[JobSpan]
    partials: list[PartialAllocation]
    marks: list[Event]
    held: dict[str, list[Held]]  # what was held on each node
    max_by_job: dict[str, float]  # largest amount that each job held at once

    @property
    def waits(self) -> list[JobSpan]:
        """Spans in which jobs waited; `amount` is the number that was missing."""
        return [span for span in self.spans if span.node is None]


def read_panel(values: dict[str, Any]) -> Panel:
    """Read samples, end, marks and half of a series. Raises ValueError if they are not valid."""
    samples = values["samples"]
    if not isinstance(samples, list) or not 0 < len(samples) <= MAX_SAMPLES:
        raise ValueError(f"expected a list of 1 to {MAX_SAMPLES} samples")
    if sum(len(jobs) for item in samples for jobs in item["nodes"].values()) > MAX_HELD:
        raise ValueError(f"the samples have more than {MAX_HELD} entries of held accelerators")
    times = [_require_number(sample["t"]) for sample in samples]
    if any(after < before for before, after in pairwise(times)):
        raise ValueError("the times of the samples do not increase")
    end = max(times[-1], _require_number(values["end"]))
    start = 0.0 if 0 <= times[0] < end / 4 else times[0]
    if not math.isfinite(end - start):
        raise ValueError("the times of the samples are not finite")
    states = [_read_sample(sample) for sample in samples]
    spans = _to_spans(times, end, states)
    partials = sorted(_read_partial(item) for item in values.get("half") or [])
    marks = sorted(_read_event(*item) for item in values.get("marks") or [])
    events = [span.end for span in spans] + [part.end for part in partials]
    events += [mark.time_s for mark in marks]
    last = min(end, max([time_s for time_s in events if time_s > start], default=end))
    held, by_job = _read_held([*times, end], states), _peaks(states)
    return Panel(start, last, spans, partials, marks, held, by_job)


def _require_number(value: Any) -> float:
    known = canvas.read_number(value)
    if known is None:
        raise ValueError("expected a number, found none")
    return known


def read_count(value: Any) -> float:
    """Read a number of 0 or more. Raises ValueError for anything else."""
    if (count := _require_number(value)) < 0:
        raise ValueError(f"expected 0 or more, found {number(count)}")
    return count


def read_text(value: Any) -> str:
    """Return a string unchanged. Raises ValueError for any other type."""
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {type(value).__name__}")
    return value


def _read_event(time_s: Any, label: Any, fault: Any = False) -> Event:
    return Event(_require_number(time_s), read_text(label), fault is True)


def _read_partial(values: Any) -> PartialAllocation:
    start, end, job, held, need = values
    if _require_number(end) < _require_number(start):
        raise ValueError("an allocation ends before it begins")
    counts = (read_count(held), read_count(need))
    return PartialAllocation(float(start), float(end), read_text(job), *counts)


def _read_sample(sample: dict[str, Any]) -> dict[Holder, float]:
    """Read one sample: {(job, node): amount held, (job, None): amount missing}, without zeros."""
    held = [(job, node, n) for node, jobs in sample["nodes"].items() for job, n in jobs.items()]
    amounts: dict[Holder, float] = {(job, node): read_count(n) for job, node, n in held}
    amounts |= {(job, None): read_count(n) for job, n in (sample.get("waits") or {}).items()}
    return {key: amount for key, amount in amounts.items() if amount}


def _to_spans(times: list[float], end: float, states: list[dict[Holder, float]]) -> list[JobSpan]:
    """Convert sampled states to spans; equal consecutive amounts are joined.

    The last sample is valid until `end`.
    """
    spans, open_spans = [], dict[Holder, tuple[float, float]]()
    for t, state in zip([*times, end], [*states, {}], strict=True):
        for owner in [key for key, (_, held) in open_spans.items() if state.get(key) != held]:
            start, amount = open_spans.pop(owner)
            spans.append(JobSpan(*owner, start, t, amount))
        for owner, amount in state.items():
            open_spans.setdefault(owner, (t, amount))
    return sorted(spans, key=lambda span: (span.start, span.end))


def _read_held(times: list[float], states: list[dict[Holder, float]]) -> dict[str, list[Held]]:
    held = defaultdict[str, list[Held]](list)
    for (start, end), state in zip(pairwise(times), states, strict=True):
        by_node = group_pairs(
            (node, (job, amount)) for (job, node), amount in state.items() if node is not None
        )
        for node, amounts in by_node.items():
            held[node].append((start, end, tuple(sorted(amounts))))
    return dict(held)


def _peaks(states: list[dict[Holder, float]]) -> dict[str, float]:
    """Return the largest amount that each job held in one sample."""
    highest: dict[str, float] = {}
    for state in states:
        totals = defaultdict[str, float](float)
        for (job, node), amount in state.items():
            totals[job] += amount if node is not None else 0
        highest |= {job: max(held, highest.get(job, 0)) for job, held in totals.items() if held}
    return highest


def make_sentence(panels: list[Panel], samples: float, units: str, note: str) -> str:
    """Return the finding as a sentence, and the partial gangs of the control if it has any.

    Raises ValueError if no sample was taken.
    """
    if not samples:
        raise ValueError("no sample was taken")
    first, control = panels[0], ""
    if len(panels) > 1 and (parts := panels[1].partials):
        control = f" With the planted fault, {_partial_gangs_text(parts, units)}."
    if first.partials:
        return (
            "A job held only a part of its gang: "
            f"{_partial_gangs_text(first.partials, units)}{note}.{control}"
        )
    start = f"In each of {number(samples)} sample{'s' * (samples != 1)},"
    if not first.max_by_job:
        return f"{start} no job held any of the {units}{_wait_text(first, '')}{note}.{control}"
    job = max(first.max_by_job, key=lambda name: first.max_by_job[name])
    top = f"{_job(job)} held up to {number(first.max_by_job[job])}{_wait_text(first, job)}"
    return f"{start} every gang held all of its {units} or none; {top}{note}.{control}"


def _job(name: str) -> str:
    return f"job {shorten(name, 24)}"


def _partial_gangs_text(parts: list[PartialAllocation], units: str) -> str:
    """Describe the first two partial gangs and count the others."""
    texts = []
    for part in parts[:2]:
        start, end = brief_number(part.start), brief_number(part.end)
        texts.append(f"{_job(part.job)} held {part.held_text} {units} from {start} to {end} s")
    more = len(parts) - len(texts)
    return "; ".join(texts) + (f"; and {more} more time{'s' * (more != 1)}" if more else "")


def _wait_text(panel: Panel, holder: str) -> str:
    """Return `, B waited 1.8 s`: the job with the largest sum of waits, and that sum."""
    waits = defaultdict[str, float](float)
    for span in panel.waits:
        waits[span.job] = waits[span.job] + span.end - span.start
    if not waits:
        return ""
    job = max(waits, key=lambda name: waits[name])
    subject = " and" if job == holder else f", {_job(job)}"
    longest = f"{brief_number(waits[job])} s"
    return f"{subject} waited {longest if len(waits) == 1 else f'longest ({longest})'}"


def table_rows(panels: list[Panel], left_out: int) -> list[list[str]]:
    """Select at most MAX_ROWS rows, by panel and time: partial gangs, then the longest spans.

    `left_out` is the number of marks that are not drawn.
    """
    lines: list[tuple[float, int, float, list[str]]] = []
    for i, panel in enumerate(panels):
        prefix = "control: " * i
        for item in panel.partials:
            row = [item.job, f"{prefix}part of a gang", *_exact_times(item), item.held_text]
            lines.append((-math.inf, i, item.start, row))
        for span in panel.spans:
            where = prefix + ("waits" if span.node is None else span.node)
            row = [span.job, where, *_exact_times(span), number(span.amount)]
            lines.append((span.start - span.end, i, span.start, row))
    kept = sorted(lines)[: MAX_ROWS - 2]
    rows = [row for _, _, _, row in sorted(kept, key=lambda item: item[1:3])]
    end = ["not shown; record.json has all", "", "", ""]
    missing = [(len(lines) - len(kept), "more"), (left_out, "more marks")]
    return rows + [[f"{count} {what}", *end] for count, what in missing if count]


def natural_key(job: str) -> str:
    """Pad the numbers in a name with zeros, so that job2 sorts before job10."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(12), job)


def plural(unit: str) -> str:
    """Return the plural of a unit, shortened to about 32 characters: `GPUs`."""
    short = shorten(unit, 32)
    return short if short.endswith("s") else f"{short}s"


def _exact_times(item: JobSpan | PartialAllocation) -> list[str]:
    return [f"{round(time_s, 3):.10g}" for time_s in (item.start, item.end)]


# Palette of Okabe and Ito, which colour-blind readers can distinguish. Orange marks a partial gang.
JOB_COLORS = ["#0072b2", "#009e73", "#56b4e9", "#cc79a7", "#f0e442"]
DARK_COLORS, ORANGE = JOB_COLORS[:2], "#e69f00"
MAX_NODES, MAX_WAIT_LANES, MAX_MARKS, MAX_LABELS = 16, 12, 12, 40  # drawn at most
GRID_STEPS = (0.5, 1, 2, 4, 8, 16, 32, 64)  # units; coarser steps join neighbours
MAX_BARS = 500  # in the lanes of nodes, about 14 kB; above it, the next grid step is tried
LANE_HEIGHT, THIN_LANE, THIN_FROM = 34, 18, 9  # units; lanes are thin from THIN_FROM lanes on
MIN_LABELLED = 11  # units: least height of a bar with a name
WAIT_HEIGHT, GAP = 16, 4  # units: height of a waiting lane; space between lanes
MARK_SIZE = 15  # units: room for the number of a mark
Ends = tuple[float, float]  # left x, right x
WaitLane = tuple[str, list[JobSpan], list[PartialAllocation]]


class Timeline(NamedTuple):
    """One panel, arranged: what is drawn of it."""

    axis: TimeAxis
    sizes: dict[str, float]  # accelerators of each node
    nodes: dict[str, list[Held]]  # left x, right x, (job, amount) in order
    waits: list[WaitLane]  # name, waits, partial gangs
    marks: list[Event]
    levels: list[int]  # of the marks' numbers, 0 is the lowest


def draw_gang(series: dict[str, Any]) -> Figure:
    """Draw the accelerators held on each node over time; a gang must have all it needs or none.

    Keys: title, unit, capacity {node: free at the start}, samples [{t, nodes {node: {job: held}},
    waits {job: requested but not given}}] (only changes), end, taken (number of samples taken);
    optional marks [[t, label[, true if a fault]]], half [[start, end, job, held, need]], and
    control: samples, end, marks, half of the same cluster with a deliberate fault. Times in s.
    """
    units = plural(read_text(series["unit"]))
    capacity = {node: read_count(count) for node, count in series["capacity"].items()}
    halves = [series, series["control"]] if series.get("control") else [series]
    panels = [read_panel(half) for half in halves]
    sizes = _node_sizes(capacity, panels)
    changes = Counter(span.node for panel in panels for span in panel.spans)
    busiest = set(sorted(sizes, key=lambda node: -changes[node])[:MAX_NODES])
    nodes = {node: size for node, size in sizes.items() if node in busiest}
    note = f"; {len(nodes)} of {len(sizes)} nodes are shown" if len(nodes) < len(sizes) else ""
    sentence = make_sentence(panels, read_count(series["taken"]), units, note)
    title = f"{units} of each job over time: {shorten(read_text(series['title']), 80)}"
    svg = _draw_panels(title, sentence, panels, nodes)
    left_out = sum(len(panel.marks) - len(_choose_marks(panel)) for panel in panels)
    header = ["job", "where", "from s", "to s", units]
    return Figure(title, sentence, svg, header, table_rows(panels, left_out))


def _node_sizes(capacity: dict[str, float], panels: list[Panel]) -> dict[str, float]:
    """Return the accelerators of each node: free at the start, or held at once if that is more.

    Raises ValueError if there is no node.
    """
    sizes = dict(capacity)
    for panel in panels:
        for node, periods in panel.held.items():
            peak = max(sum(amount for _, amount in held) for _, _, held in periods)
            sizes[node] = max(peak, sizes.get(node, 0))
    if not sizes:
        raise ValueError("the series has no node")
    return sizes


def _choose_marks(panel: Panel) -> list[Event]:
    """Select the marks to draw: faults first, then every n-th of the others; in order of time."""
    faults = [event for event in panel.marks if event.fault][:MAX_MARKS]
    others, room = [event for event in panel.marks if not event.fault], MAX_MARKS - len(faults)
    return sorted([*faults, *(others[:: -(-len(others) // room) or 1] if room else [])])


def _draw_panels(title: str, sentence: str, panels: list[Panel], sizes: dict[str, float]) -> str:
    """Draw all panels, with the first of GRID_STEPS that needs at most MAX_BARS bars."""
    jobs = sorted({span.job for panel in panels for span in panel.spans}, key=natural_key)
    colors = dict(zip(jobs, cycle(JOB_COLORS), strict=False))
    lane = LANE_HEIGHT if len(sizes) * len(panels) < THIN_FROM else THIN_LANE
    for step in GRID_STEPS:
        lines = [_arrange_panel(panel, sizes, step) for panel in panels]
        bars = [bar for line in lines for bars in line.nodes.values() for bar in bars]
        if sum(len(held) for _, _, held in bars) <= MAX_BARS:
            break
    heights = [_panel_height(line, lane) for line in lines]
    height = sum(heights) + 2 * canvas.ROW * (len(panels) - 1)
    with canvas.open_chart(title, sentence, _make_keys(colors, panels), height) as chart:
        _draw_timeline(chart, lines[0], colors, lane, 0)
        for line in lines[1:]:
            heading = "control: the same cluster with a planted fault"
            chart.text(0, heights[0] + 1.5 * canvas.ROW, heading, weight="bold")
            _draw_timeline(chart, line, colors, lane, heights[0] + 2 * canvas.ROW)
    return chart.svg


def _arrange_panel(panel: Panel, sizes: dict[str, float], step: float) -> Timeline:
    """Arrange a panel; its time axis ends with the last event, so bars have the full width."""
    axis = TimeAxis(panel.start, panel.last, step)
    nodes = {node: axis.to_bars(panel.held.get(node, [])) for node in sizes}
    marks = _choose_marks(panel)
    levels = _mark_levels([axis(event.time_s) for event in marks])
    return Timeline(axis, sizes, nodes, _wait_lanes(panel), marks, levels)


def _mark_levels(xs: list[float]) -> list[int]:
    """Return how high the number of each mark is, so that no line of a later mark crosses it."""
    levels = list[int]()
    for i in reversed(range(len(xs))):
        later = zip(xs[i + 1 :], levels, strict=True)
        near = [level for x, level in later if x < xs[i] + MARK_SIZE]
        levels.insert(0, max(near, default=-1) + 1)
    return levels


def _panel_height(line: Timeline, lane: int) -> float:
    numbers = 8 + MARK_SIZE * (max(line.levels, default=-1) + 1)
    lanes = len(line.nodes) * (lane + GAP) + len(line.waits) * (WAIT_HEIGHT + GAP)
    return numbers + lanes + canvas.ROW * (1 + len(line.marks))


def _make_keys(colors: dict[str, str], panels: list[Panel]) -> list[Key]:
    """Make the legend; jobs that share a colour share an entry, at most three by name."""
    by_color = group_pairs((color, shorten(job, 10)) for job, color in colors.items())
    keys = [
        Key(", ".join(jobs[:3]) + (", ..." if len(jobs) > 3 else ""), color, "box")
        for color, jobs in by_color.items()
    ]
    keys += [Key("waits", THEME.soft, "frame")] if any(panel.waits for panel in panels) else []
    keys += [Key("part of a gang", ORANGE, "box")] if any(p.partials for p in panels) else []
    faults = any(event.fault for panel in panels for event in panel.marks)
    return [*keys, *([Key("a fault", THEME.fail)] if faults else [])]


def _draw_timeline(
    chart: Chart, line: Timeline, colors: dict[str, str], lane: int, top: float
) -> None:
    start = y = top + 8 + MARK_SIZE * (max(line.levels, default=-1) + 1)
    bottom = top + _panel_height(line, lane) - canvas.ROW * (1 + len(line.marks))
    for tick in canvas.round_ticks(line.axis.first, line.axis.last):
        x = line.axis(tick)
        chart.line([x, x], [start, bottom], THEME.rule, linewidth=1, zorder=0)
        chart.text(x, bottom + 14, f"{brief_number(tick)} s", "center")
    _draw_marks(chart, line, start, bottom)
    labels = list[tuple[float, float, float, str]]()
    for node, bars in line.nodes.items():
        chart.text(canvas.START - 6, y + lane / 2 + 4, shorten(node, 11), "right")
        chart.box((canvas.START, y, canvas.RIGHT - canvas.START, lane), THEME.rule)
        boxes = _stack_jobs(bars, lane, line.sizes[node], [*colors])
        for job, (x, top, width, height) in sorted(boxes):  # so that paths can be joined
            chart.box((x, y + top, width, height), colors[job])
            if height > MIN_LABELLED:
                labels.append((width, x, y + top + height / 2 + 4, job))
        y += lane + GAP
    lines = [line.axis(event.time_s) for event in line.marks]
    for waiting in line.waits:
        _draw_wait_lane(chart, line.axis, waiting, lines, y)
        y += WAIT_HEIGHT + GAP
    for width, x, base, job in sorted(labels, reverse=True)[:MAX_LABELS]:
        ink = "#ffffff" if colors[job] in DARK_COLORS else "#000000"
        _draw_label(chart, (x, x + width), base, shorten(job, 12), ink, lines, [])


def _stack_jobs(
    bars: list[Held], lane: float, size: float, jobs: list[str]
) -> Iterator[tuple[str, Box]]:
    """Yield the boxes of each job in a lane, for a node of `size` accelerators.

    Every second job stands on the bottom, the others hang from the top. So of two jobs, the one
    that stays keeps its place.
    """
    for left, right, held in bars:
        filled = [0.0, 0.0]  # from the bottom, from the top
        for job, amount in held:
            height, side = lane * amount / size, jobs.index(job) % 2
            top = filled[1] if side else lane - filled[0] - height
            filled[side] += height
            yield job, (left, top, right - left, height)


def _draw_label(
    chart: Chart, ends: Ends, y: float, label: str, ink: str, lines: list[float], taken: list[Ends]
) -> None:
    """Write a label in a bar, where no line crosses it and no other bar is; or nothing."""
    edges = [*lines, *(x for pair in taken for x in pair)]
    xs = [ends[0], *sorted(x for x in edges if ends[0] < x < ends[1]), ends[1]]

    in_use = {span for span in pairwise(xs) for a, b in taken if a <= span[0] and span[1] <= b}
    free = (span for span in pairwise(xs) if span not in in_use)
    left, right = max(free, key=lambda span: span[1] - span[0], default=(0, 0))
    if right - left > canvas.text_width(label) + 4:
        chart.text((left + right) / 2, y, label, "center", color=ink)


def _draw_marks(chart: Chart, line: Timeline, start: float, bottom: float) -> None:
    """Draw a numbered line for each mark, and the list of marks below the axis."""
    for i, (event, level) in enumerate(zip(line.marks, line.levels, strict=True), 1):
        x, top = line.axis(event.time_s), start - 4 - MARK_SIZE * level
        color, weight = (THEME.fail, "bold") if event.fault else (THEME.ink, "normal")
        dashes = "-" if event.fault else "--"
        chart.line([x, x], [top - 10, bottom], color, linewidth=1.2, linestyle=dashes)
        chart.text(x + 2, top - 1, f"{i}", color=color, size=10, weight=weight)
        text = f"{i}: {brief_number(event.time_s)} s, {shorten(event.label, 36)}"
        chart.text(canvas.START, bottom + 14 + canvas.ROW * i, text, color=color, weight=weight)


def _wait_lanes(panel: Panel) -> list[WaitLane]:
    """Return one lane per job that waited or held a partial gang, sorted by job name.

    If there are more than MAX_WAIT_LANES, jobs with partial gangs keep their lane first, then
    those with the longest waits. The others share the last lane.
    """
    waits = group_pairs((span.job, span) for span in panel.waits)
    parts = group_pairs((part.job, part) for part in panel.partials)
    waited = {job: sum(span.end - span.start for span in spans) for job, spans in waits.items()}
    jobs = dict.fromkeys([*waits, *parts])
    ranked = sorted(jobs, key=lambda job: (job not in parts, -waited.get(job, 0.0)))
    single = ranked if len(ranked) <= MAX_WAIT_LANES else ranked[: MAX_WAIT_LANES - 1]
    named = sorted(single, key=natural_key)
    result = [(f"{shorten(job, 6)} waits", waits.get(job, []), parts.get(job, [])) for job in named]
    if others := ranked[len(single) :]:
        rest = [span._replace(amount=0) for span in panel.waits if span.job in others]
        halves = [part for part in panel.partials if part.job in others]
        result.append((f"{len(others)} others", rest, halves))
    return result


def _draw_wait_lane(
    chart: Chart, axis: TimeAxis, lane: WaitLane, lines: list[float], top: float
) -> None:
    """Draw a waiting lane: a frame while the job waits, orange while it holds a partial gang."""
    name, spans, partials = lane
    chart.text(canvas.START - 6, top + 12, name, "right")
    waits = axis.to_bars((span.start, span.end, span.amount) for span in spans)
    parts = axis.to_bars((part.start, part.end, part.held_text) for part in partials)
    taken = [(left, right) for left, right, _ in parts]
    for left, right, amount in waits:
        chart.box((left, top, right - left, WAIT_HEIGHT), "none", THEME.soft)
        label = f"waits for {number(amount)}" if amount else ""
        _draw_label(chart, (left, right), top + 12, label, THEME.ink, lines, taken)
    for left, right, label in parts:
        chart.box((left, top, right - left, WAIT_HEIGHT), ORANGE)
        _draw_label(chart, (left, right), top + 12, label, "#000000", lines, [])
