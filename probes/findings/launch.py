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
    "LAUNCH-GUIDE": Entry(
        "A line of the guide is not for every user, or not for the next cluster.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Correct the line of the guide",
        {
            "outside$ id": "No group of administrators: a command as root fails for this user.",
            "head$ ray list nodes": "Other names or addresses than the guide's: its line is out of date.",
        },
        "No line needs root, a login to another machine, one user's home, or a fixed address.",
        "Rewrite the line: a variable for an address, $HOME for a home, a module or image instead of an installation. If the parties agree that it stays, allow it in the contract ([LAUNCH.guide_faults]).",
    ),
    "LAUNCH-USER": Entry(
        "The user who followed the guide has more rights than an ordinary one.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Follow the guide as an ordinary user",
        {
            "outside$ id": "uid=0, or groups besides the user's own: others do not have these rights.",
            "outside$ getent group": "A group that lists the user: take the user out of it.",
        },
        "The user has a uid other than 0, and no group besides its own.",
        "Run the suite as root: it makes a user of its own. Check what gave that user groups (PAM, a name service).",
    ),
    "LAUNCH-WEIGHTS": Entry(
        "Ranks do not train the same model.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Give all ranks the same weights",
        {
            "head$ ray job list": "Read the job's log with `ray job logs`: each line `trained` has the hash of a rank's weights at the start and at the end.",
            "python3 -m torch.utils.collect_env": "Another version on one node: its random numbers may differ.",
        },
        "All ranks report the same hash of the weights, before the first step and after the last.",
        "Seed all ranks alike, or broadcast the weights of rank 0 before the first step. Let every rank take part in each gradient exchange.",
    ),
    "LAUNCH-DATA": Entry(
        "Samples are trained on twice or not at all, or ranks validate on different data.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Split the data by rank",
        {
            'env | grep -E "RANK|WORLD_SIZE"': "Run it in the job's rank. A loader that reads another RANK or WORLD_SIZE takes another rank's samples.",
            "head$ ray job list": "Read the job's log with `ray job logs`: each line `trained` has the samples of a rank.",
        },
        "Each sample has one rank, none is left out, and validation data is the same on every rank.",
        "Give the loader the job's RANK and WORLD_SIZE (torch's DistributedSampler does), and all ranks the same validation set.",
    ),
    "LAUNCH-METRICS": Entry(
        "The logged loss is not the mean of all ranks, or it does not fall.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Average the metrics over all ranks",
        {
            "head$ ray job list": "Read the job's log with `ray job logs`: compare its step lines with the losses in the lines `trained`.",
            'env | grep -E "RANK|WORLD_SIZE"': "Run it in the job's rank. A WORLD_SIZE of 1: the ranks do not know each other, so nothing is averaged.",
        },
        "Each logged loss is the mean of the ranks' losses, and the last is below the first.",
        "Reduce the loss over all ranks before it is logged. A loss that does not fall: check the learning rate, the data, and that gradients are exchanged.",
    ),
    "LAUNCH-EXPORT": Entry(
        "The model is exported by other ranks than rank 0, or the export is not the trained model.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Export the model on rank 0 alone",
        {
            "head$ ray job list": "Read the job's log with `ray job logs`: the lines `trained` of all ranks that exported have `exported=`.",
            "df -h": "A full file system where rank 0 exports: the file is torn.",
        },
        "Rank 0 alone exports, and the model that another rank loads has the trained one's loss.",
        "Gather the weights on all ranks, and write them on rank 0 only, into a file that is renamed when it is complete.",
    ),
    "LAUNCH-NETWORK": Entry(
        "The user's job does not send its bytes over the agreed fabric.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Let users' jobs take the agreed fabric",
        {
            'env | grep -E "NCCL|GLOO"': "Run it in the job's rank. Other values than on the node: the job's runtime environment or the user's profile sets them.",
            "ip -s link": "Run it before and after the job. The interface whose counter grows carries the job's bytes.",
        },
        "The fabric's counter grows by the job's bytes on each node.",
        "Set NCCL_SOCKET_IFNAME, NCCL_IB_HCA and GLOO_SOCKET_IFNAME before `ray start` on every node, so that jobs inherit them. Name them in the guide if a job must set them.",
    ),
    "LAUNCH-ERROR": Entry(
        "A job that fails does not tell its user why, or ends as if it had succeeded.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Let a failing job end with its error",
        {
            "head$ ray job list": "SUCCEEDED for a job that failed: its entry point swallows the exit code.",
            'head$ ray list actors --filter "state=DEAD" --limit 20': "The rank that failed, with its node: the job's log should have both at its end.",
        },
        "A failed job ends with an exit code above 0, and its last 40 lines name exception, rank and host.",
        "Pass the exit code on (`set -o pipefail` in front of a pipe, `exec` in wrappers). Print the first failed rank's exception last, with its rank and host.",
    ),
    "LAUNCH-LEFT": Entry(
        "A job that has ended still has processes or accelerators, or the next job does not start.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "End all that a job has started",
        {
            "head$ ray status": "Accelerators in use without a job: an actor or placement group is left.",
            "ps -eo pid,ppid,lstart,args --sort=start_time": "Processes of the job whose parent is 1: nothing ended them.",
        },
        "Within 15 s of its stop a job has no process, and its accelerators are free.",
        "Start child processes so that they end with their parent (prctl PR_SET_PDEATHSIG), or set RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper=true before `ray start`. Give a job's actors and placement groups its lifetime, not `detached`.",
    ),
    "LAUNCH-RESUME": Entry(
        "A job that was started again did not go on from its newest checkpoint on all ranks.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Keep a job's folder on its nodes until the job is started again",
        {
            "df -h /tmp": "A full or very small disk: the checkpoint was not written there.",
            "systemctl show ray --property PrivateTmp": "yes: each start of Ray has a /tmp of its own. Set PrivateTmp=no in the unit.",
        },
        "The second job goes on from the first job's last checkpoint, on all ranks.",
        "Read the line about checkpoints in transcript-second-job.txt: it says what the job found, and why it did not use it. Where Ray runs in containers, give the folder a volume of the machine.",
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
