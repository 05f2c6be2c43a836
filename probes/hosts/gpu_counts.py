"""Counts each node's GPUs by Ray, NVML, torch and the order, which must agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

VERBS = {"Ray": "Ray counts", "NVML": "NVML shows", "torch": "torch sees"}
NOT_COMPARED = {"NVML": "NVML is not compared", "torch": "torch is not compared"}


@dataclass(frozen=True)
class NodeGpus:
    """GPU counts of one node, by source.

    `counts` holds Ray's number and that of each source that is compared with it.  A count is None
    if it is not known, for the reason in `unknown`.  `assigned` is the number of GPUs that torch
    sees in a worker that owns one.  `member` is False for a node where Ray counts no GPU.
    """

    name: str
    ordered: int | None
    counts: dict[str, int | None]
    assigned: int | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    member: bool = True

    @property
    def known(self) -> list[int]:
        """Counts that are known."""
        return [count for count in self.counts.values() if count is not None]

    @property
    def why_unknown(self) -> str:
        """Reasons why counts are not known."""
        return "; ".join(f"{source}: {reason}" for source, reason in self.unknown.items())

    @property
    def mismatches(self) -> int | None:
        """Number of counts that contradict Ray's; None if none does and one is not known."""
        wrong = sum(count != self.counts["Ray"] for count in self.known)
        wrong += self.assigned not in (None, 1)
        return None if self.unknown and not wrong else wrong

    @property
    def value(self) -> int | None:
        """Judged count: the smallest that differs from the order, else the common one (or None)."""
        if self.ordered is not None and (wrong := [n for n in self.known if n != self.ordered]):
            return min(wrong)
        return None if self.unknown else min(self.known)

    @property
    def sentence(self) -> str:
        """Sentence: `node3: 8 GPUs were ordered, Ray counts 8, NVML shows 7, torch sees 7`."""
        parts = ["no number was ordered"]
        if self.ordered is not None:
            parts = [f"{self.ordered} GPU{'s were' if self.ordered != 1 else ' was'} ordered"]
        for source, verb in VERBS.items():
            count = self.counts.get(source)
            if count is not None:
                parts.append(f"{verb} {count}")
            else:
                reason = self.unknown.get(source)
                parts.append(
                    f"{source} gives no number ({reason})" if reason else NOT_COMPARED[source]
                )
        if self.assigned not in (None, 1):
            parts.append(f"a worker that owns 1 GPU sees {self.assigned}")
        return f"{self.name}: {', '.join(parts)}"


def compared_sources(kind: str, emulated: bool, facts: Iterable[Mapping[str, Any]]) -> list[str]:
    """List the sources that must agree with Ray.

    torch does not see emulated accelerators, and NVML is on all of those nodes or on none.  Raylets
    of one host (kind `local`) all see that host's GPUs, so nothing is compared there.
    """
    if kind == "local":
        return []
    if emulated:
        return ["NVML"] if any(fact["nvml"]["library"] for fact in facts) else []
    return ["NVML", "torch"]


def count_gpus(
    fact: Mapping[str, Any],
    ray_count: int,
    ordered: int | None,
    sources: Iterable[str],
    member: bool = True,
) -> NodeGpus:
    """Count the GPUs of one node by each source.  `fact["torch"]` is from `count_torch_devices`."""
    counts: dict[str, int | None] = {"Ray": ray_count}
    unknown: dict[str, str] = {}
    expected, assigned = bool(ray_count or ordered), None
    if "NVML" in sources:
        counts["NVML"], reason = nvml_count(fact, expected)
        if reason:
            unknown["NVML"] = reason
    if "torch" in sources and ray_count:
        seen = fact.get("torch") or {"error": "it was not asked"}
        assigned = seen.get("assigned")
        if not any("mig" in gpu for gpu in fact["gpus"]):  # torch sees at most one MIG instance
            counts["torch"] = seen.get("all")
        if assigned is None or counts.get("torch", 0) is None:
            unknown["torch"] = str(seen.get("error") or "it was not asked")
    return NodeGpus(fact["name"], ordered, counts, assigned, unknown, member)


def nvml_count(fact: Mapping[str, Any], expected: bool) -> tuple[int | None, str]:
    """Return (number of GPUs that NVML can query, ""), or (None, reason).

    If NVML is missing or fails, the number is 0 where no GPU is `expected`.
    """
    nvml = fact["nvml"]
    if not nvml["library"]:
        if not expected:
            return 0, ""
        amd = "the node has AMD's driver" if fact["amd_driver"] else ""
        return None, amd or "libnvidia-ml.so.1 was not found"
    if nvml["error"]:
        return (None, nvml["error"]["text"]) if expected else (0, "")
    return sum("error" not in gpu for gpu in fact["gpus"]), ""


def find_wrong_counts(nodes: Iterable[NodeGpus]) -> dict[str, str]:
    """Find the nodes whose counts differ from the order or each other: name -> sentence."""
    return {
        node.name: node.sentence
        for node in nodes
        if node.mismatches or (node.ordered is not None and node.value not in (None, node.ordered))
    }


def nodes_with_fewer_gpus(nodes: Iterable[NodeGpus]) -> list[str]:
    """List the names of the members with fewer GPUs than most.

    If two counts are equally common, the larger one is taken as right.
    """
    fewest = {node.name: min(node.known) for node in nodes if node.member}
    sizes = Counter(fewest.values())
    most = max(sizes, key=lambda size: (sizes[size], size), default=0)
    return [name for name, count in fewest.items() if count < most]
