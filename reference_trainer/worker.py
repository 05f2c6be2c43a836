"""One rank's process, as a Ray actor: where it is, what it does, and what it is told to run."""

from __future__ import annotations

import gc
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reference_trainer.pulse import PULSE, born, listen


@dataclass(frozen=True, kw_only=True)
class Place:
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
    def order(self) -> tuple[Any, ...]:
        """Ranks are numbered by address, then node, then accelerator: the same every time."""
        return (
            [int(part) if part.isdigit() else -1 for part in self.address.split(".")],
            self.node,
            self.gpus,
            self.pid,
        )


class Worker:
    """One rank's process.  Turned into a Ray actor by `Gang`."""

    def __init__(self) -> None:
        listen()  # here, for a signal's handler is set in the main thread or not at all

    def beat(self) -> dict[str, Any]:
        """What the run in this process is doing (see pulse.py); another thread answers."""
        return PULSE.read()

    def place(self) -> Place:
        """Where this process runs."""
        import ray

        context = ray.get_runtime_context()
        gpus = [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])]
        return Place(
            node=context.get_node_id(),
            address=ray.util.get_node_ip_address(),
            host=socket.gethostname(),
            pid=os.getpid(),
            gpus=gpus,
            born=born(),
        )

    def free_port(self) -> int:
        """A TCP port nobody listens on now; the rendezvous binds it next."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def run(
        self,
        environment: dict[str, str | None],
        function: Callable[..., Any],
        arguments: Sequence[Any],
    ) -> Any:
        """Set the environment (None removes a variable) and call `function(*arguments)`."""
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        try:
            return function(*arguments)
        except BaseException as error:
            # What failed must let go now: its sockets are what its peers wait on, its model is
            # memory that the next run in this process needs.  Both hang on frames and in cycles.
            traceback.clear_frames(error.__traceback__)
            gc.collect()
            raise


def demand(resource: str) -> dict[str, Any]:
    """What a rank asks Ray for: one of `resource`, and no CPU beside another one."""
    if resource == "CPU":
        return {"num_cpus": 1}
    asked: dict[str, Any] = {"num_gpus": 1} if resource == "GPU" else {"resources": {resource: 1}}
    return {"num_cpus": 0, **asked}
