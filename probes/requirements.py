"""Lists what seatrial requires of a Python environment and is missing or too old there."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import metadata

DISTRIBUTION = "seatrial"


def list_missing(requires: Iterable[str]) -> list[str]:
    """List the requirements that this Python does not meet.  A vendor's build counts as it is."""
    from packaging.requirements import Requirement  # Ray needs it, too

    missing = []
    for line in requires:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(line)
            continue
        # Without bounds any build will do, also one whose version is none by Python's rules.
        if requirement.specifier and not requirement.specifier.contains(found, prereleases=True):
            missing.append(line)
    return missing


def lacking_sentence() -> str:
    """Return one sentence on what seatrial requires and this Python lacks; "" if nothing."""
    try:
        requires = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # only on the path: nothing says what it requires
        return ""
    if not (missing := list_missing(requires)):
        return ""
    vendors = any(line.startswith(("torch", "ray")) for line in missing)
    hint = ", Ray and torch in the versions that the cluster has" if vendors else ""
    return f"seatrial needs what {sys.executable} lacks: {', '.join(missing)}. Install it{hint}"
