"""A gang that lost processes, in the lab: who is replaced, who stays, and when it is not enough."""

from __future__ import annotations

import json
import sys

import pytest

from tests.lab.lab import Lab
from tests.support.paths import REPO

pytestmark = pytest.mark.soak(criterion="restart")
SCRIPT = """
import json, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from probes.cluster.cluster import connect
from reference_trainer.launch.gang import WorkerLost

def fall():
    rank = int(os.environ["RANK"])
    time.sleep({2: 60, 3: 1}.get(rank, 0))  # 0 and 1 have ended when 3 dies, 2 has not
    if rank == 3:
        os._exit(1)

def fail():
    if os.environ["RANK"] == "3":
        raise RuntimeError("no memory")
    time.sleep(60)

def stop():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)  # another thread may take the signal: this one runs on for a moment

def pids(gang):
    return [place.pid for place in gang.places]

told = {}
cluster = connect("auto")
with cluster.gang() as gang:
    before = pids(gang)
    try:
        gang.run(fall, timeout=30)
    except WorkerLost as loss:
        told["lost"] = loss.ranks
    told["none"] = gang.replace_workers([])
    told["replaced"] = gang.replace_workers(told["lost"])
    told["same"] = [a == b for a, b in zip(before, pids(gang))]
    told["answer"] = gang.run(os.getpid, timeout=30) == pids(gang)
    try:
        gang.run(fail, timeout=30)
    except WorkerLost as loss:
        told["failed"] = [loss.ranks, loss.failed]
    told["waiting"] = gang.replace_waiting()
    told["answer again"] = gang.run(os.getpid, timeout=30) == pids(gang)
    gang.begin(stop)
    time.sleep(1)
    told["stopped"] = gang.replace_workers([1])
    told["busy"] = gang.busy()
told["left"] = cluster.groups_named("gang")
cluster.close()
print(json.dumps(told))
"""


def test_only_what_is_lost_or_does_not_end_is_replaced(lab: Lab) -> None:
    said = lab.nodes[0].run(sys.executable, "-c", SCRIPT, str(REPO), seconds=120)
    assert json.loads(said.splitlines()[-1]) == {
        "lost": [3],
        "none": [],
        "replaced": [2, 3],
        "same": [True, True, False, False],
        "answer": True,
        "failed": [[], [3]],
        "waiting": [0, 1, 2],
        "answer again": True,
        "stopped": [],  # it lives: only removing its group ends it
        "busy": [1],
        "left": [],
    }


KEPT = """
import json, os, sys, threading, time
sys.path.insert(0, sys.argv[1])
from probes.cluster.cluster import connect
from probes.cluster.kept_gang import GANG_NAME

def network():
    return os.environ.get("GLOO_SOCKET_IFNAME")

def die_later():
    if os.environ["RANK"] == "2":
        threading.Timer(0.5, os._exit, [1]).start()

def pids(gang):
    return [place.pid for place in gang.places]

told = {}
cluster = connect("auto")
cluster.emulated = True
keeper, said = cluster.kept_gang, []
with keeper.lend(said.append, environment={"GLOO_SOCKET_IFNAME": "eth0"}) as gang:
    first, told["wrong network"] = pids(gang), gang.run(network, timeout=30)
with keeper.lend(said.append) as gang:
    told["the same processes"], told["network"] = pids(gang) == first, gang.run(network, timeout=30)
    gang.run(die_later, timeout=30)
deadline = time.monotonic() + 30
while not (lost := gang.silent()) and time.monotonic() < deadline:
    time.sleep(0.1)
told["lost"] = lost
with keeper.lend(said.append) as gang:
    told["new processes"] = all(a != b for a, b in zip(pids(gang), first))
    told["groups"] = cluster.groups_named(GANG_NAME)
told["taken"] = keeper.take(said.append) is gang
with gang:
    told["it runs"] = len(gang.run(network, timeout=30))
told["left"] = cluster.groups_named(GANG_NAME)
told["said"] = [line.split(",")[0] for line in said]
cluster.close()
print(json.dumps(told))
"""


def test_a_gang_is_handed_on_until_a_rank_of_it_is_lost(lab: Lab) -> None:
    """No setting of a probe reaches the next, and a rank that dies in between costs no probe."""
    said = lab.nodes[0].run(sys.executable, "-c", KEPT, str(REPO), seconds=120)
    told = json.loads(said.splitlines()[-1])
    started, kept = "ranks: started for this test", "ranks: those of an earlier test"
    assert told == {
        "wrong network": ["eth0"] * 4,
        "the same processes": True,
        "network": ["fab0"] * 4,  # the lab's own
        "lost": [2],
        "new processes": True,
        "groups": [4],
        "taken": True,
        "it runs": 4,
        "left": [],
        "said": [started, kept, started, kept],
    }
