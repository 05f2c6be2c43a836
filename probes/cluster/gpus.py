"""Asks GPUs of a node for their Xid events, and for their PCIe links under load."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from probes.cluster.ask import ActorSet, ask_actors, on_node
from probes.cluster.nvml import TIMEOUT, UNKNOWN, UNKNOWN_CALL, describe_error, import_nvml, to_text

# NVML's maximum is what both the GPU and its slot can do; `board_generation` is the GPU's own.
QUESTIONS: dict[str, Callable[[Any, Any], int]] = {
    "generation": lambda nvml, gpu: int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
    "most_generation": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
    "board_generation": lambda nvml, gpu: int(nvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu)),
    "width": lambda nvml, gpu: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
    "most_width": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
    "sm_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
    "most_sm_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)),
}


def watch_link(
    nvml: Any, gpu: Any, work: Callable[[], None], wait: Callable[[], None], seconds: float
) -> dict[str, int]:
    """Ask NVML about the GPU while it works: the best link, and the median clock, in MHz.

    `work` gives the GPU some milliseconds of work and returns at once; `wait` waits for its end.
    What the GPU or its driver does not support is left out.  Raises NVMLError for other errors.
    """
    answers = defaultdict[str, list[int]](list)
    began = time.perf_counter()
    while not answers or time.perf_counter() - began < seconds:
        work()
        for name, question in QUESTIONS.items():
            try:
                answers[name].append(question(nvml, gpu))
            except nvml.NVMLError as error:
                if error.value not in UNKNOWN_CALL:
                    raise
        wait()
    return {
        name: int(median(values)) if name == "sm_mhz" else max(values)
        for name, values in answers.items()
        if values
    }


START_SECONDS = 90.0  # for an actor on each node, and for NVML without persistence mode
NOTE_SECONDS = 2.0  # for a call before a kill, which must not wait for a node that is gone
# A launcher kills its ranks up to so long before its command has ended: it then removes their
# placement group and ends, and `ray job submit` asks once a second whether it has.
COMMAND_END_SECONDS = 10.0
WAIT_MS = 1000  # of one call to NVML, which cannot be interrupted
# Of a node: a GPU that fails may report the same Xid without end.  A hundred kills of ranks with
# seven peers over NVLink give some thousands.
MAX_EVENTS = 10_000
Identity = dict[str, Any]


class XidListener:
    """Listens from `start` until its process ends."""

    def __init__(self) -> None:
        self._events: list[tuple[float, dict[str, Any]]] = []  # and when each was heard
        self._kills: list[float] = []  # when seatrial ended processes here, by the same clock
        self._error: dict[str, Any] | None = None
        self._begun = 0.0
        self._ends = threading.Event()

    def start(self, nvml: Any = None) -> dict[str, Any]:
        """Start to listen; return the same as `read`.  `nvml` replaces the module in a control."""
        nvml = nvml or import_nvml()
        self._begun = time.monotonic()
        try:
            nvml.nvmlInit()
            wait, identities = register(nvml)
        except nvml.NVMLError as error:
            self._error = describe_error(error)
        except (AttributeError, OSError) as error:  # an old copy of pynvml, or no library
            self._error = {"code": UNKNOWN, "text": str(error)}
        else:
            arguments = (nvml, wait, identities)
            threading.Thread(target=self._listen, args=arguments, daemon=True).start()
        return self.read()

    def _listen(self, nvml: Any, wait: Callable[[], Any], identities: dict[int, Identity]) -> None:
        while not self._ends.is_set():
            try:
                event = wait()
            except nvml.NVMLError as error:
                if error.value == TIMEOUT:
                    continue
                self._error = describe_error(error)
                return
            if len(self._events) >= MAX_EVENTS:  # what comes now is not known
                self._error = {"code": UNKNOWN, "text": f"there were more than {MAX_EVENTS:,}"}
                return
            of = identities.get(address_of(event.device), {"index": None, "uuid": ""})
            self._events.append((time.monotonic(), {**of, "xid": int(event.eventData)}))

    def note_kill(self, ago: float, at: float | None) -> None:
        """Note that seatrial ends processes of this node now, or did so `ago` seconds ago.

        `at` is when it did, as `time.time()` of this node.
        """
        self._kills.append(time.monotonic() - (ago if at is None else time.time() - at))

    def read(self) -> dict[str, Any]:
        """Return {"error", "seconds", "kills", "events": [{"xid", "ago", "after_kill", ...}]}.

        `error` is None, or {"code", "text"} if the node was not listened to all the time.
        `seconds` is how long it was, and `ago` how many seconds an event is old, as are `kills`.
        `after_kill` are the seconds since the last of these kills; None if there was none before.
        An event has the `index`, `uuid` and `slot` of its GPU, too.
        """
        now = time.monotonic()
        kills = [now - at for at in self._kills]
        events = [{**event, **self._times(at, now)} for at, event in self._events]
        about = {"error": self._error, "seconds": now - self._begun}
        return {**about, "kills": kills, "events": events}

    def _times(self, at: float, now: float) -> dict[str, float | None]:
        after_kill = min((at - kill for kill in self._kills if kill <= at), default=None)
        return {"ago": now - at, "after_kill": after_kill}

    def end(self) -> None:
        """Stop listening, for a control in a worker that Ray uses again."""
        self._ends.set()


def register(nvml: Any) -> tuple[Callable[[], Any], dict[int, Identity]]:
    """Register for the Xids of each GPU; return how to wait for one, and each GPU by its address.

    Raises NVMLError if a GPU cannot be listened to.  A GPU that is lost already does not count: its
    error is among the node's facts.
    """
    events, identities = nvml.nvmlEventSetCreate(), {}
    wait = nvml.nvmlEventSetWait_v2
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = to_text(nvml.nvmlDeviceGetUUID(gpu))
            slot = to_text(nvml.nvmlDeviceGetPciInfo(gpu).busId)
        except nvml.NVMLError:
            continue
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
        identities[address_of(gpu)] = {"index": index, "uuid": uuid, "slot": slot}
    return lambda: wait(events, WAIT_MS), identities


def address_of(gpu: Any) -> int:
    """Return the address that a handle of NVML holds."""
    return ctypes.cast(gpu, ctypes.c_void_p).value or 0


@dataclass
class XidWatch(ActorSet):
    """One listener on each node.  `errors` holds why a node does not answer, by its id."""

    actors: dict[str, Any]
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(cls, ids: Iterable[str]) -> XidWatch:
        """Start a listener on each of these nodes."""
        watch = cls({id: on_node(XidListener, id).remote() for id in ids})
        watch.call_each("start", dict.fromkeys(watch.actors, ()), START_SECONDS)
        return watch

    def read(self) -> dict[str, dict[str, Any]]:
        """Return what each node's listener has heard, as `XidListener.read`."""
        return self.call_each("read", dict.fromkeys(self.actors, ()))

    def note_kill(self, nodes: Iterable[str] | None, ago: float, at: float | None) -> None:
        """Let the listeners of these nodes (None: all) note a kill, each by its node's clock."""
        known = self.actors.keys() if nodes is None else self.actors.keys() & set(nodes)
        ask_actors(self.actors, "note_kill", dict.fromkeys(known, (ago, at)), NOTE_SECONDS)
