"""Runs the same work on all GPUs at once, and gathers its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from probes.check.recorder import Recorder
from probes.cluster.ask import ActorSet, on_node
from probes.cluster.cluster import Cluster
from probes.findings import MAX_NAMES, finding, join_names, name_gpu
from probes.hosts.compute_worker import AcceleratorWorker
from reports.groups import group_pairs

# For a worker on each accelerator to start and to import torch from a cold network file system.
START_SECONDS = 120.0
# For the sums of one device, or for a call to reach a busy node, in addition to what it times.
CALL_SECONDS = 60.0
LOAD_SECONDS = 0.5  # a PCIe link leaves its idle speed within milliseconds
MOST_EXTRA = 10  # how much longer a slow device takes than it should, at worst, for one call


@dataclass(frozen=True)
class Accelerator:
    """One accelerator: its node, Ray's number of it, and what it is.

    `slot` counts those of its node.  `build` decides which accelerators give the same sums.
    """

    key: str
    node: str  # name
    slot: int
    number: str = ""
    model: str = ""
    uuid: str = ""
    build: tuple[str, ...] = ()
    error: str = ""  # of its first use
    shared_with: str = ""  # Ray's number of another worker's GPU, which is the same board

    @property
    def label(self) -> str:
        """Name in messages, as `GPU 3 (GPU-1b..) on node1`."""
        uuid = f" ({self.uuid})" if self.uuid else ""
        return f"GPU {self.number or '?'}{uuid} on {self.node}"

    @property
    def names(self) -> dict[str, object]:
        """Names of the placeholders of a finding."""
        return name_gpu(self.uuid, self.number)


@dataclass(frozen=True)
class RunLength:
    """How long timed work takes: rounds over the operations, and seconds for each in a round.

    `only` are the operations that are timed; () is all of them.
    """

    rounds: int
    seconds: float
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Speed:
    """What one accelerator did in some seconds; `error` is why it did nothing."""

    rates: dict[str, list[float]]
    launch_us: float | None = None
    celsius: float | None = None
    error: str = ""

    @property
    def typical(self) -> dict[str, float]:
        """Median rate of each operation; what is no positive number was not measured."""
        return {
            name: rate
            for name, values in self.rates.items()
            if values and math.isfinite(rate := median(values)) and rate > 0
        }


# By key of the accelerator.
Speeds = Mapping[str, Speed]
Texts = Mapping[str, str]


@dataclass
class WorkFleet(ActorSet):
    """The accelerators of all nodes, and the actor on each.

    `accelerators` has one for each that Ray counts.  `errors` holds why a worker did not answer.
    `note_kill` is called with the ids of the nodes on which the actors are about to be ended.
    `read_alive` reads the ids of the nodes that are there.
    """

    accelerators: dict[str, Accelerator]
    on_gpu: bool
    actors: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    note_kill: Callable[[set[str]], None] = lambda nodes: None
    read_alive: Callable[[], Container[str]] = frozenset

    @classmethod
    def start(cls, cluster: Cluster) -> WorkFleet:
        """Start a worker on each accelerator, and let it use its device once."""
        fleet = cls({}, cluster.on_gpu, note_kill=cluster.note_kill)
        fleet.read_alive = lambda: {node["id"] for node in cluster.nodes}
        try:
            fleet._start_workers(cluster)
            fleet._prepare()
        except BaseException:
            fleet.close()
            raise
        return fleet

    def _start_workers(self, cluster: Cluster) -> None:
        owned = int(cluster.resource == "GPU")
        for node in sorted(cluster.nodes, key=lambda node: (node["address"], node["id"])):
            for slot in range(int(node["resources"].get("GPU", 0)) if owned else 1):
                key = f"{node['id']}:{slot}"
                self.accelerators[key] = Accelerator(key, node["name"], slot)
                self.actors[key] = on_node(AcceleratorWorker, node["id"], num_gpus=owned).remote()

    def close(self) -> None:
        """End the actors, with all that they hold."""
        self.note_kill({key.rpartition(":")[0] for key in self.actors})
        super().close()

    def _prepare(self) -> None:
        each = dict.fromkeys(self.actors, (self.on_gpu,))
        for key, about in self.call_each("prepare", each, START_SECONDS).items():
            known = self.accelerators[key]
            about = {**about, "build": tuple(about.get("build", ()))}
            if not self.on_gpu:  # Ray numbers emulated ones by ids that hide GPUs, as -1
                about["number"] = str(known.slot)
            self.accelerators[key] = Accelerator(key, known.node, known.slot, **about)
        self._find_shared()

    def _find_shared(self) -> None:
        """Note where two workers of a node got the same GPU: another one was never used."""
        owners: dict[tuple[str, str], Accelerator] = {}
        for key, one in self.accelerators.items():
            first = owners.setdefault((one.node, one.uuid), one)
            if one.uuid and first is not one:
                self.accelerators[key] = replace(one, shared_with=first.number)

    @property
    def working(self) -> dict[str, Accelerator]:
        """Accelerators whose worker is there, and whose first use did not fail."""
        return {
            key: one
            for key, one in self.accelerators.items()
            if one.number and not one.error and key not in self.errors
        }

    def check_sums(self, keys: Collection[str], plant: str = "") -> dict[str, dict[str, Any]]:
        """Let these workers compute sums, as in `AcceleratorWorker.check_sums`."""
        return self.call_each("check_sums", dict.fromkeys(keys, (plant,)), CALL_SECONDS)

    def measure_speed(
        self, keys: Collection[str], length: RunLength, extra: int = 1
    ) -> dict[str, Speed]:
        """Measure the rates of these accelerators at the same time.

        `extra` is for a control: each call is made so often, and counts once.
        """
        rounds, seconds = length.rounds, length.seconds
        each = dict.fromkeys(keys, (rounds, seconds, extra, length.only))
        limit = CALL_SECONDS + MOST_EXTRA * rounds * seconds
        answers = self.call_each("measure_speed", each, limit)
        return {key: Speed(**answer) for key, answer in answers.items()}

    def read_links(
        self, keys: Collection[str], plant: Mapping[str, int] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Read PCIe links and clocks under load, as `AcceleratorWorker.read_link`."""
        each = dict.fromkeys(keys, (LOAD_SECONDS, plant or {}))
        return self.call_each("read_link", each, CALL_SECONDS)

    def why_unknown(self, key: str) -> str:
        """Describe why nothing is known of an accelerator: an error, or no answer."""
        one = self.accelerators[key]
        if one.error:
            return f"{one.label}: {one.error}"
        name = one.label if one.number else f"an accelerator of {one.node}"
        return f"{name} does not answer: {self.errors.get(key, 'no reason is known')}"

    def coverage(self) -> str:
        """Describe how many accelerators computed."""
        kind = "GPUs" if self.on_gpu else "emulated accelerators, each on one thread of a CPU,"
        return f"{len(self.working)} of {len(self.accelerators)} {kind} computed at the same time"

    def group(
        self, what: Literal["node", "model", "number", "build"], keys: Iterable[str] | None = None
    ) -> dict[str, list[str]]:
        """Group these accelerators, or all, by their node, model, number or build."""
        chosen = self.accelerators if keys is None else keys
        return group_pairs((getattr(self.accelerators[key], what), key) for key in chosen)

    def judge(self, measure: Recorder, name: str, code: str, texts: Texts, unknown: Texts) -> None:
        """Judge how many accelerators of each node are at fault, and explain each by its text."""
        self.count_accused(measure, name, texts, unknown)
        self.explain(measure, code, texts)

    def count_accused(
        self, measure: Recorder, name: str, accused: Container[str], unknown: Texts
    ) -> None:
        """Record how many accelerators of each node are accused.

        `unknown` maps accelerators that prove nothing to the reason.  A node with one of them
        proves nothing, unless another is accused.
        """
        for node, own in self.group("node").items():
            count = sum(key in accused for key in own)
            reasons = list(dict.fromkeys(unknown[key] for key in own if key in unknown))
            value = count if count or not reasons else None
            measure(name, value, on=node, note="" if count else join_names(reasons, 2))

    def explain(self, measure: Recorder, code: str, texts: Texts) -> None:
        """Explain what is wrong with accelerators, in one finding for each node."""
        for node, keys in self.group("node", texts).items():
            lines = [f"{self.accelerators[key].label}: {texts[key]}" for key in keys[:MAX_NAMES]]
            more = f", and {len(keys) - MAX_NAMES} more" if len(keys) > MAX_NAMES else ""
            names = self.accelerators[keys[0]].names
            measure.explain(finding(code, "; ".join(lines) + more, [node], names=names))

    def same_slot(self, accused: Collection[str]) -> dict[str, list[str]]:
        """Find the numbers whose accelerator is accused on every node that has it, with its keys.

        There are at least two such nodes.
        """
        return {
            number: keys
            for number, keys in self.group("number").items()
            if len({self.accelerators[key].node for key in keys}) > 1 and {*keys} <= {*accused}
        }
