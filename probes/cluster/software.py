"""Finds software that is not the same on every node and the driver."""

from __future__ import annotations

from typing import Any

GPU_PARTS = ("driver", "cuda")  # a head node often has no GPU
SYSTEM_PARTS = ("kernel", "ofed")  # of the machine: they are compared apart, see hardware.py


def software_differences(facts: list[dict[str, Any]], driver: dict[str, str]) -> list[str]:
    """Describe each part of the software whose version differs, in one sentence.

    The driver's own NVIDIA driver and CUDA are left out: a head node often has none.  The driver's
    torch may be another build of the same version, as 2.13.0+cpu: no rank runs there.
    """
    sentences = []
    for part in (part for part in driver if part not in SYSTEM_PARTS):
        versions: dict[str, list[str]] = {}
        for fact in facts:
            versions.setdefault(fact["software"][part] or "none", []).append(fact["name"])
        if part not in GPU_PARTS:
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
