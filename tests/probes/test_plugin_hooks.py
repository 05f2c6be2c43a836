"""Hooks of the plugin, called one by one: without a cluster and without another pytest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes import plugin
from probes.gang.scenario import NoRoom
from probes.session.probe_report import describe_error
from probes.session.session import typed_command
from probes.toml_tables import TableError
from reports.measurement import Verdict

SECRET = "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789"


def config_of(plugins: dict[str, Any] | None = None, **options: str) -> Any:
    """Return a stand-in of pytest's config with these options; the others are not given."""
    option = SimpleNamespace(
        collectonly=True, verbose=0, tbstyle="long", showlocals=True, fulltrace=True
    )
    return SimpleNamespace(
        getoption=lambda name: options.get(name.removeprefix("--")),
        option=option,
        stash={},
        addinivalue_line=lambda *_: None,
        pluginmanager=SimpleNamespace(get_plugin=(plugins or {}).get),
        hook=SimpleNamespace(pytest_deselected=lambda items: None),
    )


def item_of(config: Any, **markers: str) -> Any:
    """Return a stand-in of a test with these markers."""
    marks = {name: SimpleNamespace(args=(value,)) for name, value in markers.items()}
    return SimpleNamespace(
        config=config,
        stash={},
        get_closest_marker=marks.get,
        iter_markers=lambda name: [marks[name]] if name in marks else [],
    )


def test_tracebacks_of_a_run_print_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among them are whole environments."""
    monkeypatch.setattr(plugin, "read_twins", lambda *_: None)
    config = config_of(cluster="auto")
    plugin.pytest_configure(config)
    option = config.option
    assert (option.tbstyle, option.showlocals, option.fulltrace) == ("short", False, False)


def test_secrets_in_what_a_probe_printed_are_hidden() -> None:
    report: Any = SimpleNamespace(sections=[("Captured stdout call", SECRET)], longrepr=None)
    hook: Any = plugin.pytest_runtest_makereport(
        item_of(config_of(cluster="auto")), SimpleNamespace()
    )  # type: ignore[arg-type]
    next(hook)
    with contextlib.suppress(StopIteration):
        hook.send(report)
    assert "hf_abc" not in report.sections[0][1]


def test_secrets_in_what_a_file_printed_that_cannot_be_collected_are_hidden() -> None:
    report: Any = SimpleNamespace(sections=[("Captured stdout", SECRET)], longrepr=None)
    collector: Any = SimpleNamespace(config=config_of(cluster="auto"))
    hook: Any = plugin.pytest_make_collect_report(collector)
    next(hook)
    with contextlib.suppress(StopIteration):
        hook.send(report)
    assert "hf_abc" not in report.sections[0][1]


@pytest.mark.parametrize(
    ("tier", "listed"),
    [
        (None, ["quick", "standard", "soak"]),
        ("standard", ["quick", "standard"]),
        ("quick", ["quick"]),
    ],
)
def test_only_the_probes_of_a_tier_are_listed(tier: str | None, listed: list[str]) -> None:
    """Without a tier all of them are."""
    config = config_of(**({"tier": tier} if tier else {}))
    tiers = {
        name: item_of(config, criterion="GANG", tier=name) for name in ("quick", "standard", "soak")
    }
    items = [*tiers.values()]
    plugin.pytest_collection_modifyitems(config, items)
    assert [name for name, item in tiers.items() if item in items] == listed


def test_what_is_left_out_is_told_to_pytest_which_counts_it() -> None:
    config, told = config_of(tier="quick"), []
    config.hook.pytest_deselected = lambda items: told.extend(items)
    items = [item_of(config, criterion="GANG", tier=name) for name in ("quick", "soak")]
    long = items[1]
    plugin.pytest_collection_modifyitems(config, items)
    assert told == [long]


def test_problems_of_another_session_are_forgotten() -> None:
    plugin.PROBLEMS.append(("internal", "pytest", "of another session"))
    session: Any = SimpleNamespace(config=config_of())
    plugin.pytest_sessionstart(session)
    assert plugin.PROBLEMS == []


def test_an_internal_error_is_recorded_and_shows_no_secret() -> None:
    entry = SimpleNamespace(lines=[f"E  {SECRET}"])
    shown: Any = SimpleNamespace(reprtraceback=SimpleNamespace(reprentries=[entry]))
    excinfo: Any = SimpleNamespace(exconly=lambda: f"ValueError: {SECRET}")
    try:
        plugin.pytest_internalerror(shown, excinfo)
        assert "hf_abc" not in "".join(entry.lines)
        ((kind, where, text),) = plugin.PROBLEMS
        assert (kind, where) == ("internal", "pytest")
        assert "hf_abc" not in text
    finally:
        plugin.PROBLEMS.clear()


class LateEnding:
    """A stand-in of the end of a run: `code` is the record's exit code, None where it has none."""

    def __init__(self, code: int | None = None, closes: bool = True) -> None:
        self.summary = None if code is None else SimpleNamespace(exit_code=code)
        self.closes, self.closed, self.shown = closes, list[Any](), 0

    def close(self, state: str, problems: list[Any]) -> None:
        self.closed.append((state, problems))
        if not self.closes:
            raise OSError("no room")
        self.summary = SimpleNamespace(exit_code=20)

    def show(self) -> None:
        self.shown += 1


LATE = [("finished", [("internal", "pytest", "ValueError: too late")])]


@pytest.mark.parametrize(
    ("error", "ending", "closed", "code"),
    [
        (ValueError("too late"), None, [], pytest.ExitCode.INTERNAL_ERROR),
        (KeyboardInterrupt(), None, [], pytest.ExitCode.INTERRUPTED),
        (ValueError("too late"), LateEnding(), LATE, 20),
        (ValueError("too late"), LateEnding(code=0), [], 0),  # its record was written before
        (ValueError("too late"), LateEnding(closes=False), LATE, pytest.ExitCode.INTERNAL_ERROR),
    ],
)
def test_another_plugin_that_breaks_at_the_end_does_not_decide(
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    ending: LateEnding | None,
    closed: list[Any],
    code: int,
) -> None:
    guarded: list[int] = []
    monkeypatch.setattr(plugin, "guard_streams", lambda: guarded.append(1))
    monkeypatch.setattr(plugin, "PROBLEMS", [])
    config = config_of(cluster="auto")
    if ending:
        config.stash[plugin.ENDING] = ending
    deciding = plugin._decide_code(config)
    next(deciding)
    with pytest.raises(StopIteration) as ended:
        deciding.throw(error)
    assert (ended.value.value, guarded) == (code, [1])
    if ending:
        assert (ending.closed, ending.shown) == (closed, 1)


@pytest.mark.parametrize(
    ("options", "variable", "listed", "program", "did"),
    [
        ({"cluster": "auto"}, "", False, "pytest", ["taken", ("settled", 7)]),
        ({"cluster": "auto"}, "", False, "seatrial", ["taken"]),  # the command ends itself
        ({}, "auto", False, "pytest", ["taken", ("settled", 7)]),
        ({"cluster": "auto"}, "", True, "pytest", []),
        ({}, "", False, "pytest", []),
    ],
    ids=["run", "command", "by variable", "lists only", "no cluster"],
)
def test_signals_are_taken_for_a_run_alone(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    variable: str,
    listed: bool,
    program: str,
    did: list[Any],
) -> None:
    done: list[Any] = []

    @contextlib.contextmanager
    def taken() -> Iterator[None]:
        done.append("taken")
        yield

    signals = SimpleNamespace(taken=taken, settle=lambda code: done.append(("settled", code)))
    monkeypatch.setattr(plugin, "SIGNALS", signals)
    monkeypatch.setattr(plugin, "guard_streams", lambda: None)
    monkeypatch.setenv("SEATRIAL_CLUSTER", variable)
    monkeypatch.setattr("sys.argv", [f"/usr/bin/{program}"])
    config = config_of(**options)
    config.option.collectonly = listed
    surrounding = plugin.pytest_cmdline_main(config)
    next(surrounding)
    with pytest.raises(StopIteration) as ended:
        surrounding.send(7)
    assert (ended.value.value, done) == (7, did)


@pytest.mark.parametrize("broken", ["check.registry.find_criteria", "findings.read_groups"])
def test_a_suite_that_is_not_whole_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def refuse() -> None:
        raise TableError("HOST-X has no order")

    monkeypatch.setattr(f"probes.{broken}", refuse)
    with pytest.raises(pytest.exit.Exception, match="the suite is incomplete: HOST-X") as ended:
        plugin._refuse_broken_suite()
    assert ended.value.returncode == 3


def test_packages_of_another_project_run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "find_foreign", lambda: "reports is not seatrial's")
    with pytest.raises(pytest.exit.Exception, match="reports is not seatrial's") as ended:
        plugin._refuse_broken_suite()
    assert ended.value.returncode == 4


def test_a_wrong_option_is_left_to_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "guard_streams", lambda: None)
    deciding = plugin._decide_code(config_of(cluster="auto"))
    next(deciding)
    with pytest.raises(pytest.UsageError, match="no such option"):
        deciding.throw(pytest.UsageError("no such option"))


def test_a_probe_of_a_module_that_is_not_installed_is_skipped_by_name() -> None:
    item = item_of(config_of(), uses="no_such_module")
    with pytest.raises(pytest.skip.Exception, match="no_such_module is not installed"):
        plugin._require_software(item, "GANG")


@pytest.mark.parametrize(
    ("start", "id"),
    [
        ("/suite", "probes/gang/test_gang.py::test_it[a-b]"),
        ("/suite/probes", "gang/test_gang.py::test_it[a-b]"),
        ("/home/user", "/suite/probes/gang/test_gang.py::test_it[a-b]"),
    ],
)
def test_the_id_of_a_probe_can_be_pasted_where_the_run_was_started(start: str, id: str) -> None:
    """pytest's own is relative to its rootdir."""
    config = SimpleNamespace(invocation_params=SimpleNamespace(dir=Path(start)))
    path = Path("/suite/probes/gang/test_gang.py")
    item: Any = SimpleNamespace(config=config, path=path, nodeid="gang/test_gang.py::test_it[a-b]")
    assert plugin._pastable_id(item) == id


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (pytest.fail.Exception("one node has no fabric", pytrace=False), "one node has no fabric"),
        (NoRoom("contention needs 2 GPUs"), "contention needs 2 GPUs"),
        (NoRoom(), "probes.gang.scenario.NoRoom"),
        (ValueError("no number"), "ValueError: no number"),
    ],
)
def test_an_error_of_ours_is_told_by_its_sentence_alone(error: Exception, told: str) -> None:
    with pytest.raises(type(error)) as caught:
        raise error
    assert describe_error(caught) == told


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("/usr/bin/pytest", "pytest"),
        ("/x/site-packages/pytest/__main__.py", "python -m pytest"),
        ("/x/site-packages/seatrial/__main__.py", "python -m seatrial"),
    ],
)
def test_the_command_of_a_run_can_be_pasted(program: str, shown: str) -> None:
    assert typed_command([program, "probes", "-k", "a b"]) == f"{shown} probes -k 'a b'"


def test_the_collection_returns_what_pytest_collected() -> None:
    session: Any = SimpleNamespace(config=config_of(), items=[])
    collecting = plugin.pytest_collection(session)
    next(collecting)
    with pytest.raises(StopIteration) as ended:
        collecting.send("all of it")
    assert ended.value.value == "all of it"


def test_a_probe_is_counted_among_probes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    config = config_of(cluster="auto")
    progress = SimpleNamespace(begin=lambda *values: begun.append(values), step=None)
    run = SimpleNamespace(begin=lambda *_: "recorder", cluster=None)
    config.stash |= {plugin.RUN: run, plugin.terminal.PROGRESS: progress}
    probe, other = item_of(config, criterion="GANG"), item_of(config)
    probe.session = SimpleNamespace(items=[probe, other, probe])
    probe.name, probe.nodeid, probe.path = "test_x", "test_own.py::test_x", Path("/own/test_own.py")
    config.invocation_params = SimpleNamespace(dir=Path("/own"))
    monkeypatch.setattr(plugin, "_require_software", lambda *_: None)
    plugin.pytest_runtest_setup(probe)
    assert begun == [("GANG", "test_x", 2, None)]
    assert probe.stash[plugin.RECORDER] == "recorder"


def test_a_probe_that_ended_is_counted_once_with_its_verdict() -> None:
    ended: list[str] = []
    config = config_of(cluster="auto")
    result = SimpleNamespace(verdict=Verdict.PASS, state="finished")
    config.stash |= {
        plugin.RUN: SimpleNamespace(end=lambda *_: result),
        plugin.terminal.PROGRESS: SimpleNamespace(end=ended.append),
    }
    probe = item_of(config, criterion="GANG")
    recorder = SimpleNamespace(row=SimpleNamespace(required=True))
    probe.stash |= {plugin.RECORDER: recorder, plugin.VERDICT: None}
    for when in ("setup", "call", "teardown"):
        report: Any = SimpleNamespace(
            when=when, passed=True, skipped=False, duration=1.0, sections=[], longrepr=None
        )
        call: Any = SimpleNamespace(excinfo=None)
        judging: Any = plugin.pytest_runtest_makereport(probe, call)
        next(judging)
        with contextlib.suppress(StopIteration):
            judging.send(report)
    assert (ended, probe.stash[plugin.VERDICT]) == (["PASS"], Verdict.PASS)


@pytest.mark.parametrize(("only", "more"), [([], ""), (["GANG"], ", or not in --only")])
def test_a_run_begins_with_what_may_change_its_results_and_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, only: list[str], more: str
) -> None:
    printed: list[str] = []
    run = SimpleNamespace(
        was_cut_off=False, tier="quick", only=only, header=lambda: ["folder    here"]
    )
    monkeypatch.setattr("probes.session.session.RunSession", lambda settings: run)
    monkeypatch.setattr("probes.session.ending.Ending", lambda *_: None)
    monkeypatch.setattr("probes.session.terminal.estimate_run", lambda *_: 0.0)
    monkeypatch.setattr(plugin, "SIGNALS", SimpleNamespace(release=lambda: None))
    monkeypatch.setattr(plugin, "_end_options", lambda *_: None)
    monkeypatch.setattr(plugin, "_loaded", lambda _: ["pytest-cov 7.0"])
    monkeypatch.setattr(plugin, "_too_old", lambda _: ["GANG needs Ray 2.40"])
    monkeypatch.setattr(plugin.terminal, "print_header", lambda _, lines: printed.extend(lines))
    monkeypatch.setattr(plugin.terminal, "start_progress", lambda *_: None)
    config = config_of(cluster="auto")
    config.pluginmanager.register = lambda *_: None
    config.stash[plugin.LEFT_OUT] = 2
    session: Any = SimpleNamespace(config=config, items=[])
    plugin._open_run(session, None)
    assert printed == [
        "folder    here",
        "loaded    pytest-cov 7.0: these can change results. `seatrial run` loads none",
        "versions  GANG needs Ray 2.40",
        f"left out  2 tests of a longer tier than quick{more}",
    ]


@pytest.mark.parametrize(("given", "path"), [("out/junit.xml", "out/junit.xml"), (None, "")])
def test_the_junit_file_is_written_where_pytest_was_told_to(given: str | None, path: str) -> None:
    config = config_of()
    config.option.xmlpath = given
    assert plugin._take_over_junit(config) == path


def test_what_else_pytest_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own modules and our conftest.py are not: they are in every run."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-v")
    monkeypatch.delenv("PYTEST_PLUGINS", raising=False)
    files = ["/own/conftest.py", "/lib/_pytest/main.py", str(plugin.ROOT / "conftest.py"), None]
    config = config_of()
    config.pluginmanager.get_plugins = lambda: [SimpleNamespace(__file__=file) for file in files]
    installed = SimpleNamespace(project_name="pytest-cov", version="7.0")
    config.pluginmanager.list_plugin_distinfo = lambda: [(None, installed)]
    assert plugin._loaded(config) == ["/own/conftest.py", "PYTEST_ADDOPTS=-v", "pytest-cov 7.0"]


@pytest.mark.parametrize(
    ("when", "kind"), [("teardown", "teardown"), ("call", "other test"), ("setup", "other test")]
)
def test_a_failure_that_no_verdict_covers_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, when: str, kind: str
) -> None:
    monkeypatch.setattr(plugin, "PROBLEMS", [])
    monkeypatch.setattr(plugin.probe_report, "is_sound", lambda _: True)
    report: Any = SimpleNamespace(failed=True, when=when, nodeid="a::b", longreprtext="E   why")
    logging = plugin.pytest_runtest_logreport(report)
    next(logging)
    assert [problem[:2] for problem in plugin.PROBLEMS] == [(kind, "a::b")]


@pytest.mark.parametrize("lost", ["", "Ray's head does not answer"])
def test_an_interrupt_is_a_users_or_the_clusters(
    monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    did: list[Any] = []
    signals = SimpleNamespace(lost=lost, wait_for=lambda _: None, came_in_time=False)
    monkeypatch.setattr(plugin, "SIGNALS", signals)
    monkeypatch.setattr(plugin, "PROBLEMS", [("teardown", "x", "y")])
    ending: Any = SimpleNamespace(
        run=SimpleNamespace(end_current=did.append),
        write=lambda state, problems: did.append((state, problems)),
    )
    interrupt: Any = SimpleNamespace(value=KeyboardInterrupt())
    plugin.InterruptHook(ending).pytest_keyboard_interrupt(interrupt)
    state = "finished" if lost else "interrupted"
    assert did == [*([lost] if lost else []), (state, [("teardown", "x", "y")])]
    assert ([] if lost else [plugin.INTERRUPT]) == plugin.PROBLEMS, "it stays for the end"


@pytest.mark.parametrize(
    ("status", "lines"), [(pytest.ExitCode.NO_TESTS_COLLECTED, 1), (pytest.ExitCode.OK, 0)]
)
def test_that_nothing_was_selected_is_printed(status: pytest.ExitCode, lines: int) -> None:
    written: list[str] = []
    config = config_of(cluster="auto")
    config.option.collectonly, config.option.keyword = False, "gnag"
    config.stash[plugin.SETTINGS] = SimpleNamespace(tier="quick", only=["GANG"])
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=written.append), status, config)
    assert len(written) == lines
    assert all("did you mean gang?" in line for line in written)
