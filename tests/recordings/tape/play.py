"""A probe once more, over what was answered when it was recorded."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.check.recorder import Recorder
from probes.cluster.kept_gang import GangKeeper
from probes.contract import contract as contracts
from probes.contract.terms import ClusterTerms
from probes.gang.invariants import Sample
from probes.gang.observer import Observer, ScenarioMark
from probes.gang.scenario import ContentionRig, Scenario
from probes.gang.scenario_checks import run_scenario
from probes.restart.reference_run import ReferenceRun
from reports.measurement import Verdict
from reports.record import Criterion, ProbeResult
from tests.recordings.tape.border import CLUSTER_CALLS, FUNCTIONS, GANG_CALLS
from tests.recordings.tape.record import REFERENCES
from tests.recordings.tape.tape import Answers, NoAnswer, name_of
from tests.support.controls import MemoryRecorder
from tests.support.paths import REPO


class PlayedGang:
    """A gang whose ranks answer as they did."""

    def __init__(self, answers: Answers, size: int, environment: Any = None) -> None:
        self.answers, self.size, self.environment = answers, size, environment
        self.places: list[Any] = []

    def __enter__(self) -> PlayedGang:
        self.places = self.answers.next("gang")
        self.size = len(self.places)
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Nothing is there."""

    @property
    def is_running(self) -> bool:
        """Whether it was entered."""
        return bool(self.places)

    is_sound = is_running

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in GANG_CALLS:
            raise AttributeError(name)
        return lambda *arguments, **_: self.answers.next(name_of(name, arguments))


class PlayedCluster:
    """A cluster that answers as it did.  What a tape does not have is an error of the test."""

    def __init__(self, answers: Answers, facts: dict[str, Any]) -> None:
        self.answers, self.told = answers, facts
        self.errors: dict[str, str] = {}
        nothing = {name: lambda *_: None for name in ("register", "unregister", "remove_now")}
        self.cleanup = SimpleNamespace(**nothing)
        cluster: Any = self
        self.kept_gang, self.paths_before = GangKeeper(cluster), None

    def note_kill(self, *_: Any, **__: Any) -> None:
        """Nobody is killed."""

    def gang(self, size: int | None = None, **options: Any) -> PlayedGang:
        """A gang that was there then."""
        return PlayedGang(self.answers, size or self.told["size"], options.get("environment"))

    def __getattr__(self, name: str) -> Any:
        if name in self.told:
            return deepcopy(self.told[name])  # Ray tells it anew each time
        if name not in CLUSTER_CALLS:
            raise AttributeError(name)
        return lambda *arguments, **_: self.answers.next(name_of(name, arguments))


class PlayedJob:
    """A competing job."""

    def __init__(self, name: str, id: str, answers: Answers) -> None:
        self.name, self.id, self.answers, self.alive = name, id, answers, True

    def wait_ready(self) -> str:
        """Its id."""
        return self.id

    def send(self, command: str, *arguments: Any) -> None:
        """Nobody listens."""

    def read_answer(self) -> Any:
        """What it answered then."""
        return self.answers.next(f"answer {self.name}")

    def call(self, command: str, *arguments: Any) -> Any:
        """The same."""
        return self.read_answer()

    def signal(self, signum: int) -> None:
        """A killed one is alive no more."""
        self.alive = self.alive and signum != 9

    def end(self) -> None:
        """Nothing is there."""
        self.alive = False


class PlayedObserver(Observer):
    """Sees the same samples; who waits for something looks through them again."""

    def __init__(self, answers: Answers, names: dict[str, str], prefix: str) -> None:
        self.answers, self.node_names, self.prefix = answers, names, prefix
        self.jobs: dict[str, str] = {}
        self.single_actors: dict[str, int] = {}
        self.gang_sizes: dict[str, int] = {}
        self.samples: list[Sample] = []
        self.marks: list[ScenarioMark] = []

    def mark(self, message: str, fault: bool = False) -> float:
        """When it was then."""
        t = float(self.answers.next("observer mark"))
        self.marks.append(ScenarioMark(t, message, fault))
        return t

    def other_jobs(self) -> list[str]:
        """Who else was there."""
        return list(self.answers.next("observer other_jobs"))

    def look_away(self, seconds: float) -> None:
        """It did."""
        self.answers.next("observer look_away")

    def poll(self) -> list[Sample]:
        """What was new."""
        _, new = self.answers.next("observer poll")
        self.samples += new
        return list(new)

    def until(self, condition: Callable[[Sample], bool], seconds: float) -> float | None:
        """When one of the samples of that wait first met the condition."""
        since, new = self.answers.next("observer until")
        self.samples += new
        met = (one["t"] for one in new if one["t"] >= since and condition(one))
        return next(met, None)

    def close(self) -> None:
        """Nothing is there."""


class PlayedStage(ContentionRig):
    """Jobs A and B and the observer."""

    def __init__(self, cluster: Any, answers: Answers) -> None:
        super().__init__(cluster)
        self.answers, told = answers, answers.next("stage")
        self.ids: dict[str, str] = told["ids"]
        self.gang_count = int(told["gangs"])
        self.observer = PlayedObserver(answers, told["node_names"], self.prefix)
        self.jobs: dict[str, Any] = {}

    def ensure_started(self) -> Observer:
        """They were."""
        self.answers.next("started")
        assert self.observer is not None
        for name, id in self.ids.items():
            if name not in self.jobs or not self.jobs[name].alive:
                self.jobs[name] = PlayedJob(name, id, self.answers)
            self.observer.jobs[id] = name
        return self.observer


@dataclass
class Played:
    """What came of a probe: its criterion and result, how it ended where it did not end well, what
    it asked, and what it says that it covered."""

    row: Criterion
    result: ProbeResult
    error: str
    asked: Counter[str]
    covered: list[str]

    @property
    def failed(self) -> set[str]:
        """The measures that failed."""
        return {one.name for one in self.result.measurements if one.verdict is Verdict.FAIL}

    def values(self, name: str) -> list[Any]:
        """All values of a judged measure."""
        return [m.value for m in self.result.measurements if m.name == name and m.judged]


def play(
    path: Path, patch: pytest.MonkeyPatch, doctor: Callable[[Answers], None] = lambda _: None
) -> Played:
    """Run the probe of a tape.  NoAnswer where it asks what the tape does not have.

    `doctor` may change the answers first.
    """
    answers = Answers(path)
    run = answers.next("run")
    doctor(answers)
    file, _, name = run["probe"].partition("::")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    probe = getattr(module, name.partition("[")[0])
    criterion = run["criterion"]
    agreed = run["contract"]
    contract = contracts.load(str(REPO / agreed) if agreed.endswith(".toml") else agreed)
    measure = MemoryRecorder(contract, run["probe"], criterion)
    _patch_functions(answers, patch)
    cluster: Any = PlayedCluster(answers, run["cluster"])
    given = {
        "cluster": cluster,
        "terms": ClusterTerms.model_validate(run["terms"]),
        "tier": run["tier"],
        "limits": lambda measure_name: contract.limit(criterion, measure_name),
        "measure": measure,
        "workplace": Path("/nowhere"),
        **run["params"],
        **_references(answers),
    }
    wanted = inspect.signature(probe).parameters
    if "scene" in wanted:
        stage = PlayedStage(cluster, answers)
        given["scene"] = partial(_scene, stage, measure)
        patch.setattr(Scenario, "_wait_capacity", _played_capacity)
    error = ""
    try:
        probe(**{name: given[name] for name in wanted})
    except NoAnswer:
        raise
    except (Exception, pytest.fail.Exception) as raised:  # noqa: BLE001 - as pytest has it
        error = f"{type(raised).__name__}: {raised}"
    result = measure.result("error" if error else "finished", 0.0, error)
    return Played(measure.row, result, error, answers.asked, measure._coverage)


def _scene(stage: PlayedStage, measure: Recorder, title: str, **options: Any) -> Any:
    return run_scenario(stage, title, measure, **options)


def _played_capacity(scenario: Scenario) -> Any:
    observer: Any = scenario.observer
    told, new = observer.answers.next("observer _wait_capacity")
    observer.samples += new
    return tuple(told)


def _references(answers: Answers) -> dict[str, ReferenceRun]:
    runs = {}
    for name in REFERENCES:
        with suppress(NoAnswer):
            state = answers.next(name)
            runs[name] = ReferenceRun(state["folder"])
            vars(runs[name]).update(state)
    return runs


def _patch_functions(answers: Answers, patch: pytest.MonkeyPatch) -> None:
    for module, names in FUNCTIONS.items():
        for name in names:
            patch.setattr(f"{module}.{name}", partial(_answer, answers, name))


def _answer(answers: Answers, name: str, *_: Any, **__: Any) -> Any:
    return answers.next(name)
