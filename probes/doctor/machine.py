"""Answers about the machine that runs the suite: packages, versions, user, run folder."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from probes.acceptance.cluster_terms import ClusterTerms
from probes.cluster.cluster import PACKAGES, ROOT
from probes.cluster.node_facts import software_versions
from probes.doctor.answer import FAIL, UNPROVEN, Answer
from probes.launch.path.user import why_no_other_user
from probes.least_versions import ALL, missing_feature
from probes.requirements import DISTRIBUTION, lacking_sentence


def ask_machine(terms: ClusterTerms, *, on_gpu: bool) -> Iterator[Answer]:
    """Answer each question about this machine; nothing is contacted."""
    yield ask_packages(Path.cwd(), packages_distributions())
    yield ask_versions(on_gpu=on_gpu)
    yield ask_user(terms, why_no_other_user(own_guide=terms.launch.document is None))
    yield ask_run_folder(Path.cwd())


def ask_packages(folder: Path, owners: Mapping[str, Sequence[str]]) -> Answer:
    """Name a package or folder that Python would import in place of ours.

    `owners` maps a package to the distributions that install it.
    """
    others = [
        f"{name} is {origin}"
        for name in PACKAGES
        if (origin := _origin(name)) and Path(origin).resolve() != (ROOT / name).resolve()
    ]
    others += [
        f"{name} is also installed by {', '.join(sorted(set(found) - {DISTRIBUTION}))}"
        for name in PACKAGES
        if set(found := owners.get(name, ())) - {DISTRIBUTION}
    ]
    others += [
        f"{folder / name} hides it from pytest, which is run in {folder}"
        for name in PACKAGES
        if (folder / name).is_dir() and (folder / name).resolve() != (ROOT / name).resolve()
    ]
    if not others:
        return Answer("packages", f"{', '.join(PACKAGES)} are those of {ROOT}")
    do = "Use an environment of its own for seatrial, and `seatrial run` in another folder"
    return Answer("packages", "; ".join(others), FAIL, ALL, do)


def _origin(name: str) -> str:
    spec = find_spec(name)
    return str(Path(spec.origin).parent) if spec and spec.origin else ""


def ask_versions(*, on_gpu: bool) -> Answer:
    """Name what a criterion needs and the packages here lack."""
    if text := lacking_sentence():
        return Answer("versions", text, FAIL, ALL, "Install what is missing")
    lacking = {id: text for id in ALL if (text := missing_feature(id, on_gpu))}
    if lacking:
        text = " ".join(dict.fromkeys(lacking.values()))
        return Answer("versions", text, UNPROVEN, tuple(lacking), "Install what is expected")
    parts = software_versions()
    known = ", ".join(f"{name} {parts[name]}" for name in ("python", "ray", "torch"))
    return Answer("versions", f"{known}, {platform.system()} {platform.machine()}")


def ask_user(terms: ClusterTerms, why_not: str) -> Answer:
    """Tell whether LAUNCH can follow the guide as another user; `why_not` is why it cannot."""
    if not why_not:
        return Answer("user", "LAUNCH can follow the guide as another user")
    if terms.launch.user == "own":
        return Answer("user", "an ordinary one, by the contract")
    do = 'Run as root, with the programs where each user can read them, or agree on user = "own"'
    return Answer("user", f"LAUNCH has no other user: {why_not}", UNPROVEN, ("LAUNCH",), do)


def ask_run_folder(folder: Path) -> Answer:
    """Tell whether a run can be written below this folder."""
    target = folder / "runs"
    place = target if target.is_dir() else folder
    if os.access(place, os.W_OK | os.X_OK):
        return Answer("run folder", f"{target} can be written")
    do = "Go to another folder, or name one with --run-dir"
    return Answer("run folder", f"{place} cannot be written", FAIL, ALL, do)
