"""A user's job, as a driver process of its own: asks for a gang, or for single actors.

Reads one JSON command a line and answers each with one JSON line.  When its input ends, it
ends, and Ray takes back all it held.  Run as a file; needs nothing but Ray.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from queue import Queue
from typing import Any


class Holder:
    """An actor that holds one accelerator and does nothing."""

    def ping(self) -> bool:
        """Answers once the actor is placed."""
        return True


class Job:
    """What the job has asked for."""

    def __init__(self, resource: str, name: str) -> None:
        self.name = name
        self.resource = resource
        self.group: Any = None
        self.actors: list[Any] = []
        self.pings: list[Any] = []

    def gang(self, need: int) -> str:
        """Ask for one placement group of `need` accelerators; its id."""
        import ray

        self.group = ray.util.placement_group(
            [{self.resource: 1}] * need, strategy="PACK", name=self.name
        )
        return str(self.group.id.hex())

    def naive(self, count: int) -> int:
        """Ask for single actors without a group; how many were asked for so far."""
        import ray

        asked = {"num_gpus": 1} if self.resource == "GPU" else {"num_cpus": 1}
        new = [
            ray.remote(Holder).options(**{"num_cpus": 0, **asked}).remote() for _ in range(count)
        ]
        self.actors += new
        self.pings += [actor.ping.remote() for actor in new]
        return len(self.actors)

    def alive(self) -> int:
        """How many of the single actors hold their accelerator."""
        import ray

        return (
            len(ray.wait(self.pings, num_returns=len(self.pings), timeout=0)[0])
            if self.pings
            else 0
        )

    def release(self) -> bool:
        """Give everything back."""
        import ray

        if self.group is not None:
            ray.util.remove_placement_group(self.group)
        for actor in self.actors:
            ray.kill(actor)
        self.group, self.actors, self.pings = None, [], []
        return True


def main(address: str, resource: str, name: str) -> None:
    """Serve commands; a thread watches for the end of the input, even while Ray is busy."""
    commands: Queue[dict[str, Any]] = Queue()

    def listen() -> None:
        for line in sys.stdin:
            commands.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's chatter must not come between the answers
    import ray

    ray.init(address, log_to_driver=False, logging_level="error")
    job = Job(resource, name)
    print(json.dumps("ready"), file=say, flush=True)
    while True:
        command = commands.get()
        answer = getattr(job, command["do"])(*command.get("with", []))
        print(json.dumps(answer), file=say, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
