"""Makes the user who follows the guide: another uid without groups, with an empty home."""

from __future__ import annotations

import os
import pwd
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from probes.cluster.cleanup import find_token
from probes.cluster.cluster import Cluster
from probes.cluster.unique_token import make_unique_token

# No distribution gives these numbers to anybody (systemd's docs/UIDS-GIDS.md: unused).
UIDS = range(60706, 61184)
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
COMMANDS = ("seatrial", "ray")  # of our own guide
CHECK_SECONDS = 60
NAME = "seatrial-user"


@dataclass
class User:
    """A user: uid and gid to run as (None: our own), and the folder with the user's homes.

    `why_same` is the reason why no other user could be made.
    """

    folder: Path
    uid: int | None = None
    why_same: str = ""
    homes: list[Path] = field(default_factory=list)

    @property
    def run_as(self) -> dict[str, Any]:
        """Arguments of subprocess.Popen that run a command as this user."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.uid, "extra_groups": [], "umask": 0o022}

    def own(self, path: Path) -> None:
        """Give the user a file or folder, with all that is in it."""
        if self.uid is None:
            return
        for each in (path, *path.rglob("*")):
            os.chown(each, self.uid, self.uid, follow_symlinks=False)

    def new_home(self) -> Path:
        """Make an empty home, with the cluster's token if there is one, as users are given it."""
        home = self.folder / f"home{len(self.homes)}"
        home.mkdir(mode=0o700)
        if token := find_token():
            (home / ".ray").mkdir(mode=0o700)
            path = home / ".ray" / "auth_token"
            path.touch(mode=0o600)
            path.write_text(token, encoding="utf-8")
        self.own(home)
        self.homes.append(home)
        return home


def make_user(cluster: Cluster, parent: str, *, own_guide: bool) -> User:
    """Make a user with a folder in `parent`; `cluster.cleanup` removes it if we die.

    Only root can run commands as another user.  Our own guide needs our installation, so that the
    other user must be able to read it.
    """
    folder = Path(parent) / f"seatrial-user-{make_unique_token()}"
    cluster.cleanup.register("folder", str(folder))
    folder.mkdir()
    folder.chmod(0o711)  # whatever the umask: the user only passes through to the homes
    if problem := why_no_other_user(own_guide=own_guide):
        return User(folder, why_same=problem)
    user = User(folder, uid=free_uid())
    cluster.cleanup.register("user", str(user.uid))
    return user


def why_no_other_user(*, own_guide: bool) -> str:
    """Return why no other user can follow the guide from here; "" if one can."""
    if os.geteuid() != 0:
        return "only root can run commands as another user"
    return _cannot_run(User(Path("/"), uid=free_uid()), COMMANDS if own_guide else ())


def remove_user(cluster: Cluster, user: User) -> None:
    """End what the user left running, and remove the homes."""
    if user.uid is not None:
        cluster.cleanup.end_now("user", str(user.uid))
    cluster.cleanup.remove_now(user.folder)


def free_uid() -> int:
    """Choose a uid that no account has and no process runs as."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            taken.add(process.stat().st_uid)
        except OSError:
            continue
    return random.choice([uid for uid in UIDS if uid not in taken])


def count_rights(uid: int, groups: Sequence[int], own_group: int) -> int:
    """Count what an ordinary user does not have: root's uid, and each group but the user's own."""
    return (uid == 0) + len({*groups} - {own_group})


def _cannot_run(user: User, commands: Sequence[str]) -> str:
    """Return why the other user cannot even start; "" if nothing stands in the way."""
    bin_folder = Path(sys.executable).parent
    packages = [find_spec(name) for name in ("ray", "reference_trainer")] if commands else []
    needed = [str(bin_folder / name) for name in commands]
    needed += [str(spec.origin) for spec in packages if spec and spec.origin]
    first = [sys.executable, "-c", ""] if commands else ["true"]
    for words in (first, *(["test", "-r", path] for path in needed)):
        try:
            done = subprocess.run(
                words,
                env={"PATH": SYSTEM_PATH, "HOME": "/"},
                cwd="/",
                capture_output=True,
                timeout=CHECK_SECONDS,
                check=False,
                **user.run_as,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"`{words[0]}` cannot run as another user: {error}"
        if done.returncode:
            return f"another user cannot read the installation in {sys.prefix}"
    return ""
