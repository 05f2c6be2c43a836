"""The pytest plugin: options, judging at the end of each probe, exit code.

Probes are tests marked `criterion(ID)`.  Their bodies observe and measure; this file judges.  It
shows every broken limit of a probe, not only the first.  Problems outside the probes go into the
record, too: a failed teardown, a file that is not collected, an internal error of pytest.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from probes.requirements import lacking_sentence
from probes.session import probe_report, terminal
from probes.session.config import ENDING, JUNIT, RECORDER, RUN, VERDICT, read_twins
from probes.session.options import OPTIONS
from probes.session.signals import SIGNALS
from probes.session.terminal import criterion_of, describe_nothing, left_out, sort_probes
from reports.numbers import quantity
from reports.sanitize import clean
from reports.streams import guard_streams
from seatrial.own import find_foreign

if TYPE_CHECKING:  # else every run of pytest would load pydantic, even without probes
    from probes.session.ending import Ending, EndOptions
    from probes.session.session import RunSession, RunSettings

pytest_plugins = ["probes.session.fixtures", "probes.gang.fixtures", "probes.restart.fixtures"]
ROOT = Path(__file__).resolve().parents[1]  # holds the packages; names of probes are relative to it
PROGRAMS = ("pytest", "py.test", "__main__.py")  # whose process is at its end after the run
LEFT_OUT: pytest.StashKey[int] = pytest.StashKey()  # config: number of probes
SETTINGS: pytest.StashKey[Any] = pytest.StashKey()  # config: the RunSettings


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the `acceptance` group; each option has an environment twin (see session/config.py)."""
    group = parser.getgroup("acceptance", "seatrial: acceptance of a GPU cluster that runs Ray")
    for option in OPTIONS:
        group.addoption(option.name, metavar=option.metavar, help=option.help)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers and read the environment twins.  Raises UsageError for probes with -n."""
    config.addinivalue_line("markers", "criterion(id): the row of the acceptance table it proves")
    config.addinivalue_line("markers", "tier(name): runs only in this tier and longer tiers")
    config.addinivalue_line("markers", "last: runs after all other probes")
    config.addinivalue_line("markers", "keeps_gang: can use ranks that an earlier probe kept")
    config.addinivalue_line("markers", "uses(module): runs only if the module is installed")
    config.addinivalue_line("markers", "needs(feature): runs only if torch or Ray has it")
    read_twins(config, [option.name for option in OPTIONS])
    if not config.getoption("--cluster"):
        return
    probe_report.shorten_tracebacks(config.option)
    # A warning of third-party code must not fail a probe.
    config.addinivalue_line("filterwarnings", "default")
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("probes need the whole cluster: run them without -n")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Handle signals and the end of the terminal, and return the exit code of the record.

    It surrounds all that pytest does after its options: what breaks there does not decide.
    """
    asked = config.getoption("--cluster") or os.environ.get("SEATRIAL_CLUSTER")
    if not asked or config.option.collectonly:
        return (yield)
    guard_streams()
    with SIGNALS.taken():
        code = yield from _decide_code(config)
    if Path(sys.argv[0]).name in PROGRAMS:
        SIGNALS.settle(code)
    return code


def _decide_code(config: pytest.Config) -> Generator[None, Any, int]:
    """Let pytest run; return the exit code of the record where a run began."""
    try:
        code = yield
    except pytest.UsageError:
        raise
    except BaseException as error:  # noqa: BLE001 - of another plugin, after the end
        code = _write_late_end(config, error)
    finally:
        guard_streams()  # pytest has put those back that it found
    ending = config.stash.get(ENDING, None)
    if ending is None:
        return int(code)
    ending.show()
    return ending.summary.exit_code if ending.summary else pytest.ExitCode.INTERNAL_ERROR


def _write_late_end(config: pytest.Config, error: BaseException) -> int:
    """End a run whose end another plugin prevented; return the exit code where no run began."""
    from probes.session.ending import describe

    ending = config.stash.get(ENDING, None)
    if ending and ending.summary is None:
        PROBLEMS.append(("internal", "pytest", describe(error)))
        with suppress(Exception):
            ending.close(_end_state(), _take_problems())
    interrupted = isinstance(error, KeyboardInterrupt)
    return pytest.ExitCode.INTERRUPTED if interrupted else pytest.ExitCode.INTERNAL_ERROR


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Check what was asked, before anything is collected or contacted."""
    config = session.config
    PROBLEMS.clear()
    if not config.getoption("--cluster"):
        return
    _refuse_broken_suite()
    if config.option.collectonly:
        return
    from probes.contract.contract import refuse_draft
    from probes.session.rejudge import check_baseline
    from probes.session.settings import read_settings

    if lacking := lacking_sentence():
        raise pytest.UsageError(lacking)
    with _usage_errors():
        values = {option.key: config.getoption(option.name) for option in OPTIONS}
        config.stash[SETTINGS] = settings = read_settings(values)
        refuse_draft(settings.agreed, settings.contract_arg)
        if baseline := config.getoption("--baseline"):
            check_baseline(Path(baseline), settings.agreed)
    config.stash[JUNIT] = _take_over_junit(config)


def _refuse_broken_suite() -> None:
    """End the run where a criterion or a file of findings is missing or not whole.

    A run without a part of the suite, or with a part of another project, must never seem complete.
    """
    if problem := find_foreign():
        pytest.exit(problem, returncode=4)
    from probes.check.registry import find_criteria
    from probes.findings import read_groups
    from probes.toml_tables import TableError

    try:
        find_criteria()
        read_groups()
    except TableError as error:
        pytest.exit(f"the suite is incomplete: {error}", returncode=3)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn what a user can correct into pytest's UsageError."""
    from probes.cluster.address import ClusterUnreachable
    from probes.cluster.room import OtherTrial
    from probes.contract.contract import ContractError
    from probes.session.settings import OptionError
    from reports.run_folder.event_log import UnreadableRun
    from reports.run_folder.store import UnusableFolder

    of_options = (ClusterUnreachable, ContractError, OptionError)
    try:
        yield
    except (*of_options, OtherTrial, UnreadableRun, UnusableFolder) as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Join the cluster and open the run, once it is known what runs.

    A file that could not be collected is a reason, too: the record must name it.
    """
    result = yield
    settings = session.config.stash.get(SETTINGS, None)
    if settings and (PROBLEMS or session.items):
        _open_run(session, settings)
    return result


def _open_run(session: pytest.Session, settings: RunSettings) -> None:
    from probes.session.ending import Ending
    from probes.session.session import RunSession
    from probes.session.terminal import estimate_run

    config, begun = session.config, time.monotonic()
    try:
        with _usage_errors():
            run = config.stash[RUN] = RunSession(settings)
        loaded = _loaded(config)
        ending = config.stash[ENDING] = Ending(run, _end_options(config, run, loaded))
        config.pluginmanager.register(InterruptHook(ending), "seatrial interrupt")
    finally:
        SIGNALS.release()  # also where no run folder could be made
    if run.was_cut_off:
        raise KeyboardInterrupt
    also = [f"versions  {text}" for text in _too_old(run)]
    if loaded:
        names = ", ".join(loaded)
        also.insert(0, f"loaded    {names}: these can change results. `seatrial run` loads none")
    if count := config.stash.get(LEFT_OUT, 0):
        tests = quantity(count, "tests")
        why = f"of a longer tier than {run.tier}" + ", or not in --only" * bool(run.only)
        also.append(f"left out  {tests} {why}")
    terminal.print_header(config, [*run.header(), *also])
    usual_s = estimate_run(run, filter(None, map(criterion_of, session.items)))
    terminal.start_progress(config, begun, usual_s)


def _end_options(config: pytest.Config, run: RunSession, loaded: list[str]) -> EndOptions:
    from probes.session.ending import EndOptions

    baseline = config.getoption("--baseline")
    show = partial(terminal.print_summary, config, run=run)
    return EndOptions(loaded, show, Path(baseline) if baseline else None, config.stash[JUNIT])


def _too_old(run: RunSession) -> list[str]:
    """List what criteria need and torch or Ray here lack: their probes will not run."""
    from probes.check.registry import CRITERIA
    from probes.requirements import missing_feature

    on_gpu = run.cluster is None or run.cluster.on_gpu
    return list(dict.fromkeys(filter(None, (missing_feature(id, on_gpu) for id in CRITERIA))))


def _take_over_junit(config: pytest.Config) -> str:
    """Remove pytest's JUnit writer; return its path: that file is written from the record."""
    from _pytest.junitxml import xml_key

    if xml := config.stash.get(xml_key, None):
        config.pluginmanager.unregister(xml)
        del config.stash[xml_key]
    return str(config.option.xmlpath or "")


def _loaded(config: pytest.Config) -> list[str]:
    """List third-party plugins, conftest files and pytest variables: they could change the run."""
    manager = config.pluginmanager
    names = {f"{found.project_name} {found.version}" for _, found in manager.list_plugin_distinfo()}
    files = {getattr(plugin, "__file__", None) for plugin in manager.get_plugins()}
    conftests = {file for file in files if file and Path(file).name == "conftest.py"}
    names |= conftests - {str(ROOT / "conftest.py")}
    given = {name: os.environ.get(name) for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    return sorted(names | {f"{name}={value}" for name, value in given.items() if value})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the probes, and deselect those of longer tiers and of other criteria.

    Raises UsageError for probes without a cluster.
    """
    probes = [item for item in items if criterion_of(item)]
    if probes and not config.getoption("--cluster") and not config.option.collectonly:
        raise pytest.UsageError(
            "probes need a cluster: give --cluster auto, --cluster local:4 "
            "to rehearse on this host, or --cluster ray://host:10001"
        )
    if not probes:
        return
    from probes.session.settings import read_only, read_tier
    from reports.record import TIERS

    sort_probes(items)
    settings = config.stash.get(SETTINGS, None)
    with _usage_errors():
        only = read_only(config.getoption("--only"))
        tier = settings.tier if settings else read_tier(config.getoption("--tier")) or TIERS[-1]
    if others := left_out(probes, tier, only):
        config.stash[LEFT_OUT] = len(others)
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Remove secrets from the traceback of a file that could not be collected."""
    report = yield
    if collector.config.getoption("--cluster"):
        probe_report.hide_secrets(report)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a file that could not be collected: pytest may exit with 0 without its probes."""
    if report.failed:
        PROBLEMS.append(("collection", report.nodeid, probe_report.last_line(report.longreprtext)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Open the recorder before the fixtures, so that a failing fixture is recorded, too."""
    run, criterion = item.config.stash.get(RUN, None), criterion_of(item)
    if run is not None and SIGNALS.ends_run:  # a probe did not let the interrupt pass
        raise KeyboardInterrupt
    if run is None or criterion is None:
        return
    claim = " ".join((getattr(item, "obj", None).__doc__ or "").split("\n\n")[0].split())
    if case := getattr(item, "callspec", None):  # one of several cases with the same claim
        claim = f"{claim.rstrip('.')}: {case.id.replace('-', ' ')}."
    progress = item.config.stash[terminal.PROGRESS]
    count = sum(criterion_of(one) is not None for one in item.session.items)
    name, id = _probe_name(item), _pastable_id(item)
    progress.begin(criterion, item.name, count, terminal.estimate_probe(run, name))
    item.stash[RECORDER] = run.begin(name, id, criterion, claim, progress.step)
    item.stash[VERDICT] = None
    _require_software(item, criterion)


def _require_software(item: pytest.Item, criterion: str) -> None:
    """Skip a probe that lacks a module, or a feature of torch or Ray; the reason names it."""
    from probes.requirements import missing, missing_feature

    uses = item.get_closest_marker("uses")
    if uses is not None and find_spec(uses.args[0]) is None:
        # A skipped probe is UNPROVEN: its criterion is never accepted.
        where = "is not installed on the host that runs seatrial"
        pytest.skip(f"{uses.args[0]} {where}. Install it there: pip install 'ray[train]'")
    needs = [missing(mark.args[0]) for mark in item.iter_markers("needs")]
    cluster = item.config.stash[RUN].cluster
    on_gpu = cluster is None or cluster.on_gpu
    for reason in filter(None, [missing_feature(criterion, on_gpu), *needs]):
        pytest.skip(reason)


def _probe_name(item: pytest.Item) -> str:
    """Return the name of a probe, whichever folder pytest was started in.

    A file outside the suite keeps its complete path, so that it cannot pass for a probe of the
    suite.
    """
    inner = item.nodeid.partition("::")[2]
    path = item.path.relative_to(ROOT) if item.path.is_relative_to(ROOT / "probes") else item.path
    return f"{path.as_posix()}::{inner}"


def _pastable_id(item: pytest.Item) -> str:
    """Return the id that pytest takes in the folder where this run was started."""
    start = item.config.invocation_params.dir
    path = item.path.relative_to(start) if item.path.is_relative_to(start) else item.path
    return f"{path.as_posix()}::{item.nodeid.partition('::')[2]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge the probe: the verdict on all its measurements replaces passed or failed."""
    report = yield
    if item.config.getoption("--cluster"):
        probe_report.hide_secrets(report)
    recorder = item.stash.get(RECORDER, None)
    if recorder is None or item.stash[VERDICT] is not None:
        return report
    if report.when == "setup" and report.passed:
        return report
    result = item.config.stash[RUN].end(recorder, *probe_report.end_state(report, call))
    item.stash[VERDICT] = result.verdict
    explained = probe_report.explains_itself(call)
    probe_report.write_verdict(report, result, recorder.row, traceback=not explained)
    item.config.stash[terminal.PROGRESS].end(probe_report.shown_verdict(report))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> Generator[None, None, None]:
    """Record a failure that no verdict covers: of a teardown, another test, or a plugin."""
    if report.failed and probe_report.is_sound(report):
        kind = "teardown" if report.when == "teardown" else "other test"
        PROBLEMS.append((kind, report.nodeid, probe_report.last_line(report.longreprtext)))
    return (yield)


@pytest.hookimpl(tryfirst=True)  # before pytest prints it
def pytest_internalerror(excrepr: Any, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Record an error of pytest, of a plugin or of this suite, and redact its traceback."""
    probe_report.redact_internal_error(excrepr)
    PROBLEMS.append(("internal", "pytest", probe_report.last_line(excinfo.exconly())))


class InterruptHook:
    """Hook of a run that has begun: writes its end before what a probe made is torn down."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Record that a user ended the run, or that its cluster is lost.

        pytest's own end after a collection error is neither.
        """
        if isinstance(excinfo.value, pytest.Session.Interrupted):
            return
        if SIGNALS.lost:  # Ray's calls raise a plain KeyboardInterrupt in its place
            self._ending.run.end_current(SIGNALS.lost)
        else:
            PROBLEMS.append(INTERRUPT)
        SIGNALS.wait_for("the report is written")
        self._ending.write(_end_state(), _take_problems())
        SIGNALS.wait_for("what the test made is removed")


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Return category, letter and word of a verdict that pytest does not know."""
    return probe_report.status_words(report)


PROBLEMS: list[tuple[str, str, str]] = []  # kind, where, text, as in RunProblem
INTERRUPT = ("interrupt", "", "")


def _take_problems() -> list[tuple[str, str, str]]:
    """Return the problems since the last call; that of an interrupt stays."""
    problems = [problem for problem in PROBLEMS if problem != INTERRUPT]
    PROBLEMS[:] = [problem for problem in PROBLEMS if problem == INTERRUPT]
    return problems


def _end_state() -> str:
    """Return the state in which a run ends now."""
    from probes.session.ending import CUT_OFF, FINISHED

    return CUT_OFF if INTERRUPT in PROBLEMS or SIGNALS.came_in_time else FINISHED


@pytest.hookimpl(wrapper=True, trylast=True)  # around the fixtures' teardown after an interrupt
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Close the run, write every rendering, and set the exit code from the record."""
    ending = session.config.stash.get(ENDING, None)
    if ending is None:
        return (yield)
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - of a fixture, or of another plugin
        from probes.session.ending import describe

        PROBLEMS.append(("teardown", "the last step of the run", describe(error)))
    if progress := session.config.stash.get(terminal.PROGRESS, None):
        progress.close()  # what follows has a line of its own
    session.exitstatus = ending.close(_end_state(), _take_problems()).exit_code


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the acceptance table and the path of the report, or that nothing was run."""
    if ending := config.stash.get(ENDING, None):
        ending.show()
    elif config.getoption("--cluster") and config.option.collectonly:
        terminalreporter.write_line("nothing was run: --collect-only proves nothing")
    elif SETTINGS in config.stash and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        settings, keyword = config.stash[SETTINGS], config.option.keyword
        terminalreporter.write_line(clean(describe_nothing(settings.tier, settings.only, keyword)))
