"""Judges the Xids of the run: errors that NVIDIA's driver reported of a GPU while probes ran."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.gpus.xid_events import XidListener
from probes.cluster.nvml import TIMEOUT, import_nvml
from probes.findings import finding, join_names, name_gpu
from probes.hosts.gpu_health import board_name
from reports.run_folder.event_log import FILE
from reports.run_folder.store import parse_time

# Xids of a program that computes wrongly or is ended, as NVIDIA's device plugin for Kubernetes
# lists them (k8s-device-plugin, internal/rm/health.go).
OF_PROGRAMS = (13, 31, 43, 45, 68, 109)
SHOWN = 4  # Xids of a node in a sentence
FALLEN = 79  # "GPU has fallen off the bus"
HEARD_SECONDS = 5.0  # for a planted event to be heard: NVML is not asked for it
Starts = Sequence[tuple[datetime, str]]


def judge_xids(
    answers: Mapping[str, Mapping[str, Any]],
    silent: Mapping[str, str],
    starts: Starts,
    measure: Recorder,
) -> None:
    """Judge what was heard on each node, by its name; `silent` are the others, with the reason.

    `starts` are the times at which probes began, in order.  Xids of programs only inform.
    """
    for node, answer in answers.items():
        events = [event for event in answer["events"] if event["xid"] not in OF_PROGRAMS]
        known = answer["error"] is None or events
        note = f"NVML ended listening: {answer['error']['text']}" if answer["error"] else ""
        measure("xids", len(events) if known else None, on=node, note=note)
        if of_programs := len(answer["events"]) - len(events):
            measure.note("Xids of programs", of_programs, "Xids", on=node)
        if events:
            texts = [describe_event(event, starts) for event in events]
            statement = f"{node}: {join_names(texts, SHOWN)}. Expected: no Xid"
            names = name_gpu(events[0].get("uuid"), events[0]["index"], events[0].get("slot"))
            measure.explain(finding("HOST-XID", statement, [node], names=names))
    for node, why in silent.items():
        measure("xids", None, on=node, note=f"nothing is known of its Xids: {why}")


def describe_event(event: Mapping[str, Any], starts: Starts) -> str:
    """Describe one Xid: its number, GPU and time, and the probe that ran then."""
    gpu = board_name({"slot": "", **event}) if event["index"] is not None else "an unknown GPU"
    at = datetime.now(timezone.utc) - timedelta(seconds=event["ago"])
    running = [probe for time, probe in starts if time <= at]
    probe = f" while {running[-1]} ran" if running else ""
    return f"Xid {event['xid']} of {gpu} at {at:%H:%M:%S} UTC{probe}"


def read_starts(measure: Recorder) -> Starts:
    """Read from the run's events when each probe began."""

    path = getattr(measure.store, "path", None)
    if path is None:
        return []
    events = (json.loads(line) for line in (path / FILE).read_text().splitlines())
    return [
        (parse_time(event["t"]), event["probe"].rpartition("::")[2])
        for event in events
        if event["event"] == "probe_started"
    ]


class FallenGpu:
    """NVML's module; it reports once that the GPU `index` has fallen off the bus."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self._index, self._reported = nvml, index, False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._nvml, name)
        return self._wait if name == "nvmlEventSetWait_v2" else call

    def _wait(self, *_: Any) -> Any:
        if self._reported:
            raise self._nvml.NVMLError(TIMEOUT)
        self._reported = True
        event = self._nvml.c_nvmlEventData_t()
        event.device = self._nvml.nvmlDeviceGetHandleByIndex(self._index)
        event.eventData = FALLEN
        return event


def read_planted_xid(index: int) -> dict[str, Any]:
    """Listen on this node while NVML reports that the GPU `index` has fallen off the bus."""
    listener = XidListener()
    heard = listener.start(FallenGpu(import_nvml(), index))
    deadline = time.monotonic() + HEARD_SECONDS
    while not heard["events"] and heard["error"] is None and time.monotonic() < deadline:
        time.sleep(0.05)
        heard = listener.read()
    listener.end()
    return heard
