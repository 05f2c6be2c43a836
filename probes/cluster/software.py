"""Finds software that is not the same on every node and the driver."""

from __future__ import annotations

from typing import Any

# Parts of a machine, not of the program: a head node often has no GPU, and another kernel.
NODE_PARTS = ("driver", "cuda", "kernel", "ofed")


def software_differences(facts: list[dict[str, Any]], driver: dict[str, str]) -> list[str]:
    """Describe each part of the software whose version differs, in one sentence.

    Of the driver only NODE_PARTS are left out: no rank runs there, and its machine may be no node.
    Its torch may be another build of the same version, as 2.13.0+cpu.
    """
    sentences = []
    for part in driver:
        versions: dict[str, list[str]] = {}
        for fact in facts:
            versions.setdefault(fact["software"][part] or "none", []).append(fact["name"])
        if part not in NODE_PARTS:
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
