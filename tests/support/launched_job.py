"""What a sound job that a user launched says, and the cluster that it ran on: stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from probes.contract.terms import ClusterTerms
from probes.launch.controls import LaunchedJobs
from probes.launch.guide import OWN_VARIABLES, GuidedCluster, own_guide
from probes.launch.shell import Transcript
from probes.launch.training import JobBytes

STEPS, BATCH, PARAMETERS = 20, 4, 133440
LOSSES = [5.6 - 0.1 * step for step in range(STEPS)]
SENT = 40_000_000  # bytes by each node: more than all that FSDP needs


def cluster_of(nodes: int = 2, on_gpu: bool = True, gpus: int = 1) -> Any:
    """A cluster of nodes with one GPU each, or with `gpus`."""
    known = [
        {"id": f"id{i}", "name": f"n{i}", "host": f"n{i}", "address": f"10.0.0.{i + 1}"}
        for i in range(nodes)
    ]
    return SimpleNamespace(
        size=nodes * gpus, resource="GPU", gpus_by_node={f"n{i}": gpus for i in range(nodes)},
        nodes=known, known_nodes=lambda: known, facts=[], on_gpu=on_gpu, kind="ray",
        node_names={node["id"]: node["name"] for node in known},
    )  # fmt: skip


def guided(cluster: Any, **terms: Any) -> GuidedCluster:
    """Our own guide, for that cluster."""
    return GuidedCluster(cluster, ClusterTerms(**terms), own_guide())


def rank_words(rank: int, ranks: int, **change: Any) -> dict[str, Any]:
    """What a rank announces of its rendezvous; `change` replaces words, None removes one."""
    words = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
             "NODE_RANK": rank, "GROUP_RANK": rank, "MASTER_ADDR": "10.0.0.1",
             "MASTER_PORT": 29500, **OWN_VARIABLES, **change}  # fmt: skip
    return {name: value for name, value in words.items() if value is not None}


def trained_words(rank: int, ranks: int, **change: Any) -> dict[str, Any]:
    """What a rank says of its training: each has samples of its own, and a loss near the mean."""
    step_samples = [step * ranks * BATCH + rank * BATCH for step in range(STEPS)]
    spans = ",".join(f"{first}-{first + BATCH - 1}" for first in step_samples)
    last = rank == ranks - 1
    aside = 0.01 * (rank - (ranks - 1) / 2)  # from the mean of the ranks
    words = {"device": "cuda:0", "gpu": f"uuid-{rank}", "master": "10.0.0.1", "start": "aa",
             "end": "bb", "losses": ",".join(f"{loss + aside:.6g}" for loss in LOSSES),
             "samples": spans, "seen": STEPS * BATCH, "validation": "cc", "validation_loss": "3.4",
             "exported": None if rank else "dd", "loaded": "dd" if last else None,
             "loaded_loss": "3.4" if last else None, **change}  # fmt: skip
    return {name: value for name, value in words.items() if value is not None}


def job_lines(ranks: int = 2, **change: Any) -> list[str]:
    """Lines of a job that came to its end; `change` is the last rank's."""
    lines, trained = [], []
    for rank in range(ranks):
        own = change if rank == ranks - 1 else {}
        told = {key: own[key] for key in own if key in trained_words(0, 1) or key == "gpu"}
        place = {key: own[key] for key in own if key not in told}
        where = {"node": f"id{rank}", "host": f"n{rank}", "pid": 100 + rank}
        where |= {key: place.pop(key) for key in ("node", "host") if key in place}
        words = rank_words(rank, ranks, **place)
        lines.append("attempt=1 " + join({**where, **words}))
        trained.append("trained " + join({**words, **trained_words(rank, ranks, **told)}))
    lines.append(f"{ranks} ranks on cpu, {PARAMETERS} parameters")
    lines += [f"step {step}/{STEPS}  loss {loss:.4f}" for step, loss in enumerate(LOSSES, 1)]
    return [*lines, *trained, "done"]


def join(words: dict[str, Any]) -> str:
    """Write words as the trainer does."""
    return " ".join(f"{name}={value}" for name, value in words.items())


def transcript(exit_code: int = 0, ranks: int = 2, **change: Any) -> Transcript:
    """Make the transcript of a sound job; `change` is the last rank's."""
    failed = "ray job submit" if exit_code else ""
    return Transcript(job_lines(ranks, **change), exit_code, failed, first_step=9.0)


def identity(uid: int = 60706, *groups: int) -> Transcript:
    """What `id` says of a user."""
    lines = [str(uid), str(uid), " ".join(map(str, (uid, *groups)))]
    return Transcript(["id -u", *lines], 0)


def bytes_of(nodes: int = 2, **sent: int | None) -> JobBytes:
    """Make the bytes of each node by device; without any, the fabric carried all."""
    by_device = sent or {"fab0": SENT, "eth0": 1000}
    return JobBytes({f"n{index}": dict(by_device) for index in range(nodes)})


def launched(**change: Any) -> LaunchedJobs:
    """Make what came of a guide on a sound cluster of two nodes, with its controls."""
    doctored = Transcript(
        ["attempt=1 " + join({"node": "id0", "host": "n0", **rank_words(0, 1, MASTER_PORT=None)})],
        1,
        "ray job submit",
    )
    wrong = {"start": "zz", "validation": "zz", "samples": trained_words(0, 2)["samples"],
             "exported": "ee", "loaded_loss": "9"}  # fmt: skip
    planted = transcript(**wrong)
    planted.lines = [
        f"{line.partition(' loss')[0]} loss 7.0" if line.startswith("step ") else line
        for line in planted.lines
    ]
    jobs = {
        "guide": own_guide(), "uid": 60706, "why_same": "", "identity": identity(),
        "us": identity(0), "said": transcript(), "sent": bytes_of(), "doctored": doctored,
        "planted": planted, "astray": bytes_of(fab0=1000, eth0=SENT),
    }  # fmt: skip
    return LaunchedJobs(**{**jobs, **change})
