"""Reads which GPUs each component of a job has, and checks that nodes have room for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from probes.findings import join_names
from probes.toml_tables import show
from reports.groups import group_pairs
from reports.sanitize import one_line

MAX_ID_CHARS = 64  # characters: Ray's node ids have 56, UUIDs of GPUs have 40
# A number or a range.  No accelerator's number is longer, and int() refuses very long ones.
RANGE_PATTERN = re.compile(r"0*([0-9]{1,9})(?:\s*-\s*0*([0-9]{1,9}))?")
Placement = Mapping[str, Sequence[int]]  # component -> its accelerators in rank order
Slot = tuple[str, str]  # node id, accelerator id on that node
ObservedPlacement = Mapping[str, Sequence[Slot]]  # component -> place of each rank


class SpecError(ValueError):
    """Error in a placement.  One sentence: component, what was expected and found, the remedy."""


def parse(spec: Mapping[str, str | int], total: int) -> dict[str, tuple[int, ...]]:
    """Parse component -> its accelerators in rank order, which is ascending, of 0..total-1.

    Keys are names separated by commas.  Values are numbers and ranges separated by commas, or
    `all`.  Raises SpecError for the first error in any `spec`.
    """
    if not isinstance(spec, Mapping) or not spec or total < 1:
        actual = f"{show(spec)} for {total} accelerators"
        raise _spec_error("", "a component and an accelerator", actual, 'write "actor" = "all"')
    placement: dict[str, tuple[int, ...]] = {}
    owners: dict[int, str] = {}
    for key, value in spec.items():
        numbers = _parse_accelerators(key, value, total)
        for name in _component_names(key):
            if name in placement:
                actual = f"{show(name)} again"
                raise _spec_error(key, "each component once", actual, "name it in one key only")
            placement[name] = numbers
        owner = next((owners[number] for number in numbers if number in owners), "")
        shared = [number for number in numbers if owners.get(number) == owner]
        if shared:
            actual = f"{_as_text(shared)} of {show(owner)}"
            fix = "move one component, or put both names in one key"
            raise _spec_error(key, "accelerators that no other key uses", actual, fix)
        owners.update(dict.fromkeys(numbers, key))
    unused = set(range(total)) - owners.keys()
    if unused:
        actual, fix = f"no component on {_as_text(unused)}", "add them to one of the components"
        raise _spec_error(", ".join(placement), f"all of 0-{total - 1} in use", actual, fix)
    return placement


def collocated_groups(placement: Placement) -> list[tuple[str, ...]]:
    """Group the components that share their accelerators: two or more names in each tuple."""
    alike = group_pairs((tuple(numbers), name) for name, numbers in placement.items())
    return [tuple(names) for names in alike.values() if len(names) > 1]


def as_ranges(numbers: Iterable[int]) -> str:
    """Format accelerators as `0-3, 8`: each once, ascending; "" for none."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def check_parallel_sizes(total: int, tp: int, pp: int, dp: int) -> None:
    """Raise SpecError unless tensor x pipeline x data parallel sizes make `total` ranks."""
    if min(tp, pp, dp) < 1 or tp * pp * dp != total:
        actual = f"tp {show(tp)} x pp {show(pp)} x dp {show(dp)} = {show(tp * pp * dp)}"
        expected = f"sizes of at least 1 whose product is {total}"
        fix = "change a size, or the number of accelerators"
        raise SpecError(f"parallel: expected {expected}, found {actual}: {fix}")


def split_groups(
    accelerators: Sequence[int], nodes: Sequence[str], tp: int
) -> list[tuple[int, ...]]:
    """Return the tensor-parallel groups, `tp` consecutive ranks each, that span several nodes.

    `accelerators` are one component's in rank order, `nodes[i]` is the node of accelerator i.
    Raises IndexError where that is missing, and SpecError when the ranks make no complete groups.
    """
    if tp < 1 or len(accelerators) % tp:
        expected = f"a tp that divides the {len(accelerators)} ranks on {_as_text(accelerators)}"
        raise SpecError(f"parallel: expected {expected}, found tp {tp}: change tp or the placement")
    groups = [tuple(accelerators[start : start + tp]) for start in range(0, len(accelerators), tp)]
    return [group for group in groups if len({nodes[number] for number in group}) > 1]


def layout_errors(expected: Placement, actual: ObservedPlacement) -> list[str]:
    """Return one sentence for each fault of the observed placement; [] when it is as expected.

    `actual[component][rank]` is the (node id, accelerator id) that the rank reported.
    """
    errors = [_count_error(name, expected, actual) for name in dict.fromkeys([*expected, *actual])]
    leaders = {name: names[0] for names in collocated_groups(expected) for name in names}
    holders: dict[Slot, tuple[str, int]] = {}
    for name, slots in actual.items():
        lead, ranks = leaders.get(name, name), dict[Slot, int]()
        for rank, slot in enumerate(slots):
            first, text = ranks.setdefault(slot, rank), f"{_rank_text(name, rank, slot)}, expected"
            if first != rank:
                errors.append(f"{text} a different one: rank {first} is on it")
            peer, peer_rank = holders.setdefault(slot, (name, rank))
            if leaders.get(peer, peer) != lead:
                errors.append(f"{text} a different one: {show(peer)} rank {peer_rank} is on it")
            target = actual.get(lead, ())[rank : rank + 1]
            if target and target[0] != slot:
                errors.append(f"{text} {_slot_text(target[0])}, where {show(lead)} rank {rank} is")
    return [error for error in errors if error]


def _component_names(key: str) -> list[str]:
    names = [name.strip() for name in key.split(",")] if isinstance(key, str) else [""]
    if not all(names):
        raise _spec_error(key, "names with commas between them", show(key), "name every component")
    return names


def _parse_accelerators(key: str, value: str | int, total: int) -> tuple[int, ...]:
    """Parse the accelerators of one key: each once, ascending, within 0..total-1."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        actual = f"{show(value)} ({type(value).__name__})"
        raise _spec_error(key, "text such as 0-3, or one number", actual, "write it as text")
    numbers: list[int] = []
    for part in (value if isinstance(value, str) else show(value)).split(","):
        accelerators = _parse_range(key, part.strip(), total)
        twice = set(accelerators).intersection(numbers)
        if twice:
            actual, fix = f"{_as_text(twice)} again in {show(part)}", "remove it from one part"
            raise _spec_error(key, "each accelerator once", actual, fix)
        if numbers and accelerators[0] < numbers[-1]:
            actual, fix = f"{show(part)} after {numbers[-1]}", "write the lowest part first"
            raise _spec_error(key, "parts in ascending order", actual, fix)
        numbers.extend(accelerators)
    return tuple(numbers)


def _parse_range(key: str, part: str, total: int) -> range:
    """Parse `3`, `0-3` or `all`; both ends are checked before the range is built."""
    if part.lower() == "all":
        return range(total)
    match = RANGE_PATTERN.fullmatch(part)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (total, total)
    if max(low, high) >= total:
        expected, fix = (
            f"numbers or ranges within 0-{total - 1}",
            "write 0, 0-3 (3 included) or all",
        )
        raise _spec_error(key, expected, show(part), fix)
    if high < low:
        raise _spec_error(key, "a range from low to high", show(part), f"write {high}-{low}")
    return range(low, high + 1)


def _count_error(name: str, expected: Placement, actual: ObservedPlacement) -> str:
    """Return a sentence for a component with more or fewer ranks than expected, else ""."""
    asked, slots = expected.get(name, ()), actual.get(name, ())
    if len(slots) > len(asked):
        first = _rank_text(name, len(asked), slots[len(asked)])
        return f"{first}. Ranks expected: {len(asked)}, found: {len(slots)}"
    if len(slots) < len(asked):
        lost = _as_text(range(len(slots), len(asked)))
        text = f"rank {lost}, of accelerator {_as_text(asked[len(slots) :])}, reported no node"
        return f"{show(name)} {text}. Ranks expected: {len(asked)}, found: {len(slots)}"
    return ""


def _rank_text(name: str, rank: int, slot: Slot) -> str:
    return f"{show(name)} rank {rank} is on {_slot_text(slot)}"


def _slot_text(slot: Slot) -> str:
    node, accelerator = (one_line(word)[:MAX_ID_CHARS] for word in slot)
    return f"accelerator {accelerator} of node {node}"


def _spec_error(key: object, expected: str, actual: str, fix: str) -> SpecError:
    where = f"component placement {show(key)}" if key else "component placement"
    return SpecError(f"{where}: expected {expected}, found {actual}: {fix}")


def _as_text(numbers: Iterable[int]) -> str:
    return join_names(as_ranges(numbers).split(", "))
