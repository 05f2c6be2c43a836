"""The twenty causes of a start that hangs or goes wrong: each has a finding with its own remedy.

SYNTHETIC: lines written to the documented formats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.nccl.detect_init import missing_ranks
from probes.nccl.patterns import read_remedies
from probes.nccl.report import NcclReport
from tests.recordings.generate.nccl_logs import Job, faulty, none, socket
from tests.support.nccl_report import codes, told


def refused(version: str, error: str, **facts: Any) -> Job:
    words = f"misc/socket.cc:500 socketStartConnect: Connect to 10.0.0.2<41000> failed : {error}"
    return Job(version, last="topology", warn={0: [words]}, **facts)


def queue_pair(version: str, error: str) -> Job:
    words = f"misc/ibvwrap.cc:309 Call to ibv_modify_qp failed with {error}"
    return Job(version, last="graph", warn={2: [words]})


def warned(version: str, words: str, **facts: Any) -> Job:
    return Job(version, last="graph", warn={2: [words]}, **facts)


def connecting(version: str) -> str:
    """A job that stops while its ranks connect: at init, or since 2.22 at the first collective."""
    ends = ("Connected all", "Init COMPLETE") if version < "2.22" else ("Connected all",)
    lines = Job(version).text().splitlines()
    return "".join(f"{line}\n" for line in lines if not any(end in line for end in ends))


def timings(version: str, seconds: dict[int, dict[str, float]]) -> str:
    """A healthy job whose ranks took so long in the named phases."""
    job, texts = Job(version), []
    for rank in job.ranks:
        took = {phase: seconds.get(rank, {}).get(phase, 0.1) for phase in read_remedies().phases}
        told = ", ".join(f"{phase} {second:.2f}" for phase, second in took.items())
        line = f"Init timings - ncclCommInitRank: rank {rank} nranks 4 total "
        line += f"{sum(took.values()):.2f} ({told})"
        texts.append(job.of(rank).replace("Init timings - x: rank 0 nranks 4", line))
    return "".join(texts)


VERSIONS = ("2.21.5", "2.30.7")
MNNVL = "MNNVL (cliqueSize 4) is available but not working on this system. Check the IMEX "
EFA = "NET/OFI OFI fi_getinfo() call failed: No data available"
CAUSES: dict[int, tuple[Callable[[str], Job | str], str, str]] = {
    1: (lambda v: refused(v, "Network is unreachable"), "INIT-BOOTSTRAP", "NCCL_SOCKET_IFNAME"),
    2: (lambda v: refused(v, "Connection timed out"), "INIT-BOOTSTRAP", "ip_local_port_range"),
    3: (lambda v: Job(v, last="bootstrap"), "INIT-HANG", "service mesh"),
    4: (lambda v: faulty(v)["FAB-MIXED"], "FAB-MIXED", "device plugin"),
    5: (
        lambda v: Job(v, why=["NET/IB : Unable to open device mlx5_1"]),
        "FAB-OPEN-FAILED",
        "NCCL_IGNORE_NET_MISMATCH=0",
    ),
    6: (lambda v: queue_pair(v, "110 Connection timed out"), "INIT-QP", "NCCL_CROSS_NIC=0"),
    7: (lambda v: queue_pair(v, "error Invalid argument"), "INIT-QP", "NCCL_IB_GID_INDEX"),
    8: (lambda v: faulty(v)["INIT-MEMLOCK"], "INIT-MEMLOCK", "ulimit -l"),
    9: (lambda v: connecting(v), "INIT-HANG", "NCCL_P2P_DISABLE=1"),
    10: (
        lambda v: warned(v, "transport/nvls.cc:251 Cuda failure 1 'invalid argument'"),
        "INIT-NVLS",
        "Fabric Manager",
    ),
    11: (lambda v: faulty(v)["NCCL-VERSION"], "NCCL-VERSION", "one image"),
    12: (lambda v: faulty(v)["INIT-SHM"], "INIT-SHM", "--shm-size"),
    13: (lambda v: faulty(v)["INIT-MISSING-RANK"], "INIT-MISSING-RANK", "WORLD_SIZE is the number"),
    14: (lambda v: faulty(v)["INIT-NO-IFACE"], "INIT-NO-IFACE", "NCCL_SOCKET_IFNAME"),
    15: (
        lambda v: Job(v, last="net-init").text().replace("10.0.0.2<0>", "fe80::2%eth0<0>"),
        "INIT-HANG",
        "NCCL_SOCKET_FAMILY",
    ),
    16: (
        lambda v: Job(v, network=socket, devices=none, warn={2: [f"nccl_ofi_rdma.cc:77 {EFA}"]}),
        "FAB-NO-EFA",
        "security group",
    ),
    17: (lambda v: warned(v, f"mnnvl.cc:66 {MNNVL}configuration"), "INIT-MNNVL", "IMEX"),
    18: (lambda v: faulty(v)["NCCL-DUP-GPU"], "NCCL-DUP-GPU", "num_gpus=1"),
    19: (
        lambda v: warned(v, "misc/socket.cc:700 Call to socket failed : Too many open files"),
        "INIT-LIMITS",
        "ulimit -n",
    ),
    20: (lambda v: timings("2.28.9", {1: {"topo": 61}}), "INIT-SLOW", "nvidia-persistenced"),
}
# What else such a log shows.
BESIDE = {
    4: {"FAB-NO-DEVICE"},
    16: {"FAB-TCP", "FAB-NO-DEVICE"},  # of the host that says nothing of EFA
}


def log_of(folder: Path, number: int, version: str) -> NcclReport:
    make, code, _ = CAUSES[number]
    log = make(version)
    whole = code in ("INIT-MISSING-RANK", "INIT-HANG")
    return told(folder, log.text() if isinstance(log, Job) else log, whole=whole)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", CAUSES)
def test_each_cause_has_a_finding_with_its_own_remedy(
    tmp_path: Path, number: int, version: str
) -> None:
    _, code, do = CAUSES[number]
    found = log_of(tmp_path, number, version)
    named = next(finding for finding in found.findings if finding.code == code)
    assert do in named.remedy
    assert codes(found) == {code} | BESIDE.get(number, set())
    assert found.exit_code == 1


def test_no_two_causes_have_one_remedy(tmp_path: Path) -> None:
    remedies = []
    for number, (_, code, _) in CAUSES.items():
        found = log_of(tmp_path, number, "2.28.9")
        remedies.append(next(f.remedy for f in found.findings if f.code == code))
    assert len(set(remedies)) == len(CAUSES) == 20


@pytest.mark.parametrize("version", VERSIONS)
def test_a_service_mesh_stops_all_ranks_before_any_line_about_the_network(
    tmp_path: Path, version: str
) -> None:
    named = told(tmp_path, Job(version, last="bootstrap").text(), whole=True).findings[0]
    assert "4 processes" in named.statement
    assert named.suspects == ["node0", "node1"]
    one = Job(version, last="graph", stops={2: "bootstrap"}).text()
    assert "service mesh" not in told(tmp_path, one, whole=True).findings[0].remedy
    later = told(tmp_path, Job(version, last="net-init").text())
    assert (codes(later), later.exit_code) == (set(), 20), "no line gives the number of ranks"


@pytest.mark.parametrize("version", VERSIONS)
def test_two_families_of_addresses_are_named(tmp_path: Path, version: str) -> None:
    text = Job(version, hosts=3, last="net-init").text()
    named = told(tmp_path, text.replace("10.0.0.2<0>", "fe80::2%eth0<0>")).findings[0]
    assert "node1 uses IPv6, node0, node2 use IPv4" in named.statement
    assert named.suspects == ["node1"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("transport/p2p.cc:281 Cuda failure 800 'operation not permitted'", "INIT-MNNVL"),
        ("mnnvl.cc:41 Cuda failure 1 'invalid argument'", "INIT-MNNVL"),
        (f"mnnvl.cc:75 {MNNVL}channel configuration (/dev/nvidia-caps-imex).", "INIT-MNNVL"),
        ("misc/socket.cc:70 Call to accept failed: Too many open files", "INIT-LIMITS"),
        ("proxy.cc:1 Call to pthread_create failed: Resource not available", "INIT-LIMITS"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", ["2.24.3", "2.30.7"])
def test_errors_of_nvlink_domains_and_of_limits(
    tmp_path: Path, version: str, words: str, code: str
) -> None:
    found = told(tmp_path, warned(version, words).text())
    assert codes(found) == {code}
    assert found.findings[0].suspects == ["node1"]


LIBFABRIC = (
    "libfabric:{}:1772632639::core:core:fi_getinfo_():1391<warn> "
    "fi_getinfo: provider efa output empty list\n"
)


@pytest.mark.parametrize("version", VERSIONS)
def test_libfabrics_own_line_names_the_host_of_its_process(tmp_path: Path, version: str) -> None:
    text = Job(version, network=socket, devices=none).text()
    found = told(tmp_path, text + LIBFABRIC.format(1002))
    named = next(finding for finding in found.findings if finding.code == "FAB-NO-EFA")
    assert named.suspects == ["node1"]
    assert named.evidence == [f"nccl.log:{text.count(chr(10)) + 1}"]
    stranger = told(tmp_path, LIBFABRIC.format(9) + text)
    named = next(finding for finding in stranger.findings if finding.code == "FAB-NO-EFA")
    assert (named.suspects, named.evidence) == ([], ["nccl.log:1"])


def test_a_try_of_libfabric_that_another_one_mended_is_no_finding(tmp_path: Path) -> None:
    job = Job(network=lambda host: "AWS Libfabric", devices=none)
    found = told(tmp_path, LIBFABRIC.format(1002) + LIBFABRIC.format(7) + job.text())
    assert (codes(found), found.exit_code) == (set(), 0)


def test_efa_without_device_is_not_told_as_a_plugin_that_fails_too(tmp_path: Path) -> None:
    lines = [
        EFA,
        "NET/OFI Unable to find a protocol that worked.  Failing initialization.",
        "NET/OFI aws-ofi-nccl initialization failed",
    ]
    found = told(tmp_path, Job("2.24.3", network=socket, devices=none, why=lines).text())
    assert codes(found) == {"FAB-TCP", "FAB-NO-EFA"}
    named = next(finding for finding in found.findings if finding.code == "FAB-NO-EFA")
    assert named.suspects == ["node0", "node1"]


def test_a_slow_start_names_phase_and_rank(tmp_path: Path) -> None:
    found = told(tmp_path, timings("2.28.9", {2: {"topo": 45, "connections": 8}}))
    named = found.findings[0]
    assert (codes(found), found.transport) == ({"INIT-SLOW"}, "rdma")
    assert named.suspects == ["rank 2 on node1"]
    took = "rank 2 on node1 took 53.6 s to start, 45.0 s of it in the phase `topo`"
    assert took in named.statement
    assert "Expected: under 30.0 s" in named.statement


@pytest.mark.parametrize(
    ("phase", "do"),
    [
        ("kernels", "nvidia-persistenced"),
        ("alloc", "nvidia-persistenced"),
        ("bootstrap", "NCCL_SOCKET_IFNAME"),
        ("allgathers", "NCCL_SOCKET_IFNAME"),
        ("graphs", "NCCL_TOPO_FILE"),
        ("connections", "RDMA"),
        ("rest", "CPU"),
    ],
)
def test_each_phase_of_a_slow_start_has_a_remedy(tmp_path: Path, phase: str, do: str) -> None:
    slow = {rank: {phase: 50.0} for rank in range(4)}
    assert do in told(tmp_path, timings("2.28.9", slow)).findings[0].remedy


def test_who_came_late_is_named_rather_than_those_who_waited(tmp_path: Path) -> None:
    """Three ranks wait in bootstrap for the fourth, which is quick there: it came last."""
    waited = {rank: {"bootstrap": 70.0} for rank in (0, 1, 2)}
    named = told(tmp_path, timings("2.28.9", waited)).findings[0]
    assert named.suspects == ["rank 3 on node1"]
    assert "waited for rank 3 on node1, which" in named.statement


def test_of_several_slow_ranks_the_slowest_is_told(tmp_path: Path) -> None:
    named = told(tmp_path, timings("2.28.9", {1: {"topo": 40}, 2: {"topo": 61}})).findings[0]
    assert named.statement.startswith("rank 2 on node1 took 61.7 s")
    assert named.suspects == ["rank 2 on node1", "rank 1 on node0"]


def test_who_does_not_begin_the_collective_is_behind_those_who_wait_in_it(tmp_path: Path) -> None:
    """Since 2.22 ranks connect at their first collective."""
    job, texts = Job("2.28.9"), []
    for rank in job.ranks:
        lines = [f"{line}\n" for line in job.of(rank).splitlines() if "Connected all" not in line]
        done = next(at for at, line in enumerate(lines, 1) if "Init COMPLETE" in line)
        texts.append("".join(lines[: done if rank == 3 else len(lines)]))
    named = told(tmp_path, *texts).findings[0]
    assert (named.code, named.suspects) == ("INIT-HANG", ["rank 3 on node1"])
    assert "did not begin the collective in which the other ranks wait" in named.statement


def test_a_start_that_takes_its_time_is_no_finding(tmp_path: Path) -> None:
    assert told(tmp_path, timings("2.28.9", {0: {"connections": 28.0}})).exit_code == 0


def test_a_start_that_was_slow_and_then_hangs_is_both(tmp_path: Path) -> None:
    lines = timings("2.28.9", {1: {"topo": 61}}).splitlines()
    text = "".join(f"{line}\n" for line in lines if "Connected all" not in line)
    assert codes(told(tmp_path, text, whole=True)) == {"INIT-SLOW", "INIT-HANG"}


def test_families_that_have_met_are_not_blamed(tmp_path: Path) -> None:
    text = connecting("2.28.9").replace("10.0.0.2<0>", "fe80::2%eth0<0>")
    assert "IPv6" not in told(tmp_path, text, whole=True).findings[0].statement


def test_the_one_rank_that_does_not_get_through_is_not_lost_among_those_that_do(
    tmp_path: Path,
) -> None:
    retry = (
        "socketPollConnect: connect to 10.0.0.{}<4000> returned Connection refused, "
        "retrying ({}/34) after sleep for 100 msec"
    )
    good = Job(hosts=40, gpus=8, why=[retry.format(1, at) for at in (1, 2)])
    stuck = Job(hosts=40, gpus=8, last="net-init", why=[retry.format(3, at) for at in range(34)])
    text = "".join(good.of(rank) for rank in range(319)) + stuck.of(319)
    found = told(tmp_path, text)
    assert codes(found) == {"INIT-BOOTSTRAP"}
    assert found.findings[0].suspects == ["node2"]


def test_a_connection_that_broke_accuses_both_ends(tmp_path: Path) -> None:
    words = "transport/net_ib.cc:1 NET/IB : Got completion from peer 10.0.0.2<4> with error 12"
    (named,) = told(tmp_path, Job(warn={0: [words]}).text()).findings
    assert (named.code, named.suspects) == ("INIT-QP", ["node0", "node1"])


def test_nvlink_multicast_that_fails_is_quoted(tmp_path: Path) -> None:
    words = "transport/nvls.cc:251 Cuda failure 1 'invalid argument'"
    (named,) = told(tmp_path, warned("2.28.9", words).text()).findings
    assert named.code == "INIT-NVLS"
    assert "Cuda failure 1 'invalid argument'" in named.statement


def test_one_wrong_element_is_a_number(tmp_path: Path) -> None:
    row = "  1048576  262144  float  sum  -1  91.5  11.46  17.19  1  90.1  11.63  17.45  0\n"
    (named,) = told(tmp_path, Job().text() + row).findings
    assert named.code == "NCCL-CORRUPT"
    assert named.statement.endswith("in its table (rows: 1, up to 1 in one row)")


@pytest.mark.parametrize(("late_s", "suspects"), [(26.0, ["rank 3 on node1"]), (36.0, None)])
def test_who_came_late_waited_less_than_half_as_long_as_the_others(
    tmp_path: Path, late_s: float, suspects: list[str] | None
) -> None:
    waited = {rank: {"bootstrap": 70.0} for rank in (0, 1, 2)} | {3: {"bootstrap": late_s}}
    named = told(tmp_path, timings("2.28.9", waited)).findings[0]
    assert named.suspects == (suspects or [f"rank {rank} on node{rank // 2}" for rank in range(4)])


@pytest.mark.parametrize("stage", ["bootstrap", "net-init", "topology"])
def test_families_are_blamed_until_the_ranks_know_each_other(tmp_path: Path, stage: str) -> None:
    text = Job(last=stage).text().replace("10.0.0.2<0>", "fe80::2%eth0<0>")
    (named,) = told(tmp_path, text).findings
    assert named.code == "INIT-HANG"
    assert "node1 uses IPv6" in named.statement


PORTS = "transport/net_ib.cc:92"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.18.6", "NET/IB : mlx5_1:1 Got async event : port error"),
        (
            "2.21.5",
            "NET/IB : mlx5_1:1 Got async event : local catastrophic error",
        ),
        ("2.28.9", "NET/IB : mlx5_1:1 async fatal event: local catastrophic error"),
        ("2.28.9", "NET/IB : mlx5_1:1 async fatal event on CQ (0x7f00): CQ error"),
        ("2.28.9", "NET/IB : mlx5_1:1 async fatal event on QP (0x7f00): local access violation"),
        ("2.30.7", "NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)"),
    ],
)
def test_a_fatal_event_of_a_port_is_an_error(tmp_path: Path, version: str, words: str) -> None:
    found = told(tmp_path, Job(version, warn={2: [f"{PORTS} {words}"]}).text())
    assert [one.code for one in found.findings] == ["NCCL-ERROR"]
    assert found.findings[0].suspects == ["node1"]
    assert found.unproven == []


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.18.6", "NET/IB : mlx5_1:1 Got async event : GID table change"),
        ("2.21.5", "NET/IB : mlx5_1:1 Got async event : client reregistration"),
        ("2.28.9", "NET/IB : mlx5_1:1 Got non-fatal async event: client reregistration(17)"),
        ("2.28.9", "NET/IB : mlx5_1:1 Got non-fatal async event: port active(9)"),
        ("2.30.7", "NET/IB : mlx5_1:1 GID table changed"),
    ],
)
def test_other_events_of_a_port_are_known_and_harmless(
    tmp_path: Path, version: str, words: str
) -> None:
    found = told(tmp_path, Job(version, warn={2: [f"{PORTS} {words}"]}).text())
    assert (found.findings, found.unproven, found.exit_code) == ([], [], 0)


def test_gdr_0_names_nobody_where_no_edge_tells_who(tmp_path: Path) -> None:
    job = Job("2.27.5")
    found = told(tmp_path, job.text().replace("GDR 1", "GDR 0"))
    assert codes(found) == {"FAB-NO-GDR"}
    assert (found.gdr, found.findings[0].suspects) == (False, [])
    assert found.findings[0].statement.startswith("ranks without connections in the log: RDMA is")
    assert found.findings[0].evidence
    mixed = Job("2.27.5", hosts=3, network=lambda host: "Socket" if host == 1 else "IB")
    found = told(tmp_path, mixed.text().replace("GDR 1", "GDR 0"))
    assert "FAB-MIXED" in codes(found)
    assert "FAB-NO-GDR" not in codes(found)  # TCP alone makes all of them say so


def test_a_rank_of_a_smaller_communicator_has_not_joined_the_job() -> None:
    ranks = [SimpleNamespace(number=at, size=4, initialised=False, stage=1) for at in range(3)]
    ranks += [SimpleNamespace(number=3, size=2, initialised=False, stage=1)]
    log: Any = SimpleNamespace(
        world_size=4,
        job_ranks=ranks,
        jobs=[1],
        partial=False,
        stage="bootstrap",
        hits=defaultdict(list),
        every_rank=True,
        repeated=0,
        ranks={},
    )
    (found,) = missing_ranks(log)
    joined = "rank 3 of 4 never joined the job. The ranks that joined (3) wait"
    assert found.statement.startswith(joined)


def test_what_says_how_to_mend_it_comes_before_other_errors(tmp_path: Path) -> None:
    lines = [
        "Got async event : port error",
        "Cuda failure 700 'an illegal memory access'",
        "Call to ibv_reg_mr failed with error Cannot allocate memory",
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    ]
    text = "".join(f"node0:7:7 [0] misc/ibvwrap.cc:9 NCCL WARN {line}\n" for line in lines)
    order = [finding.code for finding in told(tmp_path, text).findings]
    assert len(order) > 2
    assert order == sorted(order, key=lambda code: code == "NCCL-ERROR")
    assert {"INIT-MEMLOCK", "NCCL-DUP-GPU", "NCCL-ERROR"} <= {*order}


@pytest.mark.parametrize(
    "job",
    [{"last": "topology", "absent": (3,)}, {"last": "nvls"}],
    ids=["a rank is missing", "nvls"],
)
def test_where_an_error_explains_the_stop_nothing_else_is_blamed(
    tmp_path: Path, job: dict[str, Any]
) -> None:
    words = "misc/socket.cc:700 Call to socket failed : Too many open files"
    assert codes(told(tmp_path, Job(**job, warn={2: [words]}).text(), whole=True)) == {
        "INIT-LIMITS"
    }


@pytest.mark.parametrize(("last", "found"), [("complete", set()), ("graph", {"INIT-QP"})])
def test_a_connection_that_was_tried_again_is_no_error_if_the_start_completed(
    tmp_path: Path, last: str, found: set[str]
) -> None:
    words = "Call to ibv_modify_qp failed with 110 Connection timed out, retrying 1/35 after 100"
    log = told(tmp_path, Job("2.28.9", last=last, why=[words]).text(), whole=True)
    assert codes(log) == found


def test_no_service_mesh_is_blamed_on_one_host(tmp_path: Path) -> None:
    (named,) = told(tmp_path, Job(hosts=1, last="bootstrap").text(), whole=True).findings
    assert named.statement.startswith("all 2 ranks stop at the step `bootstrap` without an error")
    assert "service mesh" not in named.remedy


def test_ranks_that_lag_are_what_to_look_at_though_a_call_failed_too(tmp_path: Path) -> None:
    lag = "- To our best knowledge, ranks [2, 3] are the lagging ranks that caused this timeout.\n"
    error = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error\n"
    (named,) = told(tmp_path, lag + error).findings
    assert named.suspects == ["rank 2", "rank 3"]
    assert named.remedy == read_remedies().texts["desync"]


def test_sockets_of_a_trace_that_is_not_of_the_bootstrap_are_a_failed_call(tmp_path: Path) -> None:
    job = Job(last="graph", warn={})
    lines = ["misc/socket.cc:505 -> 2 (Operation now in progress)", "init.cc:1493 -> 2"]
    text = job.text() + "".join(f"node1:1002:1102 [0] NCCL INFO {line}\n" for line in lines)
    (named,) = told(tmp_path, text).findings
    assert named.code == "NCCL-ERROR"
    assert "a call of NCCL failed (a system error)" in named.statement


def test_what_follows_a_lost_newline_is_of_the_host_whose_name_it_ends_with(tmp_path: Path) -> None:
    """The network, and how long the start took, are in lines of `Channelnode0` alone."""
    head = "node0:7:8 [0] NCCL INFO "
    took = "Init timings - ncclCommInitRank: rank 0 nranks 4 total 45.20 (kernels 0.1, topo 44.10)"
    texts = [f"{head}Bootstrap: Using eth0:10.0.0.1<0>", f"Channel{head}Using network IB"]
    found = told(tmp_path, "\n".join([*texts, f"Channel{head}{took}", ""]))
    assert (codes(found), found.networks, found.hosts) == ({"INIT-SLOW"}, ["IB"], 1)
