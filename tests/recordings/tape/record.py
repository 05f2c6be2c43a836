"""A plugin of pytest that keeps what each probe of a run asks, on a tape of its own."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from probes.session.config import RECORDER, RUN
from tests.recordings.tape.border import (
    CLUSTER_CALLS,
    CLUSTER_FACTS,
    FUNCTIONS,
    GANG_CALLS,
    as_data,
)
from tests.recordings.tape.tape import Tape, name_of

FOLDER = "SEATRIAL_TEST_TAPES"
CURRENT: list[Tape] = []  # the tape of the probe that runs
REFERENCES = ("original", "small_original", "long_original")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """One tape for the call of each probe; set-up and tear-down are no part of it."""
    run = item.config.stash[RUN]
    cluster, name = run.cluster, item.name.removeprefix("test_").replace("/", " ")
    tape = Tape(Path(os.environ[FOLDER]) / f"{name}.tape.gz")
    params = getattr(getattr(item, "callspec", None), "params", {})
    tape.write(
        "run",
        {
            "probe": item.nodeid,
            "criterion": item.stash[RECORDER].criterion,
            "params": params,
            "tier": run.tier,
            "contract": run.contract.name,
            "terms": run.terms.model_dump(mode="json"),
            "cluster": {fact: getattr(cluster, fact) for fact in CLUSTER_FACTS},
        },
    )
    arguments = getattr(item, "funcargs", {})
    tape.names = _Names(cluster.node_names)
    before = _state_of(arguments)
    CURRENT.append(tape)
    try:
        return (yield)
    finally:
        CURRENT.clear()
        _keep_references(tape, arguments, before)
        tape.file.close()


def _state_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """What probes share, as it was before this one: gangs so far, what is known of the folder."""
    known = {n: arguments[n]._folder_problem for n in REFERENCES if n in arguments}
    return known | ({"gangs": arguments["stage"].gang_count} if "stage" in arguments else {})


def _keep_references(tape: Tape, arguments: dict[str, Any], before: dict[str, Any]) -> None:
    """Runs never killed, and the stage of contention."""
    for name in REFERENCES:
        if name in arguments:
            state = {k: v for k, v in vars(arguments[name]).items() if k != "corruptions"}
            tape.write(name, state | {"_folder_problem": before[name]})
    if "stage" in arguments:
        stage = arguments["stage"]
        ids = {name: job.id for name, job in stage.jobs.items()}
        names = stage.observer.node_names if stage.observer else {}
        tape.write("stage", {"ids": ids, "node_names": names, "gangs": before["gangs"]})


def pytest_configure() -> None:
    """Put a microphone to every border."""
    from probes.cluster.cluster import Cluster
    from probes.gang.competing_job import CompetingJob
    from probes.gang.observer import Observer
    from probes.gang.scenario import ContentionRig, Scenario
    from reference_trainer.launch.gang import Gang

    for name in CLUSTER_CALLS:
        _tape_method(Cluster, name)
    for name in GANG_CALLS:
        _tape_method(Gang, name)
    _tape_method(Gang, "__enter__", "gang", keep=lambda gang, _: gang.places)
    for module, names in FUNCTIONS.items():
        for name in names:
            _tape_function(importlib.import_module(module), name)
    _tape_method(CompetingJob, "read_answer", "answer {0.name}")
    for name in ("mark", "other_jobs", "look_away"):
        _tape_method(Observer, name, f"observer {name}")
    _tape_method(ContentionRig, "ensure_started", "started", keep=lambda *_: None)
    for owner, name in ((Observer, "until"), (Observer, "poll"), (Scenario, "_wait_capacity")):
        _tape_looks(owner, name)


def _replace(owner: Any, name: str, wrapper: Any) -> None:
    setattr(owner, name, wrapper)


def _tape_method(
    owner: type,
    name: str,
    question: str = "",
    keep: Callable[[Any, Any], Any] = lambda owner, answer: answer,
) -> None:
    ask = getattr(owner, name)

    def asked(self: Any, *arguments: Any, **more: Any) -> Any:
        if not CURRENT or CURRENT[0].busy:
            return ask(self, *arguments, **more)
        kept: list[Any] = []

        def answer() -> Any:
            kept.append(ask(self, *arguments, **more))
            return keep(self, kept[0])

        CURRENT[0].keep(question.format(self) if question else name_of(name, arguments), answer)
        return kept[0]

    _replace(owner, name, asked)


def _tape_function(module: Any, name: str) -> None:
    ask = getattr(module, name)

    def asked(*arguments: Any, **more: Any) -> Any:
        if not CURRENT:
            return ask(*arguments, **more)
        tape = CURRENT[0]
        return tape.keep(name, lambda: as_data(ask(*arguments, **more), tape.names))

    _replace(module, name, asked)


class _Names(dict[str, str]):
    """Names of nodes; of one that joined later, its id."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, key)


def _tape_looks(owner: type, name: str) -> None:
    """When it began to look (the observer's clock), what came back, and what was seen."""
    ask, is_until = getattr(owner, name), name == "until"

    def asked(self: Any, *arguments: Any, **more: Any) -> Any:
        if not CURRENT or CURRENT[0].busy:
            return ask(self, *arguments, **more)
        observer = getattr(self, "observer", self)
        before, since = len(observer.samples), observer.now() if is_until else 0.0
        kept: list[Any] = []

        def answer() -> Any:
            kept.append(ask(self, *arguments, **more))
            told = kept[0] if name == "_wait_capacity" else since
            return [told, observer.samples[before:]]

        CURRENT[0].keep(f"observer {name}", answer)
        return kept[0]

    _replace(owner, name, asked)
