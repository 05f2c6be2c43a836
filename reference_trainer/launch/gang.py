"""Starts and removes a gang: N Ray workers or none, and a rendezvous for them.

    with Gang(size=4, timeout=60) as gang:
        results = gang.run(train, config, timeout=600)

Every wait is bounded. Leaving the block always kills the workers and removes the placement group.
If the driver dies, Ray removes the gang with its job.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from reference_trainer.late import ray
from reference_trainer.launch.worker import RankLocation, Worker, ray_resources
from reference_trainer.process_group import ALONE, KEEP, KIND, NONE

# Errors of ranks that only saw another one go: torch's, gloo's and NCCL's words for that.
OF_A_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted|lost)|broken pipe|\bpeer\b|watchdog"
    r"|timed? ?out|nccl|gloo|Dist(Backend|Network|Store)Error",
    re.IGNORECASE,
)


def last_line(error: BaseException) -> str:
    """Return the last line of an error; Ray's wrap the whole traceback."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks in a sentence: "rank 1", "ranks 1, 3", or "a rank" if none is known."""
    names = ", ".join(map(str, ranks))
    return f"rank{'s' * (len(ranks) > 1)} {names}" if names else "a rank"


def local_ranks(nodes: Iterable[str]) -> list[int]:
    """Number each entry among those of its node: nodes a, b, a give 0, 0, 1."""
    seen = Counter[str]()
    numbers = []
    for node in nodes:
        numbers.append(seen[node])
        seen[node] += 1
    return numbers


def find_cause(lines: dict[int, str]) -> tuple[list[int], str]:
    """Return the indices with the error that began it, and its line; ([], "") if none is their own.

    Of several errors of their own, the one of the lowest index counts.
    """
    own = {index: line for index, line in lines.items() if not OF_A_PEER.search(line)}
    if not own:
        return [], ""
    cause = own[min(own)]
    return [index for index, line in own.items() if line == cause], cause


SETTLE_SECONDS = 3  # seconds for survivors to see that a peer is gone
# Seconds for survivors to end, once a death is known. Less than ABANDON_SECONDS (checkpointer.py):
# a rank that still writes then is replaced, and cannot write during the next run.
END_SECONDS = 1
START_SECONDS = 60  # seconds for replaced workers to start
POLL_SECONDS = 0.5  # seconds between two checks of starting workers
NOTICE_SECONDS = 5  # seconds of waiting for room before the user is notified


class GangError(RuntimeError):
    """Raised when the gang could not start or did not finish. The message is one sentence.

    `attempts` are those of a supervised run (supervisor.py) that ended with this error.
    """

    attempts: Sequence[Any] = ()


class GangPending(GangError):
    """Raised when the cluster had no room in time; nothing was held while waiting."""

    explains_itself = True  # a traceback would add nothing


class WorkerLost(GangError):
    """Raised when a worker died, failed, or made no progress. `ranks` are those to blame.

    `lost_at` is in seconds since the epoch. `failed` are the ranks that had raised an error when
    the first error was seen.
    """

    def __init__(
        self, message: str, ranks: list[int], lost_at: float, failed: Sequence[int] = ()
    ) -> None:
        super().__init__(message)
        self.ranks, self.lost_at, self.failed = ranks, lost_at, failed
        self.explains_itself = bool(ranks)  # a rank died: a traceback would add nothing


@dataclass(eq=False)
class Gang:
    """`size` workers of one accelerator each, placed all at once or not at all.

    `resource` names a rank's accelerator: "GPU", "CPU" on clusters without GPUs, or any resource of
    the nodes. `environment` is merged over the workers' own (None removes a variable), and over it
    `by_local_rank`: the workers of a node take its entries in turn, as each has its own rail.
    `strategy` is a Ray placement strategy. `notify` is called once, if the gang has to wait.
    `holders` says what holds the resource. `on_kill` is called with the ids of the nodes on which
    workers are about to be killed. With `keeps_groups`, calls one after the other in the same
    groups and environment share process groups. Raises GangPending without room for `timeout`
    seconds.
    """

    size: int
    _: KW_ONLY
    resource: str = "GPU"
    strategy: str = "PACK"
    environment: dict[str, str | None] | None = None
    by_local_rank: Sequence[dict[str, str]] = ()
    timeout: float = 60
    name: str = "gang"
    notify: Callable[[str], None] = lambda message: None
    holders: Callable[[], str] = lambda: ""
    on_kill: Callable[..., None] = lambda nodes, **moment: None
    keeps_groups: bool = False

    def __post_init__(self) -> None:
        self.places: list[RankLocation] = []
        self._workers: list[Any] = []
        self._bundles: list[int] = []  # each worker's bundle in the group
        self._calls: list[Any] = []  # the workers' last calls
        self.jobs: list[list[int]] = []  # the workers of the last calls, job by job
        self._group: Any = None
        self._failed = False
        self._last: tuple[Any, list[int]] = None, []  # what named the last groups, and their ports

    @property
    def is_running(self) -> bool:
        """Whether it has workers."""
        return bool(self._workers)

    @property
    def is_sound(self) -> bool:
        """Whether it runs, every call so far has succeeded, and none is running."""
        return self.is_running and not self._failed and not self.busy()

    def __enter__(self) -> Gang:
        if self.is_running:  # it was started before
            return self
        try:
            self._request_group()
            self._start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _request_group(self) -> None:
        # pg.wait, not pg.ready(): the latter runs a task in the group first.
        label = f"a gang of {self.size} x {self.resource} ({self.strategy})"
        bundles = [{self.resource: 1}] * self.size
        try:
            self._group = ray.util.placement_group(bundles, strategy=self.strategy, name=self.name)
        except ray.exceptions.RaySystemError as error:  # a group of this name exists
            raise GangPending(f"{label} could not be requested: {error}") from error
        notice_s = min(NOTICE_SECONDS, self.timeout)
        if self._group.wait(timeout_seconds=notice_s):
            return
        free = f"{self._free():.0f} free"
        self.notify(f"{label} waits for resources ({free}), and holds none meanwhile")
        if not self._group.wait(timeout_seconds=self.timeout - notice_s):
            held = self.holders() or "the gang held nothing while it waited"
            raise GangPending(
                f"{label} found not enough free resources in {self.timeout:.0f} s "
                f"({self._free():.0f} free); {held}"
            )

    def _free(self) -> float:
        return float(ray.available_resources().get(self.resource, 0))

    def _start(self) -> None:
        self._workers = [self._spawn(index) for index in range(self.size)]
        calls = [worker.location.remote() for worker in self._workers]
        if not self._wait_for_answers(calls, self.timeout):
            state = self._group_state() or "not known to Ray"
            raise GangError(
                f"{name_ranks(_pending(calls))} of {self.size} did not start within "
                f"{self.timeout:.0f} s, or a node was lost. State of the placement group: {state}"
            )
        places = self._collect(calls, POLL_SECONDS, "while starting")
        indices = sorted(range(self.size), key=lambda index: places[index].sort_key)
        self.places = [places[index] for index in indices]
        self._workers = [self._workers[index] for index in indices]
        self._bundles = indices

    def _spawn(self, bundle: int) -> Any:
        """Create a worker in this bundle of the group and return its handle; it may not run yet."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options = {**ray_resources(self.resource), "max_concurrency": 2}
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, bundle)
        return ray.remote(Worker).options(**options).remote()

    def replace_workers(self, lost: Sequence[int]) -> list[int]:
        """Start new workers for the `lost` ranks of the last run and return the replaced ranks.

        Returns [] when that is impossible: make a new gang. The others keep their process, with
        torch in memory, once their call has ended. A worker whose call does not end is replaced
        too. Only dead ranks of a group that has all its nodes can be replaced. A stopped process
        ends only with its group. A group that lost a node waits for another node and blocks every
        other group of the cluster.
        """
        died = ray.exceptions.RayActorError
        dead = self._owners(self._calls, [*_failed_calls(self._calls, died)])
        if not lost or not set(lost) <= set(dead) or self._group_state() != "CREATED":
            return []
        late = self._owners(self._calls, _pending(self._calls, END_SECONDS))
        # Others may have died since.
        dead = self._owners(self._calls, [*_failed_calls(self._calls, died)])
        replaced = sorted({*dead, *late})
        self.leave_groups()
        self._kill(replaced)  # also a worker that is only presumed dead
        for rank in replaced:
            self._workers[rank] = self._spawn(self._bundles[rank])
        places = self._locate_workers([self._workers[rank].location.remote() for rank in replaced])
        located = dict(zip(replaced, places, strict=False))
        self.places = [located.get(rank, place) for rank, place in enumerate(self.places)]
        return replaced if places else []

    def replace_waiting(self) -> list[int]:
        """Replace the workers that still run and return their ranks; [] when that is impossible.

        They wait for a failed rank and would do so until their time-out.
        """
        waiting = self.busy()
        self._kill(waiting)
        self._wait_for_answers(self._calls, START_SECONDS)
        return self.replace_workers(waiting)

    def _kill(self, ranks: Sequence[int]) -> None:
        """Kill these workers; `on_kill` knows of it before. A rank without a place did no work."""
        try:
            if nodes := {self.places[rank].node for rank in ranks if rank < len(self.places)}:
                self.on_kill(nodes)
        finally:  # also on Ctrl-C
            for rank in ranks:
                ray.kill(self._workers[rank])

    def _locate_workers(self, calls: list[Any]) -> list[RankLocation]:
        """Return where new workers are; [] when one does not start or the group has lost a node."""
        ready = self._wait_for_answers(calls, min(self.timeout, START_SECONDS))
        failed = _failed_calls(calls, ray.exceptions.RayError)
        return list(ray.get(calls)) if ready and not failed else []

    def _wait_for_answers(self, calls: list[Any], seconds: float) -> bool:
        """Return whether all calls end in time; False as soon as the group has lost a node."""
        deadline = time.monotonic() + seconds
        while _pending(calls, POLL_SECONDS):
            if time.monotonic() > deadline or self._group_state() != "CREATED":
                return False
        return True

    def busy(self) -> list[int]:
        """Return the workers whose last call still runs."""
        return self._owners(self._calls, _pending(self._calls)) if self._calls else []

    def _owners(self, calls: list[Any], indices: Sequence[int]) -> list[int]:
        """Return the workers behind the calls at these indices."""
        workers = [worker for job in self.jobs for worker in job]
        return [workers[index] for index in indices] if calls is self._calls else [*indices]

    def rendezvous(self, group: Sequence[int], port: int) -> list[dict[str, str]]:
        """Return the variables torchrun would set for each of the workers in `group`."""
        places = [self.places[worker] for worker in group]
        nodes = [place.node for place in places]
        ranks_of, numbers = Counter(nodes), local_ranks(nodes)
        node_order = {node: str(index) for index, node in enumerate(ranks_of)}
        return [
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(group)),
                "LOCAL_RANK": str(numbers[rank]),
                "LOCAL_WORLD_SIZE": str(ranks_of[place.node]),
                "NODE_RANK": node_order[place.node],
                "GROUP_RANK": node_order[place.node],
                "MASTER_ADDR": places[0].address,
                "MASTER_PORT": str(port),
            }
            for rank, place in enumerate(places)
        ]

    def run(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = 600, **options: Any
    ) -> list[Any]:
        """Call `function` on every rank at once and return the results in rank order.

        `options` are those of `begin`. Each job has a fresh rendezvous port, unless its group is
        kept. Raises WorkerLost when a rank fails or dies, GangError on timeout.
        """
        task = f"while running `{getattr(function, '__name__', 'a function')}`"
        return self._collect(self.begin(function, *arguments, **options), timeout, task)

    def begin(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        environment: dict[str, str | None] | None = None,
        each: Sequence[Sequence[Any]] | None = None,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> list[Any]:
        """Start the calls as `run` does, but return one object reference per rank at once.

        `each[rank]` are further arguments of that rank alone. `groups` splits the workers into
        separate jobs that run at the same time; workers in no group stay idle. Results are then in
        order of groups.
        """
        jobs = [[*group] for group in groups or [range(self.size)]]
        # No port: a call that needs none leaves the groups of the last one that joined any.
        kind = getattr(function, KIND, "")
        ports = [0] * len(jobs) if kind == NONE else self._find_ports(jobs, kind, environment)
        self.jobs = jobs
        # Hide all GPUs from a worker that requested none. Ray lets it see all GPUs of its host, and
        # torch would open a context on the first.
        hidden = {} if self.resource == "GPU" else {"CUDA_VISIBLE_DEVICES": "-1"}
        calls, numbers = [], local_ranks(place.node for place in self.places)
        if self.keeps_groups:
            hidden[KEEP] = "1"
        for group, port in zip(self.jobs, ports, strict=True):
            for worker, variables in zip(group, self.rendezvous(group, port), strict=True):
                own = {**(self.environment or {}), **self._of_local_rank(numbers[worker])}
                merged = {**hidden, **variables, **own, **(environment or {})}
                call_arguments = [*arguments, *(each[worker] if each else [])]
                calls.append(self._workers[worker].run.remote(merged, function, call_arguments))
        self._calls = calls
        return calls

    def _find_ports(
        self, jobs: list[list[int]], kind: str, environment: dict[str, str | None] | None
    ) -> list[int]:
        """Return the rendezvous port of each job: those of the last call if its groups are kept."""
        names = jobs, kind, self.environment, [*self.by_local_rank], dict(environment or {})
        shares = self.keeps_groups and kind != ALONE and self.is_sound
        if not (shares and self._last[0] == names):
            calls = [self._workers[job[0]].free_port.remote() for job in jobs]
            self._last = names, self._collect(calls, 30, "while finding a free port")
        return self._last[1]

    def leave_groups(self) -> None:
        """Let the next call make new process groups."""
        self._last = None, []

    def _of_local_rank(self, number: int) -> dict[str, str]:
        """Return the variables of a worker alone; `number` is its place among those of its node."""
        return self.by_local_rank[number % len(self.by_local_rank)] if self.by_local_rank else {}

    def heartbeat(self, rank: int) -> Any:
        """Request a rank's progress; returns an object reference (see Worker.heartbeat)."""
        return self._workers[rank].heartbeat.remote()

    def ask(self, function: Callable[[], Any], timeout: float = 10) -> dict[int, Any]:
        """Return the result of `function()` on each rank that answers in time, by rank.

        The workers' second thread calls it, so a rank that hangs in its run answers too.
        """
        calls = [worker.run.remote({}, function, ()) for worker in self._workers]
        unanswered = {*_pending(calls, timeout), *_failed_calls(calls, Exception)}
        return {rank: ray.get(call) for rank, call in enumerate(calls) if rank not in unanswered}

    def _collect(self, calls: list[Any], timeout: float, task: str) -> list[Any]:
        try:
            return list(ray.get(calls, timeout=timeout))
        except ray.exceptions.GetTimeoutError:
            self._failed = True
            unanswered = f"{name_ranks(self._owners(calls, _pending(calls)))} of {len(calls)}"
            raise GangError(f"{unanswered} did not answer within {timeout:.0f} s {task}") from None
        except ray.exceptions.RayError as error:
            raise self.describe_loss(calls, error, task) from error

    def describe_loss(self, calls: list[Any], error: Exception, task: str) -> WorkerLost:
        """Build the WorkerLost error. It names dead ranks: the first error may be a survivor's.

        `task` says what they did; "" where that is clear.
        """
        self._failed = True
        lost_at, deadline = time.time(), time.monotonic() + SETTLE_SECONDS
        dead: list[int] = []
        failed = _failed_calls(calls, ray.exceptions.RayTaskError)
        # A survivor may see its socket close before Ray reports the death. After one reported
        # death, others of the same node may follow.
        while time.monotonic() < deadline:
            known = dead
            pending = _pending(calls, SETTLE_SECONDS / 10)
            dead = [*_failed_calls(calls, ray.exceptions.RayActorError)]
            if known or not pending:
                break
        errors = _failed_calls(calls, ray.exceptions.RayTaskError)
        first, cause = find_cause({index: last_line(each) for index, each in errors.items()})
        dead, blamed = self._owners(calls, dead), self._owners(calls, first or [*failed])
        why = cause or last_line(error)
        failure = f"{name_ranks(blamed)}{self._hosts_of(blamed)} failed: {why}"
        died = f"{name_ranks(dead)} died{self._hosts_of(dead)}"
        said = f"{died}; {failure}" if dead and first else died if dead else failure
        return WorkerLost(f"{said} ({task})" if task else said, dead, lost_at, blamed)

    def _hosts_of(self, ranks: Sequence[int]) -> str:
        """Say on which hosts the ranks are; "" where that is not known."""
        hosts = dict.fromkeys(self.places[rank].host for rank in ranks if rank < len(self.places))
        return f" on {', '.join(hosts)}" if hosts else ""

    def silent(self, timeout: float = 5) -> list[int]:
        """Return ranks whose process does not answer (stopped or cut off); if none, the dead ranks.

        A rank that waits in a collective answers, because its actor has a second thread. Dead ranks
        are named only when no rank is silent: a silent rank makes the survivors die.
        """
        calls = [worker.location.remote() for worker in self._workers]
        return _pending(calls, timeout) or [*_failed_calls(calls, ray.exceptions.RayError)]

    def remove(self, timeout: float = 30) -> None:
        """Kill the workers and remove the group; wait for Ray up to `timeout` seconds."""
        self._kill(range(len(self._workers)))
        self._workers, self._calls = [], []
        if self._group is None:
            return
        ray.util.remove_placement_group(self._group)
        deadline = time.monotonic() + timeout
        while self._group_state() not in ("REMOVED", None) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._group = None

    def _group_state(self) -> str | None:
        return ray.util.placement_group_table(self._group).get("state")


def _pending(calls: list[Any], timeout: float = 0) -> list[int]:
    """Return the indices of calls that have not ended after `timeout` seconds."""
    done, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout)
    return [rank for rank, call in enumerate(calls) if call not in done]


def _failed_calls(calls: list[Any], error_type: type[Exception]) -> dict[int, Exception]:
    """Return the errors of the calls that have ended with this type of error, by index."""
    errors = {}
    for index, call in enumerate(calls):
        try:
            ray.get(call, timeout=0)
        except ray.exceptions.GetTimeoutError:  # a RayError, too
            continue
        except error_type as error:
            errors[index] = error.with_traceback(None)  # it would hold the calls for long
        except Exception:  # noqa: S112, BLE001  (any other failure: its process is alive)
            continue
    return errors
