"""The benchmark for a GPU that is lent for a short time: rehearsed, so that it runs when it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import gpu
from tests.support.paths import REPO

WORDS = [sys.executable, "-m", "benchmarks.gpu"]
SMALL = ("facts", "hash", "kill", "survivor", "trainer")  # the others have labs, or many ranks
# Figures, segments, and the profile.
TOLD = (
    *("MFU not known, for the device's peak is not\n", "(target <= 1: no less MFU): "),
    *("a step with the clock over one without", "%  backward\n", "%  optimizer\n"),
    *("% of 3 steps in ", "%  aten::mm\n"),
    *(
        "resumed from step 4: 0 of 4 steps unequal, parameters equal",
        "# all_reduce over 2 ranks, gloo",
    ),
    *("peer killed: it joined a new one after ", "peer killed: it added up with that after "),
    "5 of 5 parts ran",
)


@pytest.mark.soak(criterion="scaling")
def test_all_parts_run_to_their_end_on_a_cpu(tmp_path: Path) -> None:
    done = subprocess.run(
        [*WORDS, "--rehearse", "--out", str(tmp_path), *SMALL],
        cwd=REPO, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert [word for word in TOLD if word not in done.stdout] == [], done.stdout
    assert done.stdout.count("a step over a plain loop's") == 2
    verdicts = [line for line in done.stdout.splitlines() if "(target " in line]
    assert len(verdicts) == 2
    assert all(line.endswith((": met", ": NOT met")) for line in verdicts)


def test_a_part_that_breaks_is_told_and_ends_in_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = {
        "broken": gpu.Part(("benchmarks.no_such_part",), "nothing", 60),
        "sound": gpu.Part(("this",), "a poem", 60),
        "endless": gpu.Part(("http.server", "0"), "waits", 1),
    }
    monkeypatch.setattr(gpu, "PARTS", parts)
    monkeypatch.setattr(gpu, "run_suite", lambda: True)
    done = CliRunner().invoke(gpu.main, ["--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "broken (nothing): BROKE, exit 1" in done.output
    assert "sound (a poem): ran" in done.output
    assert "endless (waits): BROKE, exit -1" in done.output
    assert "2 of 4 parts ran" in done.output
    again = CliRunner().invoke(gpu.main, ["--out", str(tmp_path)]).output
    assert "sound: ran before" in again
    assert "broken (nothing): BROKE, exit 1" in again
    assert CliRunner().invoke(gpu.main, ["sound", "--out", str(tmp_path)]).exit_code == 0


def test_a_part_that_does_not_fit_any_more_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "ALL_SECONDS", gpu.LEAST_S / 2)
    done = CliRunner().invoke(gpu.main, ["--rehearse", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert done.output.count("NOT RUN, no time is left: give the same command again") == len(
        gpu.PARTS
    )


NEEDS_LITTLE = """
import sys, importlib.abc
class Only(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in %r:
            raise ImportError(name)
sys.meta_path.insert(0, Only())
import benchmarks.gpu, benchmarks.single_gpu, benchmarks.survivor
import scaling.collectives.sweep
"""


def test_the_first_part_needs_torch_and_click_only() -> None:
    heavy = {"ray", "pydantic", "pandas", "matplotlib", "jinja2", "pytest", "packaging", "pynvml"}
    code = NEEDS_LITTLE % heavy
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True, timeout=60)


def test_no_ray_of_others_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*_: object, **__: object) -> bool:
        raise AssertionError("something was started")

    monkeypatch.setattr(gpu, "ray_runs", lambda: True)
    monkeypatch.setattr(gpu, "run_part", started)
    assert gpu.run_suite() is True
    assert "not run, for a Ray runs here already" in capsys.readouterr().out
