"""Findings of HOSTS: limits of processes, room, clocks."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause, Severity

SYSTEM: dict[str, Entry] = {
    "HOST-OPEN-FILES": Entry(
        "A worker may open too few files and connections at once.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Raise the limit of open files on {nodes}",
        {
            "pgrep -o raylet | xargs prlimit --nofile --pid": "The soft limit below 65536: run `ulimit -n 65536` before `ray start`, or set LimitNOFILE.",
        },
        "A worker on {node} may open as many files as agreed.",
        "Run `ulimit -n 65536` before `ray start` on the named nodes. In a systemd unit set LimitNOFILE=65536. In a container use `--ulimit nofile=65536:65536`. Slurm passes on the limits of the shell that submits.",
    ),
    "HOST-LOCKED-MEMORY": Entry(
        "A worker may lock too little memory, so RDMA cannot register its buffers.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Lift the limit of locked memory on {nodes}",
        {
            "pgrep -o raylet | xargs prlimit --memlock --pid": "Not unlimited: set LimitMEMLOCK=infinity, or write it into /etc/security/limits.d. Then restart Ray.",
        },
        "A worker on {node} may lock all its memory.",
        "Write `* - memlock unlimited` into /etc/security/limits.d/rdma.conf on the named nodes. In a systemd unit set LimitMEMLOCK=infinity. In a container use `--ulimit memlock=-1`, on Kubernetes the capability IPC_LOCK. Then restart Ray there.",
    ),
    "HOST-STACK": Entry(
        "The stack of a worker may be too small, so threads of NCCL and torch crash.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Raise the limit of the stack on {nodes}",
        {
            "pgrep -o raylet | xargs prlimit --stack --pid": "Too small: run `ulimit -s 65536` before `ray start`, or set LimitSTACK=64M.",
        },
        "The stack of a worker on {node} has the agreed size.",
        "Run `ulimit -s 65536` before `ray start` on the named nodes. In a systemd unit set LimitSTACK=64M. In a container use `--ulimit stack=67108864`.",
    ),
    "HOST-SHARED-MEMORY": Entry(
        "The shared memory (/dev/shm) of a node is too small for NCCL and loaders of data.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Enlarge /dev/shm on {nodes}",
        {
            "df -h /dev/shm": "Too small in a container: start it with --shm-size=16g or --ipc=host. Full: see what fills it.",
            "mount -o remount,size=50% /dev/shm": "Changes a machine until its next reboot. Write the size into /etc/fstab.",
        },
        "/dev/shm of {node} has the agreed size.",
        "Start the container with `--shm-size=16g` or `--ipc=host`. On Kubernetes mount an emptyDir of medium Memory at /dev/shm. On a machine run `mount -o remount,size=50% /dev/shm`.",
    ),
    "HOST-PROCESSES": Entry(
        "A user may start too few processes and threads for the ranks of a node.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Raise the limit of processes on {nodes}",
        {
            "pgrep -o raylet | xargs prlimit --nproc --pid": "Small: run `ulimit -u unlimited` before `ray start`.",
            "cat /sys/fs/cgroup/pids.max": "Small in a container: --pids-limit=-1, or podPidsLimit of the kubelet.",
            "sysctl kernel.pid_max kernel.threads-max": "Small: raise them.",
        },
        "A user on {node} may start as many threads for each rank as agreed.",
        "Raise the named bound. RLIMIT_NPROC: `ulimit -u unlimited` before `ray start`, and nproc in /etc/security/limits.d. pids.max: `--pids-limit=-1` in a container, podPidsLimit of the kubelet, TasksMax in systemd. kernel.pid_max and kernel.threads-max: sysctl.",
    ),
    "HOST-TEMP-FULL": Entry(
        "The disk of temporary files or of Ray's session is full, so Ray cannot store objects.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Make room in {folder} on {nodes}",
        {
            "df -h {folder}": "Full: remove old sessions of Ray (session_*) and core dumps.",
            "df -i {folder}": "No free inodes: remove small files.",
            "ls -lt /tmp/ray": "Sessions older than the running one can be removed.",
        },
        "{folder} on {node} has the agreed free room.",
        "Run `df -h` and `df -i` on the named nodes for the named folder. Remove old sessions of Ray (session_*) and core dumps. Or start Ray with `--temp-dir` on a larger disk.",
    ),
    "HOST-STRAY-RAYLET": Entry(
        "A raylet of another Ray cluster runs on a node, and gives its GPUs to other jobs.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "End the raylet of another cluster on {nodes}",
        {
            "ps -C raylet -o pid,user,lstart,args": "Compare the session in each line with this cluster's. The other one is the stray.",
            "kill {pid}": "Ends the stray raylet, and with it the jobs of that cluster on this node. Ask its owner first.",
        },
        "One raylet runs on {node}.",
        "Compare `ps -C raylet -o pid,user,lstart,args` on the named nodes with this cluster's session. End the stray one with `kill PID`. If another cluster may use the node too, agree on HOSTS.stray_raylets.",
    ),
    "HOST-CLOCK": Entry(
        "The clocks of two nodes differ, so their logs and events cannot be put in order.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Set the clocks of {nodes}",
        {
            "chronyc tracking": '"Not synchronised" or a large offset: check the time servers. No such command: go on.',
            "timedatectl timesync-status": "No server: start chronyd or systemd-timesyncd, with the same servers on all nodes.",
            "chronyc makestep": "Sets the clock at once: programs see time jump. Do it while no job runs.",
        },
        "The clocks of all nodes differ less than agreed.",
        "Run `chronyc tracking` or `timedatectl timesync-status` on the named nodes. Start chronyd or systemd-timesyncd there, with the same time servers on all nodes. Run `chronyc makestep` once.",
    ),
}
