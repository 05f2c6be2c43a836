"""Runs a child process that ends when its parent process ends, however that ended.

Ray does not end what an actor has started (ray-project/ray issue 31451), and a killed process
cannot end its children. So a second process (`main`, this file) starts the child. It waits for the
end of its input, which only the first process holds open.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 40  # torchrun itself waits 30 s before it kills ranks that do not end


def run_torchrun(options: list[str], gpus: str) -> None:
    """Run `torchrun` with these arguments to its end, on these GPUs; without arguments, do nothing.

    The agents meet at the rendezvous address of the gang's ranks. They inherit the search path of
    the Ray worker. Raises RuntimeError when torchrun fails.
    """
    if not options:
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # By default restarted ranks find the addresses of dead ones (pytorch/pytorch issue 135712):
    # with torch 2.13, 6 of 10 restarts of four ranks ended with a refused connection.
    environment.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    endpoint = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    agent = ["-m", "torch.distributed.run", "--rdzv-endpoint", endpoint, *options]
    command = [sys.executable, __file__, sys.executable, *agent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as child:
        if child.wait() != 0:
            raise RuntimeError(f"torchrun ended with exit code {child.returncode}")


def main(command: list[str]) -> int:
    """Run the command and return its exit code; end it and its children when the input ends."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def end_child() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock a thread would hold when Python ends
            pass
        child.send_signal(signal.SIGTERM)  # torchrun ends its ranks
        try:
            child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=end_child, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
