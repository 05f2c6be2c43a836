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
