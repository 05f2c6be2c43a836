"""What saving costs: the largest rung once more, with saves, and one that is slow on purpose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from probes.cluster import Cluster
from probes.findings import finding
from probes.ledger import Ledger
from probes.scaling_rungs import said
from reference_trainer.config import TrainConfig
from reference_trainer.gang import Gang, GangError
from scaling.ladder import WARM_UP, Rung, climb
from scaling.saves import Save, awaited, saves_of, slowest, typical

SAVES, BETWEEN = 3, 4  # saves that are timed, and steps from one to the next
LEAST_DELAY = 0.5  # seconds: of a save that is made slow, on storage that is fast
PATIENCE = 900  # seconds: for so many saves, on storage that is slow


@dataclass(frozen=True)
class Saving:
    """How the largest rung saves: where, how often it will (minutes), and the load of its steps."""

    folder: Path | None
    minutes: float
    config: TrainConfig


def saving(cluster: Cluster, gang: Gang, count: int, terms: Saving, measure: Ledger) -> None:
    """The share of the time that training stands still for saves, and who is slow at them."""
    on = said(count)
    if unseen := without(cluster, terms.folder):
        measure("saving", None, on=on, note=unseen)
        return
    measure.progress(f"scaling: saves of {on}")
    try:
        rung = climb(gang, cluster.names, count, timed(terms), timeout=PATIENCE)
    except GangError as error:
        measure("saving", None, on=on, note=str(error))
        return
    saves = saves_of(rung)
    if len(saves) < SAVES:
        failed = "; ".join(rung.unsaved) or "the trainer told of no others"
        measure("saving", None, on=on, note=f"{len(saves)} of {SAVES} saves were made: {failed}")
        return
    judge(saves, rung, terms.minutes, measure)
    planted(gang, cluster.names, count, terms, typical(saves), measure)


def without(cluster: Cluster, folder: Path | None) -> str:
    """Why nothing can be saved, in words; empty where every node sees the folder."""
    wanted = "saves need a folder that every node sees; name one in the contract: [cluster] shared"
    if folder is None:
        return wanted
    blind = cluster.blind_to(str(folder))
    return f"{wanted}; {', '.join(blind)} did not see {folder.parent}" if blind else ""


def timed(terms: Saving) -> TrainConfig:
    """The load with a save after every few steps, each in place of the one before."""
    steps = SAVES * BETWEEN - WARM_UP  # the rung adds those
    folder = f"{terms.folder}/timed"
    return replace(terms.config, steps=steps, checkpoints=folder, save_every=BETWEEN, keep_last=1)


def judge(saves: list[Save], rung: Rung, minutes: float, measure: Ledger) -> None:
    """The typical save against the agreed time between two."""
    one, on = typical(saves), said(rung.count)
    share, rate = one.held_up / (60 * minutes), one.bytes / one.held_up
    told = ", ".join(f"{save.held_up:.2g}" for save in saves)
    measure("saving", share, on=f"{on}, every {minutes:g} minutes", samples=len(saves))
    measure.note("save_stall", one.held_up, "s", on=on, samples=len(saves))
    measure.note("save_rate", rate, "bytes/s", on=on, samples=len(saves))
    measure.covered(f"saves of {one.bytes / 1e9:.3g} GB held {on} up for {told} s")
    if measure.fails("saving", share):
        node = awaited(one, rung.nodes)
        words = (
            f"at {on} a save of {one.bytes / 1e9:.3g} GB holds training up for "
            f"{one.held_up:.3g} s, {share:.1%} of the time at one every {minutes:g} minutes"
        )
        why = f"the others wait for what {node} writes" if node else "no single node is slow"
        measure.explain(finding("SCALE-CHECKPOINT", f"{words}: {why}", [node] if node else []))


def planted(
    gang: Gang, names: dict[str, str], count: int, terms: Saving, usual: Save, measure: Ledger
) -> None:
    """A save that is slow on one rank comes back with that rank."""
    culprit, delay = len(usual.own) // 2, max(LEAST_DELAY, *usual.own)
    stall = f"upload:rank={culprit}:seconds={delay}"
    folder, every = f"{terms.folder}/late", WARM_UP + 1
    late = replace(
        terms.config, steps=1, checkpoints=folder, save_every=every, keep_last=1, stall=stall
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
    measure.control(
        "slow save",
        f"rank {culprit} writes {delay:.2g} s longer than its part of a save takes",
        caught=found,
        saw=saw,
    )
