"""Tries the mutants of many modules, on every core of the machine."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.mutants.mutate import Mutant
from tests.mutants.run import (
    Module,
    Outcome,
    Worker,
    choose_mutants,
    copy_checkout,
    die_with_parent,
)

POLL_S = 5.0  # how often to look whether a process was killed


def work(tasks: Any, results: Any) -> None:
    """One process: takes modules until none is left."""
    die_with_parent()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy_checkout(Path(folder))
        Path(folder).chmod(0o755)  # tests become other users
        _try_tasks(Worker(Path(folder)), tasks, results)
    results.put(None)


def _try_tasks(worker: Worker, tasks: Any, results: Any) -> None:
    while (task := tasks.get()) is not None:
        (module, count, seed), started = task, time.monotonic()
        try:
            for outcome in worker.try_module(module, choose_mutants(module, count, seed)):
                # As plain values: the worker has forgotten what our classes were.
                results.put((asdict(outcome.mutant), outcome.verdict, module.path))
            results.put((module.path, time.monotonic() - started))
        except RuntimeError as error:
            results.put(error)


def try_all(
    modules: Sequence[Module],
    counts: Mapping[str, int],
    seed: int,
    show: Callable[[str, float, list[Outcome]], None],
) -> tuple[list[Outcome], list[str]]:
    """Try the mutants of all modules; outcomes, and what went wrong; `counts` is by path.

    A process more than there are cores uses what tests wait for.

    `show` hears of each module that is through, with its seconds and all outcomes so far.
    """
    context, workers = multiprocessing.get_context("spawn"), (os.cpu_count() or 1) + 1
    tasks: Any = context.Queue()
    results: Any = context.Queue()
    for module in modules:
        tasks.put((module, counts[module.path], seed))
    processes = [context.Process(target=work, args=(tasks, results)) for _ in range(workers)]
    for process in processes:
        tasks.put(None)
        process.start()
    outcomes, errors, running = list[Outcome](), list[str](), len(processes)
    while running:
        try:
            result = results.get(timeout=POLL_S)
        except queue.Empty:
            if any(process.is_alive() for process in processes):
                continue
            break  # one ended without a word
        match result:
            case None:
                running -= 1
            case RuntimeError():
                errors.append(str(result))
                print(result, flush=True)
            case (path, seconds):
                show(path, seconds, outcomes)
            case (mutant, verdict, path):
                outcomes.append(Outcome(path, Mutant(**mutant), verdict))
    for process in processes:
        process.join()
    if running:
        codes = sorted({process.exitcode or 0 for process in processes})
        errors.append(f"{running} processes ended early ({codes}): not all modules were tried")
    return outcomes, errors
