"""A guide that attacks who follows it: what it does stays with its own user."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.cluster import cleanup
from probes.cluster.cleanup import (
    OPEN_FOLDERS,
    SPARES,
    CleanupProcess,
    StillRuns,
    _processes_of,
    _wait_for_end,
    list_files_of,
    list_ipc_of,
    remove_files_of,
    stop_resource,
)
from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.launch import controls, shell
from probes.launch.guide import GuideError, LaunchPath, own_guide, parse_guide
from probes.launch.shell import write_script
from tests.probes.launch.test_shell import Cleanup, cluster_with
from tests.support.controls import recorder
from tests.support.paths import REPO

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can be another user")
ROUNDS = 4


@pytest.fixture
def ours(place: Path) -> Path:
    """A folder that root alone can enter, with a file in it."""
    folder = place / "ours"
    folder.mkdir(mode=0o700)
    (folder / "secret").write_text("secret")
    (folder / "secret").chmod(0o600)
    return folder


class Removing(Cleanup):
    """A cleanup that removes folders."""

    def remove_now(self, path: Path) -> None:
        CleanupProcess.remove_now(cast(Any, self), path)


def cluster_without_dashboard() -> Any:
    """A cluster whose cleanup removes folders."""
    cluster = cluster_with(Removing())
    cluster.dashboard = ""
    return cluster


@pytest.fixture
def user(place: Path) -> Iterator[shell.User]:
    """Another user, with all that root may do."""
    cluster = cluster_without_dashboard()
    user = shell.make_user(cluster, str(place), own_guide=False)
    yield user
    shell.remove_user(cluster, user)


def theirs(user: shell.User, *lines: str) -> LaunchPath:
    """The path of an operator's guide with these lines."""
    terms = ClusterTerms(launch=LaunchTerms(document="theirs.md", values={"JOB": "{command}"}))
    text = "\n".join(["```sh", *lines, "echo JOB", "```", ""])
    return LaunchPath(cluster_without_dashboard(), terms, parse_guide("theirs.md", text), user)


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


@contextmanager
def left_process(uid: int, function: Callable[..., None], *arguments: Any) -> Iterator[int]:
    """A process of the guide's user that outlives its shell."""
    pid = os.fork()
    if not pid:
        os.setsid()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        try:
            function(*arguments)
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


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


# Leaves a process that is another one all the time, in sessions of their own.
HOP = "sleep 0.003\nsetsid sh {script} >/dev/null 2>&1 &\n"


@as_root
def test_a_process_that_flees_is_ended_before_the_next_home(
    user: shell.User, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert user.uid is not None
    script = place / "hop.sh"
    script.write_text(HOP.format(script=script))
    path = theirs(user, f"setsid sh {script} >/dev/null 2>&1 &", "sleep 0.3")
    path.follow()
    assert path.ask("true\n").exit_code == 0
    time.sleep(0.2)  # one that fled would be there again
    assert _processes_of(user.uid) == []


@as_root
def test_a_process_of_another_effective_user_is_seen_by_its_real_one(user: shell.User) -> None:
    def wait() -> None:
        time.sleep(60)  # longer than the test: it is killed

    assert user.uid is not None
    pid = os.fork()
    if not pid:
        os.setresuid(user.uid, 0, 0)  # as a program with the setuid bit
        wait()
        os._exit(0)
    try:
        deadline = time.monotonic() + 5
        while pid not in _processes_of(user.uid):
            assert time.monotonic() < deadline
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise AssertionError in what takes longer."""

    def ring(*_: object) -> None:
        raise AssertionError(f"it takes more than {seconds} s")

    old = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


SYS_EXIT = {"x86_64": 60, "aarch64": 93}  # number of the call that ends one thread alone


def attack(signum: int, leader: str) -> None:
    """Signal all processes of the own user, for ever; the first thread may end alone."""

    def send() -> None:
        while True:
            with suppress(OSError):
                os.kill(-1, signum)

    threading.Thread(target=send).start()
    if leader == "ends alone":
        ctypes.CDLL(None).syscall(SYS_EXIT[os.uname().machine], 0)
    time.sleep(60)  # longer than the test: it is killed


def living_threads(pid: int) -> list[str]:
    """States of the threads of a process that have not ended."""
    states = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return [state for state in states if state not in "ZX"]


@contextmanager
def attacker(uid: int, signum: int, leader: str) -> Iterator[int]:
    """A process of `attack`, once it does so."""
    with left_process(uid, attack, signum, leader) as pid:
        deadline = time.monotonic() + 20
        count = 1 if leader == "ends alone" else 2
        while (len(living_threads(pid)), os.stat(f"/proc/{pid}").st_uid) != (count, uid):
            assert time.monotonic() < deadline
            time.sleep(0.01)  # between two looks
        time.sleep(0.2)  # so that it signals
        yield pid


@as_root
@pytest.mark.parametrize("leader", ["ends alone", "stays"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_signals_all_of_its_user_is_ended(
    user: shell.User, signum: int, leader: str
) -> None:
    """Also one whose first thread has ended alone, so that the process looks like a zombie."""
    assert user.uid is not None
    with attacker(user.uid, signum, leader) as pid, within(30):
        assert _processes_of(user.uid) == [pid]
        stop_resource("user", str(user.uid))
        assert living_threads(pid) == []


@as_root
def test_nothing_runs_as_a_user_who_has_a_process(user: shell.User, place: Path) -> None:
    """It would be stopped before it is the command, and waited for without a limit."""
    assert user.uid is not None
    place.chmod(0o777)
    (place / "a").mkdir(mode=0o777)
    (place / "a").chmod(0o777)
    (place / "a" / "theirs").touch()
    os.chown(place / "a" / "theirs", user.uid, user.uid)
    with attacker(user.uid, signal.SIGSTOP, "stays"), within(30):
        removed, kept, _ = remove_files_of(user.uid, (str(place),))
    assert (removed, kept) == ([], [str(place / "a" / "theirs")])


@as_root
def test_one_that_was_just_killed_is_not_said_to_live(
    user: shell.User, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert user.uid is not None
    monkeypatch.setattr("probes.cluster.cleanup.KILL_SECONDS", 2.0)
    clock = iter([0.0])  # the time is up at once
    monkeypatch.setattr(
        "probes.cluster.cleanup.time",
        SimpleNamespace(monotonic=lambda: next(clock, time.monotonic()), sleep=time.sleep),
    )
    with attacker(user.uid, signal.SIGKILL, "stays") as pid, within(30):
        stop_resource("user", str(user.uid))
        assert living_threads(pid) == []
    monkeypatch.undo()


@as_root
def test_another_users_processes_stay(user: shell.User) -> None:
    """Those of root, of the next user, and of who has a number of SPARES."""
    assert user.uid is not None
    with (
        left_process(0, time.sleep, 60) as of_root,
        left_process(user.uid + 1, time.sleep, 60) as of_next,
        left_process(SPARES[0], time.sleep, 60) as of_spare,
        left_process(user.uid, time.sleep, 60) as theirs,
    ):
        stop_resource("user", str(user.uid))
        living = [pid for pid in (of_root, of_next, of_spare, theirs) if living_threads(pid)]
        assert living == [of_root, of_next, of_spare]


@as_root
def test_the_pid_of_a_shell_that_has_ended_is_no_other_process(user: shell.User) -> None:
    """Until its group is killed: else that signal reaches whoever has the pid by then."""
    with theirs(user, "sleep 63 & echo $!").start() as running:
        assert running.wait().exit_code == 0
        pid = running._child.pid
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        (left,) = [int(line) for line in running.transcript.lines if line.isdecimal()]
        assert living_threads(left)
    assert not Path(f"/proc/{pid}").exists()
    assert user.uid is not None
    assert _wait_for_end(user.uid) == []


def test_a_script_ends_where_the_kernel_reaps_for_us(tmp_path: Path) -> None:
    """As where who started us ignores SIGCHLD."""
    path = LaunchPath(
        cluster_without_dashboard(), ClusterTerms(), own_guide(), shell.User(tmp_path)
    )
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with within(60):
            assert "hi" in path.ask("echo hi\n").lines
    finally:
        signal.signal(signal.SIGCHLD, old)


# Without the right to signal others.
FOLLOW_LONG = """
import sys
from pathlib import Path
from probes.launch import shell
from tests.probes.launch.test_hostile_guide import cluster_without_dashboard, theirs
cluster = cluster_without_dashboard()
shell.free_uid = lambda: int(sys.argv[2])
user = shell.make_user(cluster, sys.argv[1], own_guide=False)
shell.PATH_SECONDS = 1.0
print(theirs(user, "sleep 64").follow().exit_code)
with theirs(user, "sleep 64").start() as running:
    running.interrupt()
    print(running.wait().exit_code)
shell.remove_user(cluster, user)
"""


@as_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="NOT RUN: setpriv is not installed")
def test_root_that_may_signal_no_other_user_ends_a_guide_all_the_same(place: Path) -> None:
    uid = shell.free_uid()
    words = ["setpriv", "--bounding-set", "-kill", sys.executable, "-c", FOLLOW_LONG]
    try:
        done = subprocess.run(
            [*words, str(place), str(uid)],
            cwd=REPO, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.stdout, done.returncode) == ("-9\n-2\n", 0), done.stderr
        assert _processes_of(uid) == []
    finally:
        stop_resource("user", str(uid))


def test_a_shell_that_does_not_end_is_said_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits for a dead file system."""
    path = LaunchPath(
        cluster_without_dashboard(), ClusterTerms(), own_guide(), shell.User(tmp_path)
    )
    monkeypatch.setattr(shell, "KILL_SECONDS", 0.2)
    with path.user.new_home() as home:
        write_script(home, "sleep 65\n")
    running = path.run_script(home, "n")
    says = f"the guide's shell, process {running._child.pid}, does not end"
    with monkeypatch.context() as patched:
        patched.setattr(shell.RunningScript, "_signal", lambda *_: None)
        with pytest.raises(StillRuns, match=says), running:
            pass
    running.__exit__()


# In a world of processes of its own: what would be signalled if a guard failed is nobody else's.
KEEPS_RIGHTS = """
import os, signal, subprocess, sys
bystander = subprocess.Popen(["sleep", "60"])
done = subprocess.run([sys.executable, "-I", sys.argv[1], "60800", "-1", "9"])
print(done.returncode, bystander.poll(), flush=True)
bystander.kill()
"""
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
SECUREBITS = ["setpriv", "--securebits", "+no_setuid_fixup"]


def can_run(*words: str) -> bool:
    """Whether a command is there, and may do what it does."""
    with suppress(OSError):
        return subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return False


@as_root
@pytest.mark.skipif(
    not can_run(*UNSHARE, *SECUREBITS), reason="NOT RUN: unshare or setpriv is not allowed"
)
def test_who_keeps_roots_rights_signals_nobody() -> None:
    """Linux leaves root its rights when it becomes another user, where it was asked to."""
    words = [*UNSHARE, *SECUREBITS, sys.executable, "-c", KEEPS_RIGHTS, cleanup.__file__]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("0 None\n", "")


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


# What lies outside of the homes.


@as_root
def test_what_the_user_left_outside_its_homes_is_removed_and_named(
    user: shell.User, place: Path
) -> None:
    spool, drop = place / "crontabs", place / "drop"
    for folder, mode in ((spool, 0o1730), (drop, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    mine = drop / "of-another"
    mine.write_text("stays")
    lines = [
        *("mkdir -p TMP-a/b/c", "touch TMP-a/f", "chmod 000 TMP-a", "touch /dev/shm/TOKEN"),
        *(f"mkdir -p {drop}/x/y", f"chmod 000 {drop}/x", f"ln -s {mine} {drop}/link"),
        *("ipcmk -M 4096", "ipcmk -Q", "ipcmk -S 1"),
    ]
    token = f"seatrial-test-{os.getpid()}"
    words = [line.replace("TMP", f"/tmp/{token}").replace("TOKEN", token) for line in lines]
    assert theirs(user, *words).follow().exit_code == 0
    (spool / "tab").write_text("* * * * * id")
    os.chown(spool / "tab", user.uid or 0, user.uid or 0)  # as setgid crontab does
    assert user.uid is not None
    shutil.rmtree(user.folder)
    blocks = {f"{kind} {id} (SysV IPC)" for kind, id in list_ipc_of(user.uid)}
    removed, kept, unsearched = remove_files_of(user.uid, (*OPEN_FOLDERS, str(spool)))
    names = {f"/tmp/{token}-a", f"/dev/shm/{token}", f"{drop}/x", f"{drop}/link", f"{spool}/tab"}
    assert ({*removed}, kept, unsearched) == (names | blocks, [], [])
    assert (len(blocks), list_ipc_of(user.uid)) == (3, [])
    assert not any(os.path.lexists(name) for name in names)
    assert mine.read_text() == "stays"


@as_root
def test_a_uid_that_has_a_file_is_not_taken(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another one left is not removed with what a guide left."""
    monkeypatch.setattr(shell, "UIDS", range(61100, 61103))
    (place / "of-another").touch()
    os.chown(place / "of-another", 61101, 61101)
    assert {shell.free_uid() for _ in range(20)} == {61100, 61102}


@as_root
def test_it_is_removed_if_the_driver_dies_too() -> None:
    uid, path = shell.free_uid(), Path(f"/tmp/seatrial-test-{os.getpid()}")
    path.touch()
    os.chown(path, uid, uid)
    keeper = CleanupProcess()
    keeper.register("user", str(uid))
    keeper.close()
    assert not path.exists()


@as_root
def test_what_cannot_be_removed_is_named(user: shell.User, monkeypatch: pytest.MonkeyPatch) -> None:
    left_over = ["/tmp/a\x1b[1m"], ["/tmp/b"] * 7, ["/tmp/c\x1b[1m"]
    monkeypatch.setattr(shell, "remove_files_of", lambda uid: left_over)
    said = shell.remove_user(cluster_without_dashboard(), user)
    left = f"user id {user.uid} left"
    assert said.startswith(f"{left} 1 path outside its homes, now removed: /tmp/a")
    assert f"; {left} 7 paths outside its homes, which could not be removed: /tmp/b, " in said
    assert f"; 1 folder could not be searched for files of user id {user.uid}: /tmp/c" in said
    assert "\x1b" not in said
    monkeypatch.undo()


def test_folders_that_are_too_many_to_be_searched_are_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (place / name).mkdir(mode=0o777)
    monkeypatch.setattr("probes.cluster.cleanup.MAX_ENTRIES", 2)
    found, unsearched = list_files_of(65533, (str(place),))
    assert (found, unsearched) == ([], [str(place / "a"), str(place / "b")])


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
    "refused: no command of the operator's guide {} may be typed here, for no other user can type "
    "it"
)
REFUSED = {
    ("root without rights", ""): f"{NONE} (`true` cannot run as another user: Operation not "
    "permitted), and root must not. Let root become another user, or run as an ordinary one",
    ("ordinary", ""): f"{NONE} (only root can run commands as another user). Run as root, or agree "
    'on user = "own" in the contract\'s [launch]',
}
REFUSED["root without rights", "own"] = REFUSED["root without rights", ""]


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
        pytest.raises(pytest.fail.Exception, match="no command of the operator's guide https://x"),
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
    with pytest.raises(
        GuideError, match=r"may be typed here, for no other user can type it .no right to"
    ):
        path.follow()
    assert list(tmp_path.iterdir()) == []
