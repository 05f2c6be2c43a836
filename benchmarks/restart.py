"""Measures the restart row against its targets. Needs root, and Ray Train (pyarrow) to compare.

`python -m benchmarks.restart [kills [minutes]]` runs in a lab of 4. It makes `kills` kills under
each launcher (default 10) and random kills for `minutes` minutes (default 10). 0 minutes means
none, and 60 give the target's 200 kills. With 0 kills under a launcher, only the random kills run.
"""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gang import values
from benchmarks.harness import finish, judged, spread
from probes.faults.process_faults import read_json_lines
from reference_trainer import manifest
from reference_trainer.config import TrainConfig, cli_options
from reports.measurement import Verdict
from tests.faults.launchers.launch import PATIENCE_SECONDS, launched
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.lab import Lab
from tests.support.single_rank import only_rank
from tests.support.trial import acceptance

SAVE_EVERY, AHEAD = 2, 3  # steps: a kill comes AHEAD steps after the newest step ever done
VICTIM = 3


def until(found: Callable[[], Any], what: str) -> Any:
    """Wait until `found` returns something and return that; RuntimeError after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if seen := found():
            return seen
        time.sleep(0.02)
    raise RuntimeError(f"{what}: not seen within {PATIENCE_SECONDS} s")


def kill_again_and_again(lab: Lab, journal: Path, kills: int) -> tuple[list[float], list[int]]:
    """Kill a rank `kills` times; return the seconds to the first new step, and the steps lost."""
    seconds, lost, done = [], [], 0
    for number in range(kills):
        goal = done + AHEAD - number % 2  # right after a save and one step later, in turn

        def due(goal: int = goal, lives: int = number) -> dict[str, Any] | None:
            lines = read_json_lines(journal)
            starts = [line for line in lines if line["event"] == "start"]
            begun = any(line["event"] == "begin" and line["step"] >= goal for line in lines)
            return starts[-1] if begun and len(starts) > lives else None

        start = until(due, f"step {goal} of life {number + 1}")
        at = time.time()
        lab.node(start["host"]).run("kill", "-9", str(start["pid"]))
        done = max(line["step"] for line in read_json_lines(journal) if line["event"] == "step")

        def back(done: int = done) -> float | None:
            steps = (line for line in read_json_lines(journal) if line["event"] == "step")
            return next((float(line["t"]) for line in steps if line["step"] > done), None)

        seconds.append(until(back, f"a step after {done}") - at)
        begun = [
            line["start_step"] for line in read_json_lines(journal) if line["event"] == "start"
        ]
        lost.append(done - begun[-1])
    return seconds, lost


def launchers(lab: Lab, kills: int) -> None:
    """Compare our gang with Ray Train's defaults: seconds from a kill to the next new step."""
    steps = kills * (AHEAD + 1) + 8
    config = TrainConfig(steps=steps, dim=32, seq=32, save_every=SAVE_EVERY, checkpoints="x",
                         pace_s=0.3)  # fmt: skip
    medians = {}
    for launcher in ("gang", "ray-train"):
        words = ["--launcher", launcher, "--restarts", str(kills + 1)]
        with launched(lab, f"by-{launcher}", config, *words) as out:
            journal = out / f"metrics.rank{VICTIM}.jsonl"
            seconds, lost = kill_again_and_again(lab, journal, kills)
        medians[launcher] = statistics.median(seconds)
        print(f"{launcher}: kill to the next new step, s: {spread(seconds)}")
        words = f"{launcher}: steps lost, at most {max(lost)} (target <= {SAVE_EVERY})"
        judged(words, max(lost) <= SAVE_EVERY)
    ratio = medians["gang"] / medians["ray-train"]
    judged(f"ratio of medians (target <= 0.5): {ratio:.2f}", ratio <= 0.5)


def stalls(lab: Lab) -> None:
    """Compare how long a step waits for its save in both save modes, in turn."""
    seen: dict[str, list[float]] = {"sync": [], "async": []}
    shape = {"dim": 256, "layers": 4, "seq": 32, "digest": False}
    for number in range(3):
        for mode, found in seen.items():
            config = TrainConfig(steps=13, save_every=3, checkpoints="x", save_mode=mode,
                                 pace_s=0.6, **shape)  # fmt: skip
            with launched(lab, f"{mode}-{number}", config) as out:
                pass
            spans = [read_json_lines(path) for path in sorted(out.glob("spans.rank*.jsonl"))]
            found += [
                max(rank[step - 1]["segments"]["checkpoint"] for rank in spans)
                for step in range(3, 13, 3)
            ]
    for mode, found in seen.items():
        print(f"{mode}: a step waits for its save, s: {spread(found)}")
    ratio = statistics.median(seen["async"]) / statistics.median(seen["sync"])
    judged(f"ratio of medians (target <= 0.25): {ratio:.2f}", ratio <= 0.25)


def flips(count: int = 100) -> None:
    """Judge whether a checkpoint with one random bit flipped is always refused.

    The file and the bit are chosen at random, `count` times.
    """
    chance, refused = random.Random(time.time_ns()), 0
    config = TrainConfig(steps=2, dim=32, seq=32, save_every=2, checkpoints="x", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        config = replace(config, checkpoints=f"{folder}/c")
        with only_rank():
            command = [sys.executable, "-m", "reference_trainer", "train", *cli_options(config)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        whole, copy = Path(folder) / "c/step-2", Path(folder) / "copy"
        assert manifest.verify(whole, 2, config.identity()) is None
        for _ in range(count):
            shutil.copytree(whole, copy)
            victim = chance.choice(sorted(copy.iterdir()))
            content = bytearray(victim.read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            victim.write_bytes(content)
            refused += manifest.verify(copy, 2, config.identity()) is not None
            shutil.rmtree(copy)
    judged(f"one bit flipped anywhere: {refused} of {count} refused (target all)", refused == count)


def punished(lab: Lab, minutes: int) -> None:
    """Run the soak tier's random kills, ten minutes at a time, at least once; judge the results."""
    records, dirty, times = [], 0, max(1, round(minutes / 10))
    for number in range(times):
        arguments_ = ["probes/restart", "--tier", "soak", "-k", "punished"]
        try:
            record, _ = acceptance(lab, f"punished-{number}", *arguments_, seconds=1200)
        except AssertionError as error:
            print(f"no record: {error}", flush=True)
            continue
        records.append(record)
        complaints = [line for result in record.results for line in result.problems()]
        covered = [result.coverage for result in record.results]
        print(f"{record.verdict('RESTART').value} {' '.join([*covered, *complaints])}", flush=True)
        try:
            nothing_left(lab)
        except pytest.fail.Exception as left:
            dirty += 1
            print(left, flush=True)
    good = sum(record.verdict("RESTART") is Verdict.PASS for record in records)
    kills = sum(values(records, "kills"))
    said = f"random kills (target 200): {kills:.0f} in {times} times 10 minutes"
    judged(said, kills >= 200 * min(1, times / 6))
    judged(f"  {good} PASS, {times - len(records)} without a record", good == times)
    judged(f"  {dirty} that left something behind", not dirty)
    for name in ("runs_lost", "unequal_steps", "not_released", "unexplained_failures"):
        most = max(values(records, name), default=None)
        judged(f"  {name}: at most {most} (target 0)", most == 0)
    print(f"  steps_lost: at most {max(values(records, 'steps_lost'), default='not measured')}")
    print(f"  ETTR of a run: {spread(values(records, 'ettr'))}")


def main(kills: int = 10, minutes: int = 10) -> None:
    """Run all parts in one lab; exit with TARGET_MISSED where a target is not met."""
    if kills:
        flips()
    lab = Lab("restarts")
    lab.up(4)
    try:
        if kills:
            launchers(lab, kills)
            stalls(lab)
        if minutes:
            punished(lab, minutes)
    finally:
        lab.down()
    finish()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
