"""Who held which accelerators, when: a lane per node, and below a lane per job that waited."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from reports.charts.figure import Figure
from reports.charts.gang_series import (
    Block,
    Event,
    Half,
    Span,
    brief,
    counted,
    plural,
    read_block,
    read_count,
    read_word,
    rows_of,
    sentence_of,
    shortened,
)
from reports.charts.svg import (
    GREY,
    JOBS,
    ORANGE,
    RED,
    WIDTH,
    Drawing,
    Mark,
    Point,
    Scale,
    ink_on,
    outline,
    room_for,
    snapped,
    wide,
)
from reports.record import number

LEFT, RIGHT = ENDS = 92.0, WIDTH - 18.0  # of the time axis
NODES, WAITERS, MARKS, LEVELS, LABELS = 16, 12, 12, 5, 40  # drawn at most
SIZE = 55_000  # bytes of SVG, about: beyond it neighbours are joined
STEPS = (0.5, 1, 2, 4, 8, 16, 32, 64)  # widths below which they are
LOW, GAP = 16, 4  # height of a waiting lane, and between lanes
FINE = 5  # lower than this, lines between accelerators would hide them
Run = tuple[float, float, str]  # from x to x, and what is said there


@dataclass(frozen=True)
class Sheet:
    """What all lanes of a drawing share."""

    drawing: Drawing
    colors: dict[str, str]
    nodes: dict[str, float]  # those drawn, and how many accelerators each has
    step: float
    tall: float


def gang(series: dict[str, Any]) -> Figure:
    """GPUs held on each node over time; a gang has all it needs or nothing.

    Keys: title, unit, capacity {node: free at the start}, samples [{t, nodes {node: {job: held}},
    waits {job: asked for and not given}}] (only changes), end, taken (samples really taken);
    optional marks [[t, words[, true: a fault]]], half [[from, to, job, held, need]], and control:
    samples, end, marks, half of the same cluster with a deliberate fault.
    """
    units = plural(read_word(series["unit"]))
    capacity = {node: read_count(count) for node, count in series["capacity"].items()}
    blocks = [read_block(series)] + (
        [read_block(series["control"])] if series.get("control") else []
    )
    sizes = _sizes(capacity, blocks)
    nodes = _busiest(sizes, blocks)
    few = f"; {len(nodes)} of {len(sizes)} nodes drawn" if len(nodes) < len(sizes) else ""
    sentence = sentence_of(blocks, read_count(series["taken"]), units, few)
    svg, left_out = _drawn(sentence, blocks, {node: sizes[node] for node in nodes})
    title = f"Who held which {units}, when: {shortened(read_word(series['title']), 80)}"
    header = ["job", "where", "from s", "to s", units]
    return Figure(title, sentence, svg, header, rows_of(blocks, left_out))


def _sizes(capacity: dict[str, float], blocks: list[Block]) -> dict[str, float]:
    """Accelerators of each node: those that were free, or more where more were held."""
    sizes = dict(capacity)
    for block in blocks:
        for node, count in block.full.items():
            sizes[node] = max(count, sizes.get(node, 0))
    if not sizes:
        raise ValueError("there is no node")
    return sizes


def _busiest(sizes: dict[str, float], blocks: list[Block]) -> list[str]:
    """The nodes with the most changes, in their own order."""
    changes = Counter(span.node for block in blocks for span in block.spans)
    busy = set(sorted(sizes, key=lambda node: -changes[node])[:NODES])
    return [node for node in sizes if node in busy]


def _drawn(sentence: str, blocks: list[Block], nodes: dict[str, float]) -> tuple[str, list[Event]]:
    """The picture, coarse enough to stay small, and the marks that found no room in it."""
    jobs = {span.job for block in blocks for span in block.spans}
    colors = {job: JOBS[at % len(JOBS)] for at, job in enumerate(sorted(jobs, key=counted))}
    tall = round(min(34.0, max(18.0, 300 / (len(nodes) * len(blocks)))))
    slots = [_all_slots(block, nodes, tall) for block in blocks]
    for step in STEPS:
        sheet = Sheet(Drawing(sentence), colors, nodes, step, tall)
        bottom, left_out = _legend(sheet, blocks), list[Event]()
        for at, block in enumerate(blocks):
            if at:
                words = "control: the same cluster with a deliberate fault"
                sheet.drawing.text(4, bottom + 26, words, size=12, bold=True)
                bottom += 34
            bottom, unplaced = _draw(sheet, block, slots[at], bottom)
            left_out += unplaced
        sheet.drawing.height = bottom
        svg = sheet.drawing.svg()
        if len(svg) < SIZE:
            break
    return svg, left_out


def _legend(sheet: Sheet, blocks: list[Block]) -> float:
    """The meaning of each colour; returns where the lanes may begin."""
    named: dict[str, list[str]] = {}
    for job, color in sheet.colors.items():
        named.setdefault(color, []).append(job)
    keys = [(_several(jobs), color) for color, jobs in named.items()]
    keys += [("waits", GREY)] if any(block.waits for block in blocks) else []
    keys += [("part of a gang", ORANGE)] if any(block.halves for block in blocks) else []
    keys += [("a fault", RED)] if any(one.fault for block in blocks for one in block.marks) else []
    x, y = 4.0, 4.0
    for words, color in keys:
        if x > 4 and x + 16 + wide(words, 12) > WIDTH:
            x, y = 4.0, y + 18
        if color == GREY:
            sheet.drawing.hatch([(x, x + 12)], y, 12, color)
        else:
            sheet.drawing.box(x, y, 12, 12, color)
        sheet.drawing.text(x + 17, y + 10, words, size=12)
        x += 32 + wide(words, 12)
    return y + 18


def _several(jobs: list[str]) -> str:
    """Jobs that share a colour: at most three of them."""
    return ", ".join(shortened(job, 10) for job in jobs[:3]) + (", ..." if len(jobs) > 3 else "")


def _draw(
    sheet: Sheet, block: Block, slots: dict[str, list[list[Run]]], top: float
) -> tuple[float, list[Event]]:
    """One block below `top`; returns where it ends, and the marks that found no room."""
    scale, waiters = Scale(block.start, block.end, *ENDS), _waiters(block)
    faults, left_out = _placed([one for one in block.marks if one.fault], scale, [])
    marks, more = _placed([one for one in block.marks if not one.fault], scale, faults)
    lines = [mark.x for mark in marks]
    y = first = top + 15 * max((mark.level + 1 for mark in marks), default=0) + 4
    bottom = first + len(slots) * (sheet.tall + GAP) + len(waiters) * (LOW + GAP)
    _axis(sheet, scale, first, bottom)
    labels: list[tuple[float, Run]] = []
    for node, lanes in slots.items():
        labels += _node(sheet, node, lanes, y)
        y += sheet.tall + GAP
    for name, waits, halves in waiters:
        _waiter(sheet, scale, name, (waits, halves), lines, y)
        y += LOW + GAP
    for mark in marks:
        high, loud = first - 4 - 15 * mark.level, mark in faults
        look = (RED, 2.0, "", 1.0) if loud else ("currentColor", 1.0, "3 3", 0.8)
        sheet.drawing.line([(mark.x, high - 11), (mark.x, y)], *look)
        shift = 3 if mark.anchor == "start" else -3
        sheet.drawing.text(mark.x + shift, high - 1, mark.words, mark.anchor, size=12, bold=loud)
    _label(sheet, labels, lines)
    return y + 18, left_out + more


def _placed(events: list[Event], scale: Scale, there: list[Mark]) -> tuple[list[Mark], list[Event]]:
    """Those `there` and the events' marks, as far as there is room; the events without."""
    wanted = [(scale(min(max(one.at, scale.low), scale.high)), one) for one in events]
    marks = room_for(
        [(x, shortened(one.words, 30)) for x, one in wanted], MARKS - len(there), LEVELS, there
    )
    drawn = Counter((mark.x, mark.words) for mark in marks)
    left_out = []
    for x, one in wanted:
        key = x, shortened(one.words, 30)
        drawn[key] -= 1
        if drawn[key] < 0:
            left_out.append(one)
    return marks, left_out


def _axis(sheet: Sheet, scale: Scale, top: float, bottom: float) -> None:
    for tick in scale.ticks(6):
        at = scale(tick)
        sheet.drawing.line([(at, top), (at, bottom)], "currentColor", 1, opacity=0.15)
        sheet.drawing.text(at, bottom + 13, f"{brief(tick)} s", "middle", size=12)


def _label(sheet: Sheet, boxes: list[tuple[float, Run]], lines: list[float]) -> None:
    """The names of the jobs in the widest boxes, where no line of a mark runs through them."""
    widest = sorted(boxes, key=lambda box: box[1][0] - box[1][1])
    for middle, (left, right, job) in widest[:LABELS]:
        start, end = _widest(left, right, [(x - 1, x + 1) for x in lines])
        words = shortened(job, 12)
        if end - start > wide(words, 12) + 2:
            ink = ink_on(sheet.colors[job])
            sheet.drawing.text((start + end) / 2, middle + 4, words, "middle", ink, 12)


def _all_slots(block: Block, nodes: dict[str, float], tall: float) -> dict[str, list[list[Run]]]:
    """For each node its accelerators, from the bottom, and who held each from x to x."""
    spans: dict[str, list[Span]] = {node: [] for node in nodes}
    for span in block.spans:
        if span.node in spans:
            spans[span.node].append(span)
    scale = Scale(block.start, block.end, *ENDS)
    return {
        node: [_runs(slot, scale) for slot in _slots(spans[node], size, int(tall / 2))]
        for node, size in nodes.items()
    }


def _runs(spans: list[Span], scale: Scale) -> list[Run]:
    return snapped(((scale(s.start), scale(s.end), s.job) for s in spans), ENDS, STEPS[0])


def _slots(spans: list[Span], size: float, most: int) -> list[list[Span]]:
    """A holding stays on the accelerators that it is on, and takes the lowest that are free."""
    whole = size.is_integer() and all(span.amount.is_integer() for span in spans)
    slots: list[list[Span]] = [[] for _ in range(int(size) if whole and 0 < size <= most else most)]
    ends = {(span.job, span.end) for span in spans}
    for span in sorted(spans, key=lambda one: (one.start, (one.job, one.start) not in ends)):
        free = [slot for slot in slots if not slot or slot[-1].end <= span.start]
        before = (span.job, span.start)
        free.sort(key=lambda slot: not slot or (slot[-1].job, slot[-1].end) != before)
        for slot in free[: max(1, round(span.amount / size * len(slots)))]:
            slot.append(span)
    return slots


def _node(sheet: Sheet, node: str, slots: list[list[Run]], top: float) -> list[tuple[float, Run]]:
    """The lane of a node; returns its boxes in which words may fit, each with its middle."""
    sheet.drawing.text(LEFT - 6, top + sheet.tall / 2 + 4, shortened(node, 12), "end", size=12)
    sheet.drawing.box(LEFT, top, RIGHT - LEFT, sheet.tall, "currentColor", 0.07)
    high, labels = sheet.tall / len(slots), []
    if len(slots) == sheet.nodes[node] and high >= FINE:
        for at in range(1, len(slots)):
            y = round(top + at * high, 1)
            sheet.drawing.line([(LEFT, y), (RIGHT, y)], "currentColor", 0.5, opacity=0.4)
    moves: dict[str, str] = {}
    for (left, right, job), (low, count) in _boxes(slots, sheet.step):
        y = round(top + sheet.tall - (low + count) * high, 1)
        tall, color = round(count * high, 1), sheet.colors[job]
        moves[color] = moves.get(color, "") + outline(left, y, right - left, tall)
        if right - left > 10 and tall >= 11:
            labels.append((y + tall / 2, (left, right, job)))
    for color, path in moves.items():
        sheet.drawing.path(path, color)
    return labels


def _boxes(slots: list[list[Run]], step: float) -> list[tuple[Run, tuple[int, int]]]:
    """(from x, to x, job) and (lowest slot, slots): equal ones above each other are one."""
    found: list[tuple[Run, tuple[int, int]]] = []
    below: dict[Run, tuple[int, int]] = {}
    for at, slot in enumerate(slots):
        here = {run: below.pop(run, (at, 0)) for run in snapped(slot, ENDS, step)}
        found += below.items()
        below = {run: (low, count + 1) for run, (low, count) in here.items()}
    return found + list(below.items())


def _waiters(block: Block) -> list[tuple[str, list[Span], list[Half]]]:
    """Lanes of jobs that waited or held a part; those with parts first, then the longest wait."""
    lanes: dict[str, tuple[list[Span], list[Half]]] = {}
    for span in block.waits:
        lanes.setdefault(span.job, ([], []))[0].append(span)
    for half in block.halves:
        lanes.setdefault(half.job, ([], []))[1].append(half)
    ranked = sorted(lanes, key=lambda job: (not lanes[job][1], -_length(lanes[job][0])))
    own = ranked if len(ranked) <= WAITERS else ranked[: WAITERS - 1]
    found = [(f"{shortened(job, 7)} waits", *lanes[job]) for job in sorted(own, key=counted)]
    if rest := set(ranked) - set(own):
        waits = [span._replace(amount=0) for span in block.waits if span.job in rest]
        halves = [half for half in block.halves if half.job in rest]
        found.append((f"{len(rest)} others", waits, halves))
    return found


def _length(spans: list[Span]) -> float:
    return sum(span.end - span.start for span in spans)


def _waiter(
    sheet: Sheet,
    scale: Scale,
    name: str,
    story: tuple[list[Span], list[Half]],
    lines: list[float],
    top: float,
) -> None:
    """A waiting lane: hatched while it waits, orange over it while a part of a gang is held."""
    drawing, step = sheet.drawing, sheet.step
    drawing.text(LEFT - 6, top + 12, name, "end", size=12)
    waited = ((scale(one.start), scale(one.end), _told(one, scale)) for one in story[0])
    held = ((scale(one.start), scale(one.end), one.words) for one in story[1])
    waits, parts = snapped(waited, ENDS, step), snapped(held, ENDS, step, least=2)
    told = _part_words(parts, waits, lines)
    clear = [(left, right) for left, right, _ in parts + told]
    told += _wait_words(waits, clear, [(x - 2, x + 2) for x in lines])
    clear += [(left, right) for left, right, _ in told]
    drawing.hatch([(left, right) for left, right, _ in waits], top, LOW, GREY, clear)
    for left, right, _ in parts:
        drawing.box(left, top, right - left, LOW, ORANGE)
    for left, right, words in told:
        inside = any(start < right and left < end for start, end, _ in parts)
        ink = ink_on(ORANGE) if inside else "currentColor"
        drawing.text((left + right) / 2, top + 12, words, "middle", ink, 12)


def _told(span: Span, scale: Scale) -> str:
    """`waits for 3` if there is room for it; without words, equal neighbours are joined."""
    words = f"waits for {number(span.amount)}" if span.amount else ""
    return words if scale(span.end) - scale(span.start) > wide(words, 12) + 10 else ""


def _wait_words(waits: list[Run], clear: list[Point], lines: list[Point]) -> list[Run]:
    """Where a wait has room for its words: rather beside the lines of marks than across them."""
    told = []
    for left, right, words in (one for one in waits if one[2]):
        size = wide(words, 12)
        for taken in (clear + lines, clear):
            start, end = _widest(left, right, taken)
            middle = (start + end) / 2
            if end - start > size:
                told.append((middle - size / 2, middle + size / 2, words))
                break
    return told


def _part_words(parts: list[Run], waits: list[Run], lines: list[float]) -> list[Run]:
    """`1 of 3` in each part that is wide enough; when none is, beside the widest."""
    told = []
    for left, right, words in parts:
        size = wide(words, 12)
        for taken in ([(x - 1, x + 1) for x in lines], []):
            start, end = _widest(left, right, taken)
            if end - start > size + 2:
                told.append(((start + end - size) / 2, (start + end + size) / 2, words))
                break
    if told or not parts:
        return told
    left, right, words = max(parts, key=lambda one: one[1] - one[0])
    size = wide(words, 12) + 2
    frames = [x for start, end, _ in waits if start <= right and left <= end for x in (start, end)]
    places = [right + 2, left - size - 2, *(x + 2 for x in frames), *(x - size - 2 for x in frames)]
    lines = [*lines, *(x for one in [*waits, *parts] for x in one[:2])]
    room = [x for x in places if x >= LEFT and x + size <= WIDTH]
    free = [x for x in room if not any(x < line < x + size for line in lines)]
    return [(x, x + size, words) for x in (free or room)[:1]]


def _widest(left: float, right: float, clear: list[Point]) -> Point:
    """The widest stretch of a wait that nothing else takes."""
    best, at = (left, left), left
    for start, end in [*sorted(clear), (right, right)]:
        best = max(best, (at, min(start, right)), key=lambda one: one[1] - one[0])
        at = max(at, end)
    return best
