"""Findings of LAUNCH."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause, Severity

LAUNCH: dict[str, Entry] = {
    "LAUNCH-FAILED": Entry(
        "A documented command failed.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Correct the documented command that failed",
        {
            "outside$ ray job list": "The job is listed: read its log with `ray job logs`. Not listed: the submission itself failed.",
            "head$ ray status": "Pending demands: the job waits for resources that this cluster does not have.",
        },
        "An ordinary user follows the document, and every command ends with 0.",
        "Open the transcript in the evidence of this result. Its last command failed: correct the documentation, or what the command needs.",
    ),
    "LAUNCH-ENV": Entry(
        "A rank is missing, or a variable of its rendezvous is missing, wrong or inconsistent.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Set the rendezvous variables of every rank",
        {
            'env | grep -E "RANK|WORLD_SIZE|MASTER_"': "Run it in the job's rank. RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT must be set. Missing: the launcher must set them.",
            'head$ ray list actors --filter "state=ALIVE" --limit 1000': "Fewer ranks than WORLD_SIZE: the launcher starts too few.",
        },
        "Each rank is there once, with consistent variables.",
        "Let the launcher set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT on every rank.",
    ),
    "LAUNCH-ELSEWHERE": Entry(
        "A rank ran on a host that is not a node of the cluster under test.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Send submissions to this cluster",
        {
            'outside$ env | grep -E "RAY_ADDRESS|RAY_API"': "An address of another cluster: correct it.",
            "head$ ray list nodes": "Compare with the host of the rank. It is not there: an ingress, tunnel or proxy leads elsewhere.",
        },
        "Every rank runs on a node of this cluster.",
        "Check whose dashboard the submission's address leads to (ingress, tunnel, proxy). Name this cluster with --cluster.",
    ),
    "LAUNCH-DEVICE": Entry(
        "A rank does not compute on its own GPU.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Let every rank compute on its own GPU",
        {
            "python3 -m torch.utils.collect_env": '"Is CUDA available: False": install a build of torch for these GPUs in the job\'s environment.',
            "nvidia-smi -L": "Fewer GPUs than ranks: the launcher must request one GPU for each rank.",
        },
        "Each rank names a GPU of its own.",
        "Install a torch build for these GPUs in the job's environment. Make the launcher request one GPU per rank from Ray.",
    ),
}
