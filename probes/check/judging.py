"""Shapes that most checks have: judge each node, explain equal faults once, plant a fault."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from probes.check.declarations import Check, Circumstances, one_node_ordered
from probes.check.recorder import Recorder, Trial
from probes.findings import finding, join_names
from reference_trainer.launch.gang import GangError
from reports.groups import group_pairs
from reports.measurement import Limit
from reports.numbers import Value, quantity
from reports.record import Finding

if TYPE_CHECKING:
    from probes.cluster.cluster import Cluster
    from probes.contract.terms import ClusterTerms

Key = TypeVar("Key")
SILENT = "the node does not answer"


def record_each(
    measure: Recorder,
    name: str,
    values: Mapping[str, Value],
    silent: Iterable[str] = (),
    notes: Mapping[str, str] | str = "",
) -> None:
    """Record a measure of each node, by name; nothing is proven of `silent` nodes."""
    for node, value in values.items():
        measure(name, value, on=node, note=notes if isinstance(notes, str) else notes.get(node, ""))
    for node in silent:
        measure(name, None, on=node, note=SILENT)


def explain_alike(
    measure: Recorder,
    code: str,
    faults: Mapping[str, str],
    sentence: str,
    *,
    asked: int = 0,
    names: Mapping[str, Mapping[str, object]] | None = None,
    **shared: object,
) -> None:
    """Make one finding for all nodes with the same fault; `sentence` has {nodes} and {text}.

    `faults` maps a node to its fault.  Where each of several nodes that were `asked` has it, the
    sentence says "each node".  `names` maps a fault's text to names of placeholders that differ by
    fault; `shared` names are those of all faults.  The sentence may have their placeholders too:
    what others wrote, as a path, is filled in and never a part of the sentence itself.
    """
    for text, nodes in group_pairs((text, node) for node, text in faults.items()).items():
        where = "each node" if len(nodes) == asked > 1 else join_names(nodes)
        known = {**shared, **(names or {}).get(text, {})}
        statement = sentence.format(nodes=where, text=text, **known)
        measure.explain(finding(code, statement, nodes, names=known))


def worst_of(
    values: Mapping[Key, float | None], worst: Callable[..., Any] = max
) -> tuple[Key | None, float | None]:
    """Return the key and value that decide: the first unknown one, else the worst.

    `worst` is max where large values are bad, else min.  Without values both are None.
    """
    for key, value in values.items():
        if value is None:
            return key, None
    if not values:
        return None, None
    key = worst(values, key=lambda one: values[one])
    return key, values[key]


def is_agreed(measure: Recorder, name: str) -> bool:
    """Return whether the contract gives a measure of this probe a limit."""
    return measure.contract.limit(measure.criterion, name) is not None


def cover_alike(measure: Recorder, what: str, limits: Mapping[Any, Limit | None]) -> None:
    """Say down to which speeds `what` passes if all are slow alike: no comparison shows that."""
    known = {name: (one, one.marginal_low or one.low) for name, one in limits.items() if one}
    texts = [f"{name} {quantity(low, one.unit)}" for name, (one, low) in known.items() if low]
    if texts:
        measure.covered(f"if {what} are all slow alike, they pass down to: {', '.join(texts)}")


def judge_if_agreed(measure: Recorder, name: str, value: Value, unit: str, **more: Any) -> None:
    """Judge a value where the contract has a limit for it; elsewhere it only informs.

    `more` is as in Recorder.__call__.
    """
    if is_agreed(measure, name):
        measure(name, value, **more)
    else:
        measure.note(name, value, unit, **more)


def judge_or_explain(
    measure: Recorder,
    name: str,
    value: Value,
    cause: Finding | Iterable[Finding],
    failed: bool | None = None,
    **more: Any,
) -> None:
    """Record a value, and its cause if it `failed`; without `failed`, unless it is 0 or None.

    `more` is as in Recorder.__call__.
    """
    measure(name, value, **more)
    if value if failed is None else failed:
        measure.explain(cause)


def plant(
    measure: Recorder,
    control: str,
    fault: str,
    judge: Callable[[Trial], object] | Mapping[Check, Value],
    *,
    unable: str = "",
    without: Container[str] = (),
    located: bool = True,
    saw: str = "",
    suspects: Collection[str] = (),
) -> None:
    """Judge a planted fault as the probe judges, and record whether it was caught.

    `judge` gets the trial, or is the values to judge by measure.  It returns False (what else it
    returns means nothing) if the fault was found in another place than where it was planted; where
    that is known before, it is not `located`.  Its findings must name all `suspects`.  `saw` is
    what was seen of the fault, and `unable` why it could not be planted: the control then proves
    nothing.  `without` are measures that the fault cannot make fail here.  Ranks that fail
    meanwhile prove nothing either.
    """
    if unable:
        measure.control(control, fault, None, saw=unable)
        return
    trial = measure.trial()
    if isinstance(judge, Mapping):
        for name, value in judge.items():
            trial(name, value)
    else:
        try:
            located = judge(trial) is not False and located
        except GangError as error:
            measure.control(control, fault, None, saw=str(error))
            return
    named = {suspect for one in trial.findings for suspect in one.suspects}
    located = located and named.issuperset(suspects)
    measure.control(control, fault, trial, located=located, saw=saw, without=without)


def ask_victim(
    cluster: Cluster, victim: Mapping[str, Any], function: Callable[..., Any], *arguments: Any
) -> tuple[Any, str]:
    """Run a function in a worker on the node of a planted fault.

    Returns (answer, ""), or (None, why there is none).  `victim` has `node`, its id, and `name`.
    """
    asked = [one for one in cluster.nodes if one["id"] == victim["node"]]
    answer = cluster.on_each_node(function, *arguments, nodes=asked).get(victim["node"])
    if answer is not None:
        return answer, ""
    return None, f"{victim['name']}: {cluster.errors.get(victim['node'], 'no answer in time')}"


def condition_holds(check: Check, cluster: Cluster, terms: ClusterTerms) -> bool:
    """Return whether the condition of a check holds on this cluster, in tier quick."""
    one_host = cluster.kind == "local"
    here = Circumstances("quick", terms, len(cluster.nodes), cluster.on_gpu, one_host=one_host)
    return check.when is None or check.when(here)


def is_alone(cluster: Cluster, terms: ClusterTerms) -> bool:
    """Return whether the cluster is the one node that was ordered."""
    return one_node_ordered(terms, len(cluster.nodes), cluster.kind == "local")


def plant_on(
    cluster: Cluster,
    measure: Recorder,
    control: str,
    fault: str,
    victim: Mapping[str, Any],
    read: Callable[..., Any],
    *arguments: Any,
    judge: Callable[[Any, Trial], bool | None],
    without: Container[str] = (),
) -> None:
    """Read a fault on the victim's node as the probe reads, and judge it by `plant`.

    `victim` has `node`, its id, and `name`; `fault` continues the sentence after the name.  `read`
    runs in a worker there with these arguments; `judge` gets its answer and the trial.
    """
    answer, _ = ask_victim(cluster, victim, read, *arguments)
    planted, judge_it = f"{victim['name']} {fault}", partial(judge, answer)
    unable = f"{victim['name']} does not answer" if answer is None else ""
    plant(measure, control, planted, judge_it, unable=unable, without=without)


def silent_names(nodes: Sequence[Mapping[str, Any]], answered: Container[str]) -> list[str]:
    """Name the nodes whose ids have not answered."""
    return [node["name"] for node in nodes if node["id"] not in answered]
