"""Listens for Xids on all nodes, from its start to the end of the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from probes.cluster.facts.xid_events import XidListener
from probes.cluster.node_affinity import collect_answers, on_node

START_SECONDS = 90.0  # for an actor on each node, and for NVML without persistence mode
READ_SECONDS = 30.0  # for a call to reach a busy node


@dataclass
class XidWatch:
    """One listener on each node.  `errors` holds why a node does not answer, by its id."""

    actors: dict[str, Any]
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(cls, ids: Iterable[str]) -> XidWatch:
        """Start a listener on each of these nodes."""
        watch = cls({id: on_node(XidListener, id).remote() for id in ids})
        watch._call("start", START_SECONDS)
        return watch

    def read(self) -> dict[str, dict[str, Any]]:
        """Return what each node's listener has heard, as `XidListener.read`."""
        return self._call("read", READ_SECONDS)

    def _call(self, method: str, seconds: float) -> dict[str, dict[str, Any]]:
        calls = {getattr(actor, method).remote(): id for id, actor in self.actors.items()}
        answers, errors = collect_answers(calls, seconds)
        self.errors |= errors
        return answers
