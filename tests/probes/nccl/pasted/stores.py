"""gloo, torch's store and the rendezvous: what a user of torchrun has before any line of NCCL."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, start, warn
from tests.recordings.generate.nccl_logs import Job

PAIR = "RuntimeError: [x/gloo/transport/tcp/pair.cc:799] "
CLIENT = "The client socket has timed out after 600000ms while trying to connect to ({}, 29500)."
COMPLETE = info(*BEGIN, start(0, 1).replace("START", "COMPLETE"))
STORES = {
    "gloo without a reason": Case(
        "[rank3]:[E ProcessGroupGloo.cpp:143] Gloo connectFullMesh failed with "
        "[x/gloo/transport/tcp/pair.cc:144] no error\n",
        {"INIT-BOOTSTRAP"},
        "mostly the interface that gloo chose",
        "INIT-BOOTSTRAP [rank 3]: rank 3: gloo cannot connect all ranks with each other",
    ),
    "gloo on the loopback": Case(
        PAIR + "connect [127.0.1.1]:13195: Connection refused\n",
        {"INIT-BOOTSTRAP"},
        "Debian maps the host's name to 127.0.1.1",
        "Set GLOO_SOCKET_IFNAME",
    ),
    "gloo, in the words of torch 2.6": Case(
        "[rank0]: RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed "
        "out connecting: SO_ERROR: Connection refused, remote=[10.1.0.7]:2485, rank=0, size=2\n",
        {"INIT-BOOTSTRAP"},
        "the address is routed: the peer may be dead",
        "check that the rank at that address is alive",
    ),
    "gloo lost a peer": Case(
        PAIR.replace("799", "534") + "Connection closed by peer [10.1.0.1]:53412\n",
        {"NCCL-ERROR"},
        "it follows from the peer's end",
        "NCCL-ERROR [10.1.0.1]: gloo lost the connection to a peer",
    ),
    "gloo, after an error of NCCL": Case(
        info(*BEGIN)
        + warn("misc/ibvwrap.cc:9 Call to ibv_reg_mr failed with error Cannot allocate memory")
        + PAIR
        + "connect [10.1.0.7]:13195: Connection refused\n",
        {"INIT-MEMLOCK"},
        "the rank that NCCL stopped is the one that gloo cannot reach",
        "these errors follow from the finding above: nccl.log:5: connect [10.1.0.7]:13195",
    ),
    "gloo has no such interface": Case(
        "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find "
        "address for: ^lo\n",
        {"LAUNCH-ENV"},
        "NCCL's spelling is no gloo's",
        "gloo finds no address on ^lo",
    ),
    "a store that does not answer": Case(
        "torch.distributed.DistNetworkError: " + CLIENT.format("node7") + "\n",
        {"INIT-BOOTSTRAP"},
        "rank 0, its address or its port",
        "torch's store, which rank 0 starts, does not answer at node7, port 29500",
    ),
    "a store on the own host": Case(
        "[E socket.cpp:922] [c10d] " + CLIENT.format("localhost") + "\n",
        {"INIT-BOOTSTRAP"},
        "MASTER_ADDR is that of no other host",
        "a rank looks for torch's store on its own host",
    ),
    "three of four clients": Case(
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients "
        "joined.\n",
        {"INIT-MISSING-RANK"},
        "the store counts",
        "only 3 of 4 processes joined torch's store, which rank 0 starts",
    ),
    "a port that is used": Case(
        "RuntimeError: The server socket has failed to listen on any local network address. The server "
        "socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n",
        {"LAUNCH-ENV"},
        "what an earlier job left",
        "another process uses port 29500",
    ),
    "a name without an address": Case(
        "DistNetworkError: The IPv4 network addresses of (node7, 29500) cannot be retrieved (gai error: "
        "-2 - Name or service not known).\n",
        {"LAUNCH-ENV"},
        "DNS, or a wrong MASTER_ADDR",
        "this host cannot resolve the name node7, at which torch's store should be",
    ),
    "a rendezvous in vain": Case(
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n",
        {"INIT-MISSING-RANK"},
        "a node did not come",
        "Start torchrun on every node",
    ),
    "a gloo barrier": Case(
        "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
        "operation to complete\n",
        {"NCCL-ERROR"},
        "a rank did not come to it",
        "Find out whether a rank did not join",
    ),
    "gloo on Docker's bridge": Case(
        PAIR + "connect [172.17.0.2]:13195: Connection refused\n",
        {"INIT-BOOTSTRAP"},
        "other hosts have no way to it",
        "--network=host",
    ),
    "a rendezvous whose store is gone": Case(
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d "
        "store has failed. See inner exception for details.\n",
        {"NCCL-ERROR"},
        "the node of the endpoint ended",
        "the error began at another node",
    ),
    "a key of the store that nobody sets": Case(
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//worker_count\n",
        {"NCCL-ERROR"},
        "a rank did not come so far",
        "DistStoreError: wait timeout after 300000ms",
    ),
    # Near misses.
    "a store that is tried again": Case(
        "[W728 15:01:59 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host "
        "node7:29500 - retrying (try=0, timeout=600000ms, delay=33924ms): "
        + CLIENT.format("node7")
        + "\n",
        set(),
        "a later try may succeed",
        "torch's store does not answer yet",
    ),
    "a store that answered later": Case(
        "[E728 15:01:59 socket.cpp:1028] [c10d] " + CLIENT.format("node7") + "\n" + COMPLETE,
        set(),
        "NCCL has started since, and this needs the store",
        "1 rank, 1 host",
    ),
    "a store that is gone after a sound start": Case(
        Job("2.28.9").text()
        + "torch.distributed.DistNetworkError: "
        + CLIENT.format("node7")
        + "\n",
        set(),
        "the job passed the store; but it is not called fine",
        "not proven: nccl.log:",
    ),
    "a client that waits for the store": Case(
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node7]:29500 (errno: 111 "
        "- Connection refused).\n",
        set(),
        "each start of torchrun may write this",
        "shows no error that seatrial knows",
    ),
    "a name without an IPv6 address": Case(
        "[W socket.cpp:436] [c10d] The IPv6 network addresses of (node7, 29500) cannot be retrieved (gai "
        "error: -2 - Name or service not known).\n",
        set(),
        "IPv4 is tried next",
        "this attempt failed, and torch makes others",
    ),
    "a bind that is tried again": Case(
        "[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - "
        "Address already in use).\n",
        set(),
        "IPv4 is tried next",
        "this attempt failed, and torch makes others",
    ),
    "gloo on one host": Case(
        "[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the "
        "loopback address as fallback. Manually set the network interface to bind to\n",
        set(),
        "it is sound with one host",
        "note: nccl.log:1: Unable to resolve hostname",
    ),
    "an address of a program in Java": Case(
        "Unable to find address for: www.example.org\nTimed out waiting 30 s; 2 clients joined.\n",
        set(),
        "no gloo",
        "no line of NCCL's",
    ),
}
