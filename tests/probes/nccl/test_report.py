"""`seatrial nccl-log`: every code from a log in the words of five NCCL versions, and no other."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.cli.main import main
from probes.findings import CATALOGUE
from probes.nccl.parser import read_logs
from probes.nccl.patterns import read_phrases
from probes.nccl.report import analyse_files
from probes.nccl.rows import read_rows
from scaling.collectives.line_rate import format_table
from scaling.collectives.operations import OPERATIONS
from tests.recordings.generate.nccl_logs import VERSIONS, Job, faulty, none, socket
from tests.support.nccl_report import by_rank, codes, told
from tests.support.paths import REPO

CODES = list(faulty(VERSIONS[0]))
# What comes with a code, in every version: the road that the fault leads to.
WITH = {
    "FAB-TCP": {"FAB-NO-DEVICE"},
    "FAB-NO-DEVICE": {"FAB-TCP"},
    "FAB-NO-VERBS": {"FAB-TCP"},
    "FAB-OPEN-FAILED": {"FAB-TCP"},
    "FAB-ENV-DISABLED": {"FAB-TCP"},
    "FAB-IPOIB": {"FAB-TCP", "FAB-NO-DEVICE"},
    "FAB-LOOPBACK": {"FAB-NO-DEVICE"},
    "FAB-PLUGIN": {"FAB-TCP", "FAB-NO-DEVICE"},
    "FAB-MIXED": {"FAB-NO-DEVICE"},
    "FAB-LINK-TYPES": {"FAB-TCP"},
    "FAB-NO-EFA": {"FAB-TCP"},
}
BY_CAUSE = {
    "INIT-BOOTSTRAP",
    "INIT-QP",
    "INIT-SLOW",
    "NCCL-ERROR",
}  # the remedy is that of the cause
ALL, EACH = ["node0", "node1"], [f"rank {rank} on node{rank // 2}" for rank in range(4)]
WHERE = {  # suspects
    **dict.fromkeys(("FAB-TCP", "FAB-NO-DEVICE", "FAB-NO-VERBS", "FAB-NO-EFA", "FAB-NO-GDR"), ALL),
    **dict.fromkeys(("FAB-OPEN-FAILED", "FAB-ENV-DISABLED", "FAB-IPOIB", "FAB-LOOPBACK"), ALL),
    **dict.fromkeys(("FAB-PLUGIN", "FAB-LINK-TYPES", "FAB-ALONE"), ALL),
    "FAB-UNKNOWN-NET": [],
    "FAB-PARTIAL-RAILS": ["node1"],
    "FAB-MIXED": ["node1"],
    "NCCL-VERSION": ["node2"],
    "NCCL-DUP-GPU": ["node0"],
    "NCCL-ERROR": ["node0"],
    "INIT-NO-IFACE": ["node1"],
    "INIT-BOOTSTRAP": ["node1"],
    "INIT-QP": ["node1"],
    "INIT-MEMLOCK": ["node1"],
    "INIT-MNNVL": ["node1"],
    "INIT-LIMITS": ["node1"],
    "INIT-SHM": ["node0"],
    **dict.fromkeys(("INIT-SLOW", "INIT-NVLS"), EACH),
    "INIT-MISSING-RANK": ["rank 3"],
    "INIT-HANG": ["rank 2 on node1"],
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("code", CODES)
def test_every_code_in_the_words_of_every_version(tmp_path: Path, code: str, version: str) -> None:
    job = faulty(version)[code]
    whole = code in ("INIT-MISSING-RANK", "INIT-HANG")
    if whole:
        piece = told(tmp_path, job.text())
        assert (codes(piece), piece.exit_code) == (set(), 20)
    found = told(tmp_path, job.text(), whole=whole)
    assert codes(found) == {code} | WITH.get(code, set())
    assert found.exit_code == (20 if code == "FAB-UNKNOWN-NET" else 1)
    named = next(finding for finding in found.findings if finding.code == code)
    assert named.suspects == WHERE[code]
    assert (named.remedy == CATALOGUE[code].remedy) == (code not in BY_CAUSE)


def test_every_code_that_a_log_can_show_is_tried() -> None:
    files = REPO.joinpath("probes", "nccl").rglob("*.py")
    source = "".join(path.read_text() for path in files)
    shown = {code for code in CATALOGUE if f'"{code}"' in source}
    shown |= {row.code for row in (*read_phrases(), *read_rows())} - {""}
    elsewhere = {"NCCL-CORRUPT", "LAUNCH-ENV"}  # test_pasted_logs.py has the last
    assert shown == {*CODES, *elsewhere}, "add a job to `faulty` of nccl_logs.py"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("hosts", [2, 4])
def test_a_healthy_job_has_no_finding(tmp_path: Path, version: str, gpus: int, hosts: int) -> None:
    job = Job(version, hosts=hosts, gpus=gpus, devices=lambda host: gpus)
    found = by_rank(tmp_path, job)
    assert codes(found) == set()
    assert found.exit_code == 0
    assert (found.transport, found.gdr, found.stage) == ("rdma", True, "complete")
    assert (found.hosts, found.ranks, found.nccl) == (hosts, hosts * gpus, version)
    assert found.edges == {
        "rdma": hosts * gpus,
        "tcp": 0,
        "intra": hosts * gpus if gpus > 1 else 0,
        "other": 0,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_one_host_on_sockets_is_no_finding(tmp_path: Path, version: str) -> None:
    found = told(tmp_path, Job(version, hosts=1, gpus=4, network=socket, devices=none).text())
    assert (found.transport, found.exit_code, codes(found)) == ("intra-node", 0, set())


def test_the_empty_using_list_is_no_device(tmp_path: Path) -> None:
    job = faulty("2.24.3")["FAB-NO-DEVICE"]
    assert "NET/IB : Using ; OOB" in job.text()
    assert "FAB-NO-DEVICE" in codes(told(tmp_path, job.text()))


def ray(text: str) -> str:
    colour = "\x1b[36m(RayWorkerWrapper pid=581, ip=10.0.0.7)\x1b[0m "
    return "".join(f"(EngineCore_DP0 pid=9) {colour}{line}\n" for line in text.splitlines())


def mpi(text: str) -> str:
    return "".join(f"[1,0]<stdout>:{line}\r\n" for line in text.splitlines())


def stamped(text: str) -> str:
    return "".join(
        f"2026-11-20T10:00:0{i % 10}Z pod/x {line}\n" for i, line in enumerate(text.split("\n"))
    )


def old_brackets(text: str) -> str:
    return text.replace("[0] ->", "[1a000] ->").replace("Channel 00/0 :", "Ring 00 :")


def noisy(text: str) -> str:
    return "".join(f"step {i} loss 2.3\n{line}\n" for i, line in enumerate(text.split("\n")))


def ranked(text: str) -> str:
    return re.sub(r"NCCL INFO (?=ncclComm|comm |Init timings)", "NCCL INFO [Rank 3] ", text)


@pytest.mark.parametrize("wrap", [ray, mpi, stamped, old_brackets, noisy, ranked])
def test_other_writers_around_the_lines_do_not_matter(tmp_path: Path, wrap: object) -> None:
    good, bad = Job(gpus=2), faulty("2.28.9")["FAB-NO-VERBS"]
    assert told(tmp_path, wrap(good.text())) == told(tmp_path, good.text())  # type: ignore[operator]
    assert codes(told(tmp_path, wrap(bad.text()))) == {"FAB-NO-VERBS", "FAB-TCP"}  # type: ignore[operator]


def test_ranks_that_write_into_one_another_lose_nothing(tmp_path: Path) -> None:
    job = Job(gpus=2)
    files = [job.of(rank).splitlines() for rank in job.ranks]
    order = [at for at, lines in enumerate(files) for _ in lines]
    random.Random(5).shuffle(order)
    lines = [files[at].pop(0) for at in order]
    # Every fifth newline is lost: two ranks' lines end up in one.
    text = "".join(line + ("" if number % 5 == 0 else "\n") for number, line in enumerate(lines))
    found = told(tmp_path, text + "\n")
    assert (found.transport, found.stage, found.exit_code) == ("rdma", "complete", 0)
    assert found.edges["rdma"] == 4


def test_repeated_lines_hide_ranks_and_that_is_said(tmp_path: Path) -> None:
    job = Job()
    line = job.of(0).splitlines()[0] + "\x1b[32m [repeated 3x across cluster]\x1b[0m\n"
    found = told(tmp_path, job.of(0) + line)
    assert found.exit_code == 20
    assert "RAY_DEDUP_LOGS=0" in found.unproven[0]
    assert "1 of 4 ranks" in found.unproven[0]
    assert told(tmp_path, job.of(0) + line, whole=True).exit_code == 20


def test_a_last_error_that_ray_left_out_elsewhere_counts_as_repeated(tmp_path: Path) -> None:
    text = "Last error:\nCuda failure 2 'out of memory' [repeated 3x across cluster]\n"
    (tmp_path / "job.out").write_text(text)
    log = read_logs([tmp_path / "job.out"])
    assert log.repeated == 3
    assert [hit.detail for hit in log.hits["cuda-memory"]] == ["Cuda failure 2 'out of memory'"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_process_that_stopped_early_lags_behind(tmp_path: Path, version: str) -> None:
    found = told(tmp_path, Job(version, last="graph", stops={2: "net-init"}).text(), whole=True)
    assert codes(found) == {"INIT-HANG"}
    assert found.stage == "net-init"
    assert found.findings[0].suspects == ["process 1002 on node1"]


def test_a_log_that_never_used_the_network_proves_nothing(tmp_path: Path) -> None:
    found = told(tmp_path, Job(last="first-collective").text())
    assert (found.transport, found.stage, found.exit_code) == ("none", "first-collective", 20)
    assert "first collective" in found.unproven[0]


@pytest.mark.parametrize("version", ["2.21.5", "2.28.9"])
def test_a_retry_that_went_well_is_no_finding(tmp_path: Path, version: str) -> None:
    retry = (
        "socketPollConnect: connect to 10.0.0.2<4000> returned Connection refused, "
        "retrying (1/34) after sleep for 100 msec"
    )
    found = told(tmp_path, Job(version, why=[retry]).text())
    assert found.exit_code == 0
    stuck = told(tmp_path, Job(version, why=[retry], last="net-init").text())
    assert codes(stuck) == {"INIT-BOOTSTRAP"}


def test_wrong_elements_of_nccl_tests(tmp_path: Path) -> None:
    row = "  1048576  262144  float  sum  -1  91.5  11.46  17.19  {}  90.1  11.63  17.45  {}\n"
    head = "#   size  count  type  redop  root  time  algbw  busbw #wrong\n"
    text = Job().text() + head + row.format(0, 0) + "[1,0]<stdout>:" + row.format(0, 12)
    text += row.format("N/A", "N/A")
    found = told(tmp_path, text)
    assert codes(found) == {"NCCL-CORRUPT"}
    assert "12" in found.findings[0].statement
    number = text[: text.index("[1,0]<stdout>:  1048576")].count("\n") + 1
    assert found.findings[0].evidence == [f"nccl.log:{number}"]
    assert told(tmp_path, Job().text() + head + row.format(0, 0)).exit_code == 0


@pytest.mark.parametrize("placement", ["in_place", "out_of_place"])
def test_wrong_elements_of_our_own_table(tmp_path: Path, placement: str) -> None:
    """Some collectives of torch have but one form: the other side of the row is N/A."""
    row = {"size": 1024, "count": 256, "placement": placement, "seconds": 0.001, "wrong": 0}
    rows = [row | {"algbw": 1.0, "busbw": 1.5}, row | {"size": 2048, "algbw": 1, "busbw": 1}]
    for name in ("all_reduce", "broadcast", "alltoall"):
        assert codes(told(tmp_path, format_table(rows, OPERATIONS[name]))) == set()
        rows[1]["wrong"] = 3
        text = format_table(rows, OPERATIONS[name])
        found = told(tmp_path, text)
        assert codes(found) == {"NCCL-CORRUPT"}
        assert found.findings[0].evidence == ["nccl.log:5"]
        assert "in its table (rows: 1, up to 3 in one row)" in found.findings[0].statement
        above, below = text.split("# Out of")
        for part in (above, f"# Out of{below}"):
            assert codes(told(tmp_path, part)) == {"NCCL-CORRUPT"}
        rows[1]["wrong"] = 0


def test_evidence_names_file_and_line(tmp_path: Path) -> None:
    job = faulty("2.28.9")["INIT-QP"]
    texts = [job.of(rank) for rank in job.ranks]
    found = told(tmp_path, *texts)
    number = next(i for i, line in enumerate(texts[2].splitlines(), 1) if "ibv_modify_qp" in line)
    assert found.findings[0].evidence == [f"nccl.2.log:{number}"]


def test_line_numbers_hold_over_many_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.nccl.lines.CHUNK", 777)
    job = faulty("2.28.9")["INIT-QP"]
    text = noisy(job.text())
    found = told(tmp_path, text)
    number = next(i for i, line in enumerate(text.splitlines(), 1) if "ibv_modify_qp" in line)
    assert found.findings[0].evidence == [f"nccl.log:{number}"]


def test_half_an_edge_at_the_end_is_not_an_edge_without_gdr(tmp_path: Path) -> None:
    job = Job()
    lines = job.of(3).splitlines()
    edge = max(i for i, line in enumerate(lines) if "/GDRDMA" in line)
    cut = "\n".join([*lines[:edge], lines[edge].removesuffix("/GDRDMA")])
    found = told(tmp_path, job.of(0), job.of(1), job.of(2), cut)
    assert "FAB-NO-GDR" not in codes(found)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file"),
        (bytes(range(256)) * 500, "binary data"),
        (b"epoch 1 loss 2.3\n" * 1000, "no line of NCCL's"),
        (b"x" * 5_000_000, "no line of NCCL's"),
        (gzip.compress(b"hello\n" * 9)[:-9], "cannot be read"),
    ],
    ids=["empty", "binary", "other", "one line", "cut gzip"],
)
def test_other_files_prove_nothing_in_one_sentence(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    done = CliRunner().invoke(main, ["nccl-log", str(path)])
    assert done.exit_code == 20
    assert says in " ".join(done.output.split())


def test_a_zipped_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log.gz"
    path.write_bytes(gzip.compress(Job().text().encode()))
    assert analyse_files([path]).transport == "rdma"


def test_json_has_the_agreed_keys(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    job = faulty("2.28.9")["FAB-ENV-DISABLED"]
    for rank in job.ranks:
        (folder / f"nccl.{rank}.log").write_text(job.of(rank))
    done = CliRunner().invoke(main, ["nccl-log", "--json", str(folder)])
    said = json.loads(done.output)
    assert done.exit_code == 1
    assert list(said) == [
        *("schema", "transport", "networks", "gdr", "edges", "hosts", "ranks", "nccl", "stage"),
        *("findings", "unproven", "notes", "size_known", "stages_sends"),
    ]
    assert said["schema"] == 1
    assert (said["transport"], said["networks"], said["gdr"]) == ("tcp", ["Socket"], None)
    assert said["edges"] == {"rdma": 0, "tcp": 4, "intra": 4, "other": 0}
    disabled = next(one for one in said["findings"] if one["code"] == "FAB-ENV-DISABLED")
    assert set(disabled) == {"code", "statement", "suspects", "remedy", "evidence"}
    assert "NCCL_IB_DISABLE=1" in disabled["statement"]


def test_a_missing_file_is_a_mistake_of_the_caller() -> None:
    done = CliRunner().invoke(main, ["nccl-log", "/nowhere/nccl.log"])
    assert done.exit_code == 4
    assert "/nowhere/nccl.log" in done.output


def test_a_host_name_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    text = Job(network=lambda host: "\x1b[2J\x07evil").text()
    path = tmp_path / "\x1b[31mred.log"
    path.write_text(text)
    done = CliRunner().invoke(main, ["nccl-log", str(path)])
    assert done.exit_code == 20
    assert "\x1b" not in done.output
    assert "\x07" not in done.output


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_torn_logs_never_raise_and_never_prove(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes lost, doubled or put in: no exception; RDMA is not claimed for a job on sockets."""
    text = bytearray(Job(network=socket, devices=none).text().encode())
    for _ in range(data.draw(st.integers(0, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 40))
        text[at : at + length] = data.draw(st.binary(max_size=20))
    path = tmp_path_factory.mktemp("torn") / "x.log"
    path.write_bytes(bytes(text))
    found = analyse_files([path])
    assert found.transport != "rdma"
    assert found.exit_code in (1, 20)
