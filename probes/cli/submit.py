"""`seatrial submit`: run the suite on a remote cluster, and bring the run back."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click

from probes.cli.command import PATH, UsageError, command
from probes.cli.run import TO_PYTEST, RunCommand, choose_probes, run_options
from probes.cluster.dashboard import ADDRESS_VARIABLE, DASHBOARD
from probes.session.options import OPTIONS, check_nonce
from probes.submit import follow, verify
from probes.submit.bring_back import PYTHON, BringBack, ForeignRun, NoRun
from probes.submit.entry import PREFIX
from probes.submit.follow import ConnectionLost, JobsApi, SubmitError
from probes.submit.package import CONTRACT, UNPROVEN, make_package, package_name
from probes.submit.parts import STEP_SUMMARY
from reports.command import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_USAGE
from reports.run_folder.event_log import UnreadableRun
from reports.sanitize import clean, one_line

ID = re.compile(f"{PREFIX}[0-9a-f]{{12}}")
ENTRYPOINT = f"{PYTHON} -m probes.submit.entry"
# Ray kills what does not end in this time after a stop.  The suite removes what it made, and ends
# the run's record.
STOP_S = 120
STOP_MARGIN_S = 60  # for Ray to say that it has ended
LEFT_TO_ITSELF = "detached: the run continues, and nothing is proven yet"
NO_CONTRACT = (
    "the job reports an accepted run, but no contract was given here to compare the run with. "
    "Repeat --attach with the --contract that was submitted"
)
HINT = "Check that the head is up, and that this machine can reach the port of its dashboard"
MAX_SUMMARY = 2**20  # bytes that GitHub takes of a step
DECIDED = (0, 1, UNPROVEN)  # exit codes of a run that came to its end, and is verified
COMPARED = ("contract", "nonce", "tier", "nodes")  # options that a run must fit: also with --attach
OWN = tuple(option.key for option in OPTIONS if option.key != "cluster")


class Terminated(KeyboardInterrupt):
    """SIGTERM has come: who sends it answers no question."""


class Detached(Exception):
    """The user leaves the run to itself."""


@command(
    "Run the suite on a remote cluster, as a job.",
    "seatrial submit --address http://head:8265 --contract mine.toml",
    "seatrial submit --address http://head:8265 --wheels wheels",
    "seatrial submit --attach seatrial-submit-0123456789ab",
    cls=RunCommand,
)
@click.option(
    "--address",
    metavar="URL",
    envvar=ADDRESS_VARIABLE,
    help="URL of the cluster's dashboard, such as http://head:8265 (default: the variable"
    " RAY_API_SERVER_ADDRESS, else RAY_ADDRESS if it begins with http).",
)
@run_options(*OWN)
@choose_probes
@click.option(
    "--wheels",
    type=PATH,
    metavar="DIR",
    help="Folder of Python wheels to install from, for a cluster without internet.",
)
@click.option(
    "--detach", is_flag=True, help="Submit, and do not wait for the run: --attach follows it later."
)
@click.option(
    "--attach",
    metavar="ID",
    help="Follow the submission ID, and copy its run to this machine. The run may have ended.",
)
@click.option(
    "--rehearsal/--no-rehearsal",
    default=None,
    help="Accept a run that is a rehearsal (emulated GPUs), or refuse it (default: accept it only"
    " if the contract is for a rehearsal).",
)
@click.pass_context
def submit(
    context: click.Context,
    /,
    address: str | None,
    keyword: str | None,
    wheels: Path | None,
    detach: bool,
    attach: str | None,
    rehearsal: bool | None,
    **values: str | None,
) -> None:
    """Run the suite on a cluster through Ray's Jobs API, and bring the run folder back.

    This machine needs neither Ray nor torch, only the Python package click (with Python 3.10 also
    tomli). seatrial sends itself and the contract to the cluster. Packages that the head lacks are
    installed for this run only, from the internet or from --wheels. Ray and torch are never
    installed or changed. The exit code is that of the run; 20 if the run was detached, or the
    connection was lost. Ctrl-C asks whether to stop the run or to detach.
    """
    if not address and os.environ.get("RAY_ADDRESS", "").startswith(DASHBOARD):
        address = os.environ["RAY_ADDRESS"]  # as Ray's own `ray job submit`
    if not address:
        raise UsageError(f"no cluster: give --address http://head:8265, or set {ADDRESS_VARIABLE}")
    check_address(address)
    run_dir = values.pop("run_dir")
    given = {key: value for key, value in values.items() if value is not None}
    if attach:
        if not ID.fullmatch(attach):
            raise UsageError(f"--attach: expected an id like {PREFIX}0123456789ab, found {attach}")
        kept = {"address", "attach", "run_dir", "rehearsal", *COMPARED}
        if extra := sorted({*_given(context)} - kept):
            words = ", ".join(f"--{key.replace('_', '-')}" for key in extra)
            begun = "--attach follows a run that has begun, and cannot change it"
            raise UsageError(f"{begun}: drop {words}")
    if why := check_nonce(given.get("nonce", "")):
        raise UsageError(why)
    check_target(run_dir)
    to_pytest = [*(["-k", keyword] if keyword else []), *context.meta[TO_PYTEST]]
    api = JobsApi(address, _say)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if "contract" not in given and Path(CONTRACT).exists():
            given["contract"] = CONTRACT  # as `seatrial run` in this folder
        id = attach or f"{PREFIX}{uuid.uuid4().hex[:12]}"
        asked = verify.what_was_asked(given, id, rehearsal)
        version = api.ray_version()
        if not attach:
            package = make_package(given, to_pytest, wheels, github=follow.on_github())
            _submit(api, id, version, package)
    except ConnectionLost as error:
        raise UsageError(f"the dashboard cannot be used: {error}. {HINT}") from None
    except SubmitError as error:
        raise UsageError(str(error)) from None
    api.is_under_way = not attach
    session = _Session(api, id, run_dir, asked)
    try:
        if detach:
            raise Detached(LEFT_TO_ITSELF)
        sys.exit(session.run())
    except (Detached, SubmitError) as left:
        is_error = isinstance(left, SubmitError)
        if is_error and not api.is_under_way:  # it is not known there
            lost = ". Check --address. If the head was restarted, its jobs are lost: submit again"
            raise UsageError(f"{left}{lost * isinstance(left, follow.UnknownJob)}") from None
        _say(f"error: {left}" if is_error else str(left))
        code = EXIT_INTERRUPTED if session.is_stopping else UNPROVEN
        if isinstance(left, ForeignRun):
            code = EXIT_USAGE  # as a run folder that does not verify
    except OSError as error:
        _say(f"error: the run could not be written on this machine: {error}")
        code = EXIT_INTERNAL
    except KeyboardInterrupt:
        _say("interrupted before the run was copied here: the run is still on the cluster")
        code = EXIT_INTERRUPTED
    compared = {key: given[key] for key in COMPARED if key in given}
    _say_how_to_attach(address, id, compared, rehearsal)
    sys.exit(code)


def check_address(address: str) -> None:
    """Check the form of the dashboard's address.  Raises UsageError without any password in it."""
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise UsageError("--address: expected http://head:8265, found no URL") from None
    if "@" in parts.netloc:
        raise UsageError("--address: remove user and password from the URL, and set RAY_AUTH_TOKEN")
    if not sound:
        raise UsageError(f"--address: expected http://head:8265, found {address}")


def check_target(run_dir: str | None) -> None:
    """Check that the run can be brought back, before the cluster works.  Raises UsageError."""
    target = Path(run_dir or "runs").absolute()
    try:
        if run_dir and target.exists() and any(target.iterdir()):
            raise UsageError(f"--run-dir: the folder {run_dir} is not empty: name a new folder")
        existing = next(one for one in (target, *target.parents) if one.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"the run cannot be copied from the cluster to the folder {run_dir or 'runs'} on this "
            f"machine: {reason}. Make the folder writable, or name another one with --run-dir"
        ) from None


def _given(context: click.Context) -> Iterator[str]:
    """Names of the options on the command line."""
    for name in context.params:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            yield name


def _submit(api: JobsApi, id: str, version: str, package: bytes) -> None:
    """Submit the suite with this id."""
    _say(f"submitting to {api.address} (Ray {version}) as {id}")
    uri = api.upload(package_name(package), package)
    environment = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)}}
    more = {"environment": environment, "metadata": {"seatrial": "trial"}}
    try:
        api.submit(id, f"{ENTRYPOINT} {id}", uri, **more)
    except KeyboardInterrupt:
        with contextlib.suppress(SubmitError, ConnectionLost):  # it may have arrived
            api.stop(id)
        raise


def _interrupt(*_: object) -> None:
    """End as Ctrl-C without a terminal does."""
    raise Terminated


class _Session:
    """One submission, followed to its end."""

    def __init__(self, api: JobsApi, id: str, run_dir: str | None, asked: verify.Submitted) -> None:
        self._api, self._id, self._run_dir, self._asked = api, id, run_dir, asked
        self._follower = follow.Follower(api, id, click.echo, _say)
        self._is_attached, self.is_stopping = not api.is_under_way, False
        self._is_verified = False

    def run(self) -> int:
        """Follow it, bring the run back, and return the exit code.

        Raises SubmitError, Detached, and OSError if the run cannot be written here.
        """
        state = self._until_ended()
        is_accepted = state.status == "SUCCEEDED" and not self.is_stopping
        if is_accepted and self._is_attached and self._asked.contract is None:
            raise Detached(NO_CONTRACT)
        if why := self._keep(lambda: self._follower.why_not_begun(state)):
            BringBack(self._api, self._id, state).remove()  # its environment
            if self.is_stopping:
                return EXIT_INTERRUPTED
            raise UsageError(f"the suite did not start on {self._api.address}: {why}")
        copy = BringBack(self._api, self._id, state)
        folder = self._keep(lambda: self._bring_back(copy))
        summary = _take_summary(folder)
        code = self._code(state, folder)
        if self._is_verified:  # else it is not what was submitted, and says what it likes
            _pass_on_summary(summary)
        try:  # only now: an interrupt up to here leaves the run on the cluster
            copy.remove()
        except KeyboardInterrupt:
            left = "interrupted before the run was removed from the cluster"
            _say(f"{left}. The first submission after a week removes this run")
        return code

    def _until_ended(self) -> follow.SubmissionState:
        while True:
            seconds = STOP_S + STOP_MARGIN_S if self.is_stopping else math.inf
            try:
                if not self._api.is_under_way:  # attached: the cluster may not know it
                    self._keep(lambda: self._api.insist(lambda: self._api.state(self._id)))
                    self._api.is_under_way = True
                return self._keep(partial(self._follower.follow, seconds))
            except TimeoutError:
                raise Detached(
                    f"the run did not stop within {seconds:.0f} s, and may still use the cluster. "
                    f"Look at job {self._id} in the dashboard. When that job has ended, run "
                    "`seatrial cleanup` on the head"
                ) from None
            except KeyboardInterrupt as interrupt:
                if self.is_stopping:
                    left = "interrupted before the run had stopped: it may still be stopping"
                    raise Detached(left) from None
                if not (isinstance(interrupt, Terminated) or self._wants_stop()):
                    continue
                _say("stopping the run: it still removes what it made on the cluster")
                self.is_stopping = True
                self._stop()

    def _stop(self) -> None:
        try:
            self._keep(lambda: self._api.insist(lambda: self._api.stop(self._id)))
        except KeyboardInterrupt:
            message = "interrupted before the cluster confirmed the stop: the run may continue"
            raise Detached(message) from None

    def _keep(self, ask: Callable[[], follow.Reply]) -> follow.Reply:
        """Ask; a connection that stays lost leaves the run to itself."""
        try:
            return ask()
        except ConnectionLost as error:
            lost = f"the connection to the dashboard is lost: {error}"
            raise Detached(f"{lost}. The run may continue, and nothing is proven") from None

    def _wants_stop(self) -> bool:
        """Ask the user at a terminal whether to stop; without one, an interrupt means it.

        Raises Detached.
        """
        if not at_terminal():
            return True
        question = "\nstop the run, detach (the run continues), or go on waiting?"
        try:
            answers = click.Choice(["stop", "detach", "go on"])
            answer = click.prompt(question, type=answers, default="go on", err=True)
        except click.Abort:  # a second Ctrl-C: nothing is lost
            answer = "detach"
        if answer == "detach":
            raise Detached(LEFT_TO_ITSELF)
        return bool(answer == "stop")

    def _bring_back(self, copy: BringBack) -> Path | None:
        """Copy the run; None if the suite ended before it began one."""
        try:
            target = Path(self._run_dir) if self._run_dir else new_folder(copy.name(), self._id)
            copy.run_to(target)
            _say(f"run folder {target}")
            return target
        except NoRun:
            _say("no run to copy on the cluster: it was copied, was removed, or never began")
            return None

    def _code(self, state: follow.SubmissionState, folder: Path | None) -> int:
        """Return the exit code: 0 and 1 only of a run that is here and verified."""
        is_stopped = self.is_stopping or state.status == "STOPPED"
        code = 0 if state.status == "SUCCEEDED" else state.exit_code
        code = EXIT_INTERRUPTED if is_stopped else code
        if code is None:
            _say(f"the suite gave no valid exit code. Ray reports: {state.message or 'no reason'}")
            return EXIT_INTERNAL
        if folder is None:  # nothing is proven, or refuted
            return EXIT_INTERNAL if code in (0, 1) else code
        if code in DECIDED:  # the one place that returns 0
            return EXIT_USAGE if self._differs(folder, code) else code
        self._is_verified = not verify.find_differences(folder, self._asked, code)
        if (found := verify.describe_code(folder, code)) and not is_stopped:
            _say(found)
            _say(f"do not use {folder} as proof")
            return EXIT_INTERNAL
        return code

    def _differs(self, folder: Path, code: int) -> bool:
        """Verify the folder, and say what is wrong with it."""
        found, again = verify.find_differences(folder, self._asked, code), ""
        try:
            found = found or judge_again(folder, code)
        except ImportError as error:
            why = f"{error.name} is not installed on this machine"
            again = f". Not checked: record, page and limits, because {why}"
        for text in found[: verify.MAX_SHOWN]:
            _say(f"error: {text}")
        if found:
            why = "it is incomplete, or not the run that was submitted"
            _say(f"do not use {folder} as proof: {why}")
        else:
            _say(f"verified: files, events, nonce {self._asked.nonce or self._id}, options{again}")
        self._is_verified = not found
        return bool(found)


def judge_again(run: Path, code: int) -> list[str]:
    """Judge the run once more by what it measured, and render it; return what differs.

    Raises ImportError where what the judging needs is not installed on this machine.
    """
    from probes.session.rejudge import read_summary
    from reports.exports import check_renderings

    try:
        summary = read_summary(run)
    except UnreadableRun as error:
        return [one_line(str(error))]
    found = [one_line(text) for text in summary.integrity.problems]
    if (now := summary.exit_code) != code:
        found.append(f"exit code, judged again on this machine: {now}. Expected: {code}")
    return found or check_renderings(run, summary)[0]


def _take_summary(folder: Path | None) -> bytes:
    """Remove the suite's step summary from a run, which it is no part of, and return it."""
    if folder is None or not (path := folder / STEP_SUMMARY).is_file():
        return b""
    with path.open("rb") as file:
        content = file.read(MAX_SUMMARY)
    path.unlink()
    return content


def _pass_on_summary(content: bytes) -> None:
    """Append it to GitHub's."""
    if content and follow.on_github() and (target := os.environ.get("GITHUB_STEP_SUMMARY")):
        with open(target, "ab") as file:
            file.write(content)


def at_terminal() -> bool:
    """Whether a user can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def new_folder(name: str, id: str) -> Path:
    """Return where a run goes that names itself: `runs/<name>`, or another name if that exists."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ForeignRun(f"the run on the cluster has a name that no folder can have: {name:.80}")
    path = Path("runs") / name
    return path if not path.exists() else path.with_name(f"{name}-{id.removeprefix(PREFIX)}")


def _say(line: str) -> None:
    """Print a line of ours: what the suite prints goes to standard output."""
    click.echo(one_line(line), err=True)


def _say_how_to_attach(
    address: str, id: str, compared: dict[str, str], rehearsal: bool | None
) -> None:
    words = ["seatrial", "submit", "--address", address, "--attach", id]
    words += [word for key, value in compared.items() for word in (f"--{key}", value)]
    words += [] if rehearsal is None else ["--rehearsal" if rehearsal else "--no-rehearsal"]
    _say("to follow the submission, and copy its run to this machine, enter:")
    click.echo(clean(shlex.join(words)), err=True)
