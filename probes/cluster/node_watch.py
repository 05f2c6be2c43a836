"""Watches the nodes of a run: one that is lost, is drained or comes back as another one ends it.

What follows from a lost node says nothing of the cluster's other parts.  So before a bad result is
recorded, `settle` asks whether a node was lost, and waits where Ray has not decided that yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from probes.cluster.endpoints import HTTP2_PREFACE, MAX_PARALLEL, query_port
from probes.findings import finding, join_names
from reports.record import Finding
from reports.sanitize import one_line

POLL_S = 3.0  # dates a loss to 3 s, and is no load for the head: one list of nodes
LOOK_S = 10.0  # for an answer that `settle` waits for; a later one counts as none
PAUSE_S = 1.0  # between two looks of `settle`
PORT_S = 3.0  # for a raylet to answer its port
# Ray counts a silent raylet as dead after 5 checks of 10 s, 3 s apart.
SETTLE_S = 75.0
ABSENT_POLLS = 3  # so many lists without a node: one that Ray lists no more, and no torn answer
# Of Ray's NodeDeathInfo (src/ray/protobuf/common.proto).
REASONS = {
    1: "expected termination",
    2: "unexpected termination",
    3: "drained because its machine is preempted",
    4: "the autoscaler ended it because it was idle",
}
UNEXPECTED = 2  # no drain and no `ray stop`
IDLE = 4  # a choice of the autoscaler, which takes nothing from anybody: no loss


@dataclass(frozen=True)
class NodeState:
    """A node as Ray lists it; `reason` is that of its death, a key of REASONS.

    `drained_by` is the time at which a drain ends it (s, Unix); None without such a time, as when
    the autoscaler drains an idle node.
    """

    id: str
    name: str
    address: str = ""
    port: int = 0  # of the raylet
    alive: bool = True
    head: bool = False
    reason: int = 0
    message: str = ""
    drained_by: float | None = None

    @property
    def cause(self) -> str:
        """Why it is dead, in Ray's words; "" if Ray does not say."""
        return ": ".join(filter(None, (REASONS.get(self.reason, ""), one_line(self.message))))


class NodeWatch:
    """Thread that reads the list of nodes each 3 s; `on_lost` gets one finding, once.

    Its members are those of `names` (node id -> name), and the head's node, that are alive at the
    first answer.  The loss of a node whose id is in `expected` is none.  An answer that fails or is
    late says nothing.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[NodeState]],
        names: Mapping[str, str],
        on_lost: Callable[[Finding], None],
        expected: Collection[str] = (),
    ) -> None:
        self._read, self._names, self._on_lost = read, dict(names), on_lost
        self._expected = expected
        self._begun, self._settled = time.monotonic(), 0.0
        self._members: dict[str, NodeState] | None = None  # as they were first
        self._now: dict[str, NodeState] = {}  # as they were listed last
        self._answering: set[str] = set()  # members whose raylets this process reaches
        self._absent: dict[str, int] = {}
        self._is_over = False
        self._looks = 0
        self._asked, self._looked = threading.Event(), threading.Condition()
        self._thread = threading.Thread(target=self._watch, name="node watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; return when its last look is over."""
        self._is_over = True
        self._asked.set()
        self._thread.join(timeout=LOOK_S)

    def settle(self) -> None:
        """Look now; wait while a member's raylet is silent that Ray counts as alive.

        Returns at most SETTLE_S later.  A loss is reported meanwhile.  One that Ray still counts as
        alive then is not waited for again.
        """
        is_own = threading.current_thread() is self._thread
        if self._is_over or is_own or time.monotonic() < self._settled + PAUSE_S:
            return
        deadline = time.monotonic() + SETTLE_S
        while self._look_now() and (silent := self._find_silent()):
            if time.monotonic() > deadline:
                self._answering -= {*silent}
                break
            time.sleep(PAUSE_S)  # between two looks
        self._settled = time.monotonic()

    def _look_now(self) -> bool:
        """Wait for a new look; return whether the watch goes on."""
        with self._looked:
            count = self._looks
            self._asked.set()
            self._looked.wait_for(lambda: self._looks > count or self._is_over, timeout=LOOK_S)
        return not self._is_over

    def _watch(self) -> None:
        while not self._is_over:
            self._asked.clear()
            try:
                states = self._read()
            except Exception:  # noqa: BLE001 - whatever Ray raises: no answer is no loss
                states = []
            if states and not self._is_over:
                self._compare(states)
            with self._looked:
                self._looks += 1
                self._looked.notify_all()
            self._asked.wait(POLL_S)

    def _compare(self, states: Sequence[NodeState]) -> None:
        """Compare a list of nodes with the members; report those that are lost."""
        self._now = {state.id: state for state in states}
        if self._members is None:
            watched = [one for one in states if one.alive and (one.id in self._names or one.head)]
            self._members = {one.id: one for one in watched}
            self._answering = {one.id for one in watched} - set(self._find_deaf(watched))
        lost = {id: text for id in self._members if (text := self._describe_loss(id))}
        if not lost:
            return
        after = f"{time.monotonic() - self._begun:.0f} s after the run began"
        names = [self._names.get(id, self._members[id].name) for id in lost]
        texts = [f"{name}: {text}" for name, text in zip(names, lost.values(), strict=True)]
        statement = f"{join_names(texts)}. Seen {after}. Expected: alive until the run ends"
        address = self._members[next(iter(lost))].address
        self._on_lost(finding("HOST-NODE-LOST", statement, names, names={"ray_address": address}))
        self._is_over = True  # last: `settle` returns then

    def _describe_loss(self, id: str) -> str:
        """Say how a member is lost; "" if it is not."""
        state = self._now.get(id)
        self._absent[id] = 0 if state else self._absent.get(id, 0) + 1
        if id in self._expected:
            return ""
        if state is None:
            return "lost, Ray no longer lists it" * (self._absent[id] >= ABSENT_POLLS)
        if state.alive and state.drained_by is not None:
            return f"being drained, it ends in {max(0, state.drained_by - time.time()):.0f} s"
        if state.alive or state.reason == IDLE:
            return ""
        how = "lost and back with a different node id" if self._is_back(state) else "lost"
        return f"{how} (Ray's reason: {state.cause or 'none'})"

    def _is_back(self, lost: NodeState) -> bool:
        assert self._members is not None
        place = lost.name, lost.address
        come = [one for id, one in self._now.items() if one.alive and id not in self._members]
        return any((one.name, one.address) == place for one in come)

    def _find_silent(self) -> list[str]:
        """List the members that Ray counts as alive and whose raylets answer no more."""
        alive = [one for id, one in self._now.items() if one.alive and id in self._answering]
        return self._find_deaf([one for one in alive if one.id not in self._expected])

    def _find_deaf(self, states: Sequence[NodeState]) -> list[str]:
        """List the nodes whose raylets do not answer their ports, as one that is frozen."""
        with ThreadPoolExecutor(MAX_PARALLEL) as pool:
            ports = [(one.address, one.port) for one in states]
            problems = pool.map(lambda port: query_port(port, HTTP2_PREFACE, PORT_S), ports)
            return [one.id for one, problem in zip(states, problems, strict=True) if problem]
