"""A disk that is full while a run goes on: it is reported, survived, and nothing is accepted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from reports.acceptance import load_summary
from tests.probes.test_owed_runs import CONTRACT, OWES
from tests.support.small_disk import needs_root, small_disk
from tests.support.stand_in import CAUGHT, GOOD, PROBE, STAND_IN

pytest_plugins = ["pytester"]
ROOM = "300m"  # a run asks for 256 MiB before it begins

FILL = """
import os
def fill(path, leave):
    with open(path, "wb", buffering=0) as file:
        free = os.statvfs(os.path.dirname(path))
        left = free.f_bavail * free.f_frsize - leave
        while left > 0:
            left -= file.write(b"x" * min(left, 1 << 20))
"""

ROOM_AGAIN = """
import os
def pytest_runtest_logstart(nodeid):
    if "test_sound" in nodeid:
        os.unlink({file!r})
"""


@needs_root
@pytest.mark.parametrize("leave", [0, 4096, 40_960])
@pytest.mark.parametrize("again", [False, True], ids=["stays full", "has room again"])
def test_a_disk_that_fills_while_a_probe_runs(
    pytester: pytest.Pytester, tmp_path: Path, leave: int, again: bool
) -> None:
    """The first probe's values find no room; with room again, the second one's are written."""
    pytester.makeconftest(STAND_IN + OWES)
    (pytester.path / "agreed.toml").write_text(CONTRACT)
    with small_disk(tmp_path / "small", ROOM) as small:
        many = "[measure.note('n' + str(i), i) for i in range(2000)]"
        broken = f"fill({small!r} + '/fill', {leave})\n    {many}\n    {GOOD}\n    {CAUGHT}"
        first = FILL + PROBE.format(criterion="GANG", body=broken)
        body = f"{GOOD}\n    {CAUGHT}"
        if again:
            pytester.makeconftest(STAND_IN + OWES + ROOM_AGAIN.format(file=f"{small}/fill"))
        (pytester.path / "test_broken.py").write_text(first)
        (pytester.path / "test_sound.py").write_text(PROBE.format(criterion="GANG", body=body))
        where = ["--cluster", "auto", "--run-dir", f"{small}/run", "--contract", "agreed.toml"]
        result = pytester.runpytest_subprocess(*where, "-p", "no:cacheprovider")
        text = "\n".join([*result.outlines, *result.errlines])
        if os.path.exists(f"{small}/fill"):
            os.unlink(f"{small}/fill")
        summary: Any = load_summary(Path(small) / "run")
    assert "INTERNALERROR" not in text
    assert "No space left on device" in text
    assert result.ret in ((3,) if again else (2, 3)), text
    assert summary.exit_code == result.ret
    assert summary.integrity.problems == []
    assert not summary.word.startswith(("ACCEPTED", "REHEARSAL"))
