"""Who wrote a line, by its prefix; and which lines are one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from probes.nccl.patterns import PlaceForm, read_form_table
from probes.nccl.rows import find_place, join_wrapped, strip_times
from tests.probes.nccl.pasted.wraps import broken, mailed
from tests.recordings.generate.nccl_logs import VERSIONS, Job, faulty
from tests.support.nccl_report import codes, told

TIMES = [
    "2024-05-01T10:00:00.123456789Z ",
    "2024-05-01T10:00:00.123-07:00",
    "2024-05-01 10:00:00,123 ",
    "[2024-05-01 10:00:00] ",
    "2024/05/01 10:00:00 ",
    "05/01/24 10:00:00 ",
    "(05-01 10:00:00.123) ",
    "May  1 10:00:00 ",
    "Wed, May 1, 2024 10:00:00 ",
    "10:00:00 ",
    "[10:00:00.123]: ",
    "1714557600.123 ",
]


@pytest.mark.parametrize("form", read_form_table().place, ids=lambda form: form.source)
@pytest.mark.parametrize("moment", ["", *TIMES])
def test_each_form_names_its_place_behind_each_time(form: PlaceForm, moment: str) -> None:
    assert find_place(f"{moment}{form.example}".encode()).name == form.place


@pytest.mark.parametrize("moment", TIMES)
def test_a_time_is_no_part_of_a_prefix(moment: str) -> None:
    assert strip_times(moment.encode()).strip() in (b"", b",", b"Wed,")


@pytest.mark.parametrize(
    "text",
    [
        "gpu01:4001:4061 ",
        "node-10:20:30 ",
        "10:4001:61 ",
        "a 1.2.3 ",
        "1714557600123 ",
        "35:00:00 ",
    ],
)
def test_what_only_looks_like_a_time_stays(text: str) -> None:
    assert strip_times(text.encode()) == text.encode()


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("(EngineCore_DP0 pid=9) \x1b[36m(RankActor pid=581, ip=10.0.0.7)\x1b[0m ",
         "process 581 on 10.0.0.7"),
        ("3: [rank24]: ", "rank 24"),
        ("gpu07: [rank24]: ", "rank 24 on gpu07"),
        ("step 3: ", ""),
        ("ERROR: ", ""),
        ("In pid=12, ", ""),
        ("crank3] ", ""),
    ],
)  # fmt: skip
def test_prefixes_of_several_programs(prefix: str, name: str) -> None:
    assert find_place(prefix.encode()).name == name


LONG = "n1:1:2 [0] NCCL WARN " + "Connect to 10.1.0.2<45763> failed : Connection refused, " * 4


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("break_up", [broken, mailed])
def test_a_line_is_whole_again_and_keeps_its_number(
    break_up: Callable[[str, int], str], width: int
) -> None:
    text = break_up(f"{LONG}\n{LONG}\n", width)
    joined = join_wrapped(text.encode()).decode()
    assert joined.count("\n") == text.count("\n")
    first, second = (line for line in joined.splitlines() if line)
    assert (first.rstrip(), second.rstrip()) == (LONG.rstrip(), LONG.rstrip())
    assert joined.splitlines().index(second) > 1 or first == second


@pytest.mark.parametrize("line", ["x" * 80, "an NCCL ".ljust(80, "x"), "a\n" * 40, "", "y" * 121])
def test_joining_takes_linear_time(line: str) -> None:
    text = f"{line}\n".encode() * (4_000_000 // (len(line) + 1))
    begun = time.process_time()
    assert join_wrapped(text).count(b"\n") == text.count(b"\n")
    assert time.process_time() - begun < 3  # of the processor: a tenth of it is usual


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("width", [80, 120, 400])
def test_ranks_own_logs_are_never_joined(version: str, width: int) -> None:
    """FABRIC reads such: each line has NCCL's own prefix, so none is the rest of another."""
    warned = Job(version, warn={1: ["transport/net.cc:1 Something new"]})
    text = "".join(f"{line[:width]}\n" for line in warned.text().splitlines()).encode()
    assert join_wrapped(text) == text


@pytest.mark.parametrize("code", ["sound", *faulty(VERSIONS[3])])
def test_a_log_that_is_wrapped_says_the_same(tmp_path: Path, code: str) -> None:
    text = {"sound": Job(VERSIONS[3]), **faulty(VERSIONS[3])}[code].text()
    whole = told(tmp_path, text)
    for wrapped in (broken(text, 80), broken(text, 120), mailed(text, 72), mailed(text, 120)):
        found = told(tmp_path, wrapped)
        assert (codes(found), found.exit_code) == (codes(whole), whole.exit_code)
        assert (found.transport, found.edges) == (whole.transport, whole.edges)


@pytest.mark.parametrize(
    "prefix", ["[gpu01][10:10][0]", "[0]", "gpu03:20:20 [0]", "n1: [0]"], ids=str
)
def test_a_line_of_nccl_is_no_rest_of_the_one_before(prefix: str) -> None:
    """Joined to it, a warning would be lost, or be another host's."""
    full = "[gpu01][10:10][0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0".ljust(
        79, "x"
    )
    text = f"{full}\n{prefix} NCCL WARN Something odd\n{full}\n".encode()
    assert join_wrapped(text) == text


def test_a_long_line_with_signs_of_the_end_takes_linear_time() -> None:
    line = ("rrorNCCL_" + "NCCL_" * 30)[:119]
    text = f"{line}\n".encode() * 9000
    begun = time.process_time()
    join_wrapped(text)
    assert time.process_time() - begun < 3  # of the processor: 20 and more before
