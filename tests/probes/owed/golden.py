"""The golden list: what each criterion declares, and where each probe owes what.

A change that must not change what a run owes (a move, a rename) leaves `owed.toml` as it is.  One
that must is read in its diff: each fact has one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from probes.toml_tables import read_tables
from tests.probes.owed.conditions import ConditionFinder, describe_not_provable
from tests.probes.owed.product import Product

GOLDEN = Path(__file__).parent / "owed.toml"
HEAD = """\
# What a run owes.  `python -m tests.probes.owed` writes it: read its diff before you keep it.
# A probe has the name of its function.  Each of its measures and controls says where it is owed.
"""
BARE_KEY = re.compile(r"\w+", re.ASCII)  # of TOML: others need quotes
Sections = dict[str, dict[str, str]]  # by heading, then by name


def build_sections(product: Product) -> Sections:
    """Build the whole list."""
    return build_declared(product) | build_owed(product)


def build_declared(product: Product) -> Sections:
    """Build the part that the criteria declare."""
    sections = {
        "run": {
            "order": ", ".join(product.run_order),
            "table": ", ".join(product.criteria),
            "tiers": ", ".join(product.tiers),
        }
    }
    for name, row in product.criteria.items():
        sections[name] = dict(row.texts)
        sections[f"{name} measures"] = _in_order(row.measures)
        sections[f"{name} controls, and what each makes fail"] = _in_order(
            {control: ", ".join(sorted(measures)) for control, measures in row.controls.items()}
        )
        sections[f"{name} measures without a control"] = _in_order(row.no_control)
    return sections


def build_owed(product: Product) -> Sections:
    """Build the part of the probes: what each owes, and where."""
    finder = ConditionFinder(product)
    sections: Sections = {
        "still owed where it is not provable": {
            name: describe_not_provable(product, name) for name in product.criteria
        },
        **{f"{id} {probe}": {"tier": tier} for (id, probe), tier in sorted(finder.tiers.items())},
    }
    for (id, probe, kind, name), where in sorted(finder.find().items()):
        sections[f"{id} {probe}"][f"{kind} {name}"] = str(where)
    return sections


def _in_order(texts: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(texts.items()))


def write_golden(sections: Sections) -> str:
    """Return the text of the file."""
    parts = [HEAD]
    for heading, texts in sections.items():
        parts.append(f"\n[{_write_key(heading)}]\n")
        parts += [f"{_write_key(name)} = {_in_quotes(text)}\n" for name, text in texts.items()]
    return "".join(parts)


def _write_key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else _in_quotes(name)


def _in_quotes(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def read_golden() -> Sections:
    """Read the list that is kept."""
    return read_tables(GOLDEN)


def compare(golden: Sections, found: Sections) -> Iterator[str]:
    """Yield a sentence for each difference."""
    for heading in {**golden, **found}:
        if heading not in found:
            yield f"{heading}: lost"
        elif heading not in golden:
            yield f"{heading}: not in the golden list"
        else:
            yield from _compare_texts(heading, golden[heading], found[heading])


def _compare_texts(
    heading: str, golden: Mapping[str, str], found: Mapping[str, str]
) -> Iterator[str]:
    for name in {**golden, **found}:
        before, now = golden.get(name), found.get(name)
        if now is None:
            yield f"{heading}: {name} is lost; it was {before!r}"
        elif before is None:
            yield f"{heading}: {name} is not in the golden list; it is {now!r}"
        elif before != now:
            yield f"{heading}: {name} was {before!r}, and is {now!r}"
