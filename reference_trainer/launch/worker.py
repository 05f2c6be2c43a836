"""One rank's process, as a Ray actor: where it is, what it does, and what it is told to run."""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from reference_trainer.rank_environment import bind_gloo, bind_nccl_sockets, change_environment
from reference_trainer.telemetry.heartbeat import PROGRESS, handle_sigterm, process_start_ticks


@dataclass(frozen=True, kw_only=True)
class RankLocation:
    """Where a rank lives: Ray node id and address, host name, process, accelerator ids.

    `born` is when the process started, in clock ticks since boot; None without /proc.
    """

    node: str
    address: str
    host: str
    pid: int
    gpus: list[str]
    born: int | None = None

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Ranks are numbered by address, then node, then accelerator: the same every time."""
        octets = [int(part) if part.isdigit() else -1 for part in self.address.split(".")]
        return octets, self.node, self.gpus, self.pid


@contextmanager
def reserve_port() -> Iterator[int]:
    """A free TCP port for a rendezvous that starts a moment later: nothing else is given it.

    Linux lets a second socket listen on a port if both say SO_REUSEADDR, as c10d's TCPStore does,
    and the first never listens; meanwhile no outgoing connection is given the port either.  Other
    systems do not allow that: there the port was free a moment ago, and is not held.
    """
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", 0))
        port = int(sock.getsockname()[1])
        if sys.platform != "linux":
            sock.close()
        yield port


class Worker:
    """One rank's process.  Turned into a Ray actor by `Gang`."""

    def __init__(self) -> None:
        self._port_hold = ExitStack()
        # NCCL's watchdog ends a rank with SIGABRT, and its core would be as large as its memory.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        handle_sigterm()  # here, for a signal's handler is set in the main thread or not at all

    def heartbeat(self) -> dict[str, Any]:
        """What the run in this process is doing (see heartbeat.py); another thread answers."""
        return PROGRESS.read()

    def location(self) -> RankLocation:
        """Where this process runs."""
        import ray

        context = ray.get_runtime_context()
        return RankLocation(
            node=context.get_node_id(),
            address=ray.util.get_node_ip_address(),
            host=socket.gethostname(),
            pid=os.getpid(),
            gpus=[str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])],
            born=process_start_ticks(),
        )

    def free_port(self) -> int:
        """A TCP port for the next rendezvous, held until this is called again."""
        self._port_hold.close()
        return self._port_hold.enter_context(reserve_port())

    def run(
        self,
        environment: dict[str, str | None],
        function: Callable[..., Any],
        arguments: Sequence[Any],
    ) -> Any:
        """Set the environment (None removes a variable) and call `function(*arguments)`."""
        change_environment(environment)
        bind_gloo()
        bind_nccl_sockets()
        try:
            return function(*arguments)
        except BaseException as error:
            # What failed must let go now: its sockets are what its peers wait on, its model is
            # memory that the next run in this process needs.  Both hang on frames and in cycles.
            traceback.clear_frames(error.__traceback__)
            gc.collect()
            raise


def ray_resources(name: str) -> dict[str, Any]:
    """List what a rank asks Ray for: one of a resource, and no CPU beside another one."""
    if name == "CPU":
        return {"num_cpus": 1}
    options: dict[str, Any] = {"num_gpus": 1} if name == "GPU" else {"resources": {name: 1}}
    return {"num_cpus": 0, **options}
