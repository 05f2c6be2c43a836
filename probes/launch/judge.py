"""Judges a job that a user launched: its guide, its user, its ranks, its training, its network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from probes.check.declarations import exactly
from probes.check.judging import judge_or_explain
from probes.check.recorder import Recorder
from probes.environment.checks import canonical
from probes.environment.collect import read_settings, redact_value
from probes.environment.lint import Flag, lint
from probes.findings import finding, join_names
from probes.launch import criterion as check
from probes.launch import training
from probes.launch.guide import Command, Guide, GuidedCluster, find_settings, lint_guide
from probes.launch.ranks import AnnouncedJob, group_by_problem, identify_nodes, wrong_ranks
from probes.launch.shell import Transcript, count_rights
from probes.launch.training import JobBytes, TrainedJob, Wrong
from reference_trainer.rank_environment import TUNING_VARIABLES
from reports.numbers import number, quantity
from reports.redact import redact_text

NOT_ENDED = "the job did not finish"
NO_RANK = "no rank reported itself in the job's output"
MAX_COMMAND = 2000  # characters of a command in a sentence


Fault = tuple[Command, str, str]  # a line, what it does, and why it should not
JOB_LINE = 0  # in place of a line's number: the guide's job itself


def judge_guide(
    guide: Guide,
    hosts: Sequence[str],
    measure: Recorder,
    values: Mapping[str, str] | None = None,
    settings: Sequence[Fault] | None = (),
) -> None:
    """Judge the guide's lines: as they stand in it, and as typed with the contract's `values`.

    What seatrial fills into values is not judged.  `settings` are the faults of
    `find_harmful_settings`; None if they are not known.
    """
    found = [*lint_guide([*guide.commands, *guide.typed(values or {})], hosts), *(settings or ())]
    faults = {(command.line, does): (command, why) for command, does, why in found}
    count = len({line for line, _ in faults})
    value, note = count if settings is not None else count or None, "a node did not answer"
    measure(check.GUIDE_FAULTS, value, samples=len(guide.commands), note=note)
    for (line, does), (command, why) in sorted(faults.items(), key=lambda item: item[0][0]):
        where = f"line {line} of the guide" if line else "the guide's job, by no line of the guide,"
        statement = (
            f"{where} {does}: `{redact_text(command.text.strip())[:200]}`. Expected: "
            f"commands that work for any user, on any cluster ({why})."
        )
        measure.explain(finding("LAUNCH-GUIDE", statement, [f"line {line}"] * bool(line)))


def find_harmful_settings(
    path: GuidedCluster, said: Transcript, given: Sequence[str], measure: Recorder
) -> list[Fault] | None:
    """Find the variables of the guide and of its job's ranks that harm here, by FABRIC's rules.

    Those that a node has alike are left to FABRIC, whose ranks have them.  `given` are options of
    the job that seatrial adds.  Other differences are noted: a cloud's own recipe may have them, as
    NCCL_BUFFSIZE on EFA.  None if a node does not answer.
    """
    cluster, guide, rows = path.cluster, path.guide, training.announced_ranks(said.text)
    typed = [] if guide.own else guide.typed(path.terms.launch.values)
    in_ranks = {item for row in rows for item in row.items()}
    set_by = {
        (name, value): command
        for command, name, value in find_settings(typed)
        # A line that unsets or searches one sets none.
        if not rows or name not in TUNING_VARIABLES or (name, value) in in_ranks
    }
    had = {fact["node"]: fact["environment"] for fact in cluster.facts if "environment" in fact}
    for row in rows:
        on_node = had.get(row.get("node", ""), {})
        for name in filter(row.get, TUNING_VARIABLES if row.get("node") in had else ()):
            if row[name] != on_node.get(name) and f"{name}={row[name]}" not in given:
                by_job = Command(JOB_LINE, f"in the environment of rank {row.get('RANK', '?')}")
                set_by.setdefault((name, row[name]), by_job)
    if not set_by:
        return []
    nodes, together = cluster.on_each_node(read_settings), dict([*set_by])
    faults, notes = [], []
    for (name, value), command in set_by.items():
        every = together | {name: value}
        flags = _lint_setting(name, every, [*nodes.values()], path.terms.fabric or "")
        harm = next((flag for flag in flags if flag.severity == "fail"), None)
        doubt = next((f" ({flag.why})" for flag in flags if flag.severity == "warn"), "")
        if harm:
            faults.append((command, f"sets {name}={harm.value}", harm.why))
        else:
            notes.append(f"{name}={redact_value(name, value)}{doubt}")
    if notes:
        measure.covered(f"the guide or its job sets what FABRIC did not have: {join_names(notes)}")
    return faults if len(nodes) == len(cluster.nodes) else None


def _lint_setting(
    name: str, every: Mapping[str, str], nodes: Sequence[Mapping[str, Any]], fabric: str
) -> list[Flag]:
    """Return the flags of a variable that is set on these nodes, with `every` other one."""
    wanted = canonical(name, every[name])
    entries = {key: {"value": value, "where": "environment"} for key, value in every.items()}
    merged = {
        str(index): {**facts, "missing_files": {}, "effective": facts["effective"] | entries}
        for index, facts in enumerate(nodes)
        if canonical(name, facts["effective"].get(name, {}).get("value")) != wanted
    }
    return [flag for flag in lint(merged, fabric) if flag.variable == name]


def judge_user(said: Transcript, why_same: str, measure: Recorder) -> None:
    """Judge who followed the guide, by the output of `id -u; id -g; id -G` in the user's shell."""
    lines = filter(None, map(str.split, said.lines))
    numbers = [[*map(int, words)] for words in lines if all(map(str.isdecimal, words))]
    if why_same or len(numbers) != 3:
        reason = why_same or "the command `id` did not print the user's numbers"
        note = f"it is not known whether an ordinary user can follow the guide: {reason}"
        measure(check.RIGHTS_OF_USER, None, note=note)
        return
    (uid, *_), (group, *_), groups = numbers
    rights = count_rights(uid, groups, group)
    statement = (
        f"the user who follows the guide has uid {uid} and groups "
        f"{join_names(list(map(str, groups)))}. Expected: not root, and no group besides {group}."
    )
    judge_or_explain(measure, check.RIGHTS_OF_USER, rights, finding("LAUNCH-USER", statement))


def judge_ranks(path: GuidedCluster, said: Transcript, measure: Recorder) -> AnnouncedJob:
    """Judge the ranks, the exit code, and the time to the first step."""
    note = "the job's output shows no training step"
    measure(check.TIME_TO_FIRST_STEP, said.first_step, note=note)
    measure.note("time_of_job", said.seconds, "s")
    return judge_job(path, said, measure)


def judge_job(
    path: GuidedCluster, said: Transcript, measure: Recorder, *, on: str = "cluster", **what: Any
) -> AnnouncedJob:
    """Judge the ranks and the exit code of a job; `what` is known of it, as in `read_job`.

    Each problem is one finding, with all ranks that have it.
    """
    job = read_job(path, said, **what)
    wrong, ranks = wrong_ranks(job), len(job.rows)
    measure(check.WRONG_RANKS, len(wrong) if ranks else None, on=on, samples=ranks, note=NO_RANK)
    measure(check.EXIT_CODE, said.exit_code, on=on)
    because = "one rank per accelerator that the job asked for"
    measure(check.RANKS, ranks, on=on, limit=exactly(job.size, "ranks", because))
    whose = "" if on == "cluster" else f"{on}: "
    if said.exit_code != 0:
        last = next((line for line in reversed(said.lines) if line.strip()), "no output")
        typed = said.failed_command[:MAX_COMMAND]
        command = f"`{typed}`" if typed else "the commands"
        statement = f"{whose}{command} ended with exit code {said.exit_code}: {last[:200]}"
        measure.explain(finding("LAUNCH-FAILED", statement))
    for problem, alike in group_by_problem(wrong if ranks else []).items():
        names, hosts = name_ranks([each.rank for each in alike], [each.host for each in alike])
        where = f"{join_names(names)} on {join_names(hosts)}" if hosts else join_names(names)
        statement = f"{whose}{where}: {problem.found}. Expected: {problem.expected}."
        known = {"rank": alike[0].rank}
        measure.explain(finding(problem.code, statement, [*names, *hosts], names=known))
    return job


def read_job(
    path: GuidedCluster, said: Transcript, *, size: int = 0, more: Mapping[str, str] | None = None
) -> AnnouncedJob:
    """Read the ranks that the job announced, and the nodes of the cluster under test.

    The job has `size` ranks; 0 for those of the complete cluster.  `more` are variables that each
    rank must have in addition to the guide's.
    """
    cluster, ended = path.cluster, said.exit_code == 0
    nodes = identify_nodes(cluster.known_nodes(), cluster.facts)
    by_host = {each.name: id for id, each in nodes.items()}
    announced = training.announced_ranks(said.text)
    rows = [{"node": by_host.get(row.get("host", ""), ""), **row} for row in announced]
    on_gpu = cluster.on_gpu and ended  # a job that failed names no device
    variables, size = {**path.variables, **(more or {})}, size or cluster.size
    return AnnouncedJob(rows, size, nodes, on_gpu, variables, ended)


def name_ranks(ranks: Sequence[str], hosts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Name ranks as suspects, and the hosts that are known, each once."""
    return [f"rank {rank}" for rank in ranks], list(dict.fromkeys(filter(None, hosts)))


def judge_training(job: AnnouncedJob, said: Transcript, measure: Recorder) -> None:
    """Judge what the ranks trained: all of it is unproven if the job did not come to its end."""
    rows = [row for row in job.rows if "RANK" in row]
    trained = TrainedJob(rows, training.logged_losses(said.text))
    ended = job.ended and bool(trained.rows)
    hosts = {row["RANK"]: job.host_of(row, "") for row in trained.rows}
    for name, (words, code) in CHECKS.items():
        wrong = training.find_odd_ranks(trained, words) if ended else []
        count = len({rank for each in wrong for rank in each.ranks})
        measure(name, count if ended else None, samples=len(trained.rows), note=NOT_ENDED)
        _explain(wrong, code, hosts, measure)
    misplaced, wrong = training.wrong_samples(trained) if ended else (None, [])
    note = "a rank did not report its samples, or the job logged no loss" if ended else NOT_ENDED
    measure(check.MISPLACED_SAMPLES, misplaced, note=note)
    _explain(wrong, "LAUNCH-DATA", hosts, measure)
    _judge_metrics(trained, ended, measure)
    _judge_export(trained, ended, hosts, measure)


CHECKS = {
    check.RANKS_WITH_OTHER_WEIGHTS: (training.WEIGHTS, "LAUNCH-WEIGHTS"),
    check.RANKS_WITH_OTHER_VALIDATION: (training.VALIDATION, "LAUNCH-DATA"),
}


def _explain(wrong: Sequence[Wrong], code: str, hosts: dict[str, str], measure: Recorder) -> None:
    for each in wrong:
        names, on = name_ranks(each.ranks, [hosts[rank] for rank in each.ranks])
        where = f"{join_names(names)} on {join_names(on)}: " if names and on else ""
        statement = f"{where}{each.text}. Expected: {EXPECTED[code]}."
        measure.explain(finding(code, statement, [*names, *on]))


EXPECTED = {
    "LAUNCH-WEIGHTS": "the same weights on all ranks",
    "LAUNCH-DATA": "each sample on one rank, and the same validation data on all",
}


def _judge_metrics(trained: TrainedJob, ended: bool, measure: Recorder) -> None:
    error, step = training.metric_error(trained) if ended else (None, 0)
    note = "the job or a rank did not report a loss for every step" if ended else NOT_ENDED
    measure(check.METRIC_ERROR, error, note=note, samples=len(trained.logged))
    if measure.would_fail(check.METRIC_ERROR, error):
        statement = (
            f"the loss that the job logged for step {step} is {100 * (error or 0):.2f} % off the "
            "mean of its ranks. Expected: the mean of all ranks."
        )
        measure.explain(finding("LAUNCH-METRICS", statement))
    ratio = training.loss_ratio(trained) if ended else None
    note = "the job logged fewer than 2 losses, or one that is no number" if ended else NOT_ENDED
    measure(check.LOSS_RATIO, ratio, note=note)
    if measure.would_fail(check.LOSS_RATIO, ratio):
        first, last = (number(trained.logged[index]) for index in (0, -1))
        count = quantity(len(trained.logged), "steps")
        statement = (
            f"the logged loss was {first} in the first step and {last} after {count}. "
            "Expected: it falls clearly."
        )
        measure.explain(finding("LAUNCH-METRICS", statement))


def _judge_export(
    trained: TrainedJob, ended: bool, hosts: dict[str, str], measure: Recorder
) -> None:
    ranks = [row["RANK"] for row in trained.rows if row.get("exported")]
    wrong = [rank for rank in ranks if rank != "0"] + ["0"] * ("0" not in ranks)
    measure(check.WRONG_EXPORTS, len(wrong) if ended else None, note=NOT_ENDED)
    if ended and wrong:
        names, on = name_ranks(ranks, [hosts[rank] for rank in ranks])
        who = f"{join_names(names)} exported the model" if names else "no rank exported the model"
        statement = f"{who}. Expected: only rank 0 exports it."
        measure.explain(finding("LAUNCH-EXPORT", statement, [*names, *on]))
    error, why = training.export_error(trained) if ended else (None, NOT_ENDED)
    measure(check.EXPORT_ERROR, error, note=why)
    if measure.would_fail(check.EXPORT_ERROR, error):
        statement = (
            f"on the same data, the exported model's loss is {100 * (error or 0):.1f} % off the "
            "trained model's loss. Expected: the same model."
        )
        measure.explain(finding("LAUNCH-EXPORT", statement))


def judge_network(
    job: AnnouncedJob,
    fabric: str,
    sent: JobBytes,
    said: Transcript,
    measure: Recorder,
    idle: JobBytes | None = None,
) -> None:
    """Judge whether the job's own bytes took the agreed fabric, on each node that has ranks.

    Where another network carried enough for half of the job, on more than two nodes, whose bytes
    these were is not known: the head sends the job's code to all others, and rank 0's node the
    addresses of the ranks.  `idle` is what the nodes sent before the job.
    """
    nodes = {job.nodes[id].name for id in job.node_ranks if id in job.nodes}
    parameters = training.count_job_parameters(said.text)
    steps = len(training.logged_losses(said.text))
    expected = training.expected_bytes(parameters or 0, steps, len(nodes))
    shares = training.shares_on(fabric, sent, expected)
    known = {name: share for name in nodes if (share := shares.get(name)) is not None}
    complete = job.ended and bool(known) and len(known) == len(nodes)
    unread = join_names(sorted(nodes - known.keys()))
    note = f"the byte counter of {fabric} could not be read on {unread}"
    if expected <= 0:
        note = (
            "it is not known how much the job should send: its log does not have the number of "
            "parameters or the steps, or all ranks are on one node"
        )
    if not job.ended:
        note = NOT_ENDED
    lowest = min(known.values()) if complete else None
    name = check.SHARE_ON_AGREED_NETWORK
    elsewhere = training.bytes_elsewhere(fabric, sent, idle or JobBytes())
    busiest = sorted(known, key=lambda node: (elsewhere[node], node))
    other = busiest[-min(3, len(busiest))] if len(busiest) > 1 else ""
    room = training.CONTROL_BYTES + training.BYTES_PER_RANK * job.size + expected / 2
    doubted = complete and not measure.would_fail(name, lowest) and elsewhere[other] > room
    if doubted:
        device, count = training.busiest_other(fabric, sent.sent[other])
        note = (
            f"{device} on {other} sent {quantity(count / 1e6, 'MB')} during the job: these may be "
            f"the job's bytes, and those of {fabric} another program's"
        )
    measure(name, None if doubted else lowest, samples=len(known), note=note)
    low = sorted(node for node, share in known.items() if measure.would_fail(name, share))
    if not complete or not low:
        return
    device, count = training.busiest_other(fabric, sent.sent[low[0]])
    statement = (
        f"the agreed fabric ({fabric}) carried only {100 * (lowest or 0):.1f} % of the job's bytes "
        f"on {join_names(low)}. On {low[0]}, {device} sent {quantity(count / 1e6, 'MB')}. "
        f"Expected: {fabric} carries the job's bytes."
    )
    measure.explain(finding("LAUNCH-NETWORK", statement, low))


def keep_transcript(said: Transcript, measure: Recorder, name: str, caption: str) -> None:
    """Keep what a terminal showed, as transcript-NAME.txt."""
    file = re.sub("[ /]", "-", f"transcript {name}".strip())
    measure.keep(f"{file}.txt", said.text, kind="log", caption=caption)
