"""Stands in for NVIDIA's driver on some nodes: what it reports is heard by seatrial's listeners."""

from __future__ import annotations

import ctypes
import queue
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster import ask
from probes.cluster.ask import Answers
from probes.cluster.cluster import Cluster
from probes.cluster.gpus import XidListener, XidWatch

MOST_S = 20.0  # for a thread to hear an event on a busy machine


class QueuedNvml:
    """NVML with one GPU, whose events a test puts into a queue."""

    nvmlEventTypeXidCriticalError = 8

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    def __init__(self) -> None:
        self.events: queue.Queue[int] = queue.Queue()
        self.waited: list[int] = []
        self.gpu = ctypes.pointer(ctypes.c_int(7))

    def nvmlInit(self) -> None:
        """Start at once."""

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, _: int) -> Any:
        return self.gpu

    def nvmlDeviceGetUUID(self, _: Any) -> str:
        return "GPU-7"

    def nvmlDeviceGetPciInfo(self, _: Any) -> SimpleNamespace:
        return SimpleNamespace(busId=b"00000000:07:00.0")

    def nvmlDeviceRegisterEvents(self, gpu: Any, types: int, events: str) -> None:
        assert (gpu, types, events) == (self.gpu, 8, "events")

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> SimpleNamespace:
        self.waited.append(milliseconds)
        try:
            xid = self.events.get(timeout=0.01)
        except queue.Empty:
            raise self.NVMLError(10) from None
        if xid < 0:
            raise self.NVMLError(-xid)
        return SimpleNamespace(device=self.gpu, eventData=xid)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a thread of this process."""
    deadline = time.monotonic() + MOST_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class LocalActor:
    """A listener in this process, called as an actor of Ray."""

    def __init__(self, listener: XidListener) -> None:
        self._listener = listener

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._listener, method)
        return SimpleNamespace(remote=lambda *values: LocalCall(call(*values)))


class LocalCall:
    """Reference of a call that has ended with this answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


class SimulatedDriver:
    """The drivers of some nodes, and the cluster whose listeners hear them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *nodes: str) -> None:
        self._nvml = {id: QueuedNvml() for id in nodes}
        self._count = dict.fromkeys(nodes, 0)
        self.listeners = {id: XidListener() for id in nodes}
        for id, listener in self.listeners.items():
            listener.start(self._nvml[id])
        monkeypatch.setattr(ask, "collect_answers", self._collect)
        self.cluster = object.__new__(Cluster)
        self.cluster._xids = XidWatch({id: LocalActor(one) for id, one in self.listeners.items()})

    def _collect(self, calls: Mapping[LocalCall, str], seconds: float) -> Answers:
        return Answers({name: call.answer for call, name in calls.items()})

    def report(self, node: str, *xids: int) -> None:
        """Report these Xids now, and wait until they are heard."""
        for xid in xids:
            self._nvml[node].events.put(xid)
        self._count[node] += len(xids)
        wait_until(lambda: len(self.listeners[node].read()["events"]) == self._count[node])

    def heard(self) -> dict[str, list[tuple[int, bool]]]:
        """Return the Xids of each node that has any, and whether each came after a kill there."""
        answers, _ = self.cluster.hear_xids()
        events = {id: answer["events"] for id, answer in answers.items() if answer["events"]}
        return {
            id: [(one["xid"], one["after_kill"] is not None) for one in each]
            for id, each in events.items()
        }

    def close(self) -> None:
        """End the listeners."""
        for listener in self.listeners.values():
            listener.end()
