"""Finds software that is not the same on every node and the driver."""

from __future__ import annotations

from typing import Any


def software_differences(facts: list[dict[str, Any]], driver: dict[str, str]) -> list[str]:
    """Describe each part of the software whose version differs, in one sentence.

    The driver's own NVIDIA driver is left out: a head node often has none.  The driver's torch may
    be another build of the same version, as 2.13.0+cpu: no rank runs there.
    """
    sentences = []
    for part in driver:
        versions: dict[str, list[str]] = {}
        for fact in facts:
            versions.setdefault(fact["software"][part] or "none", []).append(fact["name"])
        if part != "driver":
            own = driver[part] or "none"
            if part == "torch":
                own = next((of for of in versions if _public(of) == _public(own)), own)
            versions.setdefault(own, []).append("the driver")
        if len(versions) > 1:
            by_rarity = sorted(versions.items(), key=lambda item: len(item[1]))
            text = "; ".join(f"{version} on {', '.join(names)}" for version, names in by_rarity)
            sentences.append(f"{part}: {text}")
    return sentences


def _public(version: str) -> str:
    """Strip the build, which follows a plus, from a version."""
    return version.partition("+")[0]
