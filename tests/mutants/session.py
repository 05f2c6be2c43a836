"""Tries the mutants of many modules, on every core of the machine."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
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


def work(tasks: Any, results: Any) -> None:
    """One process: takes modules until none is left."""
    die_with_parent()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy_checkout(Path(folder))
        worker = Worker(Path(folder))
        while (task := tasks.get()) is not None:
            module, count, seed = task
            try:
                for outcome in worker.try_module(module, choose_mutants(module, count, seed)):
                    # As plain values: the worker has forgotten what our classes were.
                    results.put((asdict(outcome.mutant), outcome.verdict, module.path))
                results.put(module.path)
            except RuntimeError as error:
                results.put(error)
    results.put(None)


def try_all(
    modules: Sequence[Module], count: int, seed: int, show: Callable[[str, list[Outcome]], None]
) -> tuple[list[Outcome], list[str]]:
    """Try the mutants of all modules; outcomes, and what went wrong.

    A process more than there are cores uses what tests wait for.

    `show` hears of each module that is through, with all outcomes so far.
    """
    context, workers = multiprocessing.get_context("spawn"), (os.cpu_count() or 1) + 1
    tasks: Any = context.Queue()
    results: Any = context.Queue()
    for module in modules:
        tasks.put((module, count, seed))
    processes = [context.Process(target=work, args=(tasks, results)) for _ in range(workers)]
    for process in processes:
        tasks.put(None)
        process.start()
    outcomes, errors, running = list[Outcome](), list[str](), len(processes)
    while running:
        result = results.get()
        if isinstance(result, tuple):
            mutant, verdict, path = result
            outcomes.append(Outcome(path, Mutant(**mutant), verdict))
        elif isinstance(result, RuntimeError):
            errors.append(str(result))
        elif result is None:
            running -= 1
        else:
            show(result, outcomes)
    for process in processes:
        process.join()
    return outcomes, errors
