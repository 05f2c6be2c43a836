"""Errors of one node: CUDA, shared memory, GPU to GPU, plugins."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, start, warn
from tests.recordings.generate.nccl_logs import Job

NODE_ERRORS = {
    "CUDA that cannot be initialised": Case(
        info(*BEGIN, start(0, 2), "NVLS multicast support is not available on dev 0")
        + warn("transport/nvls.cc:245 Cuda failure 'initialization error'")
        + info("init.cc:872 -> 1"),
        {"NCCL-ERROR"},
        "the file that notices is not the cause",
        "CUDA cannot be initialised",
    ),
    "P2P that cannot be enabled": Case(
        info(*BEGIN, "Could not enable P2P between dev 2(=300000) and dev 1(=200000)"),
        set(),
        "NCCL goes on without",
        "note: nccl.log:4: Could not enable P2P between dev 2",
    ),
    "a driver's library that is not found": Case(
        info(*BEGIN)
        + warn("misc/cudawrap.cc:179 Failed to find CUDA library libcuda.so (NCCL_CUDA_PATH='')"),
        set(),
        "NCCL goes on without cuMem and NVLS",
        "note: nccl.log:4: misc/cudawrap.cc Failed to find CUDA library",
    ),
    "a GPU that a peer does not see": Case(
        info(*BEGIN)
        + warn("misc/nvmlwrap.cc:181 nvmlDeviceGetHandleByPciBusId() failed: Not Found"),
        set(),
        "the job may go on, slower",
        "so the two ranks cannot use NVLink or P2P",
    ),
    "the memory of a GPU": Case(
        info(*BEGIN) + warn("enqueue.cc:1 Cuda failure 2 'out of memory'"),
        {"NCCL-ERROR"},
        "neither an Xid nor the card",
        "a GPU has no free memory",
    ),
    "shared memory that may not be written": Case(
        info(*BEGIN) + warn("include/shm.h:28 Call to shm_open failed : Permission denied"),
        {"INIT-SHM"},
        "a larger one does not help",
        "mode 1777",
    ),
    "libfabric, and lines of two hosts": Case(
        info(*BEGIN)
        + info(*BEGIN, host="gpu02", pid=77)
        + warn("create_nccl_ofi_component:459 NET/OFI Couldn't open AV. RC: -22", host="gpu02"),
        {"NCCL-ERROR"},
        "an error is told, whichever network the others use",
        "Couldn't open AV",
    ),
    "a handle of HIP": Case(
        warn("/opt/rccl/src/transport/p2p.cc:220 hipIpcGetMemHandle failed : invalid argument"),
        {"NCCL-ERROR"},
        "as a handle of CUDA",
        "one GPU cannot use the memory of another",
    ),
    "shared memory of 2.4": Case(
        info("Ring 00 : 4[4] -> 3[3] via direct shared memory")
        + warn("include/shm.h:42 Cuda failure 'invalid argument'"),
        {"INIT-SHM"},
        "the header tells what failed",
    ),
    "a segment that is not there, and its first sign": Case(
        warn("misc/shmutils.cc:93 Call to open failed: No such file or directory")
        + warn(
            "misc/shmutils.cc:129 Error while attaching to shared memory segment /dev/shm/nccl-a "
            "(size 14156128), error: No such file or directory (2)"
        ),
        {"INIT-SHM"},
        "both lines are one event",
        "of another rank cannot be opened",
    ),
    "libfabric's own form, of no rank": Case(
        "WARN: Function: create_nccl_ofi_component Line: 459: NET/OFI Couldn't open AV. RC: -22, "
        "ERROR: Invalid argument\n",
        {"NCCL-ERROR"},
        "no line shows two hosts, and it is an error",
        "Couldn't open AV",
    ),
    "memory that EFA cannot lock": Case(
        info(*BEGIN, start(0, 4))
        + warn("nccl_ofi_net.c:88 NET/OFI Unable to create extended CQ: Cannot allocate memory"),
        {"INIT-MEMLOCK"},
        "libfabric's text",
    ),
    "no room by posix_fallocate": Case(
        info(*BEGIN, start(0, 4))
        + warn("include/shm.h:28 Call to posix_fallocate failed : No space left on device"),
        {"INIT-SHM"},
        "an old text",
    ),
    "a segment of another rank": Case(
        info(*BEGIN, start(0, 4))
        + warn(
            "misc/shmutils.cc:134 Error while attaching to shared memory segment /dev/shm/nccl-a (size 14), error: No such file or directory (2)"
        ),
        {"INIT-SHM"},
        "no question of size",
        "--ipc=host",
    ),
    "a path of a GPU that is not there": Case(
        info(*BEGIN, start(0, 4))
        + warn(
            "graph/xml.cc:332 Could not find real path of /sys/class/pci_bus/0000:01/../../0000:01:00.0"
        )
        + info("graph/xml.cc:469 -> 2", "init.cc:581 -> 2"),
        {"NCCL-ERROR"},
        "the warning right before the failed call is the cause",
        "/sys/class/pci_bus",
    ),
    "shm that needs peer access": Case(
        info(*BEGIN, start(0, 4))
        + warn(
            "transport/shm.cc:590 Cuda failure 217 'peer access is not supported between these two devices'"
        ),
        {"NCCL-ERROR"},
        "no lack of shared memory",
        "NCCL_CUMEM_HOST_ENABLE=0",
    ),
    "an IPC handle": Case(
        info(*BEGIN, start(0, 4))
        + warn(
            "transport/p2p.cc:257 failed to open CUDA IPC handle : 217 peer access is not supported"
        ),
        {"NCCL-ERROR"},
        "copies between GPUs, and no hang",
        "cannot use the memory of another",
    ),
    "P2P that is off": Case(
        Job("2.21.5").text()
        + warn(
            "init.cc:1 P2P is disabled between connected GPUs 0 and 1. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
            host="node0",
            pid=1000,
        ),
        set(),
        "a note",
        "note: ",
    ),
    "advice of RCCL": Case(
        Job("2.21.5").text()
        + warn(
            'init.cc:71 Missing "iommu=pt" from kernel command line which can lead to system instability or hang!',
            host="node0",
            pid=1000,
        ),
        set(),
        "no job fails by it",
        "no fault found",
    ),
}
