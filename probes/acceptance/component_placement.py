"""Which accelerators the parts of an RL trainer run on: as written down, and as they ran.

Reads RLinf's `cluster.component_placement`: ranges are inclusive, components of one key are
collocated (`actor,rollout: all`), keys are disjoint (`actor: 0-19`, `rollout: 20-31`), and all
accelerators are used.  Refuses what RLinf's parser refuses, and of what that reads also overlapping
keys, idle accelerators, process ranks (`0-3:0-7`), node groups and empty parts.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence

from probes.findings import listed
from reports.sanitize import one_line

LONGEST = 40  # characters of somebody's value in a sentence
LONGEST_ID = 64  # characters: Ray's node ids have 56, UUIDs of GPUs have 40
# A number or a range.  More digits are no accelerator's number, and int() refuses very many.
PART = re.compile(r"0*([0-9]{1,9})(?:\s*-\s*0*([0-9]{1,9}))?")
Parts = Mapping[str, Sequence[int]]  # component -> its accelerators in rank order
Place = tuple[str, str]  # node id, accelerator id on that node
Seen = Mapping[str, Sequence[Place]]  # component -> place of each rank
SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxlong = SHORT.maxother = LONGEST


class SpecError(ValueError):
    """One sentence: which component, what was expected, what was found and what to do."""


def parse(spec: Mapping[str, str | int], total: int) -> dict[str, tuple[int, ...]]:
    """component -> its accelerators in rank order, which is ascending, of 0..total-1.

    Keys are names with commas between them, values are numbers and ranges with commas between
    them, or `all`.  Raises SpecError for the first thing that is wrong, whatever spec holds.
    """
    if not isinstance(spec, Mapping) or not spec or total < 1:
        found = f"{_cut(spec)} for {total} accelerators"
        raise _wrong("", "a component and an accelerator", found, "write actor,rollout: all")
    parts: dict[str, tuple[int, ...]] = {}
    owners: dict[int, str] = {}
    for key, value in spec.items():
        numbers = _numbers(key, value, total)
        for name in _names(key):
            if name in parts:
                found = f"{_cut(name)} again"
                raise _wrong(key, "each component once", found, "name it in one key only")
            parts[name] = numbers
        other = next((owners[number] for number in numbers if number in owners), "")
        shared = [number for number in numbers if owners.get(number) == other]
        if shared:
            found = f"{_told(shared)} of {_cut(other)}"
            do = "move one of them, or collocate both in one key"
            raise _wrong(key, "accelerators that no other key uses", found, do)
        owners.update(dict.fromkeys(numbers, key))
    unused = set(range(total)) - owners.keys()
    if unused:
        found, do = f"nobody on {_told(unused)}", "give them to one of the components"
        raise _wrong(", ".join(parts), f"all of 0-{total - 1} in use", found, do)
    return parts


def collocated(parts: Parts) -> list[tuple[str, ...]]:
    """The components that share their accelerators: two or more names in each tuple."""
    sharing: dict[tuple[int, ...], list[str]] = {}
    for name, numbers in parts.items():
        sharing.setdefault(tuple(numbers), []).append(name)
    return [tuple(names) for names in sharing.values() if len(names) > 1]


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 8`: the short way to write accelerators, each once, ascending; "" for none."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def parallel(total: int, tp: int, pp: int, dp: int) -> None:
    """Raises SpecError unless tensor x pipeline x data parallel sizes make `total` ranks."""
    if min(tp, pp, dp) < 1 or tp * pp * dp != total:
        found = f"tp {_cut(tp)} x pp {_cut(pp)} x dp {_cut(dp)} = {_cut(tp * pp * dp)}"
        expected = f"parallel sizes from 1 whose product is {total}"
        raise _wrong("", expected, found, "change a size, or the number of accelerators")


def split_groups(
    accelerators: Sequence[int], nodes: Sequence[str], tp: int
) -> list[tuple[int, ...]]:
    """The tensor-parallel groups, `tp` consecutive ranks each, that are not inside one node.

    `accelerators` are one component's in rank order, `nodes[i]` is the node of accelerator i
    (IndexError without one).  Raises SpecError when the ranks make no whole groups.
    """
    if tp < 1 or len(accelerators) % tp:
        expected = f"a tp that divides the {len(accelerators)} ranks on {_told(accelerators)}"
        raise _wrong("", expected, f"tp {tp}", "change tp or the placement")
    starts = range(0, len(accelerators), tp)
    groups = [tuple(accelerators[start : start + tp]) for start in starts]
    return [group for group in groups if len({nodes[number] for number in group}) > 1]


def layout_faults(parts: Parts, seen: Seen) -> list[str]:
    """One sentence for each fault of what ran; an empty list when it is what was asked for.

    `seen[component][rank]` is the (node id, accelerator id) that the rank reported.
    """
    faults = [_miscount(name, parts, seen) for name in dict.fromkeys([*parts, *seen])]
    leaders = {name: names[0] for names in collocated(parts) for name in names}
    holders: dict[Place, tuple[str, int]] = {}
    for name, places in seen.items():
        lead, own = leaders.get(name, name), dict[Place, int]()
        for rank, place in enumerate(places):
            first, said = own.setdefault(place, rank), f"{_at(name, rank, place)}, expected"
            if first != rank:
                faults.append(f"{said} another than rank {first} is on")
            other, its = holders.setdefault(place, (name, rank))
            if leaders.get(other, other) != lead:
                faults.append(f"{said} one without {_cut(other)}, whose rank {its} is on it")
            there = seen.get(lead, ())[rank : rank + 1]
            if there and there[0] != place:
                faults.append(f"{said} {_place(there[0])}, where {_cut(lead)} rank {rank} is")
    return [fault for fault in faults if fault]


def _names(key: str) -> list[str]:
    names = [name.strip() for name in key.split(",")] if isinstance(key, str) else [""]
    if not all(names):
        raise _wrong(key, "names with commas between them", _cut(key), "name every component")
    return names


def _numbers(key: str, value: str | int, total: int) -> tuple[int, ...]:
    """The accelerators of one key, each once, ascending, within 0..total-1."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        found = f"{_cut(value)} ({type(value).__name__})"
        raise _wrong(key, "text such as 0-3, or one number", found, "write it as text")
    numbers: list[int] = []
    for part in (value if isinstance(value, str) else _cut(value)).split(","):
        more = _part(key, part.strip(), total)
        again = set(more).intersection(numbers)
        if again:
            found, do = f"{_told(again)} again in {_cut(part)}", "take it out of one part"
            raise _wrong(key, "each accelerator once", found, do)
        if numbers and more[0] < numbers[-1]:
            found, do = f"{_cut(part)} after {numbers[-1]}", "write the lowest part first"
            raise _wrong(key, "parts in ascending order", found, do)
        numbers.extend(more)
    return tuple(numbers)


def _part(key: str, part: str, total: int) -> range:
    """`3`, `0-3` or `all`; nothing is counted out before both ends are known to be in range."""
    if part.lower() == "all":
        return range(total)
    match = PART.fullmatch(part)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (total, total)
    if max(low, high) >= total:
        expected, do = f"numbers or ranges within 0-{total - 1}", "write 0, 0-3 (with 3) or all"
        raise _wrong(key, expected, _cut(part), do)
    if high < low:
        raise _wrong(key, "a range from low to high", _cut(part), f"write {high}-{low}")
    return range(low, high + 1)


def _miscount(name: str, parts: Parts, seen: Seen) -> str:
    """A sentence for a component with more or fewer ranks than asked for, else nothing."""
    asked, places = parts.get(name, ()), seen.get(name, ())
    if len(places) > len(asked):
        first = _at(name, len(asked), places[len(asked)])
        return f"{first}, expected {len(asked)} ranks, found {len(places)}"
    if len(places) < len(asked):
        lost = _told(range(len(places), len(asked)))
        told = f"rank {lost}, of accelerator {_told(asked[len(places) :])}, reported no node"
        return f"{_cut(name)} {told}, expected {len(asked)} ranks, found {len(places)}"
    return ""


def _at(name: str, rank: int, place: Place) -> str:
    return f"{_cut(name)} rank {rank} is on {_place(place)}"


def _place(place: Place) -> str:
    node, accelerator = (one_line(word)[:LONGEST_ID] for word in place)
    return f"accelerator {accelerator} of node {node}"


def _wrong(key: object, expected: str, found: str, do: str) -> SpecError:
    where = f"component placement {_cut(key)}" if key else "component placement"
    return SpecError(f"{where}: expected {expected}, found {found}: {do}")


def _told(numbers: Iterable[int]) -> str:
    return listed(ranges(numbers).split(", "))


def _cut(value: object) -> str:
    """repr() of somebody's value, in at most LONGEST characters."""
    try:
        text = SHORT.repr(value)
    except ValueError:  # an int with more digits than Python is willing to write
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
