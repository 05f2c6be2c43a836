"""Answers of ncclras, NCCL's client for the state of a job that runs."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import Case
from tests.probes.nccl.pasted.watchdog import caught

ROW = "      0         1         4         8        32        32   RUNNING  {}\n"
RAS = {
    "a rank without data": Case(
        "#0-0 (b3d1) INCOMPLETE\n  Missing communicator data from 1 rank\n  Rank 1 -- GPU 0 managed by "
        "process 604 on node 10.4.1.3\n",
        set(),
        "it may answer the next time; who it is stands in the block",
        "nccl.log:2: Missing communicator data from 1 rank: Rank 1 -- GPU 0 managed by "
        "process 604 on node 10.4.1.3",
    ),
    "a process that is dead": Case(
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n  Process 3487984 on "
        "node 172.16.64.213 managing GPU 5\n",
        {"NCCL-ERROR"},
        "NCCL tried for 60 seconds",
        "NCCL-ERROR [172.16.64.213]: the job: ncclras has not reached a process for 60 seconds: process "
        "3487984 on node 172.16.64.213, GPU 5",
    ),
    "a process that is dead, as monitored": Case(
        "   [2025-12-19 13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1\n",
        {"NCCL-ERROR"},
        "ncclras -m",
        "process 1524345 on node 172.16.64.245",
    ),
    "a rank without data, as JSON": Case(
        '        "missing_ranks": [\n          {\n            "rank": 1,\n            "host": '
        '"172.16.64.245",\n            "pid": 1524345,\n',
        set(),
        "ncclras -f json",
        "rank 1, process 1524345 on node 172.16.64.245, did not answer ncclras in time",
    ),
    "timeouts of the client": Case(
        "TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n",
        set(),
        "some process did not answer",
        "nccl.log:2: Encountered 2 communication timeouts",
    ),
    "who is behind": Case(
        "#0-0 (27a0) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  26 ranks "
        "have launched up to operation 6650\n  1 rank has launched up to operation 6649\n  Rank 0 -- GPU "
        "0 managed by process 483072 on node 172.16.64.210\n",
        set(),
        "they may only be busy; the rank is named",
        "1 rank has launched up to operation 6649 Rank 0 -- GPU 0 managed by process 483072 on node "
        "172.16.64.210. They may only be busy",
    ),
    "a sound summary beside a timeout": Case(
        ROW.format("    OK") + caught(0, 7),
        {"NCCL-ERROR"},
        "the communicator itself is well",
        "note: nccl.log:1: ncclras: communicators of 32 ranks on 4 nodes are RUNNING, OK",
    ),
    # Near misses.
    "a sound summary": Case(ROW.format("    OK"), set(), "nothing is wrong", "are RUNNING, OK"),
    "a summary in the middle of a change": Case(
        ROW.format("MISMATCH"),
        set(),
        "ranks may be a step apart while they work",
        "are RUNNING, MISMATCH",
    ),
    "a table of Ray": Case(
        "  12345  worker-1  RUNNING  OK\n  3   RUNNING  4 actors\n",
        set(),
        "another program's table",
        "no line of NCCL's",
    ),
    "a node that Kubernetes calls dead": Case(
        "node n1 is considered dead by the controller\nMissing data from 1 rank of the survey\n",
        set(),
        "another program's words",
        "no line of NCCL's",
    ),
}
