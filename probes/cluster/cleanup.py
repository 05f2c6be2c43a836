"""Runs a process that outlives the driver and cleans up after it.

The driver writes one JSON line per folder, process, user or submitted job to the process's standard
input.  The input ends when the driver is done, or is killed.  The process then removes all that is
still registered.  It runs as a file, with the standard library alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if not __package__:  # it runs as a file, and `-I` finds no neighbour
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from probes.cluster.dashboard import authorization_header, request_dashboard

KILL_SECONDS = 5.0  # a killed process is gone within this time
END_SECONDS = 0.5  # for most of them; then they are killed again
SUBMIT_SECONDS = 3.0  # that a submission takes to reach the dashboard's list
QUIET_SECONDS = 5.0  # a rank whose driver is dead stops saving within this time
ENDED = ("STOPPED", "SUCCEEDED", "FAILED")  # states of a job whose command has ended
MAX_DEATHS = 3  # something ends them all: one more would not live either
REMOVE_SECONDS = 60.0  # after this time the writer is no rank that Ray is ending


class CleanupProcess:
    """Driver side: `register` a resource before you make it, `unregister` it once removed.

    A process that dies is replaced at once by one that knows what is registered.  `problems` has a
    sentence for each: (place, text).  No call fails because of it.
    """

    def __init__(self) -> None:
        self.problems: list[tuple[str, str]] = []
        self._registered: list[list[str]] = []
        self._lock = threading.RLock()
        self._is_closing = False
        self._start()

    def _start(self) -> None:
        # A session of its own: Ctrl-C on the terminal must not reach it.
        self._child = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        watch = threading.Thread(target=self._watch, args=(self._child,), daemon=True)
        watch.name = "cleanup watch"
        watch.start()

    def _watch(self, child: subprocess.Popen[str]) -> None:
        """Replace a process that ends before `close`, up to MAX_DEATHS of them."""
        code = child.wait()
        with self._lock:
            if self._is_closing:
                return
            assert child.stdin is not None
            with contextlib.suppress(OSError):  # what it has not read
                child.stdin.close()
            text = f"it ended before the end of the run, with exit code {code}. "
            none = (
                "It is not replaced{}. If seatrial is killed, wait one hour, "
                "then run `seatrial cleanup --remove`"
            )
            if len(self.problems) < MAX_DEATHS:
                try:
                    self._start()
                    text += f"Process {self._child.pid} replaces it"
                except (OSError, RuntimeError) as error:  # no memory, no process, no thread
                    text += none.format(f" ({error})")
                for kind, name in self._registered:
                    self._send({"keep": [kind, name]})
            else:
                text += none.format("")
            self.problems.append((f"the process that cleans up ({child.pid})", text))

    def register(self, kind: str, name: str) -> None:
        """Register a folder or file (path), a process (pid), or a job (`<address> <id>`).

        Also a user (uid, and a line for each of `others` to search for its files), whose processes
        are ended, and jobs whose command has a word, which are stopped (`<address> <word>`).
        """
        with self._lock:
            self._registered.append([kind, name])
            self._send({"keep": [kind, name]})

    def unregister(self, kind: str, name: str) -> None:
        """Drop a resource that has been removed."""
        with self._lock:
            if [kind, name] in self._registered:
                self._registered.remove([kind, name])
            self._send({"forget": [kind, name]})

    def remove_now(self, path: Path) -> None:
        """Remove a folder or file now; if something still writes into it, leave it for later."""
        remove_path(path)
        if not os.path.lexists(path):
            self.unregister("folder", str(path))

    def end_now(self, kind: str, name: str) -> None:
        """End a process, a user's processes or jobs now.  Raises as `stop_resource` does."""
        stop_resource(kind, name)
        self.unregister(kind, name)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        # It may be dead: the next one gets all that is registered.
        with contextlib.suppress(OSError, ValueError):
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()

    def close(self, seconds: float = 90) -> None:
        """Let the process clean up what is left; return when it has.  Where it died, do it here."""
        with self._lock:
            self._is_closing = True
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):  # what a dead process has not read
            self._child.stdin.close()
        try:
            died = self._child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            place = f"the process that cleans up ({self._child.pid})"
            text = f"it did not end within {seconds:.0f} s after the run"
            self.problems.append((place, f"{text}. Run `seatrial cleanup --remove`"))
            return
        if died:
            clean_up(self._registered)


class StillRuns(OSError):
    """Raised when processes of a user that we made do not end."""


def stop_resource(kind: str, name: str) -> None:
    """End a process or job; a process that is already gone is no error.

    Raises OSError if the dashboard does not answer, or does not know the job.  Raises
    PermissionError if it refuses.
    """
    if kind == "process":
        _kill_group(int(name))
    elif kind == "user":
        _kill_user(int(name.split("\n")[0]))
    elif kind in ("job", "jobs"):
        address, word = name.split(" ", 1)
        if not address.startswith(("http://", "https://")):
            raise OSError(f"expected http://host:port of the dashboard, found {address!r}")
        for job in [word] if kind == "job" else jobs_with(address, word):
            path = f"/api/jobs/{urllib.parse.quote(job, safe='')}/stop"
            _ask_dashboard(address, f"job {job}", path, method="POST")


def jobs_with(address: str, word: str) -> list[str]:
    """List the jobs that have not ended and whose command has this word.  Raises OSError."""
    jobs = list_jobs(address, f"with {word}")
    return [job["submission_id"] for job in jobs if word in str(job.get("entrypoint"))]


def list_jobs(address: str, which: str = "of an earlier run") -> list[dict[str, Any]]:
    """List the submitted jobs that have not ended, as Ray describes them.

    Raises OSError.  Its text names `which` jobs were looked for.
    """
    answer = _ask_dashboard(address, f"the jobs {which}", "/api/jobs/")
    try:
        jobs = [dict(job) for job in json.loads(answer)]
    except (TypeError, ValueError):  # a page of a proxy
        raise OSError(f"{address} did not answer with a list of its jobs") from None
    # A driver that was not submitted has no id.
    submitted = [job for job in jobs if isinstance(job.get("submission_id"), str)]
    return [job for job in submitted if job.get("status") not in ENDED]


def _ask_dashboard(address: str, jobs: str, path: str, method: str = "GET") -> bytes:
    """Send a request about jobs.  Raises PermissionError if the dashboard refuses our token."""
    try:
        return request_dashboard(address, path, method)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in (401, 403):  # unauthorized, forbidden
            raise
        token = "the token that was sent" if authorization_header() else "a request without a token"
        raise PermissionError(
            f"the dashboard at {address} refuses {token} (HTTP {error.code}), so seatrial cannot "
            f"stop {jobs}: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or run `ray job stop`"
        ) from None


def remove_paths(paths: list[Path]) -> list[Path]:
    """Remove folders and files until all stay away for QUIET_SECONDS; return those that remain.

    Ranks outlive their driver by some seconds, because Ray ends them remotely.  A rank that saves
    meanwhile fills a folder that is being removed, or makes it again.
    """
    start = last_seen = time.monotonic()
    while paths and last_seen + QUIET_SECONDS > (now := time.monotonic()):
        if existing := [path for path in paths if os.path.lexists(path)]:
            if start + REMOVE_SECONDS < now:
                return existing
            last_seen = now
        for path in existing:
            remove_path(path)
        time.sleep(0.05)
    return []


def remove_path(path: Path) -> str:
    """Remove a file, a link, or a folder of any depth; return why not all of it, "" if it is gone.

    What a link leads to stays.  Of a folder it removes what it can.
    """
    error = ""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except (OSError, RecursionError) as problem:
        error = str(problem)
        if getattr(problem, "errno", errno.EMFILE) == errno.EMFILE:
            _run(["rm", "-rf", "--", str(path)])  # folders so deep that Python fails
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    return error if os.path.lexists(path) else ""


def _kill_group(pid: int) -> None:
    """Send SIGTERM to the process group, and SIGKILL 3 s later if it is still there."""
    for signum, wait in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 1.0)):
        try:
            os.killpg(pid, signum)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
            time.sleep(0.05)


# Numbers of no account, as shell.py's UIDS: who kills a user's processes has one of them as well.
SPARES = range(61084, 61184)


def _kill_user(uid: int) -> None:
    """Kill all processes of a user that we made, until none is left.  Raises StillRuns."""
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        is_last = time.monotonic() > deadline
        signal_as(uid, -1, signal.SIGKILL)
        for pid in _processes_of(uid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not (pids := _wait_for_end(uid)):
            return
        if is_last:
            raise StillRuns(f"processes of user id {uid} do not end: {', '.join(map(str, pids))}")


def _wait_for_end(uid: int) -> list[int]:
    """Wait for a user's processes, which were killed; list those that are still there."""
    deadline = time.monotonic() + END_SECONDS
    while (pids := _processes_of(uid)) and time.monotonic() < deadline:
        time.sleep(0.02)  # between two looks
    return pids


def signal_as(uid: int, target: int, signum: int) -> None:
    """Send a signal as a user that we made: to all its processes (-1), or to a group (-pid).

    The kernel sends it to all at once: one that forks and ends all the time is in no list of
    processes when its turn comes.  Root without CAP_KILL may do it too.
    """
    words = [sys.executable, "-I", __file__, str(uid), str(target), str(signum)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            words, cwd="/", capture_output=True, stdin=subprocess.DEVNULL, check=False,
            timeout=KILL_SECONDS,
        )  # fmt: skip


def _signal_as(uid: int, target: int, signum: int) -> None:
    """Become a user that its own processes cannot signal, and signal them; this process ends.

    kill(2): they may if one of their uids is our real or saved one, which no account has.  We may
    if our effective one is theirs.  exec would save that one, so there is none.
    """
    spare = next(one for one in random.sample(SPARES, len(SPARES)) if not _processes_of(one))
    os.setgroups([])
    os.setresgid(spare, spare, spare)
    os.setresuid(spare, uid, spare)
    if os.getresuid() != (spare, uid, spare) or spare == uid:
        return
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:  # as root is safe from us, so is all that is not the user's
        os.kill(target, signum)


def _run(words: list[str], uid: int | None = None) -> None:
    """Run a command quietly, as another user if one is given; whether it succeeds is not asked.

    Nothing runs as a user who has a process: it could stop ours before it is the command, and
    Popen waits for that without a limit.
    """
    if uid is not None and _processes_of(uid):
        return
    who: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            words, env={"PATH": "/usr/local/bin:/usr/bin:/bin"}, cwd="/", capture_output=True,
            stdin=subprocess.DEVNULL, timeout=REMOVE_SECONDS, check=False, **who,
        )  # fmt: skip


def _processes_of(uid: int) -> list[int]:
    """List the processes with this uid, be it real, effective or saved; zombies have ended."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "status").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        is_theirs = str(uid) in fields["Uid"].split()
        if is_theirs and (fields["State"].split()[0] != "Z" or _has_thread(process)):
            pids.append(int(process.name))
    return pids


def _has_thread(process: Path) -> bool:
    """Whether a thread of a process lives: the first one may end alone, and is then a zombie."""
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(process / "task"):
            with contextlib.suppress(OSError):
                text = (process / "task" / thread / "stat").read_text(errors="replace")
                if text.rpartition(")")[2].split()[0] not in ("Z", "X"):
                    return True
    return False


# Where a user without an account may leave files on a host: folders that each user can write to,
# and those of cron and at.
OPEN_FOLDERS = (
    *("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock", "/run/user"),
    *("/var/spool/cron", "/var/spool/cron/crontabs", "/var/spool/cron/atjobs", "/var/spool/at"),
)
MAX_ENTRIES = 200_000  # that are looked at in all of them
MAX_OTHER = 20_000  # in other folders, such as one that is shared, where a look may take a ms
MAX_FOUND = 20_000  # paths in memory at once; then they are removed, and the next are looked for
# By the file in /proc/sysvipc: its column of ids, and the option of ipcrm(1).
SYSV_IPC = {"shm": ("shmid", "-m"), "msg": ("msqid", "-q"), "sem": ("semid", "-s")}
REMOVE_AT_ONCE = 100  # paths of one command, whose length the kernel bounds


def remove_files_of(
    uid: int, folders: Sequence[str] = OPEN_FOLDERS, others: Sequence[str] = ()
) -> tuple[list[str], list[str], list[str]]:
    """Remove the files of a user that we made, and that has no process any more, from this host.

    Returns what was removed, what was not, and the folders that were not searched to the end.
    """
    removed, tried, deadline = list[str](), set[str](), time.monotonic() + REMOVE_SECONDS
    while True:
        kept, unsearched = list_files_of(uid, folders, others)
        new = [path for path in kept if path not in tried]
        if not new or time.monotonic() > deadline:
            break
        tried = {*kept}
        inside = [path for path in new if os.path.dirname(path) not in folders]
        # Another user may exchange a folder of his own for a link, so root removes nothing there.
        _remove_files([path for path in new if path not in {*inside}])
        _remove_files(inside, uid)
        removed += [path for path in new if not os.path.lexists(path)]
    for kind, id in (blocks := list_ipc_of(uid)):
        _run(["ipcrm", SYSV_IPC[kind][1], id])
    now = list_ipc_of(uid)
    for kind, id in blocks:
        (kept if (kind, id) in now else removed).append(f"{kind} {id} (SysV IPC)")
    return removed, kept, unsearched


def _remove_files(paths: list[str], uid: int | None = None) -> None:
    for first in range(0, len(paths), REMOVE_AT_ONCE):
        some = paths[first : first + REMOVE_AT_ONCE]
        _run(["rm", "-rf", "--", *some], uid)
        if uid is not None and (some := [path for path in some if os.path.lexists(path)]):
            _run(["chmod", "-R", "u+rwx", "--", *some], uid)
            _run(["rm", "-rf", "--", *some], uid)


def list_ipc_of(uid: int) -> list[tuple[str, str]]:
    """List the kinds and ids of a user's shared memory, queues and semaphores of System V.

    proc_sysvipc(5): a line of names, and a line for each.
    """
    found = []
    for kind, (column, _) in SYSV_IPC.items():
        try:
            head, *rows = Path(f"/proc/sysvipc/{kind}").read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):  # this kernel has none
            continue
        for row in rows:
            values = dict(zip(head.split(), row.split(), strict=False))
            if str(uid) in (values.get("uid"), values.get("cuid")):
                found.append((kind, values[column]))
    return found


def list_files_of(
    uid: int, folders: Sequence[str] = OPEN_FOLDERS, others: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """List the files and folders of a user in these folders; not what is in one of its folders.

    Other file systems below them are not searched, nor folders that are closed to the user.  The
    second list is of folders that were not searched to the end: before, there were MAX_ENTRIES
    (MAX_OTHER in `others`), or MAX_FOUND of the user's.
    """
    found, unsearched = set[str](), set[str]()
    for roots, most in ((folders, MAX_ENTRIES), (others, MAX_OTHER)):
        to_search = deque((root, _device_of(root)) for root in roots)
        count = 0
        while to_search and count <= most and len(found) < MAX_FOUND:
            folder, device = to_search[0]
            for path, state in _states_in(folder):
                if (count := count + 1) > most or len(found) >= MAX_FOUND:
                    break
                passable = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_IXOTH
                if state.st_uid == uid:
                    found.add(path)
                elif passable and state.st_dev == device:
                    to_search.append((path, device))
            else:
                to_search.popleft()
        unsearched.update(folder for folder, _ in to_search)
    return sorted(found), sorted(unsearched)


def _states_in(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # it may not be here
        for entry in entries:
            with contextlib.suppress(OSError):  # it has just gone
                yield entry.path, entry.stat(follow_symlinks=False)


def _device_of(folder: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(folder).st_dev
    return 0


def end_all(items: list[list[str]]) -> None:
    """End these resources; say which could not be ended."""
    for kind, name in items:
        try:
            stop_resource(kind, name)
        except Exception as error:  # noqa: BLE001  (the others must be ended all the same)
            if getattr(error, "code", None) != 404:  # 404: the dashboard knows the job no more
                print(f"seatrial: could not end {kind} {name!r}: {error}", file=sys.stderr)


def main() -> None:
    """Read lines until the driver is gone, then remove what it left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    registered: list[list[str]] = []
    for line in sys.stdin:
        message = json.loads(line)
        if "keep" in message:
            registered.append(message["keep"])
        elif message["forget"] in registered:
            registered.remove(message["forget"])
    clean_up(registered)


def clean_up(registered: list[list[str]]) -> None:
    """Remove these resources; say what could not be removed."""
    # Who submits jobs ends before the jobs, and all before folders: they may still write there.
    end_all([item for item in registered if item[0] in ("process", "user")])
    jobs = [item for item in registered if item[0] in ("job", "jobs")]
    end_all(jobs)
    if jobs:  # one may have been on its way
        time.sleep(SUBMIT_SECONDS)
        end_all([item for item in jobs if item[0] == "jobs"])
    for path in remove_paths([Path(name) for kind, name in registered if kind == "folder"]):
        text = f"could not remove {path}. A process may still write there: remove the folder later"
        print(f"seatrial: {text}", file=sys.stderr)
    for uid, *others in [name.split("\n") for kind, name in registered if kind == "user"]:
        _, kept, unsearched = remove_files_of(int(uid), others=others)
        for end, names in (("remove", kept), ("search all of", unsearched)):
            for name in names:
                text = f"could not {end} {name!r} (files of user id {uid})"
                print(f"seatrial: {text}", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _signal_as(*map(int, sys.argv[1:]))
    else:
        main()
