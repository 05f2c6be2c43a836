"""The exhibits: each is one way in which a run can be good, bad, or not as good as it looks."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

from probes.findings import finding, join_names
from reports.measurement import Limit, Measurement, Verdict
from reports.record import Finding, ProbeResult, RunProblem, RunRecord
from reports.run_folder.times import parse_time, utc_time
from tests.recordings.generate import h100_cluster as atlas
from tests.recordings.generate import lab_cluster as rehearsal
from tests.recordings.generate.malicious_input import HOSTILE, hostile
from tests.recordings.load import Recording, control, evidence, measured, owing, replaced, without
from tests.support.pairs import cells_of

SOCKET_LOG = {
    **atlas.FILES,
    "evidence/fabric-trace.json": '{"traceEvents": [{"name": "ncclAllReduce", "ph": "X"}]}\n',
    "evidence/nccl-atlas07.log": "\n".join(
        [
            "atlas07:3310:3391 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx4",
            "atlas07:3310:3391 [0] NCCL INFO NET/IB : No device found.",
            "atlas07:3310:3391 [0] NCCL INFO NET/Socket : Using [0]eth0:10.20.0.7<0>",
        ]
        + [
            f"atlas07:3310:3402 [0] NCCL INFO Channel {c:02d}/0 : 48[0] -> 56[0] [send] "
            "via NET/Socket/0"
            for c in range(60)
        ]
    )
    + "\n",
}


def exhibits() -> list[Recording]:
    """All recordings of the museum."""
    return [*good(), *map(lean, [*bad(), *unproven()]), tcp(), *odd()]


def lean(recording: Recording) -> Recording:
    """With series and evidence of what failed only: the others teach nothing new."""
    nothing = {"evidence": [], "series": {}}
    results = [
        result if failed(result) else result.model_copy(update=nothing)
        for result in recording.record.results
    ]
    record = recording.record.model_copy(update={"results": results})
    shown = {one.path for result in results for one in result.evidence}
    files = {path: text for path, text in recording.files.items() if path in shown}
    return replace(recording, record=record, files=files)


def failed(result: ProbeResult) -> bool:
    """Whether this is the result that the exhibit is about."""
    return result.verdict is Verdict.FAIL


def good() -> list[Recording]:
    """Runs that are accepted."""
    return [
        Recording(
            "healthy-lab",
            "a rehearsal that is proven and says it is one",
            rehearsal.record(),
            {**atlas.FILES, **rehearsal.FILES},
        ),
        Recording("healthy-atlas", "accepted with one marginal", atlas.record(), atlas.FILES),
    ]


def bad() -> list[Recording]:
    """Runs in which something failed."""
    return [
        Recording(
            "partial-gang",
            "16 of 48 GPUs held while waiting: a deadlock in the making",
            alone(atlas.gang(partial=True)),
        ),
        Recording(
            "resume-drifts",
            "the loss falls after the resume, but it is another run",
            alone(atlas.restart(shift=0.004)),
        ),
        Recording(
            "waived-fail",
            "a waiver labels a failure; two others cover nothing",
            waived(),
            SOCKET_LOG,
        ),
        Recording("hosts-fail", "another driver on one node, another kernel on one", odd_hosts()),
        Recording("retried", "the second try passed: the first failure still counts", retried()),
        Recording("outside-contract", "a failure nobody asked for is a failure", outside()),
    ]


def tcp() -> Recording:
    """The classic, in full."""
    teaches = "one node on TCP: slow, but its loss still falls"
    return Recording("tcp-fallback", teaches, tcp_fallback(), SOCKET_LOG)


def unproven() -> list[Recording]:
    """Runs in which nothing failed and which must not be accepted."""
    run = atlas.record()
    fabric = run.results_of("FABRIC")[0]
    missed = control(
        "wrong network", "NCCL_IB_DISABLE=1", "busbw 375 GB/s: no change", caught=False
    )
    return [
        Recording(
            "control-missed",
            "the probe sees no difference on the wrong network",
            replaced(run, "FABRIC", controls=[missed]),
            atlas.FILES,
        ),
        Recording(
            "no-controls",
            "good numbers from a probe nobody saw fail",
            replaced(run, "GANG", controls=[]),
            atlas.FILES,
        ),
        Recording(
            "missing-limit",
            "a bandwidth that no limit judges",
            replaced(run, "FABRIC", measurements=unlimited(fabric)),
            atlas.FILES,
        ),
        Recording(
            "nan-value",
            "0 bytes in 0 seconds is not a bandwidth",
            replaced(run, "FABRIC", measurements=not_a_number(fabric)),
            atlas.FILES,
        ),
        Recording(
            "skipped", "a required probe skipped for want of a package", skipped(run), atlas.FILES
        ),
        Recording("timeout", "the probe did not come to its end", timed_out(run), atlas.FILES),
        Recording(
            "not-run", "a required criterion without a probe", without(run, "LAUNCH"), atlas.FILES
        ),
        Recording("empty", "a run that collected nothing", run.model_copy(update={"results": []})),
        Recording("partial", "one criterion was asked for: the others stay owed", partial(run)),
        Recording("no-contract", "nothing was agreed, and nothing contradicts", not_agreed(run)),
        Recording("teardown", "all proven, and GPUs that were not given back", unclean(run)),
    ]


def partial(run: RunRecord) -> RunRecord:
    """Only FABRIC was run."""
    asked = {
        "partial": "only FABRIC was asked for (--only)",
        "finished": "2026-11-20T22:18:31.120Z",
    }
    asked["command"] = f"{run.command} --only FABRIC"
    return run.model_copy(update={"results": run.results_of("FABRIC"), **asked})


def not_agreed(run: RunRecord) -> RunRecord:
    """The same values, by derived limits, and no order for the nodes."""
    contract = run.contract.model_copy(update={"agreed": False, "name": "derived", "sha256": ""})
    unordered = [m.model_copy(update={"limit": None}) for m in run.results[0].measurements]
    new = {"contract": contract, "command": run.command.replace(" --contract h100-ndr400", "")}
    run = replaced(run.model_copy(update=new), "HOSTS", measurements=unordered)
    by_line_rate = run.results[1].measurements[0]
    assert by_line_rate.limit is not None
    derived = by_line_rate.limit.model_copy(update={"source": "derived"})
    busbw = by_line_rate.model_copy(update={"limit": derived})
    return replaced(run, "FABRIC", measurements=[busbw, *run.results[1].measurements[1:]])


def unclean(run: RunRecord) -> RunRecord:
    """A teardown failed after its probe had passed."""
    where = "probes/gang/test_gang.py::test_two_gangs_compete_and_one_waits_whole"
    text = "3 GPUs were not given back"
    return run.model_copy(
        update={"problems": [RunProblem(kind="teardown", where=where, text=text)]}
    )


def odd() -> list[Recording]:
    """Killed in the middle, or made to mislead."""
    run = atlas.record()
    first = run.model_copy(update={"results": run.results[:2], "finished": None})
    torn = (
        '{"t": "2026-11-20T22:31:40.100Z", "event": "measurement", "probe": "probes/scaling/test_sc'
    )
    return [
        Recording(
            "killed-run",
            "killed in the third probe, in the middle of a line",
            first,
            atlas.FILES,
            torn=torn,
            ends=False,
        ),
        Recording(
            "hostile",
            "names that try to be markup, escapes and formulas",
            hostile(),
            {"evidence/x.log": "\n".join(HOSTILE) + "\n"},
        ),
    ]


def alone(result: ProbeResult) -> RunRecord:
    """The healthy run with this result in the place of its own."""
    run = atlas.record()
    others = [one if one.criterion != result.criterion else result for one in run.results]
    return owing(run.model_copy(update={"results": others}))


def started_at(run: RunRecord, start: str) -> RunRecord:
    """The same run at another time; its id begins with its start."""
    moved = parse_time(start) - parse_time(run.started)
    finished = utc_time(parse_time(run.finished) + moved)
    id = f"{start[:19].replace(':', '')}Z-atlas"
    return run.model_copy(update={"id": id, "started": start, "finished": finished})


def tcp_fallback() -> RunRecord:
    """One node falls back to TCP: everything waits for it, and it is unreachable at the end."""
    run = alone(slow_fabric())
    run = replaced(run, "SCALING", **slow_scaling())
    lost = "worker on atlas03 unreachable after the kill; gave up after 300 s"
    run = replaced(
        run,
        "RESTART",
        state="error",
        error=lost,
        series={},
        measurements=[
            Measurement(
                name="unequal_steps",
                unit="steps",
                note="no resumed run to compare",
                limit=Limit(high=0, because="same data, same state, same arithmetic"),
            ),
        ],
    )
    return started_at(run, "2026-11-21T08:15:00.000Z")


def slow_fabric() -> ProbeResult:
    """The healthy fabric result, at TCP speed on every path through atlas07."""
    good = atlas.fabric(41.2)
    slow = {
        "busbw": good.series["busbw"],
        "pairs": {"nodes": atlas.NODES, "cells": cells_of(tcp_pairs())},
    }
    by_node = [
        measured(
            "slowest_pair",
            0.0127 if node == "atlas07" else 0.997,
            "ratio",
            f"atlas01 - {node}",
            low=0.75,
            because="links of one fabric differ by noise",
        )
        for node in atlas.NODES[1:]
    ]
    judged = [
        good.measurements[0],
        measured(
            "network",
            "eth0",
            "",
            "atlas07",
            one_of=["rdma"],
            because="RDMA was agreed",
        ),
        measured("fabric_share", 0.12, "ratio", low=0.97, high=1.12, because=atlas.RING),
        good.measurements[2],
    ]
    logs = [
        evidence(SOCKET_LOG, "evidence/allreduce.txt", "table", "all-reduce sweep, 64 GPUs"),
        evidence(SOCKET_LOG, "evidence/nccl-atlas07.log", "log", "NCCL log of rank 48"),
        evidence(SOCKET_LOG, "evidence/fabric-trace.json", "trace", "trace of rank 48"),
    ]
    return good.model_copy(
        update={
            "measurements": judged + by_node,
            "findings": [fell_back()],
            "series": slow,
            "evidence": logs,
        }
    )


def tcp_pairs() -> list[list[Any]]:
    """atlas07 at TCP speed with everyone, atlas03 not reachable from atlas07."""
    table = atlas.pairs()
    for other in range(8):
        if other != 6:
            speed = None if other == 2 else 4.7
            table[6][other] = table[other][6] = speed
    return table


def fell_back() -> Finding:
    """What explains the slow fabric."""
    return finding(
        "FAB-TCP",
        "NCCL chose NET/Socket on atlas07; the other nodes use NET/IB.",
        ["atlas07"],
        remedy="On atlas07 NCCL_IB_HCA names mlx4, and the node has mlx5 devices: "
        "set NCCL_IB_HCA=mlx5 in /etc/nccl.conf and restart the job.",
        evidence=["evidence/nccl-atlas07.log", "evidence/allreduce.txt"],
        names={"interface": "eth0"},
    )


def slow_scaling() -> dict[str, Any]:
    """The ladder over a fabric with one slow node."""
    good = atlas.scaling()
    series = {
        "efficiency": {
            "nodes": [1, 2, 4, 8],
            "efficiency": [1, 0.977, 0.95, 0.52],
            "limit": 0.9,
            "tokens_per_second": [91200, 178200, 346600, 379400],
            "tokens_per_gpu_step": 16384,
        },
        "terms": {**good.series["terms"], "loss": {"all-reduce": 0.46, "data": 0.012}},
    }
    series["terms"]["terms"]["all-reduce"][3] = 1.127
    judged = measured(
        "efficiency",
        0.52,
        "ratio",
        on="8 nodes",
        low=0.9,
        marginal_low=0.93,
        because="contract, section 4: 90 % at 8 nodes",
        spread=0.02,
        samples=3,
    )
    return {"series": series, "measurements": [judged, good.measurements[1]]}


def waived() -> RunRecord:
    """A failure with a waiver, a waiver that has ended, and one that is no longer needed."""
    run = alone(slow_fabric())
    run = replaced(run, "GANG", measurements=atlas.gang(partial=True).measurements)
    waivers = [
        atlas.waiver("FABRIC", date(2026, 11, 30)),
        atlas.waiver("GANG", date(2026, 11, 1), "W-1"),
        atlas.waiver("LAUNCH", date(2026, 12, 31), "W-2"),
    ]
    return run.model_copy(update={"contract": run.contract.model_copy(update={"waivers": waivers})})


def retried() -> RunRecord:
    """Below the limit, then tried again until it passed."""
    run = atlas.record()
    failed = atlas.gang(partial=True)
    return run.model_copy(update={"results": [failed, *run.results]})


def odd_hosts() -> RunRecord:
    """The commonest fault of a new cluster: one node has another installation."""
    good = atlas.hosts()
    kept = [m for m in good.measurements if m.name != "differences"]
    differ: dict[str, Any] = {"high": 0, "because": "one job, one stack"}

    def others(odd: str) -> str:
        return join_names(node for node in atlas.NODES if node != odd)

    result = good.model_copy(
        update={
            "measurements": [
                *kept,
                measured("differences", 1, "differences", **differ),
                measured("system_differences", 1, "differences", **differ),
            ],
            "findings": [
                finding(
                    "HOST-VERSIONS",
                    f"driver: 565.57.01 on atlas05; 570.86.15 on {others('atlas05')}",
                    ["atlas05"],
                ),
                finding(
                    "HOST-KERNEL",
                    f"kernel: 6.8.0-45-generic on atlas02; 6.8.0-51-generic on {others('atlas02')}",
                    ["atlas02"],
                ),
            ],
        }
    )
    return started_at(alone(result), "2026-11-19T09:02:10.000Z")


def outside() -> RunRecord:
    """A probe with a criterion that the contract does not have."""
    run = atlas.record()
    extra = atlas.gang(partial=True).model_copy(update={"criterion": "STORAGE"})
    return run.model_copy(update={"results": [*run.results, extra]})


def unlimited(fabric: ProbeResult) -> list[Measurement]:
    """The bandwidth without its limit."""
    return [fabric.measurements[0].model_copy(update={"limit": None}), *fabric.measurements[1:]]


def not_a_number(fabric: ProbeResult) -> list[Measurement]:
    """The bandwidth as 0/0."""
    first = fabric.measurements[0]
    nothing = Measurement(name=first.name, value=float("nan"), unit="GB/s", limit=first.limit)
    return [nothing, *fabric.measurements[1:]]


def skipped(run: RunRecord) -> RunRecord:
    """GANG queues work with Ray's data package, and was skipped without it."""
    why = (
        "pyarrow is not installed on the host that runs seatrial. Install it there: "
        "pip install 'ray[train]'"
    )
    return replaced(
        run,
        "GANG",
        state="skipped",
        error=why,
        measurements=[],
        controls=[],
        series={},
        coverage="",
    )


def timed_out(run: RunRecord) -> RunRecord:
    """RESTART measured some things and then hung."""
    return replaced(run, "RESTART", state="error", error="no step for 300 s after the kill")
