"""Additions to the stand-in of `ended_run`: a head and nodes that can be lost."""

from __future__ import annotations

# A head that accepts connections, until it is killed; the suite's times are shorter.
HEADED = """
import subprocess, sys
import probes.cluster.endpoints as endpoints
import probes.session.session as run
endpoints.POLL_SECONDS, endpoints.SILENCE_SECONDS, endpoints.LOST_SECONDS = 0.1, 0.5, 1.5
run.HEADLESS_S = run.NODELESS_S = 2.0
code = (
    "import os, socket, sys, threading\\n"
    "def follow(): sys.stdin.read(), os._exit(0)\\n"  # it ends with who started it
    "threading.Thread(target=follow, daemon=True).start()\\n"
    "s = socket.create_server(('127.0.0.1', 0))\\n"
    "print(s.getsockname()[1], flush=True)\\n"
    "while True: s.accept()[0].close()"
)
pipe = subprocess.PIPE
StandIn.head = subprocess.Popen(
    [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
)
StandIn.address = f"127.0.0.1:{StandIn.head.stdout.readline().strip()}"
StandIn.close = lambda self: self.head.kill()
"""
# Two nodes as Ray would list them, and that head.
NODES = (
    HEADED
    + """
import dataclasses, time
import probes.cluster.node_watch as watch
watch.POLL_S, watch.PAUSE_S, run.NODELESS_S = 0.1, 0.05, 9.0
watch_states = [watch.NodeState(id=str(n + 1), name=f"n{n}") for n in range(2)]
StandIn.states, StandIn.late, StandIn.expected_losses = watch_states, [], set()
StandIn.reads = 0
StandIn.nodes = [{"id": one.id, "name": one.name, "alive": True} for one in watch_states]
def node_states(self):
    StandIn.reads += 1
    return self.late.pop()() if self.late else list(self.states)
def watched(self):  # the watch knows the nodes
    # Between two looks; who started this process ends it after its own time.
    while self.reads < 2 - (watch.POLL_S > 10): time.sleep(0.05)
    time.sleep(0.2)  # it keeps what it read: two of its polls
def change(self, **fields):
    self.watched()
    first, second, *more = self.states
    StandIn.states = [first, dataclasses.replace(second, **fields), *more]
def add(self, **fields):
    StandIn.states = [*self.states, dataclasses.replace(watch_states[0], **fields)]
def drop(self):
    self.watched()
    StandIn.states = self.states[:-1]
def answer(self, *late):
    self.watched()
    StandIn.late = [*late]
    while self.late: time.sleep(0.05)  # between two looks, as above
    time.sleep(0.5)  # some of its polls: it would find a lost node in them
StandIn.node_states, StandIn.change, StandIn.add = node_states, change, add
StandIn.drop, StandIn.answer, StandIn.watched = drop, answer, watched
"""
)
