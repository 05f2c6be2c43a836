"""Processes of a guide's user that do not want to end, and who must not be ended with them."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from probes.cluster import cleanup
from probes.cluster.cleanup import (
    SPARES,
    StillRuns,
    _processes_of,
    _wait_for_end,
    remove_files_of,
    stop_resource,
)
from probes.contract.terms import ClusterTerms
from probes.launch import shell
from probes.launch.guide import LaunchPath, own_guide
from probes.launch.shell import write_script
from tests.probes.launch.another_user import (
    as_root,
    can_run,
    cluster_without_dashboard,
    left_process,
    theirs,
    within,
)
from tests.support.paths import REPO

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
from tests.probes.launch.another_user import cluster_without_dashboard, theirs
cluster = cluster_without_dashboard()
shell.free_uid = lambda *_: int(sys.argv[2])
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
    says = rf"the shell that typed the guide \(process {running._child.pid}\) does not end"
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


@as_root
@pytest.mark.skipif(
    not can_run(*UNSHARE, *SECUREBITS), reason="NOT RUN: unshare or setpriv is not allowed"
)
def test_who_keeps_roots_rights_signals_nobody() -> None:
    """Linux leaves root its rights when it becomes another user, where it was asked to."""
    words = [*UNSHARE, *SECUREBITS, sys.executable, "-c", KEEPS_RIGHTS, cleanup.__file__]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("0 None\n", "")
