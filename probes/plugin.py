"""The pytest plugin: options, judging at the end of each probe, exit code.

Probes are tests marked `criterion(ID)`.  Their bodies observe and measure; this file judges.  It
shows every broken limit of a probe, not only the first.  Problems outside the probes go into the
record, too: a failed teardown, a file that is not collected, an internal error of pytest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from probes.acceptance.stash import JUNIT, RECORDER, RUN, VERDICT
from probes.option_twins import read_twins
from probes.probe_report import end_state, is_sound, last_line, status_words, write_verdict
from probes.tracebacks import hide_secrets, redact_internal_error, shorten_tracebacks
from reports.sanitize import clean

pytest_plugins = ["probes.acceptance.fixtures", "probes.gang.fixtures", "probes.restart.fixtures"]
ROOT = Path(__file__).resolve().parents[1]  # holds the packages; names of probes are relative to it
MAX_WAIT_S = 24 * 3600  # s, of --wait-for-nodes: a later node counts as not delivered
OPTIONS = (
    ("--cluster", "WHERE", "auto (the Ray cluster this machine is in), local[:N], ray://host:port"),
    (
        "--contract",
        "NAME|FILE",
        "the agreed criteria and limits (default: seatrial.toml of this folder); with none, limits "
        "are derived and nothing is accepted",
    ),
    ("--baseline", "RUN", "run folder to compare with in the report"),
    ("--run-dir", "DIR", "where to write this run (default: runs/<utc>-<cluster>)"),
    ("--tier", "TIER", "how long to look: quick, standard or soak (default: the contract's)"),
    ("--nodes", "N", "how many nodes were ordered, when the contract does not say"),
    (
        "--wait-for-nodes",
        "SECONDS",
        "how long to wait for nodes that are ordered and have not joined yet (default: 0)",
    ),
    ("--nonce", "TEXT", "a word of the customer's, kept in the first event: no old run has it"),
    ("--only", "CRITERION", "run one criterion, or several with commas: such a run is PARTIAL"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the `acceptance` group; each option has an environment twin (see option_twins)."""
    group = parser.getgroup("acceptance", "seatrial: acceptance of a GPU cluster that runs Ray")
    for option, metavar, purpose in OPTIONS:
        group.addoption(option, metavar=metavar, help=purpose)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers and read the environment twins.  Raises UsageError for probes with -n."""
    config.addinivalue_line("markers", "criterion(id): the row of the acceptance table it proves")
    config.addinivalue_line("markers", "tier(name): only runs in this tier and the longer ones")
    config.addinivalue_line("markers", "last: runs after all other probes")
    config.addinivalue_line("markers", "uses(module): only runs where the module is installed")
    config.addinivalue_line("markers", "needs(feature): of torch or Ray, see least_versions.py")
    read_twins(config, [option for option, *_ in OPTIONS])
    if not config.getoption("--cluster"):
        return
    shorten_tracebacks(config.option)
    # A warning of third-party code must not fail a probe.
    config.addinivalue_line("filterwarnings", "default")
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("probes own the whole cluster: run them without -n")


def _runs_probes(config: pytest.Config) -> bool:
    return bool(config.getoption("--cluster")) and not config.option.collectonly


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Join the cluster and open the run, before anything is collected."""
    config = session.config
    PROBLEMS.clear()
    if not _runs_probes(config):
        return
    from probes.acceptance.contract import ContractError
    from probes.acceptance.session import RunSession
    from probes.cluster.cluster import ClusterUnreachable
    from probes.rejudge.limit_check import read_verified
    from reports.run_folder.files import UnreadableRun
    from reports.run_folder.prepare import UnusableFolder

    option = config.getoption
    tier, nodes, only = _read_tier(option("--tier")), _read_nodes(option("--nodes")), _only(config)
    patience = _read_patience(option("--wait-for-nodes"))
    try:
        if option("--baseline"):
            read_verified(Path(option("--baseline")))
        where = (option("--cluster"), option("--contract"))
        nonce = option("--nonce") or ""
        config.stash[RUN] = RunSession(
            *where, tier, option("--run-dir"), nodes, only, nonce, patience
        )
    except (ClusterUnreachable, ContractError, UnreadableRun, UnusableFolder) as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[JUNIT] = _take_over_junit(config)


def _read_tier(tier: str | None) -> str | None:
    from probes.acceptance.owed import TIERS

    if tier not in (None, *TIERS):
        raise pytest.UsageError(f"tier is {tier!r}, expected {', '.join(TIERS)}")
    return tier


def _read_nodes(text: str | None) -> int | None:
    """Read the node count of --nodes or SEATRIAL_NODES; None where it is not given.

    Raises UsageError for anything but a number from 1: ignored, it would order nothing.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise pytest.UsageError(
            f"--nodes (or SEATRIAL_NODES) is {text!r}, expected a whole number of nodes, as 8"
        )
    return int(text)


def _read_patience(text: str | None) -> int:
    """Read the seconds of --wait-for-nodes or SEATRIAL_WAIT_FOR_NODES, at most a day."""
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_WAIT_S):
        raise pytest.UsageError(
            f"--wait-for-nodes (or SEATRIAL_WAIT_FOR_NODES) is {text!r}, "
            f"expected whole seconds, at most {MAX_WAIT_S}"
        )
    return int(text)


def _only(config: pytest.Config) -> list[str]:
    """Return the criteria of --only, in table order.  Raises UsageError for unknown ones."""
    from probes.acceptance.criteria import CRITERIA

    asked = {word.strip().upper() for word in (config.getoption("--only") or "").split(",")} - {""}
    if unknown := asked - CRITERIA.keys():
        names = ", ".join(CRITERIA)
        raise pytest.UsageError(f"--only is {', '.join(sorted(unknown))}, expected some of {names}")
    return [id for id in CRITERIA if id in asked]


def _take_over_junit(config: pytest.Config) -> str:
    """Remove pytest's JUnit writer; return its path: that file is written from the record."""
    from _pytest.junitxml import xml_key

    if xml := config.stash.get(xml_key, None):
        config.pluginmanager.unregister(xml)
        del config.stash[xml_key]
    return str(config.option.xmlpath or "")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the header lines: cluster, contract, run, and what else was loaded."""
    run = config.stash.get(RUN, None)
    if run is None:
        return []
    loaded = _loaded(config)
    also = [f"loaded    {', '.join(loaded)}  (`seatrial run` loads nothing else)"] if loaded else []
    return [clean(line) for line in [*run.header(), *also]]


def _loaded(config: pytest.Config) -> list[str]:
    """List third-party plugins, conftest files and pytest variables: they could change the run."""
    manager = config.pluginmanager
    names = {f"{found.project_name} {found.version}" for _, found in manager.list_plugin_distinfo()}
    names -= {name for name in names if name.startswith("seatrial ")}
    files = {getattr(plugin, "__file__", None) for plugin in manager.get_plugins()}
    conftests = {file for file in files if file and Path(file).name == "conftest.py"}
    names |= conftests - {str(ROOT / "conftest.py")}
    names |= {
        f"{name}={os.environ[name]}"
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")
        if os.environ.get(name)
    }
    return sorted(names)


def _criterion_id(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("criterion")
    return str(marker.args[0]) if marker else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the probes by RUN_ORDER, and deselect those of longer tiers and of other criteria.

    Raises UsageError for probes without a cluster.
    """
    probes = [item for item in items if _criterion_id(item)]
    if probes and not config.getoption("--cluster") and not config.option.collectonly:
        raise pytest.UsageError(
            "probes need a cluster: give --cluster auto, --cluster local:4 "
            "to rehearse on this host, or --cluster ray://host:10001"
        )
    if not probes:
        return
    from probes.acceptance.criteria import RUN_ORDER
    from probes.acceptance.owed import TIERS

    items.sort(key=lambda item: RUN_ORDER.index(_criterion_id(item) or RUN_ORDER[0]))
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)  # keeps that order
    run, only = config.stash.get(RUN, None), _only(config)
    tier = run.tier if run else _read_tier(config.getoption("--tier")) or TIERS[-1]
    left_out = [
        item
        for item in probes
        if _in_longer_tier(item, tier) or (only and _criterion_id(item) not in only)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _in_longer_tier(item: pytest.Item, tier: str) -> bool:
    """Return whether the probe belongs to a longer tier than this run's."""
    from probes.acceptance.owed import longer_tier

    marker = item.get_closest_marker("tier")
    return marker is not None and longer_tier(marker.args[0], tier) != tier


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Remove secrets from the traceback of a file that could not be collected."""
    report = yield
    if collector.config.getoption("--cluster"):
        hide_secrets(report)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a file that could not be collected: pytest may exit with 0 without its probes."""
    if report.failed:
        PROBLEMS.append(("collection", report.nodeid, last_line(report.longreprtext)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Open the recorder before the fixtures, so that a failing fixture is recorded, too."""
    run, criterion = item.config.stash.get(RUN, None), _criterion_id(item)
    if run is None or criterion is None:
        return
    claim = " ".join((getattr(item, "obj", None).__doc__ or "").split("\n\n")[0].split())
    if case := getattr(item, "callspec", None):  # one of several cases with the same claim
        claim = f"{claim.rstrip('.')}: {case.id.replace('-', ' ')}."
    say = _line_printer(item.config)
    item.stash[RECORDER] = run.begin(_probe_name(item), item.nodeid, criterion, claim, say)
    item.stash[VERDICT] = None
    _require_software(item, criterion)


def _require_software(item: pytest.Item, criterion: str) -> None:
    """Skip a probe that lacks a module, or a feature of torch or Ray; the reason names it."""
    from probes.least_versions import missing, missing_feature

    uses = item.get_closest_marker("uses")
    if uses is not None and find_spec(uses.args[0]) is None:
        pytest.skip(f"{uses.args[0]} is not installed here: pip install 'ray[train]' brings it")
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
    ours = item.path.is_relative_to(ROOT / "probes")
    path = item.path.relative_to(ROOT) if ours else item.path
    return f"{path.as_posix()}::{inner}"


def _line_printer(config: pytest.Config) -> Callable[[str], None]:
    """Return a line printer: it overwrites on a terminal, appends in a log, is silent with -q."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if terminal is None or config.option.verbose < 0:
        return lambda message: None

    def say(message: str) -> None:
        with capture.global_and_fixture_disabled():
            if terminal.isatty:
                terminal.rewrite(clean(message)[: terminal._tw.fullwidth - 1], erase=True)
            else:
                terminal.write_line("")
                terminal.write(f"    {clean(message)}")

    return say


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge the probe: the verdict on all its measurements replaces passed or failed."""
    report = yield
    if item.config.getoption("--cluster"):
        hide_secrets(report)
    recorder = item.stash.get(RECORDER, None)
    if recorder is None or item.stash[VERDICT] is not None:
        return report
    if report.when == "setup" and report.passed:
        return report
    result = item.config.stash[RUN].end(recorder, *end_state(report, call))
    item.stash[VERDICT] = result.verdict
    write_verdict(report, result, recorder.is_provable)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> Generator[None, None, None]:
    """Record a failure that no verdict covers: of a teardown, another test, or a plugin."""
    if report.failed and is_sound(report):
        kind = "teardown" if report.when == "teardown" else "other test"
        PROBLEMS.append((kind, report.nodeid, last_line(report.longreprtext)))
    return (yield)


@pytest.hookimpl(tryfirst=True)  # before pytest prints it
def pytest_internalerror(excrepr: Any, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Record an error of pytest, of a plugin or of this suite, and redact its traceback."""
    redact_internal_error(excrepr)
    PROBLEMS.append(("internal", "pytest", last_line(excinfo.exconly())))


def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Record that a user ended the run; pytest's own end after a collection error is not one."""
    if not isinstance(excinfo.value, pytest.Session.Interrupted):
        PROBLEMS.append(INTERRUPT)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Return category, letter and word of a verdict that pytest does not know."""
    return status_words(report)


PROBLEMS: list[tuple[str, str, str]] = []  # kind, where, text, as in RunProblem
INTERRUPT = ("interrupt", "", "")


@pytest.hookimpl(trylast=True)  # after the fixtures, which an interrupt tears down only here
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Close the run, write every rendering, and set the exit code from the record."""
    run = session.config.stash.get(RUN, None)
    if run is None:
        return
    from probes.acceptance.closing import close_run

    option = session.config.getoption
    summary = close_run(
        run,
        "interrupted" if INTERRUPT in PROBLEMS else "finished",
        [problem for problem in PROBLEMS if problem != INTERRUPT],
        _loaded(session.config),
        Path(option("--baseline")) if option("--baseline") else None,
        session.config.stash[JUNIT],
    )
    PROBLEMS.clear()
    session.config.stash[VERDICT] = summary
    session.exitstatus = summary.exit_code


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the acceptance table, worst first, and the path of the report."""
    summary = config.stash.get(VERDICT, None)
    if summary is None:
        if config.getoption("--cluster") and config.option.collectonly:
            terminalreporter.write_line("nothing was run: --collect-only proves nothing")
        return
    from reports.text import acceptance_table

    tw, run = terminalreporter._tw, config.stash[RUN]
    unicode = "utf" in (getattr(tw._file, "encoding", None) or "").lower()
    terminalreporter.section("acceptance")
    terminalreporter.write_line(
        acceptance_table(summary, width=min(tw.fullwidth, 100), color=tw.hasmarkup, unicode=unicode)
    )
    terminalreporter.write_line(f"report  {run.store.path / 'report.html'}")
    terminalreporter.write_line(summary.integrity.head_line)
    if not summary.record.contract.agreed:
        terminalreporter.write_line(f"next    seatrial contract new --from {run.store.path}")
