"""Hangs of the start: what one file shows by its order, and what a folder of files proves.

SYNTHETIC: lines written to the documented formats.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from probes.cli.main import main
from tests.probes.nccl.pasted.watchdog import caught
from tests.recordings.generate.nccl_logs import Job, none, socket
from tests.support.nccl_report import by_rank, codes, told

VERSIONS = ("2.21.5", "2.28.9")
LAGS = {3: "topology"}
MANY = ["NCCL_MIN_NCHANNELS set by environment to 8."] * 60  # more than a launcher's block


def merged(job: Job, first: int, after: int = 99) -> str:
    """All ranks in one stream: rank `first` writes all of its lines before the others end.

    Of the others, those from `after` on have written all of theirs before.
    """
    early = "".join(job.of(rank) for rank in job.ranks if rank >= after and rank != first)
    late = "".join(job.of(rank) for rank in job.ranks if rank < after and rank != first)
    return early + job.of(first) + late


@pytest.mark.parametrize("version", VERSIONS)
def test_one_file_shows_by_its_order_who_stopped(tmp_path: Path, version: str) -> None:
    found = told(tmp_path, merged(Job(version, stops=LAGS, why=MANY), first=3))
    (named,) = found.findings
    assert (named.code, named.suspects) == ("INIT-HANG", ["rank 3 on node1"])
    assert "unless somebody removed lines from the file" in named.statement
    assert "truncated" not in found.text()


@pytest.mark.parametrize(
    ("job", "after", "why"),
    [
        (Job(stops=LAGS), 99, "the others wrote a few lines: the piece may end between them"),
        (
            Job(stops=LAGS, why=MANY),
            0,
            "the file ends with the one that is behind: it may be cut there",
        ),
        (Job(stops=LAGS, why=MANY), 2, "one of the others wrote nothing afterwards"),
        (
            Job(stops=LAGS, absent=[2], why=MANY),
            99,
            "one rank wrote nothing: this is a selection of lines",
        ),
        (Job(why=MANY), 99, "all are complete"),
        (Job(last="graph", stops={3: "graph"}, why=MANY), 99, "none is behind"),
    ],
    ids=["few lines", "at the end", "not all", "not of all", "sound", "alike"],
)
def test_one_file_shows_no_hang_by_another_order(
    tmp_path: Path, job: Job, after: int, why: str
) -> None:
    assert "INIT-HANG" not in codes(told(tmp_path, merged(job, first=3, after=after))), why


def test_a_rank_that_may_have_nothing_to_do_shows_no_hang_by_the_order(tmp_path: Path) -> None:
    """Rank 3 began no collective, and perhaps it never had to; rank 2 is in its first one."""
    job = Job(stops={3: "first-collective"}, why=MANY)
    within = "".join(f"{line}\n" for line in job.of(2).splitlines() if "Connected" not in line)
    found = told(tmp_path, within + job.of(3) + job.of(0) + job.of(1))
    assert (codes(found), found.exit_code) == (set(), 20)


def test_lines_that_nothing_reads_count_in_the_order(tmp_path: Path) -> None:
    text = merged(Job(stops=LAGS, why=MANY), first=3)
    late = "node1:1003:1103 [1] NCCL INFO AllReduce: opCount 1 sendbuff 0x7f comm 0x5\n"
    assert "INIT-HANG" not in codes(told(tmp_path, text + late)), "rank 3 went on"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("last", ["bootstrap", "net-init", "topology"])
def test_a_file_for_each_rank_shows_a_hang_at_any_stage(
    tmp_path: Path, version: str, last: str
) -> None:
    found = by_rank(tmp_path, Job(version, last=last))
    assert codes(found) == {"INIT-HANG"}
    text = found.text(1000)
    assert "in a file for each" not in text
    assert "at an earlier step than the other ranks" not in text


def test_two_files_of_two_ranks_are_enough_to_show_a_hang(tmp_path: Path) -> None:
    assert codes(by_rank(tmp_path, Job(gpus=1, last="net-init"))) == {"INIT-HANG"}


def test_files_that_begin_late_or_hold_several_ranks_show_no_hang(tmp_path: Path) -> None:
    job = Job(last="net-init")
    tail = "".join(f"{line}\n" for line in job.of(3).splitlines()[2:3])
    late = told(tmp_path, job.of(0), job.of(1), job.of(2), tail.replace("NET/IB", "NET"))
    assert codes(late) == set()
    both = told(tmp_path, job.of(0) + job.of(1), job.of(2), job.of(3))
    assert (codes(both), both.exit_code) == (set(), 20)


def test_fifteen_of_sixteen_files_name_who_is_behind(tmp_path: Path) -> None:
    job = Job(hosts=4, gpus=4, last="graph", stops={5: "topology"}, absent=[9])
    found = told(tmp_path, *(job.of(rank) for rank in job.ranks))
    assert found.exit_code == 1
    assert "lines of 15 of 16 ranks" in found.text(1000)


@pytest.mark.parametrize("whole", [True, False])
def test_who_hangs_is_not_called_truncated(tmp_path: Path, whole: bool) -> None:
    job = Job("2.21.5", stops={3: "topology"})
    found = told(tmp_path, job.text(), whole=True) if whole else by_rank(tmp_path, job)
    assert codes(found) == {"INIT-HANG"}
    assert "truncated" not in found.text(1000)


def test_one_rank_of_two_is_no_plural(tmp_path: Path) -> None:
    found = told(tmp_path, Job(gpus=1, last="graph", absent=[1]).text(), whole=True)
    assert "all 1 ranks" not in found.text(1000)


def test_all_ranks_stop_where_the_job_gave_up(tmp_path: Path) -> None:
    """Ten minutes have passed: the end of the file is no longer the end of a piece."""
    text = Job(last="graph").text() + caught(0, 1) + caught(1, 1)
    (named,) = told(tmp_path, text).findings
    assert named.code == "INIT-HANG"
    assert "all 4 ranks stop at the step `graph`" in named.statement
    assert len(named.evidence) == 2


@pytest.mark.parametrize(
    "job", [Job(), Job(last="graph", absent=[3, 2])], ids=["after the start", "half of the ranks"]
)
def test_a_timeout_alone_is_no_hang_of_the_start(tmp_path: Path, job: Job) -> None:
    assert codes(told(tmp_path, job.text() + caught(0, 1))) == {"NCCL-ERROR"}


@pytest.mark.parametrize(
    ("stops", "where"),
    [
        ({}, "all 4 ranks end at the step `graph`"),
        ({3: "topology"}, "rank 3 on node1 end at the step `topology`"),
        ({3: "net-init"}, "process 1003 on node1 end at the step `net-init`"),
    ],
    ids=["all", "one", "one without a number"],
)
def test_one_file_says_whose_lines_end_where(
    tmp_path: Path, stops: dict[int, str], where: str
) -> None:
    found = told(tmp_path, Job(last="graph", stops=stops).text())
    assert codes(found) == set()
    assert (
        f"the lines of {where}: the ranks hang there, or this part of the log ends there"
        in " ".join(found.unproven)
    )


def test_a_later_group_that_hangs_is_not_the_start_of_the_job(tmp_path: Path) -> None:
    text = Job().text()
    starts = [line for line in text.splitlines() if "Init START" in line]
    again = "".join(f"{line}\n" for line in starts).replace("0x55", "0x66").replace("0xab", "0xcd")
    assert codes(told(tmp_path, text + again + caught(0, 1))) == {"NCCL-ERROR"}


def write(folder: Path, job: Job, **others: str) -> None:
    for rank in job.ranks:
        (folder / f"nccl.{rank}.log").write_text(job.of(rank))
    for name, text in others.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize(("job", "code"), [(Job(), 0), (Job(absent=[3]), 20), (Job(stops=LAGS), 1)])
def test_a_readme_in_a_folder_is_a_note_once_all_is_complete(
    tmp_path: Path, job: Job, code: int
) -> None:
    write(tmp_path, job, README="How these logs were made\n")
    done = CliRunner().invoke(main, ["nccl-log", str(tmp_path)])
    assert done.exit_code == code
    said = " ".join(done.output.split())
    assert ("note: " in said and "README: expected lines" in said) == (code == 0)


def test_a_readme_is_no_note_where_one_of_two_jobs_is_not_whole(tmp_path: Path) -> None:
    other = Job().of(0).replace("node0", "node7").replace("0xabc0", "0xdef0")
    logs = [Job().of(rank) for rank in Job().ranks]
    found = told(tmp_path, *logs, other, "How these logs were made\n")
    assert any("nccl.5.log: expected lines" in text for text in found.unproven)


def test_the_stage_of_who_waits_is_that_of_the_waiting(tmp_path: Path) -> None:
    job = Job(last="topology", absent=[2, 3])
    other = "node1:77:77 [0] NCCL INFO cudaDriverVersion 12040\n"
    found = told(tmp_path, job.text() + other, whole=True)
    assert "The ranks that joined (2) wait at the step `topology`" in found.text(1000)


@pytest.mark.parametrize("name", ["mlx5_bond_0", "mlx5_3"])
def test_a_device_that_cannot_be_opened_has_its_name(tmp_path: Path, name: str) -> None:
    warning = f"transport/net_ib.cc:190 NET/IB : Unable to open device {name}"
    found = told(tmp_path, Job(warn={0: [warning]}).text())
    (named,) = found.findings
    assert (named.code, name in named.statement) == ("FAB-OPEN-FAILED", True)


def test_a_network_that_is_named_again_turns_rdma_off(tmp_path: Path) -> None:
    job = Job("2.30.7", network=socket, devices=none)
    job.why = ["Comm config netName reset to NCCL_NET=Socket"]
    assert "FAB-ENV-DISABLED" in codes(told(tmp_path, job.text()))
    job.why = ["Comm config netName reset to NCCL_NET=IB"]
    assert "FAB-ENV-DISABLED" not in codes(told(tmp_path, job.text()))
