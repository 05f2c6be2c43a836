"""Runs a user's job as a separate driver process that asks for gangs, or for single actors.

It reads one JSON command per line and answers each with one JSON line. When its input ends, it
ends, and Ray takes back all it held. The file runs as a script and needs only Ray.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import cycle
from queue import Queue
from typing import Any

POLL_SECONDS = 0.05  # between two polls of a stream's gangs, or of a dead job's leftovers
OUTCOME_SECONDS = 50  # for background work to end
START_SECONDS = 50  # for all actors of all components to start
DRAIN_SECONDS = 30  # for the last gangs of a stream that is to end
CLEANUP_SECONDS = 2.5  # to clean up when its input ends: CleanupProcess kills it after 3 s
QUIET_SECONDS = 0.5  # without a new group of a dead job
PING_SECONDS = 1.0  # for an actor to answer; an actor that waits for room does not
COORDINATOR = "AutoscalingCoordinator"  # the actor that Ray Train and Ray Data share and leave
COMPLETE = "complete"  # outcome of a gang of two groups that has both


def placed_groups(groups: Iterable[Any]) -> set[Any]:
    """Select the groups that are placed now."""
    import ray

    return {g for g in groups if ray.util.placement_group_table(g).get("state") == "CREATED"}


def remove_group(group: Any) -> None:
    """Give a placement group back."""
    import ray

    ray.util.remove_placement_group(group)


def on_cluster(function: Callable[..., Any], *options: Any) -> Any:
    """Call a function that needs Ray's tables; over ray:// it runs on the cluster."""
    from ray._private.client_mode_hook import client_mode_wrap

    return client_mode_wrap(function)(*options)


def living_jobs() -> set[str]:
    """Return the ids of the jobs that are alive on the cluster."""
    from ray._private import state

    return {job["JobID"] for job in on_cluster(state.jobs) if not job["IsDead"]}


def groups_of(job: str) -> list[Any]:
    """List the placement groups of a job: a group's id ends with the job's id."""
    import ray
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup

    table = ray.util.placement_group_table()
    ids = [id for id, group in table.items() if id.endswith(job) and group["state"] != "REMOVED"]
    return [PlacementGroup(PlacementGroupID(bytes.fromhex(id))) for id in ids]


def detached_ids(job: str, shared: bool) -> list[str]:
    """List a job's living detached actors: the shared COORDINATOR, or those without a name."""
    import ray
    from ray._private import state

    actors = state.actors(job_id=ray.JobID.from_hex(job)).items()
    live = {id: row for id, row in actors if row["IsDetached"] and row["State"] != "DEAD"}
    return [id for id, row in live.items() if row["Name"] == (COORDINATOR if shared else "")]


def kill_actors(actors: list[str]) -> None:
    """Kill actors by their ids: this job has no handles of another job's actors."""
    import ray
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.gcs_service_pb2 import KillActorViaGcsRequest
    from ray.core.generated.gcs_service_pb2_grpc import ActorInfoGcsServiceStub

    with init_grpc_channel(ray.get_runtime_context().gcs_address) as channel:
        for id in map(bytes.fromhex, actors):
            request = KillActorViaGcsRequest(actor_id=id, force_kill=True, no_restart=True)
            with suppress(Exception):  # an error of gRPC: callers check again
                ActorInfoGcsServiceStub(channel).KillActorViaGcs(request, timeout=1)


class Holder:
    """Ray actor that holds one accelerator, or a share of one, and does nothing."""

    def location(self) -> tuple[str, str]:
        """Return Ray's id of the actor's node, and the accelerator's id there."""
        import ray

        context = ray.get_runtime_context()
        return context.get_node_id(), ",".join(context.get_accelerator_ids().get("GPU", []))


class JobDriver:
    """The groups, actors and streams of the job; each method is a command."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.groups: dict[str, Any] = {}
        self.actors: list[Any] = []
        self.streams: list[GangStream] = []
        self.outcome_text = ""
        self._background = threading.Thread()
        self._guarded = ""  # the job whose Ray Train leftovers this one removes
        self._jobs_before: set[str] | None = None  # jobs alive before it made a coordinator

    def ask(
        self, name: str, size: int, strategy: str = "PACK", staff: bool = False, resource: str = ""
    ) -> None:
        """Ask for one placement group of `size` accelerators, with an actor in each on `staff`."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        unit = resource or self.resource
        group = ray.util.placement_group([{unit: 1}] * size, strategy=strategy, name=name)
        self.groups[name] = group
        if staff:
            self._spawn(size, scheduling_strategy=PlacementGroupSchedulingStrategy(group))

    def naive(self, count: int) -> None:
        """Ask for single actors without a group."""
        self._spawn(count)

    def _spawn(self, count: int, **options: Any) -> None:
        import ray

        resources = {"num_gpus": 1} if self.resource == "GPU" else {"num_cpus": 1}
        spawn = ray.remote(Holder).options(**{"num_cpus": 0, **resources}, **options)
        self.actors += [spawn.remote() for _ in range(count)]

    def seats(self, name: str, parts: dict[str, list[int]]) -> dict[str, list[tuple[str, str]]]:
        """Start an actor for each rank of each component, in one group; return their locations.

        Accelerator i is bundle i in the order of nodes. Components that name the same one share it.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = self.groups[name]
        node_of = ray.util.placement_group_table(group)["bundles_to_node_id"]
        order = sorted(node_of, key=lambda bundle: (node_of[bundle], bundle))
        ranks_on = Counter(number for numbers in parts.values() for number in numbers)
        holder = ray.remote(Holder)
        refs: dict[str, list[Any]] = {component: [] for component in parts}
        for component, numbers in parts.items():
            for number in numbers:
                share = int(1e4 / ranks_on[number]) / 1e4
                strategy = PlacementGroupSchedulingStrategy(group, order[number])
                actor = holder.options(num_cpus=0, num_gpus=share, scheduling_strategy=strategy)
                self.actors.append(actor.remote())
                refs[component].append(self.actors[-1].location.remote())
        all_refs = [call for calls in refs.values() for call in calls]
        ray.wait(all_refs, num_returns=len(all_refs), timeout=START_SECONDS)
        return {component: ray.get(calls, timeout=1) for component, calls in refs.items()}

    def drop(self, name: str) -> None:
        """Give one group back."""
        remove_group(self.groups.pop(name))

    def complete(self, gang: str, size: int, timeout_s: float) -> None:
        """Ask for the gang's second group; if it is not placed in time, give both groups back.

        This runs in the background; `outcome` returns how it ended.
        """
        first, second = f"{gang}.1", f"{gang}.2"
        self.ask(second, size)
        self.outcome_text = "still waits"

        def wait() -> None:
            deadline = time.monotonic() + timeout_s
            while time.monotonic() < deadline:
                if placed_groups([self.groups[second]]):
                    self.outcome_text = COMPLETE
                    return
                time.sleep(POLL_SECONDS)
            self.drop(second)
            self.drop(first)
            self.outcome_text = f"gave up after {timeout_s:g} s"

        self._background = threading.Thread(target=wait, daemon=True)
        self._background.start()

    def outcome(self, seconds: float = OUTCOME_SECONDS) -> str:
        """Wait at most `seconds` for `complete` or `train` to end; return how it ended."""
        self._background.join(seconds)
        return self.outcome_text

    def train(self, size: int, folder: str, timeout_s: float) -> None:
        """Run Ray Train with `size` workers in the background; it asks again after `timeout_s`.

        `outcome` waits for its end and returns it. A job that guards this one removes what Ray
        Train leaves.
        """
        os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(timeout_s)
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        resources = {"CPU": 0, self.resource: 1}
        trainer = TorchTrainer(
            lambda: time.sleep(0.5),  # the only work of a worker
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(
                num_workers=size, use_gpu=self.resource == "GPU", resources_per_worker=resources
            ),
            run_config=RunConfig(name="seatrial", storage_path=folder),
        )

        def fit() -> None:
            try:
                result = trainer.fit()
                self.outcome_text = "finished" if result.error is None else str(result.error)
            except Exception as error:  # noqa: BLE001  (any error must reach the probe)
                self.outcome_text = (str(error).strip().splitlines() or [type(error).__name__])[-1]

        self.outcome_text = "still runs"
        self._background = threading.Thread(target=fit, daemon=True)
        self._background.start()

    def flow(self, prefix: str, sizes: list[int], width: int, hold: float, endless: bool) -> None:
        """Start a stream of gangs in the background, `width` at a time, each held `hold` s."""
        turns = cycle(sizes) if endless else iter(sizes)
        self.streams.append(GangStream(self.resource, prefix, turns, width, hold))
        self.streams[-1].thread.start()

    def finished(self) -> bool:
        """Return whether every stream has ended by itself."""
        return not any(stream.thread.is_alive() for stream in self.streams)

    def calm(self) -> list[dict[str, Any]]:
        """End the streams; return size and waited (s) of each of their gangs that was placed."""
        for stream in self.streams:
            stream.stopping.set()
        for stream in self.streams:
            stream.thread.join(DRAIN_SECONDS)
        results = [result for stream in self.streams for result in stream.results]
        self.streams = []
        return results

    def withdraw(self) -> int:
        """Kill the actors that wait for room; return how many did."""
        import ray

        calls = [actor.location.remote() for actor in self.actors]
        ready = ray.wait(calls, num_returns=len(calls), timeout=PING_SECONDS)[0] if calls else []
        waiting = [a for a, call in zip(self.actors, calls, strict=True) if call not in ready]
        for actor in waiting:
            ray.kill(actor)
            self.actors.remove(actor)
        return len(waiting)

    def release(self) -> None:
        """Give everything back."""
        import ray

        self.calm()
        for actor in self.actors:
            ray.kill(actor)
        for name in list(self.groups):
            self.drop(name)
        self.actors = []
        self.clean_up()

    def guard(self, job: str, alone: bool) -> None:
        """Register a job whose Ray Train leftovers this job removes when it releases all, or ends.

        `alone`: the cluster has no jobs of other people, who may use Ray Train as well.
        """
        self._guarded = job
        self._jobs_before = living_jobs() if alone else None

    def clean_up(self, ending: bool = False) -> None:
        """Remove what the guarded job's Ray Train left; on `ending` that job is about to die too.

        Ray Train may ask for groups while its job dies. These would wait for ever, and so would the
        actors that watch them. The coordinator is removed unless newer jobs may use it.
        """
        if not self._guarded:
            return
        start = since = time.monotonic()
        while True:  # only a poll that finds nothing counts as quiet
            alive = self._guarded in living_jobs()
            if alive and not ending:
                break
            since = time.monotonic() if alive or self._remove_leftovers() else since
            if time.monotonic() >= min(start + CLEANUP_SECONDS, since + QUIET_SECONDS):
                break
            time.sleep(POLL_SECONDS)
        if self._jobs_before is not None and living_jobs() <= self._jobs_before:
            on_cluster(kill_actors, on_cluster(detached_ids, self._guarded, True))
        self._guarded, self._jobs_before = "", None

    def _remove_leftovers(self) -> bool:
        """Remove what only the dead job could use; return whether there was anything."""
        groups, actors = groups_of(self._guarded), on_cluster(detached_ids, self._guarded, False)
        for group in groups:
            remove_group(group)
        on_cluster(kill_actors, actors)
        return bool(groups or actors)


class GangStream:
    """Stream of gangs: at most `width` at a time, each held about `hold` seconds."""

    def __init__(
        self, resource: str, prefix: str, sizes: Iterator[int], width: int, hold: float
    ) -> None:
        self.resource, self.prefix, self.sizes = resource, prefix, sizes
        self.width, self.hold = width, hold
        self.remove = remove_group
        self.results: list[dict[str, Any]] = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        """Ask for gangs, hold them, give them back; once `stopping`, give all back and end."""
        import ray

        pending: dict[Any, tuple[int, float]] = {}  # group -> (size, time of the request)
        placed: dict[Any, float] = {}  # group -> end of its hold
        count = 0
        while not self.stopping.is_set():
            while len(pending) + len(placed) < self.width and (size := next(self.sizes, 0)):
                count += 1
                bundles, name = [{self.resource: 1}] * size, f"{self.prefix}{count}"
                group = ray.util.placement_group(bundles, name=name)
                pending[group] = size, time.monotonic()
            if not pending and not placed:
                return
            for group in placed_groups(pending):
                now = time.monotonic()
                size, asked_at = pending.pop(group)
                # 0.5 to 1.5 times `hold`: with equal times, gangs would free all at once.
                placed[group] = now + self.hold * (0.5 + len(self.results) * 7 % 11 / 10)
                self.results.append({"size": size, "waited": now - asked_at})
            for group in [g for g, end in placed.items() if time.monotonic() >= end]:
                self.remove(group)
                del placed[group]
            time.sleep(POLL_SECONDS)
        for group in [*pending, *placed]:
            self.remove(group)


def main(address: str, resource: str, job_type: type[JobDriver] = JobDriver) -> None:
    """Serve commands; a thread watches for the end of the input, even while Ray is busy."""
    commands: Queue[dict[str, Any]] = Queue()
    jobs: list[JobDriver] = []

    def listen() -> None:
        for line in sys.stdin:
            commands.put(json.loads(line))
        threading.Timer(CLEANUP_SECONDS + QUIET_SECONDS / 2, os._exit, (0,)).start()
        for job in jobs:
            job.clean_up(ending=True)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's own output must not come between the answers
    import ray

    ray.init(address, log_to_driver=False, logging_level="error")
    # CleanupProcess sends it. The input ends as well then, which leaves time to clean up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    jobs.append(job := job_type(resource))
    job_id = str(ray.get_runtime_context().get_job_id())
    print(json.dumps(job_id), file=stdout, flush=True)
    while True:
        command = commands.get()
        answer = getattr(job, command["do"])(*command.get("with", []))
        print(json.dumps(answer), file=stdout, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
