"""What saving costs: the largest rung once more, with saves, and one that is slow on purpose."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.findings import finding
from probes.scaling.plan import said
from probes.scaling.replay import mend
from probes.scaling.run_ladder import hangs
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.model.flops import parameter_count
from scaling.ladder.checkpoint_stall import Save, awaited, saves_of, slowest, typical
from scaling.ladder.ladder import WARM_UP, Rung, climb

SAVES, BETWEEN = 3, 4  # saves that are judged, and steps from one to the next
COPIES, BYTES = 3, 12  # that lie there at once, and bytes of a parameter: itself, AdamW's moments
LEAST_DELAY = 0.5  # seconds: of a save that is made slow, on storage that is fast
PATIENCE = 900  # seconds: for so many saves, on storage that is slow


@dataclass(frozen=True)
class Saving:
    """How the largest rung saves: where (None: nowhere), the load of its steps, and what was agreed
    of training's saves (`save_minutes`, `save_gb`)."""

    folder: Path | None
    config: TrainConfig
    terms: ClusterTerms


def saving(cluster: Cluster, gang: Gang, count: int, how: Saving, measure: Ledger) -> None:
    """The share of the time that training stands still for saves, and who is slow at them."""
    on = said(count)
    if why := without(cluster, gang, count, how):
        measure("saving", None, on=on, note=why)
        return
    measure.progress(f"scaling: saves of {on}")
    try:
        rung = climb(gang, cluster.names, count, timed(how), timeout=PATIENCE)
    except GangError as error:
        measure("saving", None, on=on, note=str(error))
        mend(gang, error)
        return
    saves = saves_of(rung)[:SAVES]  # the last one has no step after it that would show who is late
    if len(saves) < SAVES:
        failed = "; ".join(rung.unsaved) or "the trainer told of no others"
        measure("saving", None, on=on, note=f"{len(saves)} of {SAVES} saves were made: {failed}")
        return
    judge(saves, rung, how.terms, measure)
    planted(gang, cluster.names, count, how, typical(saves), measure)


def without(cluster: Cluster, gang: Gang, count: int, how: Saving) -> str:
    """Why nothing can be saved, in words; empty where it can."""
    if count == 1 < len(cluster.nodes):  # each node would be a job of its own
        return "no rung of several nodes was left to save"
    if hangs(gang):
        return "ranks of what ran before hang, or are gone"
    wanted = "saves need a folder that the driver and every node can write to ([cluster] shared)"
    if how.folder is None:
        return f"{wanted}, found none for the driver"
    if blind := cluster.blind_to(str(how.folder)):
        return f"{wanted}; {', '.join(blind)} did not see what the driver wrote"
    needed = COPIES * BYTES * parameter_count(how.config)
    free = shutil.disk_usage(how.folder).free
    if free < needed:
        return f"{wanted}, with {gb(needed)} free for {COPIES} saves, found {gb(free)}"
    return ""


def gb(size: float) -> str:
    """Bytes in words."""
    return f"{size / 1e9:.3g} GB"


def timed(how: Saving) -> TrainConfig:
    """The load with a save after every few steps, each in place of the one before."""
    steps = SAVES * BETWEEN + 1 - WARM_UP  # the rung adds those
    folder = f"{how.folder}/timed"
    return replace(how.config, steps=steps, checkpoints=folder, save_every=BETWEEN, keep_last=1)


def judge(saves: list[Save], rung: Rung, terms: ClusterTerms, measure: Ledger) -> None:
    """The typical save against the agreed time between two; as large as agreed, in proportion."""
    one, on = typical(saves), said(rung.count)
    size = terms.save_gb * 1e9 if terms.save_gb else one.bytes
    still, minutes = one.held_up * size / one.bytes, terms.save_minutes
    share, told = still / (60 * minutes), ", ".join(f"{save.held_up:.2g}" for save in saves)
    every = f"{on}, {gb(size)} every {minutes:g} minutes"
    measure("saving", share, on=every, samples=len(saves))
    measure.note("save_stall", one.held_up, "s", on=f"{on}, {gb(one.bytes)}", samples=len(saves))
    measure.note("save_rate", one.bytes / one.held_up, "bytes/s", on=on, samples=len(saves))
    measure.covered(f"saves of {gb(one.bytes)} held {on} up for {told} s, read back and all")
    if measure.fails("saving", share):
        node = awaited(one, rung.nodes)
        found = f"a save of {gb(one.bytes)} holds training up for {one.held_up:.3g} s"
        found += f", one of {gb(size)} {still:.3g} s in proportion" if terms.save_gb else ""
        why = "no single node's writing accounts for it"
        why = f"the others wait for what {node} writes" if node else why
        words = f"at {on} {found}: {share:.1%} of the time at one every {minutes:g} minutes; {why}"
        measure.explain(finding("SCALE-CHECKPOINT", words, [node] if node else []))


def planted(
    gang: Gang, names: dict[str, str], count: int, how: Saving, usual: Save, measure: Ledger
) -> None:
    """A save that is slow on one rank comes back with that rank, however slow another is."""
    culprit, delay = len(usual.own) // 2, max(LEAST_DELAY, 2 * max(usual.own))
    stall = f"upload:rank={culprit}:seconds={delay}"
    folder, every = f"{how.folder}/late", WARM_UP + 1
    late = replace(
        how.config, steps=1, checkpoints=folder, save_every=every, keep_last=1, stall=stall
    )
    found, saw = None, "one rank"
    if len(usual.own) > 1:
        try:
            rung = climb(gang, names, count, late, timeout=PATIENCE)
            saw = "; ".join(rung.unsaved)
            for save in saves_of(rung):
                rank, seconds, others = slowest(save.own)
                found = rank == culprit and seconds - others > delay / 2
                saw = f"rank {rank} writes for {seconds:.2g} s, the others for {others:.2g} s"
        except GangError as error:
            saw = str(error)
            mend(gang, error)
    measure.control(
        "slow save",
        f"rank {culprit} writes {delay:.2g} s longer than its part of a save takes",
        caught=found,
        saw=saw,
    )
