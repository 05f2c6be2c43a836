"""The pytest plugin: options, judging at the end of each probe, exit code.

Probes are tests marked `criterion(ID)`.  Their bodies observe and measure; this file judges:
every broken limit of a probe is shown, not only the first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from probes.acceptance.stash import RECORDER, RUN, VERDICT
from reports.sanitize import clean

pytest_plugins = ["probes.acceptance.fixtures", "probes.gang.fixtures", "probes.restart.fixtures"]
TIERS = ("quick", "standard", "soak")
UNJUDGED_FAILURES: list[str] = []
OPTIONS = (
    ("--cluster", "WHERE", "auto (the Ray cluster this machine is in), local[:N], ray://host:port"),
    ("--contract", "NAME|FILE", "the agreed criteria and limits; without it limits are derived"),
    ("--baseline", "RUN", "run folder to compare with in the report"),
    ("--run-dir", "DIR", "where to write this run (default: runs/<utc>-<cluster>)"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the `acceptance` group; each option has an environment twin, SEATRIAL_<OPTION>."""
    group = parser.getgroup("acceptance", "seatrial: acceptance of a GPU cluster that runs Ray")
    for option, metavar, purpose in OPTIONS:
        twin = "SEATRIAL_" + option.strip("-").replace("-", "_").upper()
        group.addoption(option, metavar=metavar, default=os.environ.get(twin), help=purpose)
    tier, nodes = os.environ.get("SEATRIAL_TIER", "quick"), os.environ.get("SEATRIAL_NODES", "")
    purpose = "how long to look: quick, standard or soak (default: quick)"
    group.addoption("--tier", choices=TIERS, default=tier, help=purpose)
    ordered = int(nodes) if nodes.isdecimal() else None
    purpose = "how many nodes were ordered, when the contract does not say"
    group.addoption("--nodes", type=int, default=ordered, metavar="N", help=purpose)


def pytest_configure(config: pytest.Config) -> None:
    """Markers; no parallel workers for probes; where the run goes."""
    config.addinivalue_line("markers", "criterion(id): the row of the acceptance table it proves")
    config.addinivalue_line("markers", "tier(name): only runs in this tier and the longer ones")
    config.addinivalue_line("markers", "uses(module): only runs where the module is installed")
    if not config.getoption("--cluster"):
        return
    # A third party's warning on the cluster is not the cluster's failure.
    config.addinivalue_line("filterwarnings", "default")
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("probes own the whole cluster: run them without -n")


def _runs_probes(config: pytest.Config) -> bool:
    return bool(config.getoption("--cluster")) and not config.option.collectonly


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Join the cluster and open the run, before anything is collected."""
    config = session.config
    if not _runs_probes(config):
        return
    from probes.acceptance.contract import ContractError
    from probes.acceptance.session import RunSession
    from probes.cluster.cluster import ClusterUnreachable
    from reports.store import UnreadableRun, load

    option = config.getoption
    if option("--tier") not in TIERS:  # argparse does not check what the environment gave
        raise pytest.UsageError(f"tier is {option('--tier')!r}, expected {', '.join(TIERS)}")
    try:
        if option("--baseline"):
            load(Path(option("--baseline")))
        run = RunSession(
            *map(option, ("--cluster", "--contract", "--tier", "--run-dir", "--nodes"))
        )
    except (ClusterUnreachable, ContractError, UnreadableRun) as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[RUN] = run
    _write_junit_into(config, run.store.path / "junit.xml")


def _write_junit_into(config: pytest.Config, path: Path) -> None:
    """Have pytest write its JUnit file into the run folder, unless --junitxml said where."""
    from _pytest.junitxml import LogXML, xml_key

    if not config.option.xmlpath:
        xml = config.stash[xml_key] = LogXML(str(path), None, "seatrial", logging="no")
        config.pluginmanager.register(xml)
        xml.pytest_sessionstart()  # its own call of this hook has passed


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Cluster, contract, run."""
    run = config.stash.get(RUN, None)
    return [clean(line) for line in run.header()] if run else []


def _criterion_id(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("criterion")
    return str(marker.args[0]) if marker else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Inventory first, then from the fabric upwards; refuse probes without a cluster."""
    probes = [item for item in items if _criterion_id(item)]
    if probes and not config.getoption("--cluster") and not config.option.collectonly:
        raise pytest.UsageError(
            "probes need a cluster: give --cluster auto, --cluster local:4 "
            "to rehearse on this host, or --cluster ray://host:10001"
        )
    if not probes:
        return
    from probes.acceptance.criteria import RUN_ORDER

    items.sort(key=lambda item: RUN_ORDER.index(_criterion_id(item) or RUN_ORDER[0]))
    deselected = [item for item in probes if _in_longer_tier(item, config) or _not_installed(item)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]


def _in_longer_tier(item: pytest.Item, config: pytest.Config) -> bool:
    """Whether the probe belongs to a longer tier than was asked for."""
    marker = item.get_closest_marker("tier")
    asked = str(config.getoption("--tier")) if config.getoption("--cluster") else TIERS[-1]
    return marker is not None and TIERS.index(marker.args[0]) > TIERS.index(asked)


def _not_installed(item: pytest.Item) -> bool:
    """Whether the probe is of something that nobody can use here, for it is not installed."""
    marker = item.get_closest_marker("uses")
    return marker is not None and find_spec(marker.args[0]) is None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Open the recorder before the fixtures, so that a failing fixture is on record too."""
    run, criterion = item.config.stash.get(RUN, None), _criterion_id(item)
    if run is None or criterion is None:
        return
    claim = " ".join((getattr(item, "obj", None).__doc__ or "").split("\n\n")[0].split())
    if case := getattr(item, "callspec", None):  # which one of several the same claim is proved by
        claim = f"{claim.rstrip('.')}: {case.id.replace('-', ' ')}."
    item.stash[RECORDER] = run.begin(item.nodeid, criterion, claim, _line_printer(item.config))
    item.stash[VERDICT] = None


def _line_printer(config: pytest.Config) -> Callable[[str], None]:
    """Says one line: over itself on a terminal, under each other in a log; silent with -q."""
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
    """Judge: the verdict of all that was measured replaces passed or failed."""
    report = yield
    recorder = item.stash.get(RECORDER, None)
    if recorder is None or item.stash[VERDICT] is not None:
        return report
    if report.when == "setup" and report.passed:
        return report
    result = recorder.finish(*_end_state(report, call))
    item.config.stash[RUN].store.save()
    item.stash[VERDICT] = result.verdict
    report.seatrial = result.verdict.value  # type: ignore[attr-defined]
    _write_verdict(item, report, result)
    return report


def _end_state(report: pytest.TestReport, call: pytest.CallInfo[None]) -> tuple[str, float, str]:
    """Tell state, seconds and error sentence of a probe."""
    if report.passed:
        return "finished", report.duration, ""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        return "skipped", report.duration, str(reason)
    assert call.excinfo is not None
    interrupted = isinstance(call.excinfo.value, KeyboardInterrupt)
    return "interrupted" if interrupted else "error", report.duration, call.excinfo.exconly()


def _write_verdict(item: pytest.Item, report: pytest.TestReport, result: Any) -> None:
    """Put verdict and sentences into pytest's report: terminal, JUnit and exit code read it."""
    from reports.record import Verdict

    properties = [("criterion", result.criterion), ("verdict", result.verdict.value)]
    properties += [(f"{m.name} on {m.subject}", m.value_text) for m in result.measurements]
    # JUnit takes its properties from the teardown's report, which is made from the item.
    item.user_properties += properties
    report.user_properties += properties
    if result.verdict in (Verdict.UNPROVEN, Verdict.FAIL):
        lines = [f"{result.criterion} {result.verdict.value}", *result.problems()]
        lines += [f"{f.code}: {f.statement}" for f in result.findings]
        text = "\n".join(lines)
        if report.failed and report.longrepr:
            text += f"\n\n{report.longreprtext}"
        report.outcome = "failed"
        report.longrepr = "\n".join(clean(line) for line in text.splitlines())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> Generator[None, None, None]:
    """A failure that no verdict stands for (a teardown, another test) must not end in 0."""
    if report.failed and not hasattr(report, "seatrial"):
        UNJUDGED_FAILURES.append(report.nodeid)
    return (yield)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """MARGINAL and UNPROVEN by name.  UNPROVEN counts as an error, so that its text is shown."""
    verdict = getattr(report, "seatrial", None)
    if verdict == "MARGINAL":
        return "marginal", "m", ("MARGINAL", {"yellow": True})
    if verdict == "UNPROVEN":
        return "error", "U", ("UNPROVEN", {"yellow": True})
    return None


@pytest.hookimpl(trylast=True)  # after the fixtures, which an interrupt tears down only here
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close the run, write every rendering, and let the record decide the exit code."""
    run = session.config.stash.get(RUN, None)
    if run is None:
        return
    from reports.acceptance import summarize_acceptance

    interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
    summary = summarize_acceptance(run.finish("interrupted" if interrupted else "finished"))
    session.config.stash[VERDICT] = summary
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        session.exitstatus = summary.exit_code or int(bool(UNJUDGED_FAILURES))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The acceptance table, worst first, and where the report is."""
    summary = config.stash.get(VERDICT, None)
    if summary is None:
        return
    from reports.text import acceptance_table

    tw, run = terminalreporter._tw, config.stash[RUN]
    unicode = "utf" in (getattr(tw._file, "encoding", None) or "").lower()
    terminalreporter.section("acceptance")
    terminalreporter.write_line(
        acceptance_table(summary, width=min(tw.fullwidth, 100), color=tw.hasmarkup, unicode=unicode)
    )
    terminalreporter.write_line(f"report  {run.store.path / 'report.html'}")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Render once JUnit is written, so that the sums cover it."""
    summary = config.stash.get(VERDICT, None)
    if summary is None:
        return
    from reports.acceptance import load_summary
    from reports.exports import write_all

    run, baseline = config.stash[RUN], config.getoption("--baseline")
    write_all(run.store.path, summary, load_summary(Path(baseline)) if baseline else None)
    run.store.close()
