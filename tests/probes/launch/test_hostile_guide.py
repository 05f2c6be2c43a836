"""A guide that attacks who follows it: what it does stays with its own user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.cleanup import StillRuns
from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.launch import controls, shell
from probes.launch.guide import GuideError, parse_guide
from tests.probes.launch.another_user import (
    as_root,
    cluster_without_dashboard,
    left_process,
    theirs,
    within,
)
from tests.support.controls import recorder
from tests.support.paths import REPO
from tests.support.small_disk import small_disk

ROUNDS = 4


@pytest.fixture
def ours(place: Path) -> Path:
    """A folder that root alone can enter, with a file in it."""
    folder = place / "ours"
    folder.mkdir(mode=0o700)
    (folder / "secret").write_text("secret")
    (folder / "secret").chmod(0o600)
    return folder


def plant_links(folder: Path, name: str, target: Path) -> None:
    """Put a link into each home, as soon as it may: in those found, and those with plain names."""
    while True:
        with suppress(OSError):
            homes = [f"{folder}/home{dash}{number}" for dash in ("", "-") for number in range(6)]
            homes += [one.path for one in os.scandir(folder)] if os.access(folder, os.R_OK) else []
            for home in homes:
                with suppress(OSError):
                    os.rename(f"{home}/{name}", f"{home}/.moved")
                with suppress(OSError):
                    os.symlink(target, f"{home}/{name}")


@as_root
@pytest.mark.parametrize("name", [".typed.sh", "job"])
@pytest.mark.parametrize("guards", ["all", "one"])
def test_a_link_in_the_next_home_leads_root_nowhere(
    user: shell.User, ours: Path, name: str, guards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one guard alone, too: processes stay, and the names of homes are known."""
    if guards == "one":
        names = iter(["0", "1", "2", "3", "4"])
        monkeypatch.setattr(shell, "stop_resource", lambda kind, name: None)
        monkeypatch.setattr(shell, "make_unique_token", lambda: next(names))
    assert user.uid is not None
    target = ours if name != ".typed.sh" else ours / "typed"
    path = theirs(user, "true")
    for _ in range(ROUNDS):
        with left_process(user.uid, plant_links, user.folder, name, target):
            path.follow()
        assert sorted(one.name for one in ours.iterdir()) == ["secret"]
        assert {one.stat().st_uid for one in (ours, ours / "secret")} == {0}
    monkeypatch.undo()


@as_root
def test_what_a_guide_plants_in_its_home_is_its_own(user: shell.User, ours: Path) -> None:
    """A home is full of links and closed folders when it is removed."""
    said = theirs(
        user, f"ln -s {ours} a", f"ln -s {ours}/secret .ray", "mkdir -p b/c", "chmod 000 b",
        "mkdir -p $(printf 'd/%.0s' $(seq 1500))",
    ).follow()  # fmt: skip
    assert said.exit_code == 0
    shell.remove_user(cluster_without_dashboard(), user)
    assert not user.folder.exists()
    assert (ours / "secret").read_text() == "secret"


LONG = 1_000_000  # characters of a line
LINES = {
    "a fence of tildes": "~" * LONG + "`",
    "a fence of backticks": "`" * LONG + "~`",
    "spaces behind a fence": "```" + " " * LONG + "`",
    "spaces before a fence": " " * LONG,
    "a heading's spaces": "# x" + " " * LONG + "y",
    "a heading's end": "# x" + "#" * LONG + "y",
    "a heading's words": "# " + "x #" * (LONG // 3) + "y",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_long_line_of_a_guide_is_read_at_once(line: str) -> None:
    with within(5):
        guide = parse_guide("g", f"{line}\n# Run #\n```sh\ntrue\n```\n", section="run")
    assert [command.text for command in guide.commands] == ["true"]


@pytest.mark.parametrize("title", ["Run", "Run #", "Run ##", "Run  ", "  Run", "RUN###"])
def test_a_heading_is_found_however_it_is_closed(title: str) -> None:
    text = f"# {title}\n~~~~  Bash  \ntrue\n~~~\nfalse\n~~~~~ \n# Next\n```\nfalse\n```\n"
    guide = parse_guide("g", text, section="run")
    assert [command.text for command in guide.commands] == ["true", "~~~", "false"]


# Whose commands are typed, and as whom.


def follow(who: str, guide: str, agreed: str, place: Path) -> str:
    """Follow a guide in a process of its own; return what `id -u` says there, or the refusal."""
    drop = ["--bounding-set", "-setuid,-setgid"] if who == "root without rights" else []
    words = [*(["setpriv", *drop] if drop else []), sys.executable, "-m", FOLLOW]
    done = subprocess.run(
        [*words, who, guide, agreed, str(place)], cwd=REPO, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FOLLOW = "tests.probes.launch.follow_guide"
NONE = (
    "refused: seatrial does not run the commands of the operator's guide {}: it cannot create "
    "another user for them"
)
REFUSED = {
    ("root without rights", "own"): f"{NONE} (a test command (`true`) failed as another user: "
    "Operation not permitted). The commands must never run as root. Give root the "
    "capabilities that are missing (CAP_SETUID, CAP_SETGID, CAP_CHOWN, CAP_DAC_OVERRIDE), or run "
    "seatrial as an ordinary user",
    ("ordinary", ""): f"{NONE} (only root can run commands as another user). Run seatrial as root, "
    'or set user = "own" in the contract\'s [launch]',
}
REFUSED["root without rights", ""] = (
    REFUSED["root without rights", "own"] + ', with user = "own" in the contract\'s [launch]'
)


TYPE = """
import os, sys
from probes.launch import shell
from tests.probes.launch.another_user import cluster_without_dashboard, theirs
cluster = cluster_without_dashboard()
user = shell.make_user(cluster, sys.argv[1], own_guide=False)
print(user.why_same)
if user.uid is not None:
    said = theirs(user, "mkdir -p a/b", "touch a/b/c", "chmod 000 a").follow()
    assert said.exit_code == 0, said.text
assert not shell.remove_user(cluster, user)
print(os.listdir(sys.argv[1]))
"""
RIGHTS = {
    "-chown": r"seatrial cannot make a home folder in /tmp/\S+: Operation not permitted",
    "-dac_override": "",
    "-dac_override,-dac_read_search": "root cannot give another user a home folder: Permission .*",
}


@as_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="NOT RUN: setpriv is not installed")
@pytest.mark.parametrize("rights", RIGHTS)
def test_root_with_fewer_rights_makes_a_home_or_says_why_not(rights: str, place: Path) -> None:
    words = ["setpriv", "--bounding-set", rights, sys.executable, "-c", TYPE, str(place)]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(RIGHTS[rights] + r"\n\[\]\n", done.stdout)


@pytest.mark.parametrize("homes", ["/proc", "/no/such/folder"])
def test_a_place_where_no_home_can_be_made_fails_the_probe_in_one_sentence(
    homes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        pytest.fail.Exception, match=f"^seatrial cannot make a folder in {homes}: No"
    ):
        prepare(homes, monkeypatch)


@as_root
def test_a_full_disk_fails_the_probe_in_one_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        small_disk(place / "disk", "40k") as disk,
        pytest.raises(
            pytest.fail.Exception, match=r"^seatrial cannot make a home folder in .*No space"
        ),
    ):
        prepare(disk, monkeypatch)


def prepare(homes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow an operator's guide from homes in this folder."""
    monkeypatch.setattr(controls, "HOMES", homes)
    monkeypatch.setattr(controls, "ignored_address", lambda dashboard: "")
    monkeypatch.setattr(controls, "describe_busy", lambda cluster: "")
    cluster = cluster_without_dashboard()
    cluster.dashboard = "http://127.0.0.1:1"
    with controls.prepare_path(cluster, ClusterTerms(), recorder("LAUNCH")) as path:
        replace(path, guide=parse_guide("g", "```sh\necho JOB\n```\n")).follow()


@as_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="NOT RUN: setpriv is not installed")
@pytest.mark.parametrize("agreed", ["", "own"])
@pytest.mark.parametrize("who", ["root", "root without rights", "ordinary"])
def test_an_operators_guide_is_typed_as_ourselves_only_where_it_is_agreed_and_never_as_root(
    who: str, agreed: str, place: Path
) -> None:
    said = follow(who, "operator's", agreed, place)
    if (who, agreed) in REFUSED:
        assert said == REFUSED[who, agreed].format(place / "guide.md")
        assert not (place / "typed").exists()
    elif who == "ordinary":
        assert said == "typed as 60600"
    else:
        assert int(said.removeprefix("typed as ")) in shell.UIDS


@as_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="NOT RUN: setpriv is not installed")
@pytest.mark.parametrize(("who", "uid"), [("root without rights", "0"), ("ordinary", "60600")])
def test_our_own_guide_needs_no_consent(who: str, uid: str, place: Path) -> None:
    assert follow(who, "our", "", place) == f"typed as {uid}"


def test_a_guide_that_may_not_be_typed_is_not_even_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(controls, "why_no_other_user", lambda own_guide: "no right to")
    monkeypatch.setattr(controls, "ignored_address", lambda dashboard: "")
    monkeypatch.setattr(controls, "describe_busy", lambda cluster: "")
    monkeypatch.setattr(controls.guides, "read_guide", lambda *words: fetched.append(str(words)))
    terms = ClusterTerms(
        launch=LaunchTerms(document="https://x.invalid/guide.md", values={"x": "{command}"})
    )
    cluster: Any = SimpleNamespace(dashboard="http://10.0.0.1:8265")
    with (
        pytest.raises(pytest.fail.Exception, match="commands of the operator's guide https://x"),
        controls.prepare_path(cluster, terms, recorder("LAUNCH")),
    ):
        pass
    assert fetched == []


@as_root
@pytest.mark.parametrize("when", ["in the next home", "at the end"])
def test_processes_that_do_not_end_fail_the_probe_in_one_sentence(
    when: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(kind: str, name: str) -> None:
        raise StillRuns(f"processes [7] of user id {name} do not end")

    monkeypatch.setattr(controls, "HOMES", str(place))
    monkeypatch.setattr(controls, "ignored_address", lambda dashboard: "")
    monkeypatch.setattr(controls, "describe_busy", lambda cluster: "")
    monkeypatch.setattr(shell, "why_no_other_user", lambda own_guide: "")
    cluster = cluster_without_dashboard()
    cluster.dashboard = "http://127.0.0.1:1"

    def follow() -> None:
        with controls.prepare_path(cluster, ClusterTerms(), recorder("LAUNCH")) as path:
            monkeypatch.setattr(shell, "stop_resource", stop)
            if when == "in the next home":
                path.ask("true\n")

    says = r"^processes \[7\] of user id 6\d+ do not end$"
    with pytest.raises(pytest.fail.Exception, match=says):
        follow()


@pytest.mark.parametrize(("uid", "agreed"), [(0, "own"), (0, None), (1000, None)])
def test_no_path_types_a_guide_that_may_not_be_typed(
    uid: int, agreed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made the path: the last step asks, too."""
    for name in ("getuid", "geteuid"):
        monkeypatch.setattr(os, name, lambda: uid)
    path = theirs(shell.User(tmp_path, why_same="no right to"), f"touch {tmp_path}/typed")
    launch = path.terms.launch.model_copy(update={"user": agreed})
    path = replace(path, terms=path.terms.model_copy(update={"launch": launch}))
    with pytest.raises(GuideError, match=r"another user for them .no right to"):
        path.follow()
    assert list(tmp_path.iterdir()) == []
