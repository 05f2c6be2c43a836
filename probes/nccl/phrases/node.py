"""Phrases about GPUs, memory, limits and ranks, and the trace of a failed call.

Format strings: NCCL 2.2 to 2.30, src/init.cc, src/misc/shmutils.cc, src/transport/*.cc,
src/enqueue.cc.
"""

from __future__ import annotations

from probes.nccl.phrases.phrase import ERROR, FOLLOW_UP, NEWS, Phrase

PHRASES = (
    Phrase(
        *("mnnvl", rb"mnnvl\.cc|MNNVL \(cliqueSize|Cuda failure 800\b", "2.21-2.30"),
        *("NVLink between hosts", ERROR, "mnnvl.cc MNNVL (cliqueSize 8) is enabled but not usable"),
    ),
    Phrase(
        *("limits", rb"Too many open files|pthread_create failed", "2.2-2.30"),
        *("a limit of the process", ERROR, "Call to socket failed : Too many open files"),
    ),
    Phrase(
        "peer-access",
        rb"transport/shm\.cc Cuda failure 217|failed to open CUDA IPC handle"
        rb"|Cuda failure.{0,8}mapping of buffer object failed"
        rb"|(?:cuda|hip)Ipc\w{1,32} failed",
        *("2.7-2.30, RCCL", "one GPU cannot use the memory of another", ERROR),
        "transport/p2p.cc failed to open CUDA IPC handle : 217 peer access is not supported",
    ),
    Phrase(
        *(
            "disagree",
            rb"(?:[Cc]ollective mismatch|Mismatched collective|[Mm]essage truncated : receiving)",
            "2.4-2.30",
        ),
        *("ranks send other sizes than their peers receive", ERROR),
        "NET/Socket : peer 10.0.0.2<4> message truncated : receiving 1048576 bytes instead of 8192",
    ),
    Phrase(
        *("rank-beyond", rb"Invalid rank requested", "2.2-2.30"),
        *("a rank that is not below the size", ERROR, "Invalid rank requested : 2/2"),
    ),
    Phrase(
        *("rank-twice", rb"has already checked in", "2.4-2.30", "two processes claim one rank"),
        *(ERROR, "Bootstrap Root : rank 0 of 4 ranks has already checked in"),
    ),
    Phrase(
        *("cuda", rb"Cuda failure", "2.2-2.30"),
        *("a call of CUDA failed", ERROR, "Cuda failure 700 'an illegal memory access'"),
    ),
    Phrase(
        *("cuda-driver", rb"Cuda failure.{0,8}CUDA driver version is insufficient", "2.2-2.30"),
        *("the driver is older than CUDA", ERROR),
        "init.cc Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'",
    ),
    Phrase(
        *("cuda-exit", rb"Cuda failure.{0,8}driver shutting down", "2.2-2.30"),
        *("the process is ending", ERROR, "include/alloc.h Cuda failure 'driver shutting down'"),
    ),
    Phrase(
        "cuda-kernel",
        rb"Cuda failure.{0,8}(?:named symbol not found|no kernel image|invalid device function)",
        *("2.2-2.30", "no kernel for this GPU or driver", ERROR),
        "enqueue.cc Cuda failure 500 'named symbol not found'",
    ),
    Phrase(
        *("cuda-peers", rb"Cuda failure.{0,8}peer mapping resources exhausted", "2.2-2.30"),
        *("one process maps too many GPUs", ERROR),
        "allocator.cc Cuda failure 711 'peer mapping resources exhausted'",
    ),
    Phrase(
        *("cuda-init", rb"Cuda failure.{0,8}initialization error", "2.2-2.30"),
        *("no CUDA: the file that notices is not the cause", ERROR),
        "transport/nvls.cc Cuda failure 3 'initialization error'",
    ),
    Phrase(
        *("cuda-memory", rb"Cuda failure.{0,8}out of memory|Failed to CUDA [cm]alloc"),
        *("2.2-2.30", "a GPU's memory is full", ERROR, "enqueue.cc Cuda failure 2 'out of memory'"),
    ),
    Phrase(
        "memlock",
        rb"ibv_(?:reg_\w*mr\w*|create_\w+)\b.*failed.*Cannot allocate memory"
        rb"|Unable to create extended CQ: Cannot allocate",
        *("2.2-2.30", "memory cannot be locked", ERROR),
        "Call to ibv_reg_mr failed with error Cannot allocate memory",
    ),
    Phrase(
        *("memlock", rb"Call to ibv_create_(?:qp|cq) failed\s*$", "2.2-2.11"),
        *("memory cannot be locked: these versions log no reason", ERROR),
        "misc/ibvwrap.cc Call to ibv_create_qp failed",
    ),
    Phrase(
        "shm-attach",
        rb"attaching to shared memory segment .*No such file"
        rb"|shmutils\.cc Call to open failed.{0,4}No such file",
        "2.12-2.30",
        *("the segment of another rank is not there", ERROR),
        "Error while attaching to shared memory segment /dev/shm/n-a (size 9), error: No such file",
    ),
    Phrase(
        *("shm-denied", rb"shm_open failed.{0,4}Permission denied|/dev/shm.*Permission denied"),
        *("2.2-2.30", "/dev/shm may not be written", ERROR),
        "Call to shm_open failed : Permission denied",
    ),
    Phrase(
        "shm",
        rb"failed to (?:extend|create shared memory file) /dev/shm|/dev/shm.*No space left"
        rb"|(?:creating|attaching to) shared memory segment"
        rb"|(?:transport/shm\.cc|include/shm\.h|misc/shmutils\.cc) "
        rb"C(?:uda failure|all to \w+ failed)"
        rb"|posix_fallocate failed : No space",
        *("2.2-2.30", "no shared memory", ERROR),
        "Error: failed to extend /dev/shm/nccl-a to 9637892 bytes",
    ),
    Phrase(
        "nvls",
        rb"nvls\.cc C(?:uda|UDA) (?:failure|error)|Cuda failure.*(?:NVLS|multicast)"
        rb"|CUDA error 401|system not yet initialized|NVLS.*[Ff]ail",
        *("2.17-2.30", "NVLink multicast failed", ERROR),
        "transport/nvls.cc Cuda failure 1 'invalid argument'",
    ),
    Phrase(
        *("version", rb"Mismatched NCCL version", "2.23-2.30", "ranks have different versions"),
        *(ERROR, "Mismatched NCCL version detected : rank 0 version 22304 rank 1 version 22105"),
    ),
    Phrase(
        # A mix of versions, or two messages of 2.19 and 2.20 in the wrong order (fixed in 2.21).
        *("start-size", rb"Message truncated : received", "2.2-2.30"),
        *("ranks disagree about a message of the start", ERROR),
        "bootstrap.cc Message truncated : received 256 bytes instead of 4",
    ),
    Phrase(
        *("duplicate-gpu", rb"Duplicate GPU detected|Multiple Ranks are using the same GPU"),
        *("2.6-2.30", "two ranks use one GPU", ERROR),
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    ),
    Phrase(
        # Others are harmless: `include/net.h:19 -> 2` of a network that is not there.  7 is no
        # error: it works on.
        "trace",
        rb"^(?:\S{1,200}/)?(?:init|group|bootstrap|proxy|enqueue)\.(?:cc|cu|cpp):\d+ -> [1-689]\b",
        *("2.2-2.30, RCCL", "a call of NCCL failed", FOLLOW_UP, "init.cc:1089 -> 3 [Async thread]"),
    ),
    Phrase(
        *("inner-trace", rb"^(?:\S{1,200}/)?\w{1,80}\.(?:cc|cu|cpp|h):\d+ -> [1-689]\b"),
        *("2.2-2.30, RCCL", "a frame of such a call", NEWS, "graph/paths.cc:297 -> 3"),
    ),
    Phrase(
        *("argument", rb"\bargcheck\.c\w+ ", "2.2-2.30", "a wrong argument of the program", ERROR),
        "misc/argcheck.cc Recv : invalid root 0 (root should be in the 0..0 range)",
    ),
    Phrase(
        *("shm-cuda", rb"(?:misc/shmutils|transport/shm)\.cc Cuda failure", "2.10-2.30"),
        *("CUDA does not take the shared memory", ERROR),
        "misc/shmutils.cc Cuda failure 'invalid argument'",
    ),
    Phrase(
        *("socket-trace", rb"^misc/socket\.(?:cc|cu):\d+ -> [26]\b", "2.12-2.30"),
        *("a connection by TCP failed", FOLLOW_UP, "misc/socket.cc:505 -> 2 (Operation now in"),
    ),
)
