"""What a probe was called with stays out of all that a run shows and keeps."""

from __future__ import annotations

import pytest

from tests.support.stand_in import CAUGHT, GOOD, PROBE, STAND_IN

pytest_plugins = ["pytester"]

SECRET = "wJalrXUtnFEMIbPxRfiCYzK7MDENG"  # as a cloud writes its keys, long enough to be cut
MISSING_TOOL = f"""
import subprocess
subprocess.Popen(["no-such-tool"], env={{"A": "x" * 200, "AWS_SECRET_ACCESS_KEY": "{SECRET}"}})
"""
RAISES = f"raise RuntimeError('HF_TOKEN={SECRET} and https://bob:{SECRET}@host/x')"
# As programs do it: the values come in as arguments, and are variables of every frame.
HELPER = f"""
import subprocess
KEYS = {{"A": "x" * 200, "AWS_SECRET_ACCESS_KEY": "".join({list(SECRET)!r})}}
def call(tool, env):
    copy = dict(env)
    subprocess.Popen([tool], env=copy)
"""
CALLS = "import helper; helper.call('no-such-tool', helper.KEYS)"
PRINTS = f"print('X-Api-Key: {SECRET}'); raise RuntimeError('x')"
SKIPS = f"pytest.skip('password={SECRET}')"
PLACES = ("junit.xml", "record.json", "events.jsonl", "report.html", "ctrf.json")


def run_probe(pytester: pytest.Pytester, body: str, *options: str, extra: str = "") -> str:
    """Run one probe; all that the terminal showed."""
    pytester.makeconftest(STAND_IN + extra)
    indented = "\n    ".join(body.strip().splitlines())
    pytester.makepyfile(test_probe=PROBE.format(criterion="GANG", body=indented), helper=HELPER)
    wanted = ["--cluster", "auto", "--contract", "lab", "--run-dir", "run", "-rA"]
    result = pytester.runpytest_subprocess(*wanted, "-p", "no:cacheprovider", *options)
    return result.stdout.str() + result.stderr.str()


def leaks(pytester: pytest.Pytester, terminal: str) -> list[str]:
    """Where the secret is, or 12 letters of it: a value may be cut anywhere."""
    texts = {"terminal": terminal}
    texts |= {name: (pytester.path / "run" / name).read_text() for name in PLACES}
    parts = [SECRET[at : at + 12] for at in range(len(SECRET) - 11)]
    return [name for name, text in texts.items() if any(part in text for part in parts)]


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (CALLS, ()),
        (CALLS, ("-l", "--tb=long", "-vv")),
        (CALLS, ("--full-trace",)),
        (MISSING_TOOL, ("-l",)),
        (RAISES, ("--tb=native",)),
        (PRINTS, ()),
        (SKIPS, ()),
    ],
    ids=["argument", "asked for", "full", "in the source", "in the error", "printed", "skipped"],
)
def test_a_failing_probe_shows_no_secret(
    pytester: pytest.Pytester, body: str, options: tuple[str, ...]
) -> None:
    terminal = run_probe(pytester, body, *options)
    assert "UNPROVEN" in terminal
    assert leaks(pytester, terminal) == []


def test_the_rest_of_a_traceback_stays(pytester: pytest.Pytester) -> None:
    terminal = run_probe(pytester, CALLS, "-l")
    assert "subprocess.Popen([tool], env=copy)" in terminal
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'no-such-tool'" in terminal
    assert "FileNotFoundError" in (pytester.path / "run" / "record.json").read_text()


def test_a_failing_teardown_and_another_test_show_no_secret(pytester: pytest.Pytester) -> None:
    (pytester.path / "test_other.py").write_text(f"def test_other():\n    {CALLS}\n")
    broken = (
        f"\nimport pytest\n@pytest.fixture(autouse=True)\ndef after():\n    yield\n    {RAISES}\n"
    )
    terminal = run_probe(pytester, f"{GOOD}\n{CAUGHT}", "-l", extra=broken)
    assert "ERROR at teardown" in terminal
    assert leaks(pytester, terminal) == []


def test_a_file_that_is_not_collected_shows_no_secret(pytester: pytest.Pytester) -> None:
    (pytester.path / "test_other.py").write_text(f"{CALLS}\n")
    terminal = run_probe(pytester, GOOD, "-l", "--continue-on-collection-errors")
    assert "ERROR collecting" in terminal
    assert leaks(pytester, terminal) == []


def test_an_internal_error_shows_no_secret(pytester: pytest.Pytester) -> None:
    broken = f"\ndef pytest_runtestloop(session):\n    {RAISES}\n"
    terminal = run_probe(pytester, GOOD, "--full-trace", extra=broken)
    assert "INTERNALERROR> RuntimeError: HF_TOKEN=<redacted>" in terminal
    assert leaks(pytester, terminal) == []


def test_a_run_of_something_else_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(helper=HELPER, test_theirs=f"def test_it():\n    {CALLS}\n")
    terminal = pytester.runpytest_subprocess("--tb=long", "-p", "no:cacheprovider").stdout.str()
    assert "AWS_SECRET_ACCESS_KEY" in terminal, "whoever has the plugin installed has his own tests"
