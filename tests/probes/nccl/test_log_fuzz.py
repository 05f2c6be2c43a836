"""Random lines in a log: nothing is raised, and what was broken is never called fine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.nccl.report import NcclReport, analyse_files
from reports.sanitize import clean
from tests.recordings.generate.nccl_logs import Job, faulty

# The same examples each time, and no clock: a busy machine is no bug.
steady = settings(derandomize=True, deadline=None, max_examples=150)
BROKEN = {code: job.text() for code, job in faulty("2.28.9").items()}
UNPROVEN = {
    "no collective": Job(last="first-collective").text(),
    "cut off": Job().text()[:-20],
    "a rank missing": "".join(Job().of(rank) for rank in range(3)),
}
HEALTHY = Job().text()
LINES = "".join([HEALTHY, *BROKEN.values()]).splitlines()
# What NCCL's lines are made of, in no order that it would write.
PIECES = [
    *("NCCL ", "INFO ", "WARN ", "version ", "node0:1000:1000 ", "[0] ", "x:1:1 [0] NCCL INFO "),
    *("\x1b[31m", "\r", '"', "\\n", "\t", " " * 300, "[repeated 9x across cluster]"),
    *("\0", "é", "::error::", "# Out of bounds values : 0 OK"),
    *("NCCL", "  8  2  float  sum  -1  1  1  1  0  1  1  1  0"),
    *("NCCL WARN ", "9" * 400, "A" * 5000, "ncclRemote", "libfabric:1:x provider efa output empty"),
]  # fmt: skip
junk = st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=6).map("".join)
plain = junk.map(lambda line: line.replace("NCCL", "n").replace("nccl", "n").replace("efa", "e"))


def told(folder: Path, text: str) -> NcclReport:
    """The report on one file, in which everything was printed."""
    path = folder / "x.log"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    found = analyse_files([path])
    assert clean(found.text()) == found.text()
    assert found.to_json()
    return found


def mixed(data: st.DataObject, text: str, lines: st.SearchStrategy[str]) -> str:
    """The text with other lines between its own."""
    own = text.split("\n")
    for line in data.draw(st.lists(lines, min_size=1, max_size=8)):
        own.insert(data.draw(st.integers(0, len(own) - 1)), line.replace("\n", ""))
    return "\n".join(own)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@steady
@given(data=st.data())
def test_junk_never_makes_a_broken_log_fine(folder: Path, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([*BROKEN.values(), *UNPROVEN.values()]))
    assert told(folder, mixed(data, text, junk)).exit_code != 0


@steady
@given(data=st.data())
def test_junk_of_others_is_no_fault_of_a_sound_job(folder: Path, data: st.DataObject) -> None:
    assert told(folder, mixed(data, HEALTHY, plain)).exit_code == 0


@steady
@given(data=st.data())
def test_lines_that_are_damaged_are_read(folder: Path, data: st.DataObject) -> None:
    """NCCL's own lines with figures, words and bytes of others in them."""
    lines = []
    for _ in range(data.draw(st.integers(1, 12))):
        line = data.draw(st.sampled_from(LINES))
        at = data.draw(st.integers(0, len(line)))
        length = data.draw(st.integers(0, 20))
        lines.append(line[:at] + data.draw(junk) + line[at + length :])
    assert told(folder, "\n".join(lines)).exit_code in (1, 20)
