"""A log whose end is missing: what is in it counts, and nothing is concluded from what is not."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from probes.nccl.report import NcclReport, analyse_files
from tests.recordings.generate.nccl_logs import VERSIONS, Job, faulty, none, socket
from tests.support.nccl_report import told

RETRY = (
    "socketPollConnect: connect to 10.0.0.2<4000> returned Connection refused, "
    "retrying (1/34) after sleep for 100 msec"
)
HEALTHY = {  # jobs with something that looks bad until the rest is read
    "plain": Job(),
    "2.18": Job("2.18.6", gpus=4, devices=lambda host: 4),
    "2.30": Job("2.30.7", hosts=3),
    "plugin": Job(
        network=lambda host: "AWS Libfabric", devices=none, environment={"NCCL_IB_DISABLE": "1."}
    ),
    "no verbs, plugin": Job(
        network=lambda host: "AWS Libfabric", devices=none, why=["Failed to open libibverbs.so[.1]"]
    ),
    "bridge": Job(interface="cni0"),
    "retry": Job(why=[RETRY]),
}


def codes(found: NcclReport) -> set[str]:
    return {finding.code for finding in found.findings}


def cut_at(folder: Path, text: str, at: int) -> NcclReport:
    path = folder / "nccl.log"
    path.write_text(text[:at])
    return analyse_files([path])


def offsets(text: str, count: int) -> list[int]:
    """Places within lines: some at random, and the last ones of the file."""
    within = [at for at in range(1, len(text)) if text[at - 1] != "\n"]
    return sorted({*random.Random(7).sample(within, count), *within[-40:]})


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_job_that_is_cut_off_is_unproven_and_nothing_else(
    tmp_path: Path, name: str
) -> None:
    text = HEALTHY[name].text()
    assert cut_at(tmp_path, text, len(text)).exit_code == 0
    for at in offsets(text, 150):
        found = cut_at(tmp_path, text, at)
        assert (at, codes(found), found.exit_code) == (at, set(), 20)
        if "NCCL INFO" in text[:at].rpartition("\n")[0]:
            assert "nccl.log is cut off" in found.unproven[0]


# What ranks that come no further than some line may suffer from; later lines would have said that
# another rank came, or that a plugin found what NCCL itself did not.
ENDED_THERE = {
    *("INIT-HANG", "INIT-BOOTSTRAP"),
    *("FAB-LOOPBACK", "FAB-ENV-DISABLED", "FAB-NO-DEVICE"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_cut_between_two_lines_it_never_passes(tmp_path: Path, name: str) -> None:
    """Nothing shows that lines are missing: it looks as a start that ended there."""
    text = HEALTHY[name].text()
    needed = text.rindex("Connected all rings")
    for at in [at + 1 for at, letter in enumerate(text) if letter == "\n" and at < needed]:
        found = cut_at(tmp_path, text, at)
        assert codes(found) <= ENDED_THERE
        assert found.exit_code == (1 if codes(found) else 20)


@pytest.mark.parametrize("code", sorted(faulty(VERSIONS[3])))
def test_a_faulty_job_that_is_cut_off_never_passes(tmp_path: Path, code: str) -> None:
    text = faulty(VERSIONS[3])[code].text()
    for at in offsets(text, 60):
        found = cut_at(tmp_path, text, at)
        assert "INIT-HANG" not in codes(found)
        assert found.exit_code == (1 if codes(found) - {"FAB-UNKNOWN-NET"} else 20)


def test_what_was_seen_before_the_cut_counts(tmp_path: Path) -> None:
    text = faulty("2.28.9")["INIT-QP"].text()
    found = cut_at(tmp_path, text, len(text) - 5)
    assert (codes(found), found.exit_code) == ({"INIT-QP"}, 1)
    assert "cut off" in found.unproven[0]
    tcp = Job(network=socket, devices=none).text()
    assert codes(cut_at(tmp_path, tcp, len(tcp) - 1)) == {"FAB-TCP", "FAB-NO-DEVICE"}


def test_a_warning_that_is_cut_off_is_still_a_warning(tmp_path: Path) -> None:
    text = faulty("2.28.9")["INIT-QP"].text()
    at = text.index("Call to ibv_modify_qp failed") + 40
    assert codes(cut_at(tmp_path, text, at)) == {"INIT-QP"}


def test_one_file_of_many_that_is_cut_off(tmp_path: Path) -> None:
    job = Job()
    paths = [tmp_path / f"nccl.{rank}.log" for rank in job.ranks]
    for rank, path in zip(job.ranks, paths, strict=True):
        path.write_text(job.of(rank))
    assert analyse_files(paths).exit_code == 0
    paths[2].write_text(job.of(2)[:-150])
    found = analyse_files(paths)
    assert (codes(found), found.exit_code) == (set(), 20)
    assert "nccl.2.log is cut off" in found.unproven[0]
    assert "nccl.1.log" not in " ".join(found.unproven)


def test_a_zipped_log_that_is_cut_off_is_no_hang(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log.gz"
    text = Job(hosts=8, gpus=8).text()
    path.write_bytes(gzip.compress(text.encode())[:-200])
    found = analyse_files([path])
    assert (codes(found), found.exit_code) == (set(), 20)
    assert "cannot be read to its end" in found.unproven[0]


def test_a_log_that_ends_with_its_line_may_hang(tmp_path: Path) -> None:
    text = faulty("2.28.9")["INIT-HANG"].text()
    found = cut_at(tmp_path, text, len(text))
    assert (codes(found), found.exit_code) == (set(), 20)
    assert "rank 2 on node1 end at the step `topology`: the ranks hang there, or" in " ".join(
        found.unproven
    )
    assert codes(told(tmp_path, text, whole=True)) == {"INIT-HANG"}
