"""A ladder that anyone may have damaged: refused in a sentence, or read; never a traceback."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from reference_trainer.telemetry.event_log import SEGMENTS
from scaling.loss.ladder_result import load_ladder
from tests.probes.cli.test_scaling import ladder, said, save
from tests.support.run_folders import replace_evidence

COMMANDS = ("report", "predict")
ALL = ", ".join(SEGMENTS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("told") / "run", ladder())


@pytest.fixture(scope="module", params=[False, True], ids=["host", "waits timed"])
def sound(request: pytest.FixtureRequest) -> Any:
    """A ladder of a few steps, as JSON has it."""
    content = json.loads(json.dumps(ladder(separable=request.param).to_dict()))
    for rung in content["rungs"]:
        rung["steps"] = [steps[:5] for steps in rung["steps"]]
    return content


def put(run: Path, content: Any) -> None:
    replace_evidence(run, "ladder.json", json.dumps(content).encode())


def set_to(*path: Any) -> Callable[[Any], Any]:
    """Damage: what lies at a path becomes the last of these words."""

    def damage(content: Any) -> Any:
        *way, key, value = path
        here = content
        for step in way:
            here = here[step]
        here[key] = value
        return content

    return damage


STEP = ("rungs", 1, "steps", 0, 0)


def short_step(content: Any) -> Any:
    """Make a step ten times as short; return it."""
    step = content["rungs"][1]["steps"][0][0]
    step["segments"] = {name: each / 10 for name, each in step["segments"].items()}
    step |= {"seconds": step["seconds"] / 10, "exposed": {}}
    return step


def more_in_a_short_step(content: Any) -> Any:
    """Damage: a twentieth of a second more than a short step has."""
    short_step(content)["segments"]["other"] += 0.05
    return content


def longer_waits_in_a_short_step(content: Any) -> Any:
    """Damage: waits that are a twentieth of a second longer than their segment."""
    step = short_step(content)
    step["exposed"] = {"clip": {"all-gather": step["segments"]["clip"] + 0.05}}
    return content


def shorter_rank(content: Any) -> Any:
    """Damage: a rank that has one step less than the others."""
    content["rungs"][1]["steps"][0].pop()
    return content


DAMAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a list": (lambda _: [], "expected an object, found []"),
    "null": (lambda _: None, "expected an object, found None"),
    "no rungs": (set_to("rungs", []), "expected rungs with rising node counts from 1, found none"),
    "no calls": (lambda c: {k: c[k] for k in ("rungs", "fits")}, "calls: expected a value"),
    "not from 1": (
        lambda c: c | {"rungs": c["rungs"][1:]},
        "expected rungs with rising node counts from 1, found 2, 4",
    ),
    "falling": (
        lambda c: c | {"rungs": [c["rungs"][0], *c["rungs"][:0:-1]]},
        "expected rungs with rising node counts from 1, found 1, 4, 2",
    ),
    "no steps": (
        set_to("rungs", 1, "steps", [[], []]),
        "rungs.1: expected the same number of steps on each",
    ),
    "uneven": (set_to(*STEP[:4], []), "rungs.1: expected the same number of steps on each rank"),
    "a step less": (shorter_rank, "expected the same number of steps on each rank, found 4, 5"),
    "too few ranks": (set_to("rungs", 1, "steps", []), "with steps 0, ranks 2, nodes 2"),
    "other nodes": (set_to("rungs", 1, "count", 3), "expected the steps of each rank on 3 nodes"),
    "one node for two": (
        set_to("rungs", 1, "nodes", 1, "node0"),
        "expected the steps of each rank on 2 nodes, found: ranks with steps 2, ranks 2, nodes 1",
    ),
    "stranger": (
        set_to("rungs", 2, "nodes", 0, "x"),
        "a run of each node alone, found x only in the run on 4",
    ),
    "zero": (set_to(*STEP, "seconds", 0.0), "rungs.1.steps.0.0.seconds: expected greater than"),
    "NaN": (set_to(*STEP, "seconds", float("nan")), "expected a finite number, found nan"),
    "a string": (set_to(*STEP, "seconds", "1"), "expected a valid number, found '1'"),
    "other sum": (set_to(*STEP, "seconds", 9.0), "rungs.1.steps.0.0: expected segments of 9.0 s"),
    "other sum of a short one": (more_in_a_short_step, "rungs.1.steps.0.0: expected segments of"),
    "long waits in a short one": (
        longer_waits_in_a_short_step,
        "expected waits within clip, found",
    ),
    "strange waits": (
        set_to(*STEP, "exposed", {"lunch": {"all-gather": 0.1}}),
        "expected waits within lunch, found 0.1 s of no such segment",
    ),
    "long waits": (
        set_to(*STEP, "exposed", {"clip": {"all-gather": 9.0}}),
        "expected waits within clip, found 9.0 s of",
    ),
    "no tokens": (
        set_to("rungs", 1, "tokens_per_step", 1),
        "rungs.1: expected at least one token per step for each of 2 ranks, found 1",
    ),
    "no segments": (set_to(*STEP, "segments", {}), f"segments {ALL}, found none"),
    "a strange segment": (set_to(*STEP, "segments", {"lunch": 1.0}), ", found lunch"),
    "other fits": (
        lambda c: c | {"fits": {"all_reduce": c["fits"]["all_gather"]}},
        "expected a fit of each collective, found none of all_gather",
    ),
    "other calls": (set_to("calls", 0, "operation", "x"), "expected collectives of all_reduce,"),
    "no bandwidth": (set_to("fits", "all_gather", "bandwidth", 0.0), "bandwidth: expected greater"),
    "null bandwidth": (set_to("fits", "all_gather", "bandwidth", None), "bandwidth: expected a"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_a_ladder_lacks_is_told_in_one_sentence(run: Path, sound: Any, name: str) -> None:
    damage, words = DAMAGES[name]
    put(run, damage(copy.deepcopy(sound)))
    for command in COMMANDS:
        done = said(command, run)
        assert done.exit_code == 4
        assert len(done.output.splitlines()) == 1
        assert "ladder.json cannot be read: " in done.output
        assert words in done.output


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00", "expected text, found other bytes"),
        (b"[" * 100_000, "its lists are nested too deeply"),
    ],
    ids=["bytes", "deep"],
)
def test_what_is_no_json_is_refused(run: Path, content: bytes, words: str) -> None:
    replace_evidence(run, "ladder.json", content)
    done = said("report", run)
    assert done.exit_code == 4
    assert words in done.output


def test_a_bandwidth_that_no_size_has_shown_is_no_damage(sound: Any) -> None:
    """A fit says infinity then: all of its time is latency."""
    seen = load_ladder(
        set_to("fits", "all_gather", "bandwidth", float("inf"))(copy.deepcopy(sound))
    )
    assert seen.forecast().predictions


def test_nobody_asks_for_more_nodes_than_there_are(run: Path, sound: Any) -> None:
    put(run, sound)
    for nodes in (10**20, 1):
        done = said("predict", run, "--nodes", nodes)
        assert done.exit_code == 4
        assert "is not in the range" in done.output
    done = said("predict", run, "--nodes", 8, "--nodes", 8)
    assert done.output.count("8 nodes ") == 1


NUMBERS = [0, 1, 2, -1, 10**400, 0.0, -0.5, 1e-320, 1e-9, 1e9, 1e308, math.nan, math.inf]
WORDS = ["", "1", "node0", "node9", "data"]
JUNK = st.sampled_from([*NUMBERS, *WORDS, None, True, [], {}, [[]], [1.0], {"data": 1.0}])


@st.composite
def damaged(draw: st.DrawFn, sound: Any) -> Any:
    """A ladder of which one to three things were taken away, or became something else."""
    whole = {"ladder": copy.deepcopy(sound)}
    for _ in range(draw(st.integers(1, 3))):
        here: Any = whole
        key: Any = "ladder"
        for _ in range(draw(st.integers(0, 7))):
            if not isinstance(here[key], dict | list) or not here[key]:
                break
            here = here[key]
            key = draw(st.sampled_from([*here] if isinstance(here, dict) else range(len(here))))
        if here is not whole and draw(st.booleans()):
            del here[key]
        else:
            here[key] = copy.deepcopy(draw(JUNK))
    return whole["ladder"]


@tried(
    max_examples=120, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(data=st.data())
def test_no_damage_ends_in_a_traceback(run: Path, sound: Any, data: st.DataObject) -> None:
    put(run, data.draw(damaged(sound)))
    for command in COMMANDS:
        done = said(command, run)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert done.exit_code in (0, 4)
        assert done.exit_code == 0 or len(done.output.splitlines()) == 1
        assert "nan" not in done.output or done.exit_code == 4
