"""Draws which job held which accelerators when: a lane per node, then a lane per waiting job."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from reports.charts.figure import Figure
from reports.charts.gang_series import (
    Event,
    JobSpan,
    Panel,
    PartialAllocation,
    brief_s,
    gang_sentence,
    natural_key,
    plural,
    read_count,
    read_panel,
    read_text,
    shorten,
    table_rows,
)
from reports.charts.svg import (
    GREY,
    JOB_COLORS,
    ORANGE,
    RED,
    WIDTH,
    Drawing,
    Marker,
    Point,
    Scale,
    ink_on,
    place_marks,
    rect_path,
    text_width,
    to_grid,
)
from reports.numbers import number

LEFT, RIGHT = AXIS = 92.0, WIDTH - 18.0  # ends of the time axis
MAX_NODES, MAX_WAIT_LANES, MAX_MARKS, LEVELS, MAX_LABELS = 16, 12, 12, 5, 40  # drawn at most
MAX_SVG_BYTES = 55_000  # approximate limit of the SVG; above it, the next grid step is tried
GRID_STEPS = (0.5, 1, 2, 4, 8, 16, 32, 64)  # units of WIDTH; coarser steps join neighbours
WAIT_HEIGHT, GAP = 16, 4  # height of a waiting lane; space between lanes
MIN_SLOT_HEIGHT = 5  # units of WIDTH; in thinner slots, separator lines would hide the colours
Bar = tuple[float, float, str]  # left x, right x, job or label
WaitLane = tuple[str, list[JobSpan], list[PartialAllocation]]  # name, waits, partial gangs


@dataclass(frozen=True)
class Sheet:
    """Settings shared by all lanes of a drawing. Lengths are in units of WIDTH."""

    drawing: Drawing
    colors: dict[str, str]
    nodes: dict[str, float]  # drawn nodes: number of accelerators
    step: float
    lane_height: float


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
    nodes = _busiest_nodes(sizes, panels)
    note = f"; {len(nodes)} of {len(sizes)} nodes drawn" if len(nodes) < len(sizes) else ""
    sentence = gang_sentence(panels, read_count(series["taken"]), units, note)
    svg, left_out = _to_svg(sentence, panels, {node: sizes[node] for node in nodes})
    title = f"{units} of each job over time: {shorten(read_text(series['title']), 80)}"
    header = ["job", "where", "from s", "to s", units]
    return Figure(title, sentence, svg, header, table_rows(panels, left_out))


def _node_sizes(capacity: dict[str, float], panels: list[Panel]) -> dict[str, float]:
    """Return the accelerators of each node: free at the start, or held at once if that is more.

    Raises ValueError if there is no node.
    """
    sizes = dict(capacity)
    for panel in panels:
        for node, count in panel.max_by_node.items():
            sizes[node] = max(count, sizes.get(node, 0))
    if not sizes:
        raise ValueError("there is no node")
    return sizes


def _busiest_nodes(sizes: dict[str, float], panels: list[Panel]) -> list[str]:
    """Select the MAX_NODES nodes with the most changes; keep the order of `sizes`."""
    changes = Counter(span.node for panel in panels for span in panel.spans)
    busy = set(sorted(sizes, key=lambda node: -changes[node])[:MAX_NODES])
    return [node for node in sizes if node in busy]


def _to_svg(sentence: str, panels: list[Panel], nodes: dict[str, float]) -> tuple[str, list[Event]]:
    """Draw the SVG; return it and the marks that did not fit.

    The first of GRID_STEPS that keeps the SVG below MAX_SVG_BYTES is used, else the last.
    """
    jobs = {span.job for panel in panels for span in panel.spans}
    colors = dict(zip(sorted(jobs, key=natural_key), cycle(JOB_COLORS), strict=False))
    height = round(min(34.0, max(18.0, 300 / (len(nodes) * len(panels)))))
    slots = [_node_slots(panel, nodes, height) for panel in panels]
    for step in GRID_STEPS:
        sheet = Sheet(Drawing(sentence), colors, nodes, step, height)
        bottom, left_out = _draw_legend(sheet, panels), list[Event]()
        for i, panel in enumerate(panels):
            if i:
                heading = "control: the same cluster with a deliberate fault"
                sheet.drawing.text(4, bottom + 26, heading, bold=True)
                bottom += 34
            bottom, unplaced = _draw_panel(sheet, panel, slots[i], bottom)
            left_out += unplaced
        sheet.drawing.height = bottom
        svg = sheet.drawing.svg()
        if len(svg) < MAX_SVG_BYTES:
            break
    return svg, left_out


def _draw_legend(sheet: Sheet, panels: list[Panel]) -> float:
    """Draw the meaning of each colour; return the y at which the panels start."""
    by_color = defaultdict[str, list[str]](list)
    for job, color in sheet.colors.items():
        by_color[color].append(job)
    keys = [(_job_names(jobs), color) for color, jobs in by_color.items()]
    keys += [("waits", GREY)] if any(panel.waits for panel in panels) else []
    keys += [("part of a gang", ORANGE)] if any(panel.partials for panel in panels) else []
    keys += [("a fault", RED)] if any(m.fault for panel in panels for m in panel.marks) else []
    x, y = 4.0, 4.0
    for label, color in keys:
        if x > 4 and x + 16 + text_width(label) > WIDTH:
            x, y = 4.0, y + 18
        if color == GREY:
            sheet.drawing.hatch([(x, x + 12)], y, 12)
        else:
            sheet.drawing.box(x, y, 12, 12, color)
        sheet.drawing.text(x + 17, y + 10, label)
        x += 32 + text_width(label)
    return y + 18


def _job_names(jobs: list[str]) -> str:
    """List the jobs that share a colour, at most three by name."""
    return ", ".join(shorten(job, 10) for job in jobs[:3]) + (", ..." if len(jobs) > 3 else "")


def _draw_panel(
    sheet: Sheet, panel: Panel, slots: dict[str, list[list[Bar]]], top: float
) -> tuple[float, list[Event]]:
    """Draw one panel below `top`; return the y of its end, and the marks that did not fit."""
    scale, waiters = Scale(panel.start, panel.end, *AXIS), _wait_lanes(panel)
    faults, left_out = _place_events([event for event in panel.marks if event.fault], scale, [])
    marks, more = _place_events([event for event in panel.marks if not event.fault], scale, faults)
    lines = [mark.x for mark in marks]
    y = top_y = top + 15 * max((mark.level + 1 for mark in marks), default=0) + 4
    bottom = top_y + len(slots) * (sheet.lane_height + GAP) + len(waiters) * (WAIT_HEIGHT + GAP)
    _draw_axis(sheet, scale, top_y, bottom)
    labels: list[tuple[float, Bar]] = []
    for node, lanes in slots.items():
        labels += _draw_node(sheet, node, lanes, y)
        y += sheet.lane_height + GAP
    for lane in waiters:
        _draw_wait_lane(sheet, scale, lane, lines, y)
        y += WAIT_HEIGHT + GAP
    for mark in marks:
        base, bold = top_y - 4 - 15 * mark.level, mark in faults
        style = (RED, 2.0, "", 1.0) if bold else ("currentColor", 1.0, "3 3", 0.8)
        sheet.drawing.line([(mark.x, base - 11), (mark.x, y)], *style)
        shift = 3 if mark.anchor == "start" else -3
        sheet.drawing.text(mark.x + shift, base - 1, mark.label, mark.anchor, bold=bold)
    _draw_labels(sheet, labels, lines)
    return y + 18, left_out + more


def _place_events(
    events: list[Event], scale: Scale, fixed: list[Marker]
) -> tuple[list[Marker], list[Event]]:
    """Place marks for the events that fit; return all marks (`fixed` first) and the events left."""
    times = [min(max(event.time_s, scale.low), scale.high) for event in events]
    spots = [(scale(t), shorten(event.label, 30)) for t, event in zip(times, events, strict=True)]
    marks = place_marks(spots, MAX_MARKS - len(fixed), LEVELS, fixed)
    placed = Counter((mark.x, mark.label) for mark in marks)
    left_out = []
    for spot, event in zip(spots, events, strict=True):
        placed[spot] -= 1
        if placed[spot] < 0:
            left_out.append(event)
    return marks, left_out


def _draw_axis(sheet: Sheet, scale: Scale, top: float, bottom: float) -> None:
    for tick in scale.ticks(6):
        x = scale(tick)
        sheet.drawing.line([(x, top), (x, bottom)], "currentColor", 1, opacity=0.15)
        sheet.drawing.text(x, bottom + 13, f"{brief_s(tick)} s", "middle")


def _draw_labels(sheet: Sheet, boxes: list[tuple[float, Bar]], lines: list[float]) -> None:
    """Write job names in the widest boxes, at most MAX_LABELS, where no mark line crosses them."""
    widest = sorted(boxes, key=lambda box: box[1][0] - box[1][1])
    for middle, (left, right, job) in widest[:MAX_LABELS]:
        start, end = _widest_free_span(left, right, [(x - 1, x + 1) for x in lines])
        label = shorten(job, 12)
        if end - start > text_width(label) + 2:
            ink = ink_on(sheet.colors[job])
            sheet.drawing.text((start + end) / 2, middle + 4, label, "middle", ink)


def _node_slots(panel: Panel, nodes: dict[str, float], tall: float) -> dict[str, list[list[Bar]]]:
    """Return {node: [bars of each accelerator, lowest first]}; a bar is (left x, right x, job)."""
    spans: dict[str, list[JobSpan]] = {node: [] for node in nodes}
    for span in panel.spans:
        if span.node in spans:
            spans[span.node].append(span)
    scale = Scale(panel.start, panel.end, *AXIS)
    return {
        node: [
            to_grid(((scale(s.start), scale(s.end), s.job) for s in slot), AXIS, GRID_STEPS[0])
            for slot in _assign_slots(spans[node], size, int(tall / 2))
        ]
        for node, size in nodes.items()
    }


def _assign_slots(spans: list[JobSpan], size: float, cap: int) -> list[list[JobSpan]]:
    """Assign spans to accelerator slots: first slots the job already holds, then the lowest free.

    A node has `size` slots, or `cap` slots if `size` is larger, zero, or amounts are not integers.
    """
    ints = size.is_integer() and all(span.amount.is_integer() for span in spans)
    slots: list[list[JobSpan]] = [[] for _ in range(int(size) if ints and 0 < size <= cap else cap)]
    ends = {(span.job, span.end) for span in spans}
    for span in sorted(spans, key=lambda item: (item.start, (item.job, item.start) not in ends)):
        free = [slot for slot in slots if not slot or slot[-1].end <= span.start]
        previous = (span.job, span.start)
        free.sort(key=lambda slot: not slot or (slot[-1].job, slot[-1].end) != previous)
        for slot in free[: max(1, round(span.amount / size * len(slots)))]:
            slot.append(span)
    return slots


def _draw_node(
    sheet: Sheet, node: str, slots: list[list[Bar]], top: float
) -> list[tuple[float, Bar]]:
    """Draw the lane of a node; return (middle y, bar) of the boxes large enough for a label."""
    sheet.drawing.text(LEFT - 6, top + sheet.lane_height / 2 + 4, shorten(node, 12), "end")
    sheet.drawing.box(LEFT, top, RIGHT - LEFT, sheet.lane_height, "currentColor", 0.07)
    slot_height, labels = sheet.lane_height / len(slots), []
    if len(slots) == sheet.nodes[node] and slot_height >= MIN_SLOT_HEIGHT:
        for i in range(1, len(slots)):
            y = round(top + i * slot_height, 1)
            sheet.drawing.line([(LEFT, y), (RIGHT, y)], "currentColor", 0.5, opacity=0.4)
    moves = defaultdict[str, str](str)
    for (left, right, job), (low, count) in _merge_slots(slots, sheet.step):
        y = round(top + sheet.lane_height - (low + count) * slot_height, 1)
        height, color = round(count * slot_height, 1), sheet.colors[job]
        moves[color] += rect_path(left, y, right - left, height)
        if right - left > 10 and height >= 11:
            labels.append((y + height / 2, (left, right, job)))
    for color, path in moves.items():
        sheet.drawing.path(path, color)
    return labels


def _merge_slots(slots: list[list[Bar]], step: float) -> list[tuple[Bar, tuple[int, int]]]:
    """Merge equal bars of adjacent slots; return (bar, (lowest slot, number of slots)) pairs."""
    boxes: list[tuple[Bar, tuple[int, int]]] = []
    below: dict[Bar, tuple[int, int]] = {}
    for i, slot in enumerate(slots):
        current = {run: below.pop(run, (i, 0)) for run in to_grid(slot, AXIS, step)}
        boxes += below.items()
        below = {run: (low, count + 1) for run, (low, count) in current.items()}
    return boxes + list(below.items())


def _wait_lanes(panel: Panel) -> list[WaitLane]:
    """Return one lane per job that waited or held a partial gang, sorted by job name.

    If there are more than MAX_WAIT_LANES, jobs with partial gangs keep their lane first, then
    those with the longest waits. The others share the last lane.
    """
    lanes: dict[str, tuple[list[JobSpan], list[PartialAllocation]]] = {}
    for span in panel.waits:
        lanes.setdefault(span.job, ([], []))[0].append(span)
    for half in panel.partials:
        lanes.setdefault(half.job, ([], []))[1].append(half)
    ranked = sorted(lanes, key=lambda job: (not lanes[job][1], -_total_seconds(lanes[job][0])))
    single = ranked if len(ranked) <= MAX_WAIT_LANES else ranked[: MAX_WAIT_LANES - 1]
    result = [(f"{shorten(job, 7)} waits", *lanes[job]) for job in sorted(single, key=natural_key)]
    if merged := set(ranked) - set(single):
        waits = [span._replace(amount=0) for span in panel.waits if span.job in merged]
        halves = [half for half in panel.partials if half.job in merged]
        result.append((f"{len(merged)} others", waits, halves))
    return result


def _total_seconds(spans: list[JobSpan]) -> float:
    return sum(span.end - span.start for span in spans)


def _draw_wait_lane(
    sheet: Sheet, scale: Scale, lane: WaitLane, lines: list[float], top: float
) -> None:
    """Draw a waiting lane: hatched while the job waits, orange while it holds a partial gang."""
    (name, spans, partials), drawing, step = lane, sheet.drawing, sheet.step
    drawing.text(LEFT - 6, top + 12, name, "end")
    waited = ((scale(item.start), scale(item.end), _wait_label(item, scale)) for item in spans)
    held = ((scale(item.start), scale(item.end), item.held_text) for item in partials)
    waits, parts = to_grid(waited, AXIS, step), to_grid(held, AXIS, step, min_width=2)
    labels = _place_part_labels(parts, waits, lines)
    clear = [(left, right) for left, right, _ in parts + labels]
    # Labels between the mark lines are preferred to labels across them.
    marked = clear + [(x - 2, x + 2) for x in lines]
    labels += [spot for wait in waits if wait[2] for spot in _fit_label(wait, [marked, clear], 0)]
    clear += [(left, right) for left, right, _ in labels]
    drawing.hatch([(left, right) for left, right, _ in waits], top, WAIT_HEIGHT, clear)
    for left, right, _ in parts:
        drawing.box(left, top, right - left, WAIT_HEIGHT, ORANGE)
    for left, right, label in labels:
        inside = any(start < right and left < end for start, end, _ in parts)
        ink = ink_on(ORANGE) if inside else "currentColor"
        drawing.text((left + right) / 2, top + 12, label, "middle", ink)


def _wait_label(span: JobSpan, scale: Scale) -> str:
    """Return `waits for 3`, or an empty label if it does not fit: then equal neighbours join."""
    label = f"waits for {number(span.amount)}" if span.amount else ""
    return label if scale(span.end) - scale(span.start) > text_width(label) + 10 else ""


def _fit_label(bar: Bar, blocked: list[list[Point]], margin: float) -> list[Bar]:
    """Place the label of a bar in the widest gap that `blocked` leaves; return no bar if none fits.

    `blocked` lists alternatives, tried in order: each is a list of (left x, right x) to avoid.
    """
    left, right, label = bar
    size = text_width(label)
    for taken in blocked:
        start, end = _widest_free_span(left, right, taken)
        if end - start > size + margin:
            return [((start + end - size) / 2, (start + end + size) / 2, label)]
    return []


def _place_part_labels(parts: list[Bar], waits: list[Bar], lines: list[float]) -> list[Bar]:
    """Place `1 of 3` in each part that is wide enough; if none is, next to the widest part."""
    marked = [(x - 1, x + 1) for x in lines]
    labels = [spot for part in parts for spot in _fit_label(part, [marked, []], 2)]
    if labels or not parts:
        return labels
    left, right, label = max(parts, key=lambda item: item[1] - item[0])
    size = text_width(label) + 2
    frames = [x for start, end, _ in waits if start <= right and left <= end for x in (start, end)]
    places = [right + 2, left - size - 2, *(x + 2 for x in frames), *(x - size - 2 for x in frames)]
    lines = [*lines, *(x for item in [*waits, *parts] for x in item[:2])]
    room = [x for x in places if x >= LEFT and x + size <= WIDTH]
    free = [x for x in room if not any(x < line < x + size for line in lines)]
    return [(x, x + size, label) for x in (free or room)[:1]]


def _widest_free_span(left: float, right: float, taken: list[Point]) -> Point:
    """Return the widest interval (left x, right x) that `taken` leaves between left and right."""
    best, x = (left, left), left
    for start, end in [*sorted(taken), (right, right)]:
        best = max(best, (x, min(start, right)), key=lambda gap: gap[1] - gap[0])
        x = max(x, end)
    return best
