"""Follows a guide as LAUNCH does, as another kind of user: `WHO GUIDE AGREED FOLDER`.

Prints `typed as UID`, or `refused: ...`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.launch import controls
from tests.probes.launch.test_shell import Cleanup, cluster_with
from tests.support.controls import recorder

ORDINARY = 60600  # no account has it
GUIDE = "```sh\necho I am $(id -u)\ntouch {folder}/typed\ntrue JOB\n```\n"


def follow(guide: str, agreed: str, folder: Path) -> str:
    """Return what `id -u` said in the guide's shell, or why nothing was typed."""
    cluster = cluster_with(Cleanup())
    (folder / "typed").unlink(missing_ok=True)
    launch: dict[str, Any] = {"user": "own"} if agreed == "own" else {}
    if guide == "operator's":
        launch |= {"document": str(folder / "guide.md"), "values": {"JOB": "{command}"}}
    terms = ClusterTerms(launch=LaunchTerms(**launch))
    try:
        with controls.prepare_path(cluster, terms, recorder("LAUNCH")) as path:
            # Our own guide needs Ray's commands; who types it is the same for a script.
            said = path.ask("echo I am $(id -u)\n") if path.guide.own else path.follow()
    except pytest.fail.Exception as error:
        return f"refused: {error}"
    return next(f"typed as {line[5:]}" for line in said.lines if line.startswith("I am "))


def main() -> None:
    """Follow the guide without a cluster."""
    who, guide, agreed, place = sys.argv[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controls, "ignored_address", lambda dashboard: "")
        patch.setattr(controls, "describe_busy", lambda cluster: "")
        patch.setattr(controls, "HOMES", place)
        print(follow_as(who, guide, agreed, Path(place)))


def follow_as(who: str, guide: str, agreed: str, folder: Path) -> str:
    """Become who is asked for, and follow."""
    folder.chmod(0o1777)
    (folder / "guide.md").write_text(GUIDE.format(folder=folder))
    if who == "ordinary" and os.geteuid() == 0:
        follow("our", "", folder)  # imports all that is read late: Python may be closed to others
        os.setgroups([])
        os.setresgid(ORDINARY, ORDINARY, ORDINARY)
        os.setresuid(ORDINARY, ORDINARY, ORDINARY)
    return follow(guide, agreed, folder)


if __name__ == "__main__":
    main()
