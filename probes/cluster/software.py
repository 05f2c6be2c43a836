"""Software that is not the same on every node and the driver."""

from __future__ import annotations

from typing import Any


def software_differences(facts: list[dict[str, Any]], driver: dict[str, str]) -> list[str]:
    """One sentence per part of the software whose version is not the same everywhere.

    The driver's own NVIDIA driver is left out: a head node often has none.
    """
    sentences = []
    for part in driver:
        seen: dict[str, list[str]] = {}
        for fact in facts:
            seen.setdefault(fact["software"][part] or "none", []).append(fact["name"])
        if part != "driver":
            seen.setdefault(driver[part] or "none", []).append("the driver")
        if len(seen) > 1:
            rare = sorted(seen.items(), key=lambda item: len(item[1]))
            said = "; ".join(f"{version} on {', '.join(who)}" for version, who in rare)
            sentences.append(f"{part}: {said}")
    return sentences
