"""Judges at the end of a run what changed in it: nodes, wear of GPUs, Xids; and DCGM."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from probes.check.judging import plant, plant_on
from probes.check.recorder import Recorder
from probes.cluster.ask import Answers, ask_nodes
from probes.cluster.cluster import Cluster
from probes.cluster.dcgm import LEVEL_SECONDS, WARNED, find_unproven, run_diagnostics
from probes.cluster.gpus import XidListener
from probes.cluster.nvml import TIMEOUT, NvmlWith, import_nvml
from probes.cluster.system_facts import BOOT_ID, read_text
from probes.findings import finding, join_names, name_gpu
from probes.hosts import criterion as check
from probes.hosts.gpu_health import AllFacts, Board, Facts, board_name, explain_boards, judge_worst
from reports.numbers import quantity
from reports.run_folder.event_log import FILE
from reports.run_folder.times import parse_time

NEW_AT_EACH_READ = "/proc/sys/kernel/random/uuid"  # where the kernel's boot id never changes


def judge_changes(cluster: Cluster, before: AllFacts, now: AllFacts, measure: Recorder) -> None:
    """Judge that each node of the run's start is still there, and was not restarted.

    A node that Ray counts as alive and that does not answer proves nothing.
    """
    alive = {node["id"] for node in cluster.nodes}
    answers = {fact["node"] for fact in now}
    silent = [one["name"] for one in before if one["node"] in alive - answers]
    texts = {fact["name"]: describe_change(fact, now) for fact in before}
    changed = {name: text for name, text in texts.items() if text and name not in silent}
    for name in silent:
        text = f"No worker answers on {name} at the end of the run"
        measure.explain(finding("HOST-NO-ANSWER", text, [name]))
    known = before and all(fact["boot_id"] for fact in (*before, *now)) and not silent
    note = "a node reports no boot id, or does not answer"
    note = note if before else "no node answered at the start of the run"
    measure(check.NODES_CHANGED, len(changed) if changed or known else None, note=note)
    for name, text in changed.items():
        measure.explain(finding("HOST-CHANGED", f"{name}: {text}", [name]))


def describe_change(before: Facts, now: AllFacts) -> str:
    """Describe what happened to a node since `before`; "" for nothing."""
    after = next((fact for fact in now if fact["node"] == before["node"]), None)
    if after is None:
        again = any(fact["boot_id"] == before["boot_id"] for fact in now if fact["boot_id"])
        return "Ray was restarted during the run" if again else "it left the cluster"
    if before["boot_id"] and after["boot_id"] and before["boot_id"] != after["boot_id"]:
        return "the machine was restarted during the run"
    return ""


def judge_gpu_changes(before: AllFacts, now: AllFacts, measure: Recorder) -> None:
    """Judge that each node has the same GPUs as at the start, by their UUIDs."""
    first = {fact["node"]: {gpu["uuid"] for gpu in fact["gpus"]} for fact in before}
    for fact in now:
        if fact["node"] not in first:
            continue  # it came later
        old, new = first[fact["node"]], {gpu["uuid"] for gpu in fact["gpus"]}
        gone, come = sorted(old - new - {""}), sorted(new - old - {""})
        count = max(len(gone), len(come)) if gone or (old and "" not in old | new) else None
        measure(check.GPUS_CHANGED, count, on=fact["name"], note="some GPUs report no UUID")
        if gone:
            text = f"{join_names(gone)} on {fact['name']}: missing at the end of the run"
            text += f"; new GPUs: {join_names(come)}" if come else ""
            names = {"gpu": gone[0]}
            measure.explain(finding("HOST-GPU-CHANGED", text, [fact["name"]], names=names))


def read_boot_id(path: str = BOOT_ID) -> str:
    """Read this node's boot id, or for a control the text of another file."""
    return read_text(Path(path))


def control_restarted_node(
    cluster: Cluster, before: AllFacts, victim: Facts, measure: Recorder
) -> None:
    """Check that a node whose boot id changes is detected."""
    was = [fact for fact in before if fact["node"] == victim["node"]]
    fault = f"reads its boot id from {NEW_AT_EACH_READ}, which changes at each read"
    given = (check.RESTARTED_NODE, fault, victim, read_boot_id, NEW_AT_EACH_READ)

    def judge(id: str, trial: Recorder) -> None:
        judge_changes(cluster, was, [{**victim, "boot_id": id}], trial)

    plant_on(cluster, measure, *given, judge=judge)


@dataclass(frozen=True)
class GpuCounter:
    """One counter of a GPU, and what a finding says of its gain.

    `factor` turns the gain into the measure's unit.  `per` makes it a rate: the gain in so many
    seconds.  A shorter run counts as that long: one event in it is no rate.
    """

    name: str
    factor: float
    code: str
    text: str
    unit: str
    per: float = 0.0


# By measure.
WEAR = {
    check.HEAT_TIME: GpuCounter(
        "heat_ns", 1e-9, "HOST-GPU-SLOWED", "heat slowed the clocks for {} in 10 min", "s", 600.0
    ),
    check.PCIE_REPLAYS: GpuCounter(
        "pcie_replays", 1, "HOST-PCIE", "PCIe retransmitted {} per minute", "packets", 60.0
    ),
    check.NVLINK_ERRORS: GpuCounter(
        "nvlink_errors", 1, "HOST-NVLINK", "{} in the run (replays or recoveries)", "NVLink errors"
    ),
    check.NEW_MEMORY_ERRORS: GpuCounter(
        "lifetime_errors", 1, "HOST-ECC", "{} in the run", "uncorrected memory errors"
    ),
}


def judge_wear(before: AllFacts, now: AllFacts, measure: Recorder) -> None:
    """Judge the highest gain of a node's GPUs since `before`.

    A counter that is missing, or went back because the driver was loaded again, proves nothing.
    """
    earlier = {fact["node"]: fact["gpu_health"] for fact in before}
    note = "a counter of NVML is missing at the start or end of the run, or was reset"
    for fact in now:
        node = fact["name"]
        for name, counter in WEAR.items() if fact["node"] in earlier else ():  # else it came later
            gains = _gains(counter, earlier[fact["node"]], fact["gpu_health"])
            high = judge_worst(measure, name, node, gains, max, note)
            sick = [(one, counter.text.format(quantity(gain, counter.unit))) for one, gain in high]
            expected = str(measure.contract.limit(measure.criterion, name))
            explain_boards(measure, counter.code, node, sick, expected)


def _gains(
    counter: GpuCounter, before: Mapping[str, Any], now: Facts
) -> list[tuple[Board, float | None]]:
    boards = {_key(board): board for board in before["boards"] if any(_key(board))}
    share = min(1.0, counter.per / max(now["clock"] - before["clock"], 1e-9)) if counter.per else 1
    gains: list[tuple[Board, float | None]] = []
    for board in now["boards"]:
        first, last = boards.get(_key(board), {}).get(counter.name), board.get(counter.name)
        is_known = first is not None and last is not None and last >= first
        gains.append((board, (last - first) * counter.factor * share if is_known else None))
    return gains


def _key(board: Board) -> tuple[str, str]:
    return board["uuid"], board["slot"]


# Xids that a sound GPU may report when a process is killed in its work: each is of programs alone.
# 13, 31, 43, 45, 68, 109: NVIDIA's device plugin for Kubernetes leaves them to programs (health.go
# of k8s-device-plugin).  69: restart the program, says NVIDIA's catalogue of Xids.  108, 137: a
# peer used memory over NVLink that is gone; ignore it, says the catalogue.  94: the SM of that peer
# stopped.  144 to 148: NVLink 5 reports the same with 137 (149 and 150 are of the link itself).
# 154: what the driver advises has changed, because of another Xid.
# No kill causes others, such as 48, 74, 79 or 119.  Errors of memory, links that are down, and a
# reset that the driver asks for are judged by values of their own.
OF_KILLS = frozenset({13, 31, 43, 45, 68, 69, 94, 108, 109, 137, *range(144, 149), 154})
# How long after a kill: a process that is in the driver, or has much memory on the GPU, dies within
# 10 s (EFFECT_SECONDS of process_faults.py); the driver's reports of it, and NVML's events, which
# wait for no poll, come within 5 s.  Both times are by one clock, the node's.
AFTER_KILL_SECONDS = 15.0
SHOWN_XIDS = 4  # Xids of a node in a sentence
FALLEN = 79  # "GPU has fallen off the bus"
HEARD_SECONDS = 5.0  # for a planted event to be heard: NVML is not asked for it
Starts = Sequence[tuple[datetime, str]]


def judge_xids(
    answers: Mapping[str, Facts], silent: Mapping[str, str], starts: Starts, measure: Recorder
) -> None:
    """Judge what was heard on each node, by its name; `silent` are the others, with the reason.

    `starts` are the times at which probes began, in order.  What followed a kill by seatrial on the
    same node only informs.
    """
    explained: list[str] = []
    for node, answer in answers.items():
        ours = [event for event in answer["events"] if follows_kill(event)]
        events = [event for event in answer["events"] if not follows_kill(event)]
        known = answer["error"] is None or events
        note = f"NVML stopped reporting Xids: {answer['error']['text']}" if answer["error"] else ""
        measure(check.XIDS, len(events) if known else None, on=node, note=note)
        if ours:
            measure.note("Xids after kills", len(ours), "Xids", on=node)
            explained += [f"{node}: {describe_event(event, starts)}" for event in ours]
        if events:
            texts = [describe_event(event, starts) for event in events]
            statement = f"{node}: {join_names(texts, SHOWN_XIDS)}. Expected: no Xid"
            names = name_gpu(events[0].get("uuid"), events[0]["index"], events[0].get("slot"))
            measure.explain(finding("HOST-XID", statement, [node], names=names))
    if explained:
        measure.covered(f"Xids that are not judged: {join_names(explained, SHOWN_XIDS)}")
    for node, why in silent.items():
        measure(check.XIDS, None, on=node, note=f"its Xids could not be read: {why}")


def follows_kill(event: Mapping[str, Any]) -> bool:
    """Return whether a kill by seatrial on the node may be the cause of an Xid there."""
    after = event.get("after_kill")
    return event["xid"] in OF_KILLS and after is not None and after <= AFTER_KILL_SECONDS


def describe_event(event: Mapping[str, Any], starts: Starts) -> str:
    """Describe one Xid: its number, GPU and time, the probe that ran then, and a kill before it."""
    gpu = board_name({"slot": "", **event}) if event["index"] is not None else "an unknown GPU"
    at = datetime.now(timezone.utc) - timedelta(seconds=event["ago"])
    running = [probe for time, probe in starts if time <= at]
    probe = f" while {running[-1]} ran" if running else ""
    text = f"Xid {event['xid']} of {gpu} at {at:%H:%M:%S} UTC{probe}"
    if not follows_kill(event):
        return text
    return f"{text}, {event['after_kill']:.1f} s after seatrial had killed a process there"


def read_starts(measure: Recorder) -> Starts:
    """Read from the run's events when each probe began."""

    path = getattr(measure.store, "path", None)
    if path is None:
        return []
    events = (json.loads(line) for line in (path / FILE).read_text().splitlines())
    started = [event for event in events if event["event"] == "probe_started"]
    return [(parse_time(one["t"]), one["probe"].rpartition("::")[2]) for one in started]


def drop_gpu(nvml: Any, index: int) -> NvmlWith:
    """Make an NVML that reports once that the GPU `index` has fallen off the bus."""
    pending = [FALLEN]

    def wait(*_: Any) -> Any:
        if not pending:
            raise nvml.NVMLError(TIMEOUT)
        event = nvml.c_nvmlEventData_t()
        event.eventData = pending.pop()
        event.device = nvml.nvmlDeviceGetHandleByIndex(index)
        return event

    return NvmlWith(nvml, {"nvmlEventSetWait_v2": wait})


def read_planted_xid(index: int) -> dict[str, Any]:
    """Listen on this node while NVML reports that the GPU `index` has fallen off the bus."""
    listener = XidListener()
    heard = listener.start(drop_gpu(import_nvml(), index))
    deadline = time.monotonic() + HEARD_SECONDS
    while not heard["events"] and heard["error"] is None and time.monotonic() < deadline:
        time.sleep(0.05)
        heard = listener.read()
    listener.end()
    return heard


LEVELS = {"quick": 1, "standard": 2, "soak": 3}
START_SECONDS = 60.0  # for a worker on a busy node, in addition to the diagnostic itself
NO_GPU = "999"  # an index that no node has, for the control
SHOWN_TESTS = 3  # failed tests of a node in a sentence
WARNING = 0.5  # of a failed test: what DCGM warns of is MARGINAL


def judge_diagnostics(cluster: Cluster, measure: Recorder) -> None:
    """Run the level of the contract's tier on all nodes at once, and judge the failed tests."""
    level = LEVELS[measure.contract.tier]
    answers = _run_on(cluster.nodes, level)
    known, names = answers.values, cluster.node_names
    nodes = f"{len(known)} of {len(cluster.nodes)} nodes"
    measure.covered(f"dcgmi diag -r {level} was called on {nodes}")
    boards = {fact["node"]: len(fact["gpu_health"]["boards"]) for fact in cluster.facts}
    for id in (node["id"] for node in cluster.nodes):
        why, gpus = answers.errors.get(id, ""), boards.get(id, 0)
        judge_node(names[id], known.get(id), why, measure, level, gpus)
    victim = cluster.nodes[-1]
    name = names[victim["id"]]
    planted = _run_on([victim], level=1, gpus=NO_GPU).values.get(victim["id"])
    fault = f"dcgmi on {name} is given GPU {NO_GPU}, which is not there"
    unable = f"{name} does not answer" if planted is None else ""
    plant(measure, check.MISSING_GPU, fault, partial(judge_node, name, planted, ""), unable=unable)


def judge_node(
    name: str,
    answer: Mapping[str, Any] | None,
    silent: str,
    measure: Recorder,
    level: int = 1,
    gpus: int = 0,
) -> None:
    """Judge one node's answer; a diagnostic that did not run to its end counts as failed.

    A test of the level that did not pass on each of the node's GPUs proves nothing.  A warning
    counts as half a failure, which is MARGINAL.
    """
    if answer is None:
        measure(check.DIAG_FAILURES, None, on=name, note=f"the node does not answer: {silent}")
        return
    failed = list(answer["failed"])
    if answer["error"]:
        failed.append({"test": "diagnostic", "where": "", "text": answer["error"]})
    results = answer.get("results", [])
    unproven = [] if failed else find_unproven(results, level, gpus)
    warned = any(one["status"].lower().startswith(WARNED) for one in results)
    value = len(failed) or (WARNING if warned else 0)
    measure(check.DIAG_FAILURES, None if unproven else value, on=name, note="; ".join(unproven))
    if failed:
        texts = [_describe(one) for one in failed]
        statement = f"{name}: {join_names(texts, SHOWN_TESTS)}. Expected: no failed test"
        measure.explain(finding("HOST-DCGM", statement, [name]))


def _describe(one: Mapping[str, str]) -> str:
    where = f" of GPU {one['where']}" if one["where"] else ""
    return f"{one['test']}{where} failed" + (f" ({one['text']})" if one["text"] else "")


def _run_on(nodes: Sequence[Mapping[str, Any]], level: int, gpus: str = "") -> Answers:
    each = {node["id"]: (level, gpus) for node in nodes}
    return ask_nodes(run_diagnostics, each, LEVEL_SECONDS[level] + START_SECONDS)
