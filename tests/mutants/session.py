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
    Key,
    Module,
    Outcome,
    Seen,
    Worker,
    choose_mutants,
    copy_checkout,
    die_with_parent,
    list_test_files,
)

POLL_S = 5.0  # how often to look whether a process was killed


def work(paths: Sequence[str], tasks: Any, results: Any) -> None:
    """One process: watches the tests of one file after the other, and then tries modules."""
    die_with_parent()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy_checkout(Path(folder))
        Path(folder).chmod(0o755)  # tests become other users
        worker = Worker(Path(folder))
        while (task := tasks.get()) is not None:
            match task:
                case (key,):
                    results.put((key, worker.watch_tests(paths, key)))
                case (module, count, seed, seen):
                    _try_module(worker, module, choose_mutants(module, count, seed), seen, results)
    results.put(None)


def _try_module(
    worker: Worker, module: Module, chosen: Sequence[Mutant], seen: Mapping[Key, Seen], results: Any
) -> None:
    started = time.monotonic()
    try:
        for outcome in worker.try_module(module, chosen, seen):
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
    # Of one file of tests, what it runs is the same for all modules: it is watched once.
    keys = dict.fromkeys(key for module in modules for key in list_test_files(module))
    for key in keys:
        tasks.put((key,))
    paths = [module.path for module in modules]
    processes = [context.Process(target=work, args=(paths, tasks, results)) for _ in range(workers)]
    for process in processes:
        process.start()
    outcomes, errors, running = list[Outcome](), list[str](), len(processes)
    seen = dict[Key, Seen]()
    while running:
        try:
            result = results.get(timeout=POLL_S)
        except queue.Empty:
            alive = sum(process.is_alive() for process in processes)
            if not alive:
                break  # one ended without a word
            if alive < len(processes) and len(seen) < len(keys):
                # What it watched is missing, so no module can be tried: the others end, too.
                for _ in range(alive):
                    tasks.put(None)
            continue
        match result:
            case None:
                running -= 1
            case RuntimeError():
                errors.append(str(result))
                print(result, flush=True)
            case (str() as path, seconds):
                show(path, seconds, outcomes)
            case (key, found):
                seen[key] = found
                if len(seen) == len(keys):
                    for module in modules:
                        mine = {key: seen[key] for key in list_test_files(module)}
                        tasks.put((module, counts[module.path], seed, mine))
                    for _ in processes:
                        tasks.put(None)
            case (mutant, verdict, path):
                outcomes.append(Outcome(path, Mutant(**mutant), verdict))
    for process in processes:
        process.join()
    if running:
        codes = sorted({process.exitcode or 0 for process in processes})
        errors.append(f"{running} processes ended early ({codes}): not all modules were tried")
    return outcomes, errors
