"""Names what the environment lacks: packages, and features of torch and Ray."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
    hint = ". Use the cluster's versions of Ray and torch" if vendors else ""
    return f"Python packages that {sys.executable} lacks: {', '.join(missing)}. Install them{hint}"


Release = tuple[int, int]


@dataclass(frozen=True)
class Need:
    """A feature, and the first release of its package that has it.

    `broken` are releases in which the feature does not work.  `criteria` are the rows of the
    acceptance table in which every probe uses it.
    """

    feature: str
    package: str
    least: Release
    criteria: tuple[str, ...] = ()
    broken: tuple[Release, ...] = ()
    why_broken: str = ""


EVERY = "every criterion"
TRAINED = ("LAUNCH", "RESTART", "SCALING")
ON_CPU = "FSDP2 on ranks without a GPU (record_event of a CPU stream)"
ASYNC_SAVES = "saves in the background (torch.distributed.checkpoint.staging.DefaultStager)"
NEEDS = (
    Need("Ray's state API (actors, placement groups, jobs)", "ray", (2, 40), (EVERY,)),
    Need("collectives with time limits and checks", "torch", (2, 6), ("FABRIC",)),
    Need("FSDP2 as torch.distributed.fsdp.fully_shard", "torch", (2, 6), TRAINED),
    Need(ON_CPU, "torch", (2, 7)),  # pytorch pull request 145935
    Need(
        *(ASYNC_SAVES, "torch", (2, 9)),
        broken=((2, 11), (2, 12)),
        why_broken="the second save in the background crashes (pytorch issue 183413)",
    ),
)


def missing_feature(criterion: str, on_gpu: bool = True) -> str:
    """Return what this criterion needs and the packages here lack; "" where nothing is missing.

    `on_gpu`: each rank has a GPU.
    """
    lacking = [shortcoming(one) for one in NEEDS if {criterion, EVERY} & {*one.criteria}]
    if criterion in TRAINED and not on_gpu:
        lacking.append(missing(ON_CPU))
    return next(filter(None, lacking), "")


def missing(feature: str) -> str:
    """Return what one feature needs and its package here lacks; "" where nothing is missing."""
    return next(shortcoming(need) for need in NEEDS if need.feature == feature)


def shortcoming(need: Need, read_version: Callable[[str], str] = metadata.version) -> str:
    """Return one sentence on a package that is missing, too old or broken; "" if it is usable."""
    what = f"{need.feature}: {need.package}"
    expected = f"{need.package} {_text(need.least)} or later"
    try:
        found = read_version(need.package)
    except metadata.PackageNotFoundError:
        return f"{what} is not installed. Expected: {expected}."
    from packaging.version import InvalidVersion, Version

    try:
        major, minor = (*Version(found).release, 0)[:2]
    except InvalidVersion:
        return f"{what} has no usable version ({found}). Expected: {expected}."
    if (major, minor) < need.least:
        return f"{what} is {found}. Expected: {expected}."
    if (major, minor) in need.broken:
        others = f"any release except {', '.join(map(_text, need.broken))}"
        return f"{what} is {found}, where {need.why_broken}. Expected: {others}."
    return ""


def _text(release: Release) -> str:
    return ".".join(map(str, release))
