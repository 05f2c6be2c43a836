"""The punisher: kills a random rank at a random moment, again and again, for a given time."""

from __future__ import annotations

import dataclasses
import random
import time
from pathlib import Path

from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.faults.process_faults import Strike
from probes.findings import finding
from probes.restart.equality import unequal_steps
from probes.restart.faulted_run import NAME, Blow, Scenario, Voyage, sail
from probes.restart.reference_run import LOST_AT_MOST, SAVE_EVERY, Original
from reference_trainer.launch.supervisor import Attempt
from reference_trainer.telemetry.injected_delay import MOMENTS
from reports.record import Limit

PUNISHED_STEPS, PUNISHED_SECONDS = 60, 600
MOST = 60  # blows that one run meets; the last life is left alone
# From the gang's start: into the imports, the first collectives, a load, steps, saves.
LATEST_SECONDS = 20
# A save is small here and would hardly be met: each of its parts lasts a moment longer.
WINDOWS = ",".join(f"{moment}:rank=0:seconds=0.15" for moment in MOMENTS)
WORDS = "SIGKILL of a random rank at a random moment, again and again"


class Whim(Strike):
    """Strikes a rank so many seconds after its gang is there, unless the time is up by then."""

    def __init__(self, out: Path, rank: int, seconds: float, until: float) -> None:
        super().__init__(out, rank, event="")
        self.seconds, self.until = seconds, until

    def _watch(self) -> None:
        if not self._stop.wait(self.seconds) and time.monotonic() < self.until:
            super()._watch()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Punishment:
    """What the runs of one punishment came to."""

    voyages: list[Voyage]

    @property
    def attempts(self) -> list[Attempt]:
        """Of all runs."""
        return [attempt for voyage in self.voyages for attempt in voyage.attempts]

    @property
    def kills(self) -> int:
        """Proven ones."""
        return sum(strike.count for voyage in self.voyages for strike in voyage.strikes)

    @property
    def unprovoked(self) -> list[str]:
        """Why attempts were lost that no kill accounts for, of each run as many as there are."""
        found: list[str] = []
        for voyage in self.voyages:
            lost = [attempt.reason for attempt in voyage.attempts[:-1]]
            more = len(lost) - sum(strike.count for strike in voyage.strikes)
            found += lost[::-1][: max(0, more)]
        return found

    @property
    def errors(self) -> list[str]:
        """Why ranks could not be struck."""
        strikes = [strike for voyage in self.voyages for strike in voyage.strikes]
        return [strike.error for strike in strikes if strike.error]

    @property
    def lost(self) -> list[str]:
        """Why runs did not come to their end."""
        return [voyage.error for voyage in self.voyages if not voyage.results]

    def steps_lost(self, mode: str) -> int | None:
        """The most steps that a kill has cost runs of this save mode; None: rank 0 never died."""
        runs = [one for one in self.voyages if one.scenario.changes["save_mode"] == mode]
        cuts = [cut for voyage in runs for cut in voyage.cuts]
        return max((done - start["start_step"] for done, start in cuts), default=None)

    @property
    def digests(self) -> set[str]:
        """Of the parameters at the end, of every rank of every run."""
        return {result["digest"] for voyage in self.voyages for result in voyage.results}

    def unequal(self, original: Original) -> list[str]:
        """Steps of any life of rank 0, or of all ranks' last, that are not the original's."""
        found = []
        for voyage in self.voyages:
            if voyage.results:
                first = voyage.results[0]["start_step"] + 1
                found += unequal_steps(original.results, voyage.results, first)
            found += voyage.unequal(original.results[0], len(voyage.lives))
        return [str(one) for one in found]


def punish(
    cluster: Cluster, original: Original, folder: Path, seconds: float, seed: int
) -> Punishment:
    """Run after run, each killed until it ends, until the time is up; the last is let go on."""
    chance, until = random.Random(seed), time.monotonic() + seconds
    config = original.paced
    scenarios = [
        Scenario(
            name=f"punished-{mode}",
            words=WORDS,
            blows=(Blow(""),) * MOST,
            restarts=MOST,
            changes={"save_mode": mode, "stall": WINDOWS},
        )
        for mode in LOST_AT_MOST
    ]

    def arm(out: Path, blow: Blow) -> Strike:
        return Whim(out, chance.randrange(cluster.size), chance.uniform(0, LATEST_SECONDS), until)

    voyages: list[Voyage] = []
    while time.monotonic() < until:
        voyage = sail(
            config,
            scenarios[len(voyages) % len(scenarios)],
            folder / f"run-{len(voyages)}",
            gang=lambda: cluster.gang(name=NAME),
            victim=0,
            arm=arm,
        )
        voyages.append(voyage)
    return Punishment(voyages=voyages)


def judge_kills(done: Punishment, original: Original, seconds: float, measure: Ledger) -> None:
    """That it was killed once a minute and more, and that no run was lost, late, or another one."""
    because = f"a rank may live for {LATEST_SECONDS} s, and a new one takes as long to start"
    measure("kills", done.kills, limit=Limit(low=seconds / 60, because=because))
    measure("unprovoked", len(done.unprovoked))
    if done.unprovoked:
        said = f"{len(done.unprovoked)} attempts were lost unstruck; in their runs: "
        measure.explain(finding("RESTART-ATTEMPTS", said + "; ".join(done.unprovoked)))
    measure("runs_lost", len(done.lost), samples=len(done.voyages))
    if done.lost:
        measure.explain(finding("RESTART-DEAD", done.lost[0]))
    for mode, most in LOST_AT_MOST.items():
        lost, because = done.steps_lost(mode), f"it saves every {SAVE_EVERY} steps"
        measure("steps_lost", lost, limit=Limit(high=most, because=because), on=f"{mode} saves")
    unequal = done.unequal(original)
    measure("unequal_steps", len(unequal))
    same = done.digests == {result["digest"] for result in original.results}
    ended = "equal" if same else "unequal"
    measure("final_state", ended if done.digests else None, note="no run came to its end")
    if unequal:
        measure.explain(finding("RESTART-UNEQUAL", unequal[0]))
