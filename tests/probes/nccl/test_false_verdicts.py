"""Jobs that a simple reader of NCCL's log gets wrong: false passes and false alarms.

SYNTHETIC: lines written to the documented formats.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from probes.nccl.parser import read_logs
from probes.nccl.report import NcclReport, analyse_files
from probes.nccl.rows import MAX_KEPT

RDMA, TCP, SHM, MNNVL = "NET/IB/0/GDRDMA", "NET/Socket/0", "SHM/direct", "P2P/MNNVL"


def says(host: int, *texts: str, pid: int | None = None) -> str:
    prefix = f"node{host}:{pid or 100 + host}:1 [0] NCCL INFO "
    return "".join(f"{prefix}{text}\n" for text in texts)


def comm(rank: int, ranks: int, nodes: int, group: str = "0xa", pointer: str = "0x55") -> list[str]:
    """Init of one communicator by one rank, START to COMPLETE."""
    head = (
        f"ncclCommInitRankConfig comm {pointer} rank {rank} nranks {ranks} cudaDev 0 commId {group}"
    )
    return [
        "NCCL version 2.28.9+cuda12.9",
        "Using network IB",
        f"{head} - Init START",
        f"comm {pointer} rank {rank} nRanks {ranks} nNodes {nodes} localRanks 1 localRank 0",
        f"{head} - Init COMPLETE",
    ]


def ring(via: str) -> list[str]:
    return [f"Channel 00/0 : 0[0] -> 1[0] [send] via {via}"]


CONNECTED = "Connected all rings, use ring PXN 0 GDR 1"


def good(host: int) -> str:
    return says(host, *comm(host, 2, 2), *ring(RDMA), CONNECTED)


def told(folder: Path, *texts: str) -> NcclReport:
    for number, text in enumerate(texts):
        (folder / f"{number}.log").write_text(text)
    return analyse_files(sorted(folder.glob("*.log")))


def codes(found: NcclReport) -> list[str]:
    return [finding.code for finding in found.findings]


WARN = "[2026-11-20 10:00:00] node0:100:9 [0] transport/net_ib.cc:1 NCCL WARN "


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (WARN + "NET/IB : Got completion from peer 10.0.0.2<4> with error 12, opcode 0", "INIT-QP"),
        (WARN + "NET/IB : Got completion from peer 10.0.0.2<4> with status=13", "INIT-QP"),
        (WARN + "Cuda failure 700 'an illegal memory access'", "NCCL-ERROR"),
        (
            "[rank1]:[E1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3",
            "NCCL-ERROR",
        ),
        ("torch.distributed.DistBackendError: NCCL error, ncclRemoteError: x", "NCCL-ERROR"),
    ],
)
def test_an_error_after_a_good_start_is_seen(tmp_path: Path, line: str, code: str) -> None:
    assert told(tmp_path, good(0), good(1)).exit_code == 0
    assert codes(told(tmp_path, good(0) + line + "\n", good(1))) == [code]


def test_a_warning_that_nobody_knows_keeps_from_passing(tmp_path: Path) -> None:
    found = told(tmp_path, good(0) + WARN + "Something entirely new\n", good(1))
    assert found.exit_code == 20
    assert "Something entirely new" in found.unproven[0]


def test_a_hang_while_connecting_at_the_first_collective(tmp_path: Path) -> None:
    stuck = says(1, *comm(1, 2, 2), *ring(RDMA))
    found = told(tmp_path, good(0), stuck)
    assert codes(found) == ["INIT-HANG"]
    assert found.findings[0].suspects == ["rank 1 on node1"]


def test_tcp_between_hosts_is_not_hidden_by_a_larger_group_within_one(tmp_path: Path) -> None:
    inner = [comm(rank, 4, 1, "0x1", "0x1") for rank in range(4)]
    outer = [comm(0, 2, 2, f"0x{rank + 2}", "0x2") for rank in range(4)]
    text = "".join(
        says(0, *inner[rank], "Channel 00 : 0[0] -> 1[1] via P2P/CUMEM", *outer[rank],
             *ring(TCP), CONNECTED, pid=10 + rank)
        for rank in range(4)
    )  # fmt: skip
    found = told(tmp_path, text)
    assert codes(found) == ["FAB-TCP"]
    assert found.transport == "tcp"


@pytest.mark.parametrize(
    "groups",
    [
        [(0, 2, "0xa"), (1, 2, "0xb")],  # half of two jobs
        [(0, 1, "0xa"), (0, 1, "0xb")],  # each alone on one host
    ],
)
def test_processes_that_no_communicator_joins_prove_nothing(
    tmp_path: Path, groups: list[tuple[int, int, str]]
) -> None:
    texts = [
        says(0, *comm(rank, size, size, group), *ring(RDMA), CONNECTED, pid=10 + at)
        for at, (rank, size, group) in enumerate(groups)
    ]
    assert told(tmp_path, *texts).exit_code == 20


def test_split_brain(tmp_path: Path) -> None:
    texts = [
        says(host, *comm(host % 2, 2, 2, f"0x{host // 2}"), *ring(RDMA), CONNECTED)
        for host in range(4)
    ]
    found = told(tmp_path, *texts)
    assert found.exit_code == 20
    assert "2 groups" in found.unproven[0]


@pytest.mark.parametrize("figure", ["5", "1e+06", "nan"])
def test_wrong_elements_however_they_are_written(tmp_path: Path, figure: str) -> None:
    row = f" 1048576 262144 float sum -1 1.2e+06 11.46 17.19 {figure} 90.1 11.63 17.45 0\n"
    assert codes(told(tmp_path, good(0) + row, good(1))) == ["NCCL-CORRUPT"]


def test_rows_with_more_columns_are_not_misread(tmp_path: Path) -> None:
    row = " 1048576 262144 float sum -1 91.5 11.46 17.19 0 90.0 92.0 93.1 1.2 90 11 17 0 1 2 3 4\n"
    assert told(tmp_path, good(0) + row, good(1)).exit_code == 0


def test_a_pipe_is_read_from_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = "".join(says(h, *comm(h, 2, 2), *ring(TCP), CONNECTED) for h in (0, 1))
    writer = threading.Thread(target=path.write_text, args=(text,))
    writer.start()
    found = analyse_files([path])
    writer.join()
    assert codes(found) == ["FAB-TCP"]


def test_nvlink_across_hosts_is_one_domain(tmp_path: Path) -> None:
    texts = [says(h, *comm(h, 2, 1), *ring(MNNVL), CONNECTED) for h in (0, 1)]
    found = told(tmp_path, *texts)
    assert (found.exit_code, codes(found)) == (0, [])


def test_a_second_group_that_half_of_the_ranks_never_use_is_no_hang(tmp_path: Path) -> None:
    split = "ncclCommSplit comm 0x66 rank 0 nranks 2 cudaDev 0 parent 0x55 color 1 - Init "
    texts = [good(h) + says(h, split + "START", split + "COMPLETE") for h in (0, 1)]
    texts[0] += says(0, *ring(RDMA), CONNECTED)
    assert told(tmp_path, *texts).exit_code == 0


def test_a_process_that_only_made_the_id_or_died_before_is_no_hang(tmp_path: Path) -> None:
    early = says(0, "Bootstrap: Using eth0:10.0.0.1<0>", "NET/IB : No device found.", pid=9)
    assert told(tmp_path, early + good(0), good(1)).exit_code == 0


def test_a_bridge_that_led_to_the_others_is_no_finding(tmp_path: Path) -> None:
    texts = [says(h, "Bootstrap: Using br-ex:10.0.0.1<0>") + good(h) for h in (0, 1)]
    assert told(tmp_path, *texts).exit_code == 0


@pytest.mark.parametrize("comma", ['","', '", "'])
def test_lines_that_a_collector_put_into_json(tmp_path: Path, comma: str) -> None:
    def wrap(text: str) -> str:
        rows = text.splitlines()
        return "".join(f'{{"log":"{row}\\n{comma}stream":"stdout"}}\n' for row in rows)

    assert told(tmp_path, wrap(good(0)), wrap(good(1))).exit_code == 0


def test_host_names_that_a_lost_newline_spoilt_are_no_hosts(tmp_path: Path) -> None:
    found = told(tmp_path, good(0).removesuffix("\n") + good(1) + good(0) + good(1))
    assert found.hosts == 2
    assert found.exit_code == 0


def test_the_tail_of_a_log_proves_nothing_but_is_no_hang(tmp_path: Path) -> None:
    tail = "".join(says(h, *ring(RDMA), CONNECTED) for h in (0, 1))
    found = told(tmp_path, tail)
    assert found.exit_code == 20
    assert "the beginning of the log is missing" in found.unproven[0]


def test_a_device_that_cannot_be_opened_is_said_even_where_rdma_works(tmp_path: Path) -> None:
    broken = says(1, "NET/IB : Unable to open device mlx5_2")
    assert codes(told(tmp_path, good(0), broken + good(1))) == ["FAB-OPEN-FAILED"]


@pytest.mark.parametrize("word", ["NCCL ", WARN + "connect failed ", "1 2 float sum -1 "])
def test_a_line_eight_times_as_long_costs_no_more_than_that(tmp_path: Path, word: str) -> None:
    spent = []
    for times in (2_000, 16_000):
        begun = time.process_time()
        told(tmp_path, good(0), good(1) + word * times + "\n")
        spent.append(time.process_time() - begun)
    assert spent[1] < 20 * max(spent[0], 0.02)  # 64 times, were it quadratic


@pytest.mark.parametrize("ranks", ["9" * 5000, "99999999"], ids=["digits", "ranks"])
def test_a_job_of_absurd_size_is_no_job(tmp_path: Path, ranks: str) -> None:
    line = f"node0:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks {ranks} nNodes 1 localRanks 1\n"
    assert told(tmp_path, good(0), good(1) + line).ranks == 2


def test_a_process_number_that_two_hosts_have_names_neither(tmp_path: Path) -> None:
    """In containers all ranks may have one number."""
    lines = [f"node{n}:100:160 [0] NCCL INFO Using network AWS Libfabric\n" for n in range(2)]
    error = (
        "libfabric:100:17::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid\n"
    )
    (finding,) = told(tmp_path, lines[0], lines[1] + error).findings
    assert finding.suspects == []
    assert finding.statement.startswith("the job: a transfer over libfabric failed")
    (finding,) = told(tmp_path, lines[0], lines[1].replace("100", "101") + error).findings
    assert finding.suspects == ["node0"], "the only process of that number"


def test_the_same_error_of_a_whole_job_is_kept_so_often_and_not_more(tmp_path: Path) -> None:
    error = (
        "libfabric:100:17::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid\n"
    )
    (tmp_path / "a.log").write_text(error * 5000)
    (tmp_path / "b.log").write_text(error * 5000)
    log = read_logs([tmp_path / "a.log", tmp_path / "b.log"])
    assert len(log.hits["ofi-broke"]) == MAX_KEPT


@pytest.mark.parametrize("between", [0, 3])
@pytest.mark.parametrize("before", [0, 200])
def test_a_failed_call_is_quoted_from_its_first_frame(
    tmp_path: Path, before: int, between: int
) -> None:
    """Also where its frames are on two lines, one after the other."""
    frames = ["graph/paths.cc:297 -> 3", *["noise"] * between, "init.cc:1089 -> 3 [Async thread]"]
    lines = [*comm(0, 2, 2)[:4], *["noise"] * before, *frames]
    (found,) = told(tmp_path, says(0, *lines)).findings
    assert found.code == "NCCL-ERROR"
    assert "(an internal error), and no line says why" in found.statement
    assert "graph/paths.cc:297" in found.statement
