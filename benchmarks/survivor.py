"""Measures a restart in the same process: one rank is killed, the other starts again.

    python -m benchmarks.survivor [--rehearse]

Needs torch and click; two ranks on one GPU, or gloo. The survivor waits in a collective of the dead
rank. On the order of its parent, as of a supervisor, another thread aborts the process group. Then
the survivor joins a new group with a new peer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import IO

import click

from reference_trainer.launch.worker import reserve_port

NUMBERS = 1 << 20  # elements that an all-reduce adds up
BEFORE = 20  # all-reduces until the kill
PATIENCE_S = 5  # seconds for the survivor to see by itself that its peer is gone
TIMEOUT_S = 120


def rank(backend: str) -> None:
    """Run all-reduces until ordered to abort, then again in a group with a new peer.

    Reads `abort` and `join PORT` from standard input.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _abort_process_group

    os.environ |= {"NCCL_HOSTID": f"host{os.environ['RANK']}", "NCCL_NET": "Socket"}
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    ports: list[str] = []
    told = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            word, _, port = line.strip().partition(" ")
            if word == "abort":
                _abort_process_group()
                print("aborted", flush=True)
            if word == "join":
                ports.append(port)
                told.set()

    def join() -> None:
        options = {"device_id": device} if backend == "nccl" else {}
        dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S), **options)  # type: ignore[arg-type]

    def add() -> None:
        ones = torch.ones(NUMBERS, device=device)
        dist.all_reduce(ones)
        assert float(ones[-1]) == 2.0

    threading.Thread(target=listen, daemon=True).start()
    join()
    try:
        for number in range(10**9):
            add()
            print(f"did {number}", flush=True)
            if os.environ["ROLE"] == "new" and number == BEFORE:
                break
    except Exception as error:  # noqa: BLE001 - any error that this torch raises is a result
        first = next(iter(str(error).splitlines()), "")[:120]
        print(f"raised {type(error).__name__}: {first}", flush=True)
        told.wait(TIMEOUT_S)
        os.environ["MASTER_PORT"] = ports[0]
        if dist.is_initialized():
            dist.destroy_process_group()
        join()
        print("joined", flush=True)
        for _ in range(BEFORE + 1):
            add()
        print("added", flush=True)
    dist.destroy_process_group()


class Process:
    """Process of a rank, the lines it printed, and when it printed them."""

    def __init__(self, number: int, port: int, backend: str, role: str) -> None:
        place = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "ROLE": role}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.survivor", "--rank", backend],
            env={**os.environ, **place}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.said: dict[str, float] = {}  # the first word of a line -> when it was first printed
        self.lines: list[str] = []
        self.more = threading.Condition()
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        out: IO[str] = self.child.stdout  # type: ignore[assignment]
        for line in out:
            with self.more:
                self.lines.append(line.strip())
                self.said.setdefault(line.split()[0], time.monotonic())
                self.more.notify_all()

    def wait(self, word: str, seconds: float, line: str = "") -> float | None:
        """Return when it first printed a word (or a full line); None where it did not in time."""
        with self.more:
            self.more.wait_for(
                lambda: (line or word) in (self.lines if line else self.said), seconds
            )
        return self.said.get(word) if not line or line in self.lines else None

    def tell(self, words: str) -> None:
        """Send one line to its standard input."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{words}\n")
        self.child.stdin.flush()

    def kill(self) -> float:
        """Kill it with SIGKILL and return the time."""
        self.child.kill()
        self.child.wait()
        return time.monotonic()


def trial(backend: str, how: str) -> None:
    """Run two ranks, kill or stop one, and start a new one in its place; print each part's time.

    Nothing notifies the survivor of a stopped rank.
    """
    processes: list[Process] = []

    def start(number: int, port: int, role: str) -> Process:
        processes.append(Process(number, port, backend, role))
        return processes[-1]

    try:
        with reserve_port() as port:
            first, second = start(0, port, "first"), start(1, port, "first")
        if first.wait("did", TIMEOUT_S, f"did {BEFORE}") is None:
            raise click.ClickException(f"two ranks did not meet; rank 0 said {first.lines[-3:]}")
        if how == "stopped":
            second.child.send_signal(signal.SIGSTOP)
        killed = time.monotonic() if how == "stopped" else second.kill()
        raised = first.wait("raised", PATIENCE_S)
        print(f"peer {how}: the survivor saw it by itself {_after(raised, killed)}", flush=True)
        if raised is None:
            told = time.monotonic()
            first.tell("abort")
            raised = first.wait("raised", TIMEOUT_S)
            print(f"peer {how}: it gave up, once told, {_after(raised, told)}", flush=True)
        with reserve_port() as port:
            again = time.monotonic()
            first.tell(f"join {port}")
            start(1, port, "new")
        joined, added = first.wait("joined", TIMEOUT_S), first.wait("added", TIMEOUT_S)
        print(f"peer {how}: it joined a new one {_after(joined, again)}", flush=True)
        print(f"peer {how}: it added up with that {_after(added, again)}", flush=True)
        error = [line for line in first.lines if line.startswith("raised")]
        print(f"peer {how}: it {(error or ['never raised'])[0]}", flush=True)
        if added is None:
            raise click.ClickException(f"the survivor did not go on; it said {first.lines[-3:]}")
    finally:
        for process in processes:
            process.kill()


def _after(when: float | None, since: float) -> str:
    return "never" if when is None else f"after {when - since:.2f} s"


@click.command()
@click.option("--rehearse", is_flag=True, help="On a CPU, with gloo.")
@click.option("--rank", "as_rank", metavar="BACKEND", help="Be one of the ranks.")
def main(rehearse: bool, as_rank: str | None) -> None:
    """One rank is killed; the other goes on with a new peer in the same process."""
    if as_rank:
        rank(as_rank)
    else:
        # gloo cannot be aborted: it waits for a stopped peer until its time-out.
        for how in ("killed",) if rehearse else ("killed", "stopped"):
            trial("gloo" if rehearse else "nccl", how)


if __name__ == "__main__":
    main()
