"""The order of an answer, and its advice: nothing that was done already, or that cannot help."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probes.nccl.pasted.lines import BEGIN, info, start, warn
from tests.probes.nccl.pasted.watchdog import caught
from tests.recordings.generate.nccl_logs import Job, faulty
from tests.support.nccl_report import by_rank, told

WRAPPED = "RuntimeError: NCCL failure: unhandled system error in bench.cu at line: 8 rank: 0\n"
SET_LEVEL = "NCCL_DEBUG=WARN writes it"


@pytest.mark.parametrize("code", ["FAB-ENV-DISABLED", "FAB-NO-VERBS", "FAB-OPEN-FAILED"])
def test_the_cause_comes_before_the_road_that_it_leads_to(tmp_path: Path, code: str) -> None:
    found = told(tmp_path, faulty("2.28.9")[code].text())
    text = found.text()
    assert text.startswith(f"{code} [")
    assert text.index(f"{code} [") < text.index("FAB-TCP [") < text.index("transport  ")


def test_a_slow_start_comes_after_the_error(tmp_path: Path) -> None:
    slow = faulty("2.28.9")["INIT-SLOW"]
    slow.warn = {
        2: ["misc/ibvwrap.cc:1 Call to ibv_reg_mr failed with error Cannot allocate memory"]
    }
    text = told(tmp_path, slow.text()).text()
    assert text.startswith("INIT-MEMLOCK [")
    assert text.index("INIT-MEMLOCK [") < text.index("INIT-SLOW [")


def test_a_sound_job_begins_with_that(tmp_path: Path) -> None:
    assert by_rank(tmp_path, Job()).text().startswith("no fault found\n\ntransport  rdma")


def test_the_first_doubt_is_what_was_reported(tmp_path: Path) -> None:
    text = told(tmp_path, info(*BEGIN, start(0, 4)) + warn("x.cc:9 Something new")).text(1000)
    assert text.startswith("not proven: NCCL reports an error that seatrial does not know")
    assert text.index("Something new") < text.index("lines of 1 of 4 ranks")


def test_a_warning_comes_before_what_the_piece_lacks(tmp_path: Path) -> None:
    piece = info(*BEGIN, start(0, 4))
    device = warn("transport/net_ib.cc:9 NET/IB : Unable to open device mlx5_9")
    text = told(tmp_path, piece + device).text(1000)
    assert text.startswith("note: nccl.log:5: transport/net_ib.cc NET/IB : Unable to open device")
    assert told(tmp_path, piece).text(1000).startswith("not proven: the log has lines of 1 of 4")


@pytest.mark.parametrize(
    ("first", "advised"), [("", True), (info(*BEGIN), False)], ids=["no line of NCCL", "some"]
)
def test_a_level_that_is_set_is_not_advised(tmp_path: Path, first: str, *, advised: bool) -> None:
    assert (SET_LEVEL in told(tmp_path, first + WRAPPED).text(1000)) == advised


def test_info_that_is_there_is_not_asked_for(tmp_path: Path) -> None:
    piece = told(tmp_path, Job("2.28.9", last="graph", stops={2: "topology"}).text()).text(1000)
    assert "NCCL_DEBUG_FILE" in piece
    assert "NCCL_DEBUG=INFO" not in piece
    edge = told(tmp_path, info("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")).text(1000)
    assert "NCCL_DEBUG_FILE" in edge
    assert "NCCL_DEBUG=INFO" not in edge
    bare = warn("x.cc:9 Something new") + warn("x.cc:9 Something new", pid=77)
    assert "NCCL_DEBUG=INFO" in told(tmp_path, bare).text(1000)


@pytest.mark.parametrize("whole", [True, False])
def test_what_ray_left_out_cannot_be_declared_whole(tmp_path: Path, *, whole: bool) -> None:
    text = Job(last="graph").text().rstrip("\n") + " [repeated 3x across cluster]\n"
    said = told(tmp_path, text, whole=whole).text(1000)
    assert "RAY_DEDUP_LOGS=0" in said
    assert "give --whole" not in said


def test_a_file_for_each_rank_is_not_asked_for_again(tmp_path: Path) -> None:
    job = Job()
    some = told(tmp_path, *(job.of(rank) for rank in (0, 1, 2))).text(1000)
    assert "lines of 3 of 4 ranks: give the files of the other ranks" in some
    one = told(tmp_path, job.of(0) + job.of(1)).text(1000)
    assert "let each rank write its own file" in one


def test_a_hang_shows_no_advice_to_log_more(tmp_path: Path) -> None:
    found = by_rank(tmp_path, Job(last="graph", stops={2: "topology"}))
    (named,) = found.findings
    assert named.code == "INIT-HANG"
    assert "NCCL_DEBUG" not in named.remedy


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("[rank2]: ", "rank 2"),
        ("[1,2]<stdout>:", "rank 2"),
        ("2: ", "task 2"),
        ("", "process 1002"),
    ],
)
def test_who_hangs_is_named_as_its_launcher_does(tmp_path: Path, prefix: str, name: str) -> None:
    job = Job(last="graph", stops={2: "net-init"})
    tagged = "".join(f"{prefix}{line}\n" for line in job.of(2).splitlines())
    found = told(tmp_path, *(tagged if rank == 2 else job.of(rank) for rank in job.ranks))
    (named,) = found.findings
    assert (named.code, named.suspects) == ("INIT-HANG", [f"{name} on node1"])


def test_ranks_that_no_line_names_are_not_counted_as_none(tmp_path: Path) -> None:
    header = "".join(
        f"#  Rank  {n} Group  0 Pid  478{n} on  n{n} device  0 [0x1a] NVIDIA H100\n" for n in (0, 1)
    )
    text = told(tmp_path, header + "NCCL WARN Something new\n").text(1000)
    assert "0 of 2 ranks" not in text
    assert "does not show the rank number of each of 2 ranks" in text


def test_the_rank_of_a_timeout_is_named_with_the_answer(tmp_path: Path) -> None:
    assert told(tmp_path, caught(3, 7)).text(1000).startswith("NCCL-ERROR: rank 3 waits in ALL")
