"""Selects the probes of a run: their order, tier and criteria."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pytest

from probes.spelling import closest_name


def criterion_of(item: pytest.Item) -> str | None:
    """Return the criterion that a test is a probe of; None for another test."""
    marker = item.get_closest_marker("criterion")
    return str(marker.args[0]) if marker else None


def sort_probes(items: list[pytest.Item]) -> None:
    """Sort the probes by RUN_ORDER; those marked `last` come after all others."""
    from probes.acceptance.criteria import RUN_ORDER

    items.sort(key=lambda item: RUN_ORDER.index(criterion_of(item) or RUN_ORDER[0]))
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)  # keeps that order


def left_out(probes: Iterable[pytest.Item], tier: str, only: Sequence[str]) -> list[pytest.Item]:
    """List the probes of longer tiers and of other criteria than `only`, where that is given."""
    return [
        item
        for item in probes
        if _in_longer_tier(item, tier) or (only and criterion_of(item) not in only)
    ]


def _in_longer_tier(item: pytest.Item, tier: str) -> bool:
    """Return whether the probe belongs to a longer tier than this run's."""
    from probes.acceptance.owed import longer_tier

    marker = item.get_closest_marker("tier")
    return marker is not None and longer_tier(marker.args[0], tier) != tier


def describe_nothing(tier: str, only: Sequence[str], keyword: str) -> str:
    """Say why no probe is left, and what was probably meant by the words of -k."""
    asked = [f"--only {','.join(only)}"] if only else []
    asked += [f"-k {keyword!r}"] if keyword else []
    text = ", ".join([*asked, f"tier {tier}"])
    return f"nothing was run: no probe is selected ({text}){_suggest_names(keyword)}"


def _suggest_names(keyword: str) -> str:
    from probes.acceptance.owed import DUTIES

    names = {word for duty in DUTIES for word in re.findall(r"[a-z]{3,}", duty.probe)}
    asked = set(re.findall(r"[a-z]+", keyword.lower())) - {"and", "or", "not", *names}
    meant = list(filter(None, (closest_name(word, names) for word in sorted(asked))))
    return f"; did you mean {', '.join(meant)}?" if meant else ""
