"""Text of torch, which repeats NCCL's or reports its own."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import Case

TORCH = """RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, {kind}, NCCL version 2.19.3
{name}: {meaning}
Last error:
{last}
"""
CUDA_NAME, SYSTEM_NAME = "ncclUnhandledCudaError", "ncclSystemError"


def torch(last: str, name: str = SYSTEM_NAME) -> str:
    return TORCH.format(kind="unhandled error", name=name, meaning="Call failed.", last=last)


OF_TORCH = {
    "a store that went": Case(
        "[rank15]: torch.distributed.DistBackendError: [15] is setting up NCCL communicator and "
        "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
        "store->get('0') got error: Connection reset by peer\n",
        {"NCCL-ERROR"},
        "the whole sentence says who lost whom",
        "[15] is setting up NCCL communicator",
    ),
    "a rank that left": Case(
        "[rank0]:[E515 ProcessGroupNCCL.cpp:1937] Rank 0\n"
        "  - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        "      [7] finished collective #182, but didn't join collective #183 (count from 1)\n",
        {"NCCL-ERROR"},
        "torch says which rank the others wait for",
        "NCCL-ERROR [rank 7]: the job reports: [7] finished collective #182",
    ),
    "an error in a last line that is cut": Case(
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running coll",
        {"NCCL-ERROR"},
        "its words are whole",
    ),
    "ranks that lag": Case(
        "[E ProcessGroupNCCL.cpp:474]\n\t - To our best knowledge, ranks [2, 3] are the lagging "
        "ranks that caused this timeout. They never joined any collectives\n",
        {"NCCL-ERROR"},
        "the report of torch on a desync names them",
        "ranks [2, 3] are the lagging ranks",
    ),
    "other collectives on other ranks": Case(
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running "
        "collective: CollectiveFingerPrint(OpType=ALLREDUCE), but Rank 0 is running ALLGATHER\n",
        {"NCCL-ERROR"},
        "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        "mismatch between collectives",
    ),
    "a duplicate GPU": Case(
        torch(
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "ncclInvalidUsage",
        ),
        {"NCCL-DUP-GPU"},
        "torch repeats NCCL's warning",
    ),
    "no connection": Case(
        torch(
            "socketStartConnect: Connect to 127.0.0.1<45069> failed : Software caused connection abort"
        ),
        {"INIT-BOOTSTRAP"},
        "as above",
        "127.0.0.1",
    ),
    "behind a rank's prefix": Case(
        "".join(
            f"[rank3]: {line}\n"
            for line in torch("Cuda failure 2 'out of memory'", CUDA_NAME).splitlines()
        ),
        {"NCCL-ERROR"},
        "torchrun's prefix",
        "out of memory",
    ),
    "Fabric Manager": Case(
        torch("Cuda failure 802 'system not yet initialized'", CUDA_NAME), {"INIT-NVLS"}, "802"
    ),
    "no address": Case(
        torch(
            "ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)"
        ),
        {"INIT-NO-IFACE"},
        "an address that is none",
    ),
    "an unknown text": Case(
        torch("A sentence that no version of this reader knows"),
        {"NCCL-ERROR"},
        "it is quoted",
        "A sentence that no version",
    ),
    "on the same line": Case(
        "E torch.distributed.DistBackendError: NCCL error, ncclSystemError: x. Last error: Error: failed to extend /dev/shm/nccl-a to 9637892 bytes\n",
        {"INIT-SHM"},
        "log collectors join lines",
    ),
    "nccl-tests": Case(
        "gpu01: Test NCCL failure common.cu:958 'unhandled system error / Last error: '\n",
        {"NCCL-ERROR"},
        "its own text of a failure",
    ),
}
