"""Jobs of a user that train: what they print, where they meet, how they fail or go on."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from probes.cluster.ask import on_node
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import counter_growth, join_fabric, read_counters
from probes.cluster.room import jobs_of_others
from probes.cluster.shared_folder import find_folder_problem, remove_later
from probes.launch.ranks import Row
from reference_trainer.config import TrainConfig
from reference_trainer.late import ray
from reports.groups import group_pairs
from reports.numbers import quantity

ATTEMPT = re.compile(r"\battempt=(\d+) (node=.*)$", re.MULTILINE)
TRAINED_WORD = re.compile(r"\btrained (?=.)")  # before the words of a rank
MAX_SAMPLES = 1_000_000  # of one rank; a job of 20 steps has some hundred
STEP = re.compile(r"\bstep (\d+)/(\d+)\s+loss (\S+)")
PARAMETERS = re.compile(r"\b(\d+) ranks on \S+, (\d+) parameters")


def announced_ranks(text: str) -> list[dict[str, str]]:
    """Read each rank's place, variables, device and training from the job's output.

    If the job was restarted, the last attempt counts.  Ray's command repeats the last lines of a
    job that failed, so equal lines count once.  A rank that a launcher of its own started says at
    the end alone where it is.
    """
    lines = {match[0]: match for match in ATTEMPT.finditer(text)}.values()
    attempts = group_pairs((int(match[1]), _read_words(match[2])) for match in lines)
    found = ((line, TRAINED_WORD.search(line)) for line in text.split("\n"))
    ends = [line[match.end() :] for line, match in found if match]
    said = [words for words in map(_read_words, ends) if "RANK" in words]
    trained = {words["RANK"]: words for words in said}
    rows = attempts[max(attempts)] if attempts else [*trained.values()]
    return [{**row, **trained.get(row.get("RANK", ""), {})} for row in rows]


def logged_losses(text: str) -> list[float]:
    """Read the loss that the job logged for each step, in order; of a restarted job the last."""
    losses = {int(step): _read_number(loss) for step, _, loss in STEP.findall(text)}
    return [losses[step] for step in sorted(losses)]


def count_job_parameters(text: str) -> int | None:
    """Read the number of the model's parameters; None if the job did not log it."""
    found = PARAMETERS.search(text)
    return int(found[2]) if found else None


def numbers_of(row: Mapping[str, str], name: str) -> list[float]:
    """Read numbers with commas between; what is none is NaN."""
    return [_read_number(word) for word in filter(None, row.get(name, "").split(","))]


def _read_number(word: str) -> float:
    with suppress(ValueError):
        return float(word)
    return math.nan


def ids_of(row: Mapping[str, str]) -> set[int] | None:
    """Read the samples that a rank trained on, as `0-3,8`; None if it did not say."""
    ids: set[int] = set()
    with suppress(KeyError, ValueError, OverflowError):
        for span in row["samples"].split(","):
            first, _, last = span.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            if len(numbers) > MAX_SAMPLES:
                return None
            ids.update(numbers)
        return ids
    return None


def _read_words(line: str) -> dict[str, str]:
    words = (word.split("=", 1) for word in line.split() if "=" in word)
    return {name: unquote(value) for name, value in words}


BATCH = TrainConfig.batch  # samples of a rank and step: the guide's job leaves it as it is
MAX_SHOWN = 8  # samples that a finding names


@dataclass(frozen=True)
class TrainedJob:
    """What the ranks of a job that ended say of their training, and the losses that it logged."""

    rows: Sequence[Row]
    logged: Sequence[float]


@dataclass(frozen=True)
class Wrong:
    """Ranks with something wrong, and a sentence without a full stop."""

    ranks: tuple[str, ...]
    text: str


# What a rank says of its weights and data, in words.
WEIGHTS = {"start": "weights before the first step", "end": "weights after the last step"}
VALIDATION = {"validation": "validation data"}


def find_odd_ranks(job: TrainedJob, words: Mapping[str, str]) -> list[Wrong]:
    """Find the ranks that say others than most of one of these."""
    return [wrong for name, what in words.items() for wrong in _odd_ranks(job, name, what)]


def _odd_ranks(job: TrainedJob, name: str, what: str) -> list[Wrong]:
    """Find the ranks whose value differs from that of most; of a tie, from rank 0's."""
    values = {row["RANK"]: row.get(name) for row in job.rows}
    counts = Counter(value for value in values.values() if value is not None)
    most = max(counts, key=lambda value: (counts[value], value == values.get("0")), default=None)
    pairs = [(value, rank) for rank, value in values.items() if value is None or value != most]
    others = f"on other ranks {most or 'missing'}"
    return [
        Wrong(tuple(ranks), f"the hash of the {what} is {value or 'missing'}, {others}")
        for value, ranks in group_pairs(pairs).items()
    ]


def wrong_samples(job: TrainedJob) -> tuple[int | None, list[Wrong]]:
    """Count the samples that two ranks trained on, none, or one again; None if a rank did not say.

    The samples of all ranks together are those from 0 on, each once, BATCH a rank and step.
    """
    known = {row["RANK"]: ids_of(row) for row in job.rows}
    ids = {rank: found for rank, found in known.items() if found is not None}
    if not ids or len(ids) < len(known) or not job.logged:
        return None, []
    holders = group_pairs((sample, rank) for rank, own in ids.items() for sample in own)
    several = [(tuple(ranks), sample) for sample, ranks in holders.items() if len(ranks) > 1]
    shared = group_pairs(sorted(several, key=itemgetter(1)))
    missing = sorted(set(range(BATCH * len(job.logged) * len(ids))) - holders.keys())
    again = {row["RANK"]: _seen_again(row, ids[row["RANK"]]) for row in job.rows}
    alike = {ranks: f"trained on the same {_samples(ids)}" for ranks, ids in shared.items()}
    wrong = [Wrong(ranks, text) for ranks, text in alike.items()]
    times = {rank: quantity(count, "times") for rank, count in again.items() if count}
    used = "on a sample that it had already used"
    wrong += [Wrong((rank,), f"trained {count} {used}") for rank, count in times.items()]
    if missing:
        wrong.append(Wrong((), f"no rank trained on {_samples(missing)}"))
    return sum(map(len, shared.values())) + len(missing) + sum(again.values()), wrong


def _seen_again(row: Row, ids: set[int]) -> int:
    """Count the samples of a rank that were not its first of that number."""
    seen = row.get("seen", "")
    return max(0, int(seen) - len(ids)) if seen.isdecimal() else 0


def _samples(samples: Sequence[int]) -> str:
    shown = ", ".join(map(str, samples[:MAX_SHOWN]))
    more = f" and {len(samples) - MAX_SHOWN} more" if len(samples) > MAX_SHOWN else ""
    return f"{'sample' if len(samples) == 1 else 'samples'} {shown}{more}"


def metric_error(job: TrainedJob) -> tuple[float | None, int]:
    """Return the largest relative error of a logged loss, against the mean of the ranks' own.

    The second is its step.  None if a rank's losses or the logged ones are missing.
    """
    losses = [numbers_of(row, "losses") for row in job.rows]
    if not losses or not job.logged or any(len(own) != len(job.logged) for own in losses):
        return None, 0
    means = [sum(step) / len(step) for step in zip(*losses, strict=True)]
    pairs = zip(job.logged, means, strict=True)
    errors = [abs(said - mean) / abs(mean) if mean else math.inf for said, mean in pairs]
    if any(math.isnan(error) for error in errors):
        return None, 0
    worst = max(errors)
    return worst, errors.index(worst) + 1


def loss_ratio(job: TrainedJob) -> float | None:
    """Return the last logged loss over the first; None for fewer than two, or no number."""
    if len(job.logged) < 2 or not job.logged[0]:
        return None
    ratio = job.logged[-1] / job.logged[0]
    return ratio if math.isfinite(ratio) else None


def export_error(job: TrainedJob) -> tuple[float | None, str]:
    """Return how far the loss of the loaded export is from the job's own, relative to it.

    The second is why there is none: no rank loaded it, or the files are others.
    """
    loaded = next((row for row in job.rows if row.get("loaded")), None)
    first = next((row for row in job.rows if row["RANK"] == "0"), None)
    if loaded is None or first is None:
        return None, "no rank loaded the export"
    if loaded["loaded"] != first.get("exported"):
        return None, f"rank {loaded['RANK']} did not load the file that rank 0 exported"
    own = numbers_of(first, "validation_loss")
    again = numbers_of(loaded, "loaded_loss")
    if not own or not again or not math.isfinite(own[0] * again[0]) or not own[0]:
        return None, "rank 0, or the rank that loaded the export, has no usable validation loss"
    return abs(again[0] - own[0]) / abs(own[0]), ""


COORDINATOR = "AutoscalingCoordinator"  # the actor, and its namespace
REMOVAL_S = 60  # for a task on the head that imports Ray Data


@contextmanager
def removed_coordinator(cluster: Cluster) -> Iterator[None]:
    """Remove the coordinator of a job of ours, unless there was one or other jobs may use it."""
    before = has_coordinator()
    try:
        yield
    finally:
        if not before and has_coordinator() and not jobs_of_others(cluster):
            ray.get(on_node(_remove, cluster.head_node_id).remote(), timeout=REMOVAL_S)


def has_coordinator() -> bool:
    """Return whether the actor lives that Ray Train and Ray Data of all jobs share."""
    from ray.util import list_named_actors

    return {"name": COORDINATOR, "namespace": COORDINATOR} in list_named_actors(all_namespaces=True)


def _remove() -> None:
    with suppress(ValueError):  # it went by itself
        ray.kill(ray.get_actor(COORDINATOR, namespace=COORDINATOR))


LAST_LINES = 40  # what a terminal shows without scrolling
RANK_LINE = re.compile(r"\battempt=\d+ node=|\btrained .*\bRANK=")
WORD_GAP = 3  # characters between `rank` and its number: "rank 3", "rank=3", "ranks [3"


@dataclass(frozen=True)
class Failure:
    """What the end of a failed job's output must name: each fact, with a pattern for it."""

    name: str
    facts: Mapping[str, str]

    def missing(self, lines: Sequence[str]) -> list[str]:
        """List the facts that none of the last lines names.

        The lines that list all ranks do not count: each of them names a rank and its host.
        """
        end = "\n".join(line for line in lines[-LAST_LINES:] if not RANK_LINE.search(line))
        return [fact for fact, pattern in self.facts.items() if not re.search(pattern, end, re.I)]


def failure_of(name: str, exception: str, rank: int | None = None, host: str = "") -> Failure:
    """Build the failure of a rank on a host, or of the whole job without a rank."""
    facts = {"the error": exception}
    if rank is not None:
        facts["the rank"] = rf"\branks?\W{{0,{WORD_GAP}}}{rank}\b"
        facts["the host"] = rf"(?<![\w-]){re.escape(host.partition('.')[0])}(?![\w-])"
    return Failure(name, facts)


KEPT_SECONDS = 1800  # after this time a node removes the folder by itself: the driver has died


@contextmanager
def own_folders(cluster: Cluster, name: str) -> Iterator[str]:
    """Make /tmp/`name` on each node, and yield its path.  Remove it afterwards.

    Should we die, each node removes it by itself.  Raises OSError if a node cannot make it.
    """
    path = f"/tmp/{name}"
    try:
        answers = cluster.on_each_node(make_folder, path)
        for node in cluster.nodes:
            if problem := answers.get(node["id"], "no answer"):
                raise OSError(f"seatrial cannot make {path} on {node['name']}: {problem}")
        yield path
    finally:
        cluster.on_each_node(remove_folder, path)


def is_shared(cluster: Cluster, path: str) -> bool:
    """Return whether all nodes see one folder at this path, where they are several hosts."""
    hosts = {node["address"] for node in cluster.nodes}
    return len(hosts) > 1 and not find_folder_problem(cluster, Path(path))[0]


def make_folder(path: str, seconds: int = KEPT_SECONDS) -> str:
    """Make a folder that this node removes after `seconds`; return the error, or "" (on a node)."""
    try:
        Path(path).mkdir(exist_ok=True)
        Path(path).chmod(0o1777)  # the job's ranks may run as another user
    except OSError as error:
        return str(error)
    remove_later(path, seconds)
    return ""


def remove_folder(path: str) -> None:
    """Remove the folder (on a node)."""
    shutil.rmtree(path, ignore_errors=True)


# Each step gathers the weights for forward and for backward, and scatters the gradients.
COLLECTIVES_PER_STEP = 3
BYTES_PER_PARAMETER = 2  # bf16; in fp32 a job sends twice as many


@dataclass
class JobBytes:
    """Bytes that each node sent while a job ran, by device; by node name.  And how long it ran."""

    sent: dict[str, dict[str, int | None]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def around(cls, cluster: Cluster, fabric: str, run: Callable[[], Any]) -> tuple[Any, JobBytes]:
        """Call `run` and return its result, and the bytes that the nodes sent meanwhile."""
        started, before = time.monotonic(), cluster.on_each_node(read_counters)
        result, after = run(), cluster.on_each_node(read_counters)
        seconds, names = time.monotonic() - started, cluster.node_names
        both = before.keys() & after.keys()
        # The interfaces of the fabric count as one.
        ends = {id: [join_fabric(sent[id], fabric) for sent in (before, after)] for id in both}
        return result, cls({names[id]: counter_growth(*pair) for id, pair in ends.items()}, seconds)


def expected_bytes(parameters: int, steps: int, nodes: int) -> float:
    """Return the fewest bytes that each node sends, for FSDP over all ranks.

    Each collective brings the other nodes' shards into a node, and as much leaves it: (n-1)/n of
    the model (as for a ring: nccl-tests, doc/PERFORMANCE.md).
    """
    if nodes < 2:
        return 0.0
    return COLLECTIVES_PER_STEP * steps * parameters * BYTES_PER_PARAMETER * (nodes - 1) / nodes


def shares_on(fabric: str, job: JobBytes, expected: float) -> dict[str, float | None]:
    """Return, by node, what the fabric carried as a share of the expected bytes.

    It is at most 1.  None where the fabric's counter cannot be read, or there is none.
    """
    counts = {name: sent.get(fabric) for name, sent in job.sent.items()}
    return {
        name: None if count is None or expected <= 0 else min(1.0, count / expected)
        for name, count in counts.items()
    }


# Ray's control, logs and the start of a job; in a lab 0.3 MB on a node, 1 MB on the head.
CONTROL_BYTES = 4_000_000
BYTES_PER_RANK = 2500  # of NCCL's start: each rank's address goes to all others


def bytes_elsewhere(fabric: str, job: JobBytes, idle: JobBytes) -> dict[str, float]:
    """Return, by node, what the other devices sent beyond their rate before the job (`idle`)."""
    times = job.seconds / idle.seconds if idle.seconds else 0.0
    own, before = (
        {node: sum(count or 0 for name, count in sent.items() if name != fabric)
         for node, sent in one.sent.items()}
        for one in (job, idle)
    )  # fmt: skip
    return {node: count - times * before.get(node, 0) for node, count in own.items()}


def busiest_other(fabric: str, sent: Mapping[str, int | None]) -> tuple[str, int]:
    """Return the device other than the fabric that carried most bytes; `none` if there is none."""
    others = {name: count or 0 for name, count in sent.items() if name != fabric}
    name = max(others, key=lambda one: others[one], default="none")
    return name, others.get(name, 0)
