"""What a run prints, in a log and on a terminal, and that it contacts nothing too early."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.pseudo_terminal import run_on_terminal
from tests.support.stand_in import CAUGHT, CONTRACT, GOOD, OWES, PROBE, STAND_IN

pytest_plugins = ["pytester", "tests.support.stand_in_suite"]

STAMP = r"\d\d:\d\d:\d\d \+\d+:\d\d "
STEPS = f'measure.progress("gang: two jobs compete"); {GOOD}'
OTHER = """
import pytest
@pytest.fixture
def torn(): yield; raise RuntimeError("not torn down")
def test_other(torn): pass
"""


def test_a_log_has_stamped_lines_and_nothing_else_of_progress(
    suite: Any, pytester: pytest.Pytester
) -> None:
    (pytester.path / "test_other.py").write_text(OTHER)
    result, _ = suite(sound=STEPS)
    lines = result.stdout.lines
    stamped = [re.sub(f"^{STAMP}", "", line) for line in lines if re.match(STAMP, line)]
    stamped = [re.sub(r"\d+ s ", "0 s ", line) for line in stamped]  # this host may be slow
    assert stamped == [
        "PASSED test_other.py::test_other",
        "FAILED teardown of test_other.py::test_other",
        "[1/2] GANG FAIL a waiting job held only a part of its GPUs in 3",
        "[1/2] GANG FAIL 0 s it",
        "[2/2] GANG two jobs compete",
        "[2/2] GANG PASS 0 s it",
    ]
    before = lines[: lines.index(next(line for line in lines if " ERRORS " in line))]
    assert not [line for line in before if "%]" in line or line.startswith("test_")]
    assert "\x1b" not in result.stdout.str()
    assert all(len(line) <= 80 for line in lines if re.match(STAMP, line))
    result.stdout.fnmatch_lines(
        [
            "*FAILURES*",
            "a waiting job held only a part of its GPUs in 3 samples*",
            "FAILED test_broken.py::test_it*",
        ]
    )
    result.assert_outcomes(passed=2, failed=1, errors=1)


@pytest.mark.parametrize("held", ["2 GPUs on n0 are held by actor Train of job 05", ""])
def test_who_holds_accelerators_is_said_before_the_first_probe(
    suite: Any, pytester: pytest.Pytester, held: str
) -> None:
    text = STAND_IN.replace('describe_busy(self, seconds): return ""',
                            f"describe_busy(self, seconds): return {held!r}")  # fmt: skip
    pytester.makeconftest(text + OWES)
    result, _ = suite(sound=STEPS)
    lines = result.stdout.lines
    found = [number for number, line in enumerate(lines) if line.startswith("held ")]
    assert len(found) == bool(held)
    first = next(number for number, line in enumerate(lines) if re.match(STAMP, line))
    if held:
        assert lines[found[0]] == f"held      {held}. Tests that wait too long are UNPROVEN"
        assert found[0] < first


VOICE = """
from probes.session.terminal import OwnVoice
import pytest
@pytest.hookimpl(trylast=True)
def pytest_configure(config): OwnVoice().pytest_configure(config)
"""


def test_the_command_says_each_thing_once_and_nothing_of_pytest(
    suite: Any, pytester: pytest.Pytester
) -> None:
    (pytester.path / "voice.py").write_text(VOICE)
    (pytester.path / "test_other.py").write_text(OTHER)
    result, _ = suite("-p", "voice", sound=STEPS)
    text = result.stdout.str()
    for noise in ("test session starts", "collected", "FAILURES", "short test summary", "passed"):
        assert noise not in text
    assert "not torn down" in text, "what no verdict covers is shown"
    failure = "a waiting job held only a part of its GPUs"
    stamped = [line for line in result.stdout.lines if re.match(STAMP, line)]
    assert sum(failure in line for line in stamped) == 1
    table = text[text.index("= acceptance =") :]
    assert f"{failure} in 3 samples. Expected: 0 samples" in " ".join(table.split())
    assert text.index("= acceptance =") > text.index(failure)
    result, _ = suite("-p", "voice", "-v", sound=STEPS)
    assert "test session starts" in result.stdout.str()


def test_the_verbose_flag_prints_pytests_lines_too(suite: Any) -> None:
    result, _ = suite("-v", sound=STEPS)
    text = result.stdout.str()
    assert re.search(r"^test_sound.py::test_it PASSED +\[100%\]", text, re.MULTILINE)
    assert re.search(r"^test_broken.py::test_it FAILED +\[ 50%\]", text, re.MULTILINE)
    assert re.search(rf"^{STAMP}\[2/2\] GANG two jobs compete$", text, re.MULTILINE)


def run_there(folder: Path, **variables: str) -> str:
    """Run pytest on a terminal; return all that it wrote there."""
    options = ["-p", "no:cacheprovider", "-p", "no:terminalprogress", "--cluster", "auto"]
    options += ["--contract", "agreed.toml", "--run-dir", "run"]
    return run_on_terminal("pytest", *options, folder=folder, **variables)


@pytest.fixture
def place(pytester: pytest.Pytester) -> Path:
    """A folder with one probe of a stand-in cluster, which takes a step."""
    pytester.makeconftest(STAND_IN + OWES)
    (pytester.path / "agreed.toml").write_text(CONTRACT)
    body = f"{STEPS}\n    {CAUGHT}"
    (pytester.path / "test_sound.py").write_text(PROBE.format(criterion="GANG", body=body))
    return pytester.path


def test_a_terminal_shows_a_live_line_and_then_the_probe(place: Path) -> None:
    text = run_there(place, TERM="xterm")
    assert re.search(r"\r\+\d+:\d\d \[1/1\] GANG \d+:\d\d two jobs compete it", text)
    assert re.search(rf"\r {{20,}}\r{STAMP}\[1/1\] GANG \x1b\[32mPASS\x1b\[0m \d+ s it\n", text)
    assert text.count("acceptance") == text.count("= acceptance =") == 1


@pytest.mark.parametrize(
    ("environment", "is_live"),
    [({"TERM": "xterm", "NO_COLOR": "1"}, True), ({"TERM": "dumb"}, False)],
    ids=["NO_COLOR", "dumb"],
)
def test_a_terminal_without_colours(
    place: Path, environment: dict[str, str], is_live: bool
) -> None:
    text = run_there(place, **environment)
    assert "\x1b" not in text
    assert bool(re.search(r"\r\+\d+:\d\d \[1/1\] GANG", text)) is is_live
    assert (
        bool(re.search(rf"^{STAMP}\[1/1\] GANG two jobs compete$", text, re.MULTILINE))
        is not is_live
    )
    assert re.search(rf"{STAMP}\[1/1\] GANG PASS \d+ s it\n", text)


LISTENS = """
import probes.cluster.cluster as joined
from probes.cluster.address import ClusterUnreachable
def stop(*_): raise ClusterUnreachable("the test ends here")
joined.Cluster = stop
"""


@pytest.fixture
def listener(pytester: pytest.Pytester) -> Iterator[socket.socket]:
    """A socket where a Ray head would listen, and a probe that would join it."""
    pytester.makeconftest(LISTENS)
    pytester.makepyfile(test_probe=PROBE.format(criterion="GANG", body="pass"))
    (pytester.path / "used").mkdir()
    (pytester.path / "used" / "file").touch()
    (pytester.path / "broken.toml").write_text("schema = 1\n[cluster\n")
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.setblocking(False)
        yield server


def was_contacted(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["-k", "gagn"], 5, "nothing was run: no probe is selected (-k 'gagn', tier quick); did "
         "you mean gang?"),
        (["--only", "HOSTS"], 5, "no probe is selected (--only HOSTS, tier quick)"),
        (["--only", "HOST"], 4, "expected some of FABRIC, SCALING, GANG, LAUNCH, RESTART, HOSTS; "
         "did you mean HOSTS?"),
        (["--tier", "standart"], 4, "did you mean standard?"),
        (["--contract", "broken.toml"], 4, "broken.toml"),
        (["--nodes", "8", "--contract", "no-such"], 4, "no-such"),
        (["--run-dir", "used"], 4, "used"),
        (["no_such_file.py"], 4, "no_such_file.py"),
        (["--wait-for-nodes", "9"], 4, "add --nodes"),
    ],
)  # fmt: skip
def test_nothing_is_contacted_before_the_selection_is_known(
    listener: socket.socket,
    pytester: pytest.Pytester,
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    spec = f"ray://127.0.0.1:{listener.getsockname()[1]}"
    result = pytester.runpytest_subprocess(
        "-p", "probes.plugin", "--cluster", spec, *arguments, timeout=60
    )
    output = result.stdout.str() + result.stderr.str()
    assert result.ret == code, output
    assert says in output
    assert "Traceback" not in output
    assert not was_contacted(listener)
    assert not (pytester.path / "runs").exists(), "no run began"


def test_the_listener_sees_a_run_that_has_a_probe(
    listener: socket.socket, pytester: pytest.Pytester
) -> None:
    spec = f"ray://127.0.0.1:{listener.getsockname()[1]}"
    result = pytester.runpytest_subprocess("-p", "probes.plugin", "--cluster", spec, timeout=60)
    assert "the test ends here" in result.stderr.str()
    assert was_contacted(listener)
