"""What a shell may lack, as an output or a folder, is said in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPO

RUN = REPO / "tests" / "recordings" / "runs" / "control-missed"
COMMAND = [sys.executable, "-m", "probes.cli.main"]
REMOVED = 'mkdir "$PWD/gone" && cd "$PWD/gone" && rmdir "$PWD" && exec "$@"'
SITUATIONS = [
    pytest.param('exec "$@" >&-', ["show", str(RUN)], "standard output is closed", id="show >&-"),
    pytest.param(
        'exec "$@" <&-', ["contract", "new"], "standard input is closed", id="contract new <&-"
    ),
    *(
        pytest.param(REMOVED, words, "the current folder was removed", id=f"{words[0]}, no folder")
        for words in (
            ["submit", "--address", "http://127.0.0.1:9"],
            ["run", "--cluster", "auto"],
            ["contract", "new", "--from", "x"],
        )
    ),
]


@pytest.mark.parametrize(("shell", "words", "says"), SITUATIONS)
def test_one_sentence_says_what_is_missing(
    tmp_path: Path, shell: str, words: list[str], says: str
) -> None:
    done = subprocess.run(
        ["bash", "-c", shell, "sh", *COMMAND, *words],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPO), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert says in line
    assert "internal" not in line
    if "removed" in says:
        assert str(tmp_path / "gone") in line
