"""Runs one rank's process as a Ray actor: its location, its progress, and the calls it receives."""

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

from reference_trainer.rank_environment import bind_gloo, bind_nccl_sockets, set_variables
from reference_trainer.telemetry.event_log import PROGRESS, handle_sigterm, process_start_ticks


@dataclass(frozen=True, kw_only=True)
class RankLocation:
    """Location of a rank: Ray node id and address, host name, process id, accelerator ids.

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
        """Order of ranks: by address, then node, then accelerator; the same every time.

        Ids of accelerators are numbers as text, or UUIDs of one length: GPU 2 is before GPU 10.
        """
        octets = [int(part) if part.isdigit() else -1 for part in self.address.split(".")]
        return octets, self.node, [(len(gpu), gpu) for gpu in self.gpus], self.pid


@contextmanager
def reserve_port() -> Iterator[int]:
    """Reserve a free TCP port for a rendezvous that starts a moment later, and yield its number.

    Linux lets a second socket listen on a port if both set SO_REUSEADDR and the first never
    listens. c10d's TCPStore sets it. Meanwhile no outgoing connection is given the port either.
    Other systems do not allow that: there the port was free a moment ago, and is not held.
    """
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", 0))
        port = int(sock.getsockname()[1])
        if sys.platform != "linux":
            sock.close()
        yield port


class Worker:
    """One rank's process. `Gang` turns it into a Ray actor."""

    def __init__(self) -> None:
        self._port_hold = ExitStack()
        self._variables = dict(os.environ)
        # NCCL's watchdog ends a rank with SIGABRT; its core dump would be as large as its memory.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        handle_sigterm()  # here, because only the main thread can set a signal handler

    def heartbeat(self) -> dict[str, Any]:
        """Return the progress of this process's run (see event_log.py); a second thread answers."""
        return PROGRESS.read()

    def location(self) -> RankLocation:
        """Return where this process runs."""
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
        """Reserve a TCP port for the next rendezvous, until this is called again."""
        self._port_hold.close()
        return self._port_hold.enter_context(reserve_port())

    def run(
        self,
        environment: dict[str, str | None],
        function: Callable[..., Any],
        arguments: Sequence[Any],
    ) -> Any:
        """Call `function(*arguments)` with the worker's own variables and these (None removes one).

        So no call leaves a setting to the next, such as a wrong network that was planted. Without
        variables nothing is set: the second thread calls while a run has its own.
        """
        if not environment:
            return function(*arguments)
        set_variables({**dict.fromkeys(os.environ), **self._variables, **environment})
        bind_gloo()
        bind_nccl_sockets()
        try:
            return function(*arguments)
        except BaseException as error:
            # Free the failed run's objects now: its peers wait on its sockets, and the next run in
            # this process needs the memory of its model. Frames and reference cycles keep both
            # alive.
            traceback.clear_frames(error.__traceback__)
            gc.collect()
            raise


def ray_resources(name: str) -> dict[str, Any]:
    """Return the Ray options of a rank: one unit of the resource, and no CPU besides."""
    if name == "CPU":
        return {"num_cpus": 1}
    options: dict[str, Any] = {"num_gpus": 1} if name == "GPU" else {"resources": {name: 1}}
    return {"num_cpus": 0, **options}
