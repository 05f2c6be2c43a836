"""Calls that fail after the start, and errors of CUDA, RDMA devices and libfabric: whose they are."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, size_line, start, warn
from tests.probes.nccl.pasted.torch_text import torch

DRIVER = "'CUDA driver version is insufficient for CUDA runtime version'"
DONE = start(0, 2).replace("START", "COMPLETE"), start(1, 2).replace("START", "COMPLETE")
STARTED = info(*BEGIN, DONE[0]) + info(DONE[1], pid=4002, device=1)
REGISTRATION = warn(
    "misc/ibvwrap.cc:182 Call to ibv_reg_mr_iova2 failed with error Invalid argument"
)
SOCKET_TRACE = "misc/socket.cc:505 -> 2 (Operation now in progress)", "misc/socket.cc:621 -> 2"
FAILED_CALLS = {
    "a collective that fails after the start of all": Case(
        STARTED
        + warn("enqueue.cc:1182 Error : no algorithm/protocol available")
        + info("enqueue.cc:1283 -> 3", "group.cc:406 -> 3", "enqueue.cc:1594 -> 3"),
        {"NCCL-ERROR"},
        "all ranks are complete, and the call fails",
        "no algorithm/protocol available",
    ),
    "a warning after the start of all that nothing follows": Case(
        STARTED + warn("enqueue.cc:1182 Something that no version of this reader knows"),
        set(),
        "NCCL went on",
        "an error that seatrial does not know, and no line says whether NCCL went on",
    ),
    "memory that a job does without": Case(
        STARTED + REGISTRATION + info("transport/net_ib.cc:1872 -> 2", "transport/net.cc:853 -> 2"),
        set(),
        "buffers of the user are copied where they cannot be registered",
        "no line says whether NCCL went on: nccl.log:6: misc/ibvwrap.cc Call to ibv_reg_mr_iova2",
    ),
    "memory that torch misses": Case(
        "[rank1]: RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO)\n"
        + info(size_line(0, 8, 2))
        + REGISTRATION
        + info("transport/net_ib.cc:1872 -> 2", "transport/net.cc:853 -> 2"),
        {"NCCL-ERROR"},
        "torch says that the call failed",
        "memory could not be registered with the network device (misc/ibvwrap.cc",
    ),
    "memory of libfabric, one line": Case(
        "register_rail_mr_buffer:617 NCCL WARN NET/OFI Unable to register memory (type = 2) for "
        "device 4. RC: -22, Error: Invalid argument\n",
        set(),
        "no line says that a call failed",
        "no line says whether NCCL went on: nccl.log:1: register_rail_mr_buffer NET/OFI Unable",
    ),
    "a transfer of libfabric": Case(
        torch(
            "NET/OFI Request 0x7f completed with error. RC: 113. Error: 2 (UNDELIVERABLE). Completed "
            "length: 0"
        ),
        {"NCCL-ERROR"},
        "neither CUDA nor a card",
        "a transfer over libfabric failed",
    ),
    "an RDMA device that fails": Case(
        warn("transport/net_ib.cu:80 NET/IB : Got async event : local catastrophic error"),
        {"NCCL-ERROR"},
        "not CUDA; and it shows no stage of the start",
        "an RDMA device reported an error",
    ),
    "more GPUs than a process maps": Case(
        info(*BEGIN) + warn("allocator.cc:79 Cuda failure 711 'peer mapping resources exhausted'"),
        {"NCCL-ERROR"},
        "no card is at fault",
        "Start one process per GPU",
    ),
    "an old driver": Case(
        warn(f"misc/cudawrap.cc:182 Cuda failure {DRIVER}"),
        {"NCCL-ERROR"},
        "no card is at fault",
        "the NVIDIA driver is older than this version of CUDA needs",
    ),
    "an old driver, by nccl-tests": Case(
        f" Test CUDA failure common.cu:1045 {DRIVER}\n",
        {"NCCL-ERROR"},
        "its own text of a failure",
        "Update the driver",
    ),
    "an old driver, by older nccl-tests": Case(
        f"misc/ibvwrap.cu:60 WARN Failed to open libibverbs.so[.1]\nCuda failure common.cu:891 {DRIVER}\n",
        {"NCCL-ERROR"},
        "its own text of a failure",
        "Update the driver",
    ),
    "an ECC error that the watchdog sees": Case(
        "[rank12]:[E ProcessGroupNCCL.cpp:1515] [PG 0 Rank 12] Process group watchdog thread "
        "terminated with exception: CUDA error: uncorrectable ECC error encountered\n",
        {"NCCL-ERROR"},
        "the rest of the line has the reason",
        "terminated with exception: CUDA error: uncorrectable ECC error encountered",
    ),
    "an error of a wrapper in Python": Case(
        "(Worker pid=880) ERROR RuntimeError: NCCL error: unhandled system error (run with "
        "NCCL_DEBUG=INFO for details) [repeated 6x across cluster]\n",
        {"NCCL-ERROR"},
        "no line is NCCL's own",
        "NCCL error: unhandled system error",
    ),
    "an error of a program in C": Case(
        "Failed, NCCL error /src/utils/nccl_utils.cc:296 'unhandled cuda error (run with'\n",
        {"NCCL-ERROR"},
        "the macro of NCCL's examples",
        "'unhandled cuda error",
    ),
    "sockets that fail at the start": Case(
        info(*BEGIN, *SOCKET_TRACE, "bootstrap.cc:275 -> 2", "init.cc:1493 -> 2"),
        {"INIT-BOOTSTRAP"},
        "the trace says what failed",
        "a TCP connection failed at the start of NCCL, and no line names its peer (misc/socket.cc:505",
    ),
    "sockets that fail in a job that goes on": Case(
        STARTED + info(*SOCKET_TRACE), set(), "a proxy tries again"
    ),
    "a topology without rings": Case(
        warn(
            "graph/search.cc:765 Could not find a path for pattern 4, falling back to simple order"
        ),
        set(),
        "NCCL goes on, and may be slow",
        "NCCL finds no good ring",
    ),
    "torch's watchdog, and a warning that is harmless": Case(
        "rank0]:[E416 04:50:37 ProcessGroupNCCL.cpp:1484] ProcessGroupNCCL's watchdog got stuck for "
        "300 seconds without making progress in monitoring enqueued collectives.\n"
        + warn(
            "transport/p2p.cc:944 rank 0 failed to IPC register userbuff 0x7f buffSize 37748736"
        ),
        {"NCCL-ERROR"},
        "the warning is none since 2.26",
        "the job reports: watchdog got stuck",
    ),
    "torch's timeout, and a warning that is not known": Case(
        info(*BEGIN)
        + warn("transport/p2p.cc:944 Something that no version of this reader knows")
        + "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n",
        {"NCCL-ERROR"},
        "a timeout shows no failed call: the warning may be harmless",
        "the job reports: Watchdog caught collective operation timeout",
    ),
    "an address that is none": Case(
        info(*BEGIN)
        + warn(
            "misc/socket.cc:397 Net : connecting to address  with family 33621 is neither AF_INET(2) "
            "nor AF_INET6(10)"
        )
        + info("bootstrap.cc:256 -> 3"),
        {"NCCL-ERROR"},
        "this host has an interface: what it got is no address",
        "NCCL received an invalid address of another rank",
    ),
    "a loopback address": Case(
        torch("socketStartConnect: Connect to 127.0.0.1<45069> failed : Connection refused"),
        {"INIT-BOOTSTRAP"},
        "open ports do not help",
        "Set NCCL_SOCKET_IFNAME to an interface that connects all nodes",
    ),
    "wrong results, and a paste without #": Case(
        "  4294967296     134217728   float    29122  129.05  129.05  1e+00    29169  128.84  128.84"
        "  1e+00\n Out of bounds values : 2 FAILED\n",
        {"NCCL-CORRUPT"},
        "a web page makes a heading of #",
        "nccl-tests found wrong values in",
    ),
    "a transfer that libfabric itself reports": Case(
        "libfabric:4001:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: "
        "Invalid address My EFA addr: x Peer host id: i-0ce6d3d57139f053c (7)\n"
        + info("Channel 00/0 : 0[4] -> 8[4] [send] via NET/AWS Libfabric/4/GDRDMA"),
        {"NCCL-ERROR"},
        "its warning is the error, and names the peer",
        "gpu01: a transfer over libfabric failed (err: 5, message: Invalid address",
    ),
    "no kernel for this GPU, by nccl-tests": Case(
        "gpu01: Test CUDA failure common.cu:253 'no kernel image is available for execution on the "
        "device'\n",
        {"NCCL-ERROR"},
        "neither ECC nor the program",
        "built for this GPU",
    ),
    "a process that ends": Case(
        warn("include/alloc.h:243 Cuda failure 'driver shutting down'"),
        {"NCCL-ERROR"},
        "it only follows",
        "Find out why the process ended",
    ),
    "memory, in other words": Case(
        torch("Failed to CUDA calloc 8388608 bytes"),
        {"NCCL-ERROR"},
        "a GPU's memory is full",
        "a GPU has no free memory",
    ),
    "collectives alone": Case(
        info("AllReduce: opCount 12c7 sendbuff 0x7f comm 0x43 [nranks=8] stream 0x5"),
        set(),
        "they are NCCL's lines, and show nothing of what is looked for",
        "only lines of NCCL that show no start, no network and no error",
    ),
    "no kernel for this GPU": Case(
        info("cudaDriverVersion 12020", "NCCL version 2.21.5+cuda11.8")
        + warn("enqueue.cc:47 Cuda failure 500 'named symbol not found'"),
        {"NCCL-ERROR"},
        "neither ECC nor the program",
        "this NCCL has no kernel for the GPU or its driver",
    ),
    "a network that is not there": Case(
        warn("net.cc:579 Error: network gIB not found.") + info("init.cc:516 -> 5"),
        {"NCCL-ERROR"},
        "its plugin did not load",
        "NCCL does not find the network that NCCL_NET names",
    ),
    "shared memory that may not be written, and what follows": Case(
        warn("include/shm.h:28 Call to shm_open failed : Permission denied")
        + warn("include/shm.h:48 Error while creating shared memory segment nccl-shm-send"),
        {"INIT-SHM"},
        "more room does not help",
        "INIT-SHM [gpu01]: gpu01: NCCL has no permission to write to /dev/shm",
    ),
    "ranks that were told to abort": Case(
        info(
            "misc/socket.cc:47 -> 3",
            "misc/socket.cc:58 -> 3",
            "bootstrap.cc:84 -> 3",
            "init.cc:9 -> 3",
        ),
        {"NCCL-ERROR"},
        "sockets end with 3 where NCCL aborts: no network is at fault",
        "(an internal error), and no line says why (misc/socket.cc:47 -> 3)",
    ),
    "a watchdog, and operations that failed": Case(
        "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n"
        "[rank0]: Some NCCL operations have failed or timed out.\n",
        {"NCCL-ERROR"},
        "the second sentence only follows",
        "Find out whether a rank did not join the collective",
    ),
    "wrong results behind a prefix": Case(
        STARTED + "[1,0]<stdout>:# Out of bounds values : 12 FAILED\n",
        {"NCCL-CORRUPT"},
        "MPI, Slurm and Ray write before the line",
        "nccl-tests found wrong values in",
    ),
    "a warning of libfabric that is no transfer": Case(
        STARTED
        + "libfabric:4001:17::core:core:ofi_hmem_init():<warn> cuda init failed, err: Operation not "
        "permitted\n",
        set(),
        "libfabric goes on without",
    ),
    "Docker's bridge": Case(
        torch("socketStartConnect: Connect to 172.17.0.2<38847> failed : Connection refused"),
        {"INIT-BOOTSTRAP"},
        "other hosts have no way to it",
        "--network=host",
    ),
    "memory that cannot be mapped": Case(
        warn("allocator.cc:89 Cuda failure 205 'mapping of buffer object failed'"),
        {"NCCL-ERROR"},
        "neither the program nor ECC",
        "one GPU cannot use the memory of another",
    ),
    "a watchdog alone": Case(
        "[rank5]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9141)\n",
        {"NCCL-ERROR"},
        "no error came first: a rank did not join",
        "Find out whether a rank did not join the collective",
    ),
    "the version that torch gives": Case(
        "torch.distributed.DistBackendError: NCCL error in: /src/ProcessGroupNCCL.cpp:3763, remote "
        "process exited or there was a network error, NCCL version 2.28.8\nncclRemoteError: A call\n",
        {"NCCL-ERROR"},
        "no line is NCCL's own",
        "NCCL 2.28.8",
    ),
    "a trace alone": Case(
        info(
            "include/net.h:19 -> 2",
            "graph/paths.cc:297 -> 3",
            "transport/net.cc:140 -> 3",
            "init.cc:766 -> 3",
            "group.cc:73 -> 3 [Async thread]",
        ),
        {"NCCL-ERROR"},
        "the innermost frame says most, and the result what kind it is",
        "a call of NCCL failed (an internal error), and no line says why (graph/paths.cc:297 -> 3)",
    ),
    "a trace, and lines that lost their newline": Case(
        info(
            "graph/paths.cc:297 -> 3 Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM",
            "init.cc:766 -> 3 Channel 01/0 : 1[1] -> 2[2] via P2P/CUMEM",
        ),
        {"NCCL-ERROR"},
        "the result is the first number behind an arrow: what follows is of another line",
        "(an internal error), and no line says why (graph/paths.cc:297 -> 3 Channel",
    ),
    "shared memory that CUDA refuses": Case(
        warn("misc/shmutils.cc:103 Cuda failure 'invalid argument'")
        + warn("misc/shmutils.cc:114 Error while creating shared memory segment /dev/shm/nccl-Nz"),
        {"INIT-SHM"},
        "no line says that room is missing",
        "More room in /dev/shm does not help",
    ),
    "shared memory that CUDA refuses has one finding": Case(
        warn("misc/shmutils.cc:103 Cuda failure 'invalid argument'")
        + warn("misc/shmutils.cc:114 Error while creating shared memory segment /dev/shm/nccl-Nz"),
        {"INIT-SHM"},
        "the second line follows",
        "INIT-SHM [gpu01]: gpu01: CUDA refuses a shared memory segment of NCCL",
    ),
    "a network device without a place": Case(
        torch("Attribute busid of node nic not found"),
        {"NCCL-ERROR"},
        "a USB network card",
        "NCCL_TOPO_FILE",
    ),
    "a last error behind vLLM's prefix": Case(
        "(RayWorkerVllm pid=7602) ERROR 04-07 00:57:46 ray_utils.py:45] ncclInternalError: Internal "
        "check failed.\n(RayWorkerVllm pid=7602) ERROR 04-07 00:57:46 ray_utils.py:45] Last error:\n"
        "(RayWorkerVllm pid=7602) ERROR 04-07 00:57:46 ray_utils.py:45] Some text of NCCL\n",
        {"NCCL-ERROR"},
        "the prefix is not NCCL's",
        "NCCL reports an error that seatrial does not know (Some text of NCCL)",
    ),
    "a wrong argument": Case(
        info(*BEGIN)
        + warn("misc/argcheck.cc:39 Recv : invalid root 0 (root should be in the 0..0 range)")
        + info("enqueue.cc:1450 -> 4", "group.cc:106 -> 4"),
        {"NCCL-ERROR"},
        "neither a rank nor a network is at fault",
        "the program called NCCL with a wrong argument",
    ),
    "why there is no GPUDirect": Case(
        info(
            "NET/IB : GPU Direct RDMA Disabled for GPU 18000 / HCA 0 (distance 5 > 4)",
            "NET/IB : GPU Direct RDMA Disabled for GPU 3b000 / HCA 0 (distance 5 > 4)",
        ),
        set(),
        "no connection is seen",
        "Disabled for GPU 3b000",
    ),
    "the loopback first, on one host": Case(
        info("NET/Socket : Using [0]lo:127.0.0.1<0> [1]eth0:192.168.4.230<0>"),
        set(),
        "no second host is seen",
        "note: gpu01: NCCL takes the loopback interface first",
    ),
    "NCCL's own report of the ranks": Case(
        "NCCL version 2.26.2 compiled with CUDA 12.6\n#0-0 (fa93daea854b060b) MISMATCH\n"
        "  Communicator ranks have different AllGather operation counts\n"
        "  30 ranks have launched up to operation 640\n  2 ranks have launched up to operation 641\n",
        set(),
        "ranks may be a step apart while they work",
        "run `ncclras` again",
    ),
    "advice without host and process": Case(
        '[2026-08-23 09:56:58] node [0] /rccl/src/init.cc:213 NCCL WARN Missing "iommu=pt" from '
        "kernel command line which can lead to system instability or hang!\n"
        "node [0] NCCL INFO RCCL version : 2.27.7-HEAD:29e1567\n",
        set(),
        "one container, and no process is named",
        'Missing "iommu=pt"',
    ),
    "lines written into each other": Case(
        info("Trees [0] 1/-1/-1->0->-1", "Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM", device=1)
        + "gpu01:4001:4061 [1] NCCL INFO Channelgpu01:4007:4067 [7] NCCL INFO Channel 00/0 : 7[7] "
        "-> 0[0] via P2P/CUMEM\n"
        + info("Channel 01/0 : 7[7] -> 0[0] via P2P/CUMEM", pid=4007, device=7),
        set(),
        "a word before the name of a host is no second host",
        "2 ranks, 1 host,",
    ),
}
SOUND_CALLS = {
    "a warning after the start of all that nothing follows",
    "memory that a job does without",
    "memory of libfabric, one line",
    "sockets that fail in a job that goes on",
    "a topology without rings",
    "NCCL's own report of the ranks",
    "advice without host and process",
    "a warning of libfabric that is no transfer",
    "collectives alone",
    "why there is no GPUDirect",
    "the loopback first, on one host",
    "lines written into each other",
}
