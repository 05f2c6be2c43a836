"""Types commands as a user: a shell of an ordinary account with a home of its own."""

from __future__ import annotations

import grp
import http.client
import os
import pwd
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from probes.cluster import cleanup
from probes.cluster.ask import make_unique_token
from probes.cluster.cleanup import KILL_SECONDS, StillRuns, remove_files_of, stop_resource
from probes.cluster.cluster import Cluster
from probes.cluster.dashboard import find_token
from probes.cluster.gpus import COMMAND_END_SECONDS
from probes.contract.terms import ClusterTerms
from probes.findings import join_names
from probes.launch.output import LineReader, OutputLines
from reports.numbers import quantity
from reports.redact import REDACTED, redact_text
from reports.sanitize import one_line

# No distribution gives these numbers to anybody (systemd's docs/UIDS-GIDS.md: unused).
UIDS = range(60706, cleanup.SPARES[0])
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
COMMANDS = ("seatrial", "ray")  # of our own guide
CHECK_SECONDS = 60
NAME = "seatrial-user"
HOMES = "/tmp"
TYPED = ".typed.sh"
MAX_NAMED = 5  # paths in a sentence
MAX_REASON = 200  # characters of an error
# What root needs to be another user, to give away a home folder, and to remove it.
CAPABILITIES = "CAP_SETUID, CAP_SETGID, CAP_CHOWN, CAP_DAC_OVERRIDE"


@dataclass
class User:
    """A user: uid and gid to run as (None: our own), and the folder with the user's homes.

    `why_same` is the reason why no other user could be made.  `others` are folders where such a
    user may leave files, besides those of every host.
    """

    folder: Path
    uid: int | None = None
    why_same: str = ""
    others: Sequence[str] = ()
    homes: list[Path] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the user for the process that cleans up."""
        return "\n".join([str(self.uid), *self.others])

    @property
    def run_as(self) -> dict[str, Any]:
        """Arguments of subprocess.Popen that run a command as this user."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.uid, "extra_groups": [], "umask": 0o022}

    @contextmanager
    def new_home(self) -> Iterator[Path]:
        """Yield a new home to put files into; on leaving it is the user's.

        Until then it is ours, and closed to all others.  Afterwards root touches no path inside it:
        what stands there may be a link.  It has the cluster's token if there is one, as users are
        given it.  Raises NoUser where that fails, and StillRuns if the user's processes do not end.
        """
        if self.uid is not None:
            stop_resource("user", str(self.uid))  # what an earlier script left could change it
        home = self.folder / f"home-{make_unique_token()}"
        try:
            home.mkdir(mode=0o700)
            if token := find_token():
                (home / ".ray").mkdir(mode=0o700)
                path = home / ".ray" / "auth_token"
                path.touch(mode=0o600)
                path.write_text(token, encoding="utf-8")
            self.homes.append(home)
            yield home
            self._hand_over(home)
        except OSError as error:
            what = f"seatrial cannot make a home folder in {self.folder}"
            raise NoUser(f"{what}: {_reason(error)}") from None

    def why_no_home(self) -> str:
        """Return why the user cannot have a home that root can give and remove; "" if it can."""
        script = 'cd "$0" && touch mine && rm -rf mine .ray'
        home = self.folder / "none"
        try:
            with self.new_home() as home:
                pass
            subprocess.run(
                ["sh", "-c", script, str(home)],
                env={"PATH": SYSTEM_PATH}, cwd="/", capture_output=True, timeout=CHECK_SECONDS,
                check=True, **self.run_as,
            )  # fmt: skip
            subprocess.run(["true"], cwd=home, check=True, timeout=CHECK_SECONDS, **self.run_as)
            shutil.rmtree(home)
        except (NoUser, StillRuns) as error:
            return str(error)
        except (OSError, subprocess.SubprocessError) as error:
            return f"root cannot give another user a home folder: {_reason(error)}"
        finally:
            self.homes.clear()
            with suppress(OSError):  # where root may not look into it, and it is empty
                home.rmdir()
        return ""

    def _hand_over(self, home: Path) -> None:
        """Give the user the home and all that is in it, the home itself last."""
        if self.uid is None:
            return
        for _, folders, files, handle in os.fwalk(home):
            for name in (*folders, *files):
                os.chown(name, self.uid, self.uid, dir_fd=handle, follow_symlinks=False)
        handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fchown(handle, self.uid, self.uid)
        finally:
            os.close(handle)


class NoUser(OSError):
    """Raised where no user, or no home for one, can be made."""


def _reason(error: Exception) -> str:
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        return one_line(error.args[0][0][-1][:MAX_REASON])  # of the first file
    return one_line(str(getattr(error, "strerror", None) or error)[:MAX_REASON])


def make_user(cluster: Cluster, parent: str, *, own_guide: bool, shared: str = "") -> User:
    """Make a user with a folder in `parent`; `cluster.cleanup` removes it if we die.

    Only root can run commands as another user.  Our own guide needs our installation, so that the
    other user must be able to read it.  `shared` is the contract's folder.  Raises NoUser.
    """
    folder = Path(parent) / f"seatrial-user-{make_unique_token()}"
    cluster.cleanup.register("folder", str(folder))
    try:
        folder.mkdir()
        folder.chmod(0o711)  # whatever the umask: the user only passes through to the homes
    except OSError as error:
        raise NoUser(f"seatrial cannot make a folder in {parent}: {_reason(error)}") from None
    if problem := why_no_other_user(own_guide=own_guide):
        return User(folder, why_same=problem)
    others = [*list_mounts()[0], *([shared] if shared else [])]
    user = User(folder, free_uid(others), others=others)
    cluster.cleanup.register("user", user.name)
    if problem := user.why_no_home():
        cluster.cleanup.unregister("user", user.name)
        return User(folder, why_same=problem)
    return user


def why_no_other_user(*, own_guide: bool) -> str:
    """Return why no other user can follow the guide from here; "" if one can."""
    if os.geteuid() != 0:
        return "only root can run commands as another user"
    try:
        user = User(Path("/"), uid=free_uid())
    except NoUser as error:
        return str(error)
    return _cannot_run(user, COMMANDS if own_guide else ())


def why_not_typed(terms: ClusterTerms, uid: int | None, why_same: str) -> str:
    """Return why the guide may not be typed as this user (None: our own); "" if it may.

    Our own guide may be.  An operator's is a program of another party: it is typed as ourselves
    only where the contract agrees on that, and never as root.
    """
    if uid is not None or terms.launch.document is None:
        return ""
    what = (
        f"seatrial does not run the commands of the operator's guide {terms.launch.document}: "
        f"it cannot create another user for them ({why_same})"
    )
    agreed, setting = terms.launch.user == "own", 'user = "own" in the contract\'s [launch]'
    if 0 in (os.getuid(), os.geteuid()):
        alone = "" if agreed else f", with {setting}"
        return (
            f"{what}. The commands must never run as root. Give root the capabilities that are "
            f"missing ({CAPABILITIES}), or run seatrial as an ordinary user{alone}"
        )
    return "" if agreed else f"{what}. Run seatrial as root, or set {setting}"


def name_guide(terms: ClusterTerms) -> str:
    """Name the guide that is followed, and what binds its text."""
    launch = terms.launch
    if launch.document is None:
        return "seatrial's own guide"
    bound = f"sha256 {launch.sha256}" if launch.sha256 else "no sha256 in the contract"
    return f"the operator's guide {launch.document} ({bound})"


def describe_typist(terms: ClusterTerms, why_same: str) -> str:
    """Say whose commands a run on this host types, and as whom; or why it types none."""
    if why := why_not_typed(terms, None, why_same) if why_same else "":
        return why
    why = "the contract allows it" if terms.launch.user == "own" else why_same
    us = f"the user who runs seatrial (user id {os.geteuid()}, because {why})"
    who = us if why_same else "a user that seatrial creates"
    return f"the commands of {name_guide(terms)} run as {who}, on the host that runs seatrial"


def describe_typists(terms: ClusterTerms) -> str:
    """Say whose commands a run types, where, and as whom, whatever the host."""
    launch = terms.launch
    typed = launch.document is None or launch.user == "own"
    never = ", never as root" if launch.document is not None else ""
    return (
        f"seatrial types the commands of {name_guide(terms)} on the host where you start seatrial. "
        f"If you start seatrial as root, the commands run as a new user that seatrial creates"
        f"{never}. Otherwise the commands {'run as you' if typed else 'do not run'}"
    )


def remove_user(cluster: Cluster, user: User) -> str:
    """End what the user left running, and remove the homes and what lies outside of them.

    Return a sentence on what lay outside; "" for nothing.
    """
    if user.uid is not None:
        stop_resource("user", str(user.uid))
    cluster.cleanup.remove_now(user.folder)
    if user.uid is None:
        return ""
    removed, kept, unsearched = remove_files_of(user.uid, others=user.others)
    # Its homes are empty now, so that root without CAP_DAC_OVERRIDE can remove them, too.
    cluster.cleanup.remove_now(user.folder)
    kept = [path for path in kept if str(user.folder) not in path or os.path.lexists(path)]
    unsearched += [place for place in list_mounts()[1] if place not in user.others]
    cluster.cleanup.unregister("user", user.name)
    sentences = [
        f"seatrial {did} {quantity(len(paths), 'paths')} of test user {user.uid} outside the home: "
        f"{join_names([one_line(path) for path in paths[:MAX_NAMED]])}"
        for paths, did in ((removed, "removed"), (kept, "could not remove"))
        if paths
    ]
    if unsearched:
        sentences.append(
            f"seatrial could not search {quantity(len(unsearched), 'folders')} for files of test "
            f"user {user.uid}: {join_names([one_line(path) for path in unsearched[:MAX_NAMED]])}"
        )
    return "; ".join(sentences)


def free_uid(others: Sequence[str] = ()) -> int:
    """Choose a uid that no account has, no process runs as, and no file of an open folder has.

    Raises NoUser.
    """
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            taken.add(process.stat().st_uid)
    free = [uid for uid in UIDS if uid not in taken]
    # What such a user has in the end is removed, so it must have nothing before.
    for uid in random.sample(free, len(free)):
        files = cleanup.list_files_of(uid, others=others)[0]
        if not files and not cleanup.list_ipc_of(uid) and not _has_name(uid):
            return uid
    raise NoUser(f"seatrial found no free user id from {UIDS[0]} to {UIDS[-1]} for a test user")


def _has_name(uid: int) -> bool:
    """Whether an account or a group has this number: SSSD and LDAP know them, but list none."""
    for find in (pwd.getpwuid, grp.getgrgid):
        with suppress(KeyError):
            find(uid)
            return True
    return False


# Types of file systems of other machines, by how they begin; one that does not answer holds us.
REMOTE = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "fuse", "gluster", "gpfs", "lustre", "ncp", "nfs"),
    *("orangefs", "panfs", "pvfs", "smb", "virtiofs", "wekafs"),
)
ALL_WRITE = stat.S_IWOTH | stat.S_IXOTH
MOUNTS = "/proc/self/mounts"


def list_mounts() -> tuple[list[str], list[str]]:
    """List the mounts into which each user may write, and those of other machines' file systems.

    proc_pid_mounts(5): device, place, type, options; `\\040` stands for a space.
    """
    local, remote = [], []
    for line in filter(None, os.fsdecode(Path(MOUNTS).read_bytes()).split("\n")):
        _, place, kind, options, *_ = line.split(" ")
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place)
        if "ro" in options.split(",") or place.startswith(("/proc/", "/sys/")):
            continue
        if kind.startswith(REMOTE):
            remote.append(place)
            continue
        with suppress(OSError):
            mode = os.stat(place).st_mode
            is_open = stat.S_ISDIR(mode) and mode & ALL_WRITE == ALL_WRITE
            if is_open and place not in cleanup.OPEN_FOLDERS:
                local.append(place)
    return local, remote


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
    how = {**user.run_as, "env": {"PATH": SYSTEM_PATH, "HOME": "/"}, "cwd": "/"}
    how |= {"capture_output": True, "timeout": CHECK_SECONDS, "check": False}
    for words in (first, *(["test", "-r", path] for path in needed)):
        try:
            done = subprocess.run(words, **how)
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "strerror", None) or error
            return f"a test command (`{words[0]}`) failed as another user: {why}"
        if done.returncode:
            return f"another user cannot read seatrial's installation in {sys.prefix}"
    return ""


PATH_SECONDS = 700.0  # bounds all commands together; a first step alone may take 300 s
READ_SECONDS = 5.0  # what a command leaves in the background may hold its output open
PIECE_BYTES = 64 << 10  # what a pipe holds
STILL_OPEN = (
    "[a process that the commands started in the background still runs: seatrial leaves out the "
    "later output of this process]"
)
MAX_JOBS = 100  # that one guide submits
POLL_SECONDS = 0.1
LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT  # whether a child has ended, without reaping it
INTERRUPT_SECONDS = 3.0  # that a program takes to end on Ctrl-C
MARK = "seatrial-failed-command"
SUBMITTED = re.compile(r"Job '([\w.-]+)' submitted successfully")
FIRST_STEP = re.compile(r"\bstep 1/\d+ ")


@dataclass
class Transcript:
    """Commands typed, their output, and the exit code of the last command."""

    lines: list[str] = field(default_factory=list)
    exit_code: int | None = None
    failed_command: str = ""
    left_out: str = ""  # what of the output is not in `lines`, and why
    stop_error: str = ""  # why the dashboard refused to stop the job
    first_step: float | None = None  # seconds from the first command to the first step's line
    seconds: float = 0.0  # from the first command to the end
    jobs: list[str] = field(default_factory=list)  # submission ids

    @property
    def text(self) -> str:
        """Transcript as a terminal would show it."""
        return "\n".join([*self.lines, *filter(None, [self.left_out])]) + "\n"


class RunningScript:
    """A script in a user's shell; `transcript` grows while it runs.

    A context manager: on leaving, its processes are ended, and its jobs stopped, if they still run.
    """

    def __init__(
        self, cluster: Cluster, user: User, home: Path, name: str,
        environment: Mapping[str, str], login: bool,
    ) -> None:  # fmt: skip
        self._cluster, self.transcript = cluster, Transcript()
        self._jobs = f"{cluster.dashboard} {name}" if cluster.dashboard else ""
        if self._jobs:
            cluster.cleanup.register("jobs", self._jobs)
        self._started, self._uid = time.monotonic(), user.uid
        self._ended = threading.Event()  # of what is read
        # --login reads /etc/profile, as a user's own shell has.
        command = ["bash", *(["--login"] if login else []), "-eE", str(home / TYPED)]
        how: dict[str, Any] = {"cwd": home, "env": dict(environment), **user.run_as}
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, **how)
        cluster.cleanup.register("process", str(self._child.pid))
        self._reader = threading.Thread(target=self._read_lines, daemon=True)
        self._reader.start()

    def __enter__(self) -> RunningScript:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.transcript.jobs or self.transcript.first_step:  # its ranks end, or have ended
                self._cluster.note_kill(ago=COMMAND_END_SECONDS)
            self._kill()
            self._cluster.cleanup.unregister("process", str(self._child.pid))
            self._child.wait()  # from now on another process may have its pid
        finally:
            self._end_reading()
            if self._jobs:
                jobs = self.transcript.jobs
                self.transcript.stop_error = stop_jobs(self._cluster, self._jobs, jobs)

    def wait(self) -> Transcript:
        """Wait for the script's end, and return what it showed; kill it when its time is up.

        Raises StillRuns if it does not end.
        """
        code = self._await_end(PATH_SECONDS - (time.monotonic() - self._started))
        self.transcript.exit_code = self._kill() if code is None else code
        self._end_reading()
        self.transcript.seconds = time.monotonic() - self._started
        return self.transcript

    def _end_reading(self) -> None:
        """Read what is left of the output; what a background process prints later is left out."""
        if self._ended.is_set():
            return
        self._reader.join(READ_SECONDS)
        self._ended.set()
        if self._reader.is_alive():
            self.transcript.left_out = STILL_OPEN

    def wait_for_step(self, step: int, seconds: float) -> bool:
        """Wait until the job has taken a step; False if it did not in time, or ended."""
        deadline, word = time.monotonic() + seconds, f"step {step}/"
        while not any(word in line for line in list(self.transcript.lines)):
            if time.monotonic() > deadline or self._await_end(0.0) is not None:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def interrupt(self) -> None:
        """Press Ctrl-C; a shell that was started in the background of a script ignores it."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._signal(signum)
            if self._await_end(INTERRUPT_SECONDS) is not None:
                return

    def _await_end(self, seconds: float) -> int | None:
        """Wait for the shell's end, and return its exit code; None if it goes on.

        It is not reaped before `__exit__`, so that its pid is its own, and its group's, until then.
        """
        deadline = time.monotonic() + seconds
        if self._child.returncode is not None:
            return self._child.returncode
        try:
            while not (end := os.waitid(os.P_PID, self._child.pid, LOOK)):
                if time.monotonic() >= deadline:
                    return None
                time.sleep(POLL_SECONDS)
        except ChildProcessError:  # who started us ignores SIGCHLD: the kernel reaps
            return self._child.wait()
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    def _kill(self) -> int:
        """Kill the shell and its group, and return its exit code.  Raises StillRuns."""
        self._signal(signal.SIGKILL)
        code = self._await_end(KILL_SECONDS)
        if code is None:
            shell = f"the shell that typed the guide (process {self._child.pid})"
            raise StillRuns(f"{shell} does not end")
        return code

    def _signal(self, signum: int) -> None:
        """Signal the shell's group: as its user where we have no right to (no CAP_KILL)."""
        if self._child.returncode is not None:
            return
        try:
            os.killpg(self._child.pid, signum)
        except ProcessLookupError:
            return
        except PermissionError:
            if self._uid is not None:
                cleanup.signal_as(self._uid, -self._child.pid, signum)

    def _read_lines(self) -> None:
        token, reader = find_token(), LineReader()
        output = OutputLines(self.transcript.lines, self._cluster.size)
        assert self._child.stdout is not None
        with self._child.stdout as stream:
            content = b"?"
            while content:  # to the end, for who still prints must not wait
                content = os.read(stream.fileno(), PIECE_BYTES)
                for line in reader.read(content, final=not content):
                    if self._ended.is_set():
                        break
                    self._take_line(hide_secrets(line, token), output)

    def _take_line(self, text: str, output: OutputLines) -> None:
        transcript = self.transcript
        if MARK in text:  # the trap's word, or -v that shows the trap itself
            if text.startswith(MARK):
                transcript.failed_command = text.removeprefix(MARK).strip()
            return
        output.add(text)
        job = SUBMITTED.search(text)
        if job and job[1] not in transcript.jobs and len(transcript.jobs) < MAX_JOBS:
            transcript.jobs.append(job[1])
            self._cluster.cleanup.register("job", f"{self._cluster.dashboard} {job[1]}")
        if transcript.first_step is None and FIRST_STEP.search(text):
            transcript.first_step = time.monotonic() - self._started


def write_script(home: Path, script: str) -> None:
    """Write what is typed into a home that is still ours."""
    # The trap tells which command ended the script; -v shows each line as it is typed.
    trap = f"trap 'echo \"{MARK} $BASH_COMMAND\"' ERR\n"
    (home / TYPED).write_text(f"{trap}set -v\n{script}", encoding="utf-8")


def hide_secrets(line: str, token: str) -> str:
    """Remove secrets from a line: those with known names, and the cluster's token anywhere."""
    return redact_text(line.replace(token, REDACTED) if token else line)


def stop_jobs(cluster: Cluster, jobs: str, ids: Sequence[str]) -> str:
    """Stop what still runs of these jobs; return why the dashboard refused, or "".

    If stopping fails, cluster.cleanup stops them later.
    """
    try:
        cluster.cleanup.end_now("jobs", jobs)
        for id in ids:
            try:
                cluster.cleanup.end_now("job", f"{cluster.dashboard} {id}")
            except urllib.error.HTTPError as refusal:
                if refusal.code != 404:  # 404: the dashboard does not know it (any more)
                    raise
    except (OSError, http.client.HTTPException) as error:
        return str(error) if isinstance(error, PermissionError) else ""
    return ""
