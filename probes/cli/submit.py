"""`seatrial submit`: run the suite on a remote cluster, and bring the run back."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from probes.cli.errors import PATH_TYPE, UsageError
from probes.cli.run import TO_PYTEST, RunCommand, run_options
from probes.submit.bring_back import PYTHON, BringBack, NoRun
from probes.submit.entry import PREFIX
from probes.submit.follow import Follower, on_github
from probes.submit.jobs_api import ConnectionLost, JobsApi, Reply, SubmissionState, SubmitError
from probes.submit.package import CONTRACT, make_package, package_name
from probes.submit.parts import STEP_SUMMARY
from probes.terminal.options import OPTIONS
from reports.sanitize import clean, one_line

ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"  # of Ray's own commands
ID = re.compile(f"{PREFIX}[0-9a-f]{{12}}")
ENTRYPOINT = f"{PYTHON} -m probes.submit.entry"
# Ray kills what does not end in this time after a stop.  The suite removes what it made, and ends
# the run's record.
STOP_S = 120
EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_UNPROVEN = 2, 3, 20
OWN = tuple(option.key for option in OPTIONS if option.key != "cluster")


class Terminated(KeyboardInterrupt):
    """SIGTERM has come: who sends it answers no question."""


class Detached(Exception):
    """The user leaves the run to itself."""


@click.command(
    cls=RunCommand,
    short_help="Run the suite on a remote cluster, as a job.",
    options_metavar="[OPTIONS] [-- PYTEST_OPTIONS]",
    epilog="""\b
    Examples:
      seatrial submit --address http://head:8265 --contract mine.toml
      seatrial submit --address http://head:8265 --wheels wheels
      seatrial submit --attach seatrial-submit-0123456789ab""",
)
@click.option(
    "--address",
    metavar="URL",
    envvar=ADDRESS_VARIABLE,
    help="The cluster's dashboard (or RAY_API_SERVER_ADDRESS).",
)
@run_options(*OWN)
@click.option("-k", "keyword", metavar="TEXT", help="Only probes whose names match: as pytest's.")
@click.option(
    "--wheels", type=PATH_TYPE, metavar="DIR", help="Wheels for a cluster without internet."
)
@click.option("--detach", is_flag=True, help="Submit, and do not wait.")
@click.option("--attach", metavar="ID", help="Follow a submission that runs or has ended.")
@click.pass_context
def submit(
    context: click.Context,
    /,
    address: str | None,
    keyword: str | None,
    wheels: Path | None,
    detach: bool,
    attach: str | None,
    **values: str | None,
) -> None:
    """Run the suite on a cluster through Ray's Jobs API, and bring the run folder back.

    This machine needs click, and neither Ray nor torch. The cluster gets our packages and the
    contract. What its head lacks is installed for the run alone, and its Ray and torch stay as
    they are. The exit code is the suite's; 20 if it was detached. Ctrl-C asks whether to stop the
    run or to detach.
    """
    if not address:
        raise UsageError(f"no cluster: give --address http://head:8265, or set {ADDRESS_VARIABLE}")
    if not address.startswith(("http://", "https://")):
        raise UsageError(f"--address: expected http://head:8265, found {address}")
    run_dir = values.pop("run_dir")
    given = {key: value for key, value in values.items() if value is not None}
    if attach:
        if not ID.fullmatch(attach):
            raise UsageError(f"--attach: expected an id as {PREFIX}0123456789ab, found {attach}")
        if extra := sorted({*_given(context)} - {"address", "attach", "run_dir"}):
            words = ", ".join(f"--{key.replace('_', '-')}" for key in extra)
            raise UsageError(f"--attach: the run is under way, so {words} would change nothing")
    if run_dir and Path(run_dir).exists() and any(Path(run_dir).iterdir()):
        raise UsageError(f"{run_dir} is not empty: give a new folder")
    to_pytest = [*(["-k", keyword] if keyword else []), *context.meta[TO_PYTEST]]
    api = JobsApi(address, _say)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        version = api.ray_version()
        id = attach or _submit(api, version, given, to_pytest, wheels)
        if detach:
            raise Detached
        sys.exit(_Session(api, id, run_dir).run())
    except (SubmitError, ConnectionLost) as error:
        raise UsageError(str(error)) from None
    except Detached:
        _say_how_to_attach(address, id)
        sys.exit(EXIT_UNPROVEN)


def _given(context: click.Context) -> Iterator[str]:
    """Names of the options on the command line."""
    for name in context.params:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            yield name


def _submit(
    api: JobsApi, version: str, options: dict[str, str], to_pytest: list[str], wheels: Path | None
) -> str:
    """Submit the suite; return the id of the submission."""
    if "contract" not in options and Path(CONTRACT).exists():
        options["contract"] = CONTRACT  # as `seatrial run` in this folder
    package = make_package(options, to_pytest, wheels, github=on_github())
    id = f"{PREFIX}{uuid.uuid4().hex[:12]}"
    _say(f"submitting to {api.address} (Ray {version}) as {id}")
    uri = api.upload(package_name(package), package)
    variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)}
    metadata = {"seatrial": "trial"}
    try:
        api.submit(
            id, f"{ENTRYPOINT} {id}", uri, environment={"env_vars": variables}, metadata=metadata
        )
    except KeyboardInterrupt:
        with contextlib.suppress(SubmitError, ConnectionLost):  # it may have arrived
            api.stop(id)
        raise
    return id


def _interrupt(*_: object) -> None:
    """End as Ctrl-C without a terminal does."""
    raise Terminated


class _Session:
    """One submission, followed to its end."""

    def __init__(self, api: JobsApi, id: str, run_dir: str | None) -> None:
        self._api, self._id, self._run_dir = api, id, run_dir
        self._follower = Follower(api, id, click.echo)
        self._stopping = False

    def run(self) -> int:
        """Follow it, bring the run back, and return the exit code."""
        state = self._until_ended()
        if why := self._keep(lambda: self._follower.why_not_begun(state)):
            with contextlib.suppress(SubmitError, ConnectionLost):  # its environment
                BringBack(self._api, self._id, state).remove()
            if self._stopping:
                return EXIT_INTERRUPTED
            raise UsageError(f"the suite did not begin on {self._api.address}: {why}")
        folder = self._keep(lambda: self._bring_back(state))
        return self._code(state, folder)

    def _until_ended(self) -> SubmissionState:
        while True:
            try:
                return self._keep(self._follower.follow)
            except KeyboardInterrupt as interrupt:
                if self._stopping:
                    raise Detached from None
                if not (isinstance(interrupt, Terminated) or self._wants_stop()):
                    continue
                _say("stopping the run on the cluster: it removes what it made")
                self._stopping = True
                self._keep(lambda: self._api.insist(lambda: self._api.stop(self._id)))

    def _keep(self, ask: Callable[[], Reply]) -> Reply:
        """Ask; a connection that stays lost leaves the run to itself."""
        try:
            return ask()
        except ConnectionLost as error:
            _say(f"gave up: {error}")
            raise Detached from None

    def _wants_stop(self) -> bool:
        """Ask the user at a terminal whether to stop; without one, an interrupt means it.

        Raises Detached.
        """
        if not at_terminal():
            return True
        question = "\nstop the run, detach and leave it running, or go on?"
        try:
            answer = click.prompt(
                question, type=click.Choice(["stop", "detach", "go on"]), default="go on", err=True
            )
        except click.Abort:  # a second Ctrl-C: nothing is lost
            raise Detached from None
        if answer == "detach":
            raise Detached
        return bool(answer == "stop")

    def _bring_back(self, state: SubmissionState) -> Path | None:
        """Copy the run; None if the suite ended before it began one."""
        copy = BringBack(self._api, self._id, state)
        target: Path | None = None
        try:
            target = Path(self._run_dir) if self._run_dir else new_folder(copy.name(), self._id)
            copy.run_to(target)
            _pass_on_summary(target / STEP_SUMMARY)
            _say(f"run folder {target}")
        except NoRun:
            target = None
        # The run is here.  What cannot be removed now is removed by a later submission.
        with contextlib.suppress(SubmitError, ConnectionLost):
            copy.remove()
        return target

    def _code(self, state: SubmissionState, folder: Path | None) -> int:
        if self._stopping or state.status == "STOPPED":
            return EXIT_INTERRUPTED
        code = 0 if state.status == "SUCCEEDED" else state.exit_code
        if code is None:
            _say(f"the suite was killed on the cluster: {state.message}")
            return EXIT_INTERNAL
        if folder is None:
            return code or EXIT_INTERNAL  # no run, and nothing is proven
        if (own := recorded_code(folder)) != code:
            _say(f"the job ended with exit code {code}, and its run says {own}: it proves nothing")
            return EXIT_INTERNAL
        return code


def _pass_on_summary(path: Path) -> None:
    """Append the suite's step summary to GitHub's; it is no part of the run."""
    if not path.is_file():
        return
    content = path.read_bytes()
    path.unlink()
    if on_github() and (target := os.environ.get("GITHUB_STEP_SUMMARY")):
        with open(target, "ab") as file:
            file.write(content)


def at_terminal() -> bool:
    """Whether a user can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def new_folder(name: str, id: str) -> Path:
    """Return where a run goes that names itself: `runs/<name>`, or another name if that exists."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise SubmitError(f"the run has no name that a folder could have: {name}")
    path = Path("runs") / name
    return path if not path.exists() else path.with_name(f"{name}-{id.removeprefix(PREFIX)}")


def recorded_code(folder: Path) -> int | None:
    """Read the exit code that a run recorded in metrics.prom; None if it has none."""
    try:
        text = (folder / "metrics.prom").read_text()
    except (OSError, ValueError):
        return None
    found = re.search(r"^seatrial_exit_code(?:\{.*\})? (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _say(line: str) -> None:
    """Print a line of ours: what the suite prints goes to standard output."""
    click.echo(one_line(line), err=True)


def _say_how_to_attach(address: str, id: str) -> None:
    _say("detached: the run goes on, and nothing is proven yet")
    click.echo(clean(f"seatrial submit --address {address} --attach {id}"), err=True)
