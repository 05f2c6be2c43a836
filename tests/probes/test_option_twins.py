"""SEATRIAL_<OPTION> counts in a run of the suite, and in no other run of pytest."""

from __future__ import annotations

import subprocess
import sys

import pytest

from probes.plugin import ROOT

pytest_plugins = ["pytester"]

HOSTS = str(ROOT / "probes" / "hosts" / "test_hosts.py")
JOINS = "*nothing was run: --collect-only proves nothing*"  # said where a cluster was named
# Whatever is neither Python's own nor pytest's: what the plugin costs a foreign project.
FOREIGN = """
import sys
def test_it():
    brought = {name.split(".")[0] for name in sys.modules} - sys.stdlib_module_names
    pytests = "pytest pluggy iniconfig packaging pygments py exceptiongroup tomli".split()
    pytests += ["typing_extensions", "test_it"]
    brought = {name for name in brought.difference(pytests) if not name.startswith("_")}
    assert brought - {"sitecustomize"} == {"probes", "reports", "seatrial"}
"""


@pytest.fixture
def joined(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A place where the suite's options are set in the environment."""
    monkeypatch.setenv("SEATRIAL_CLUSTER", "local:2")
    monkeypatch.setenv("SEATRIAL_RUN_DIR", "run")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # but for seatrial's own
    monkeypatch.setenv("PYTEST_PLUGINS", "probes.plugin")
    return pytester


def test_a_foreign_project_joins_nothing_prints_nothing_and_imports_nothing(
    joined: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEATRIAL_CLUSTR", "a misspelt one is not its concern")
    (joined.path / "probes").mkdir()  # another's folder of that name
    (joined.path / "probes" / "test_it.py").write_text(FOREIGN)
    result = joined.runpytest_subprocess("probes", "-p", "no:cacheprovider", timeout=60)
    assert result.ret == 0, result.stdout.str()
    monkeypatch.delenv("PYTEST_PLUGINS")
    for name in ("CLUSTER", "CLUSTR", "RUN_DIR"):
        monkeypatch.delenv(f"SEATRIAL_{name}")
    (joined.path / "probes" / "test_it.py").write_text("def test_it(): pass")
    without = joined.runpytest_subprocess("probes", "-p", "no:cacheprovider", timeout=60)
    # The last line has the seconds, and pytest itself lists what an environment has installed.
    said, usual = (
        [line for line in run.stdout.lines[:-1] if not line.startswith("plugins: seatrial-")]
        for run in (result, without)
    )
    assert said == usual
    assert not (joined.path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [[HOSTS], [f"{HOSTS}::test_hosts"], ["--pyargs", "probes.hosts.test_hosts"], ["link"]],
    ids=["a file", "a test", "--pyargs", "a link"],
)
def test_a_run_of_the_suites_own_probes_reads_them(
    joined: pytest.Pytester, arguments: list[str]
) -> None:
    (joined.path / "link").symlink_to(ROOT / "probes" / "hosts")
    result = joined.runpytest_subprocess(*arguments, "--collect-only", "-q", timeout=60)
    result.stdout.fnmatch_lines([JOINS])


def test_what_is_given_counts_more(joined: pytest.Pytester) -> None:
    result = joined.runpytest_subprocess(HOSTS, "--cluster", "nowhere", timeout=60)
    result.stderr.fnmatch_lines(["*found 'nowhere'*"])


def test_seatrial_run_reads_them(joined: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_CLUSTER", "nowhere")
    command = [sys.executable, "-m", "probes.cli.main", "run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=joined.path)
    assert done.returncode == 4
    assert "found 'nowhere'" in done.stderr


@pytest.mark.parametrize("name", ["CLUSTR", "TEIR", "NODE", "RUNDIR", "CONTRCT"])
def test_a_misspelt_one_is_refused_by_name(
    joined: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"SEATRIAL_{name}", "1")
    result = joined.runpytest_subprocess(HOSTS, timeout=60)
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        [f"ERROR: unknown environment variable 'SEATRIAL_{name}', did you*"]
    )
    assert len(result.stderr.lines) <= 2


@pytest.mark.parametrize("name", ["PORT", "SERVICE_HOST", "HEAD_SVC_PORT", "TEST_FAULT", "BACKEND"])
def test_what_others_set_is_nobodys_concern(
    joined: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"SEATRIAL_{name}", "tcp://10.0.0.1:8265")
    result = joined.runpytest_subprocess(HOSTS, "--collect-only", "-q", timeout=60)
    result.stdout.fnmatch_lines([JOINS])
