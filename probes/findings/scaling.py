"""Findings of SCALING."""

from __future__ import annotations

from probes.findings.entry import RAY_ENVIRONMENT, Entry
from reports.record import Cause, Severity

SCALING: dict[str, Entry] = {
    "SCALE-STRAGGLER": Entry(
        "One rank, or one node, makes all others wait.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Find what slows {nodes}",
        {
            "nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE": "Clocks below those of another node, or an active slowdown: heat or power. Equal: go on.",
            "top -b -n 1 | head -n 20": "Another process with much CPU time: end or move it.",
            "cat /sys/fs/cgroup/cpu.max": "A quota below the number of CPUs: raise the limit of the container.",
        },
        "The slowest rank is within the limit of the median one.",
        "Check clocks, temperature, CPU limits and other load on the named node.",
    ),
    "SCALE-SLOW-BASE": Entry(
        "One node alone is slower than its accelerators must be. A fleet that is slow everywhere scales well and is still slow.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Bring {nodes} to the agreed speed",
        {
            "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER": "A low power limit or clock: raise it. A slowdown that is active: heat or power. All normal: go on.",
            "nvidia-smi --query-gpu=index,name,memory.total --format=csv": "Another model than ordered: replace it.",
            "nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory,process_name --format=csv": "A process of another job: end it.",
        },
        "One node alone reaches the agreed speed.",
        "Compare clocks and throttle reasons (`nvidia-smi -q -d CLOCK,PERFORMANCE`), power cap (`-d POWER`) and GPU model of the named nodes with the contract. Look for other load.",
    ),
    "SCALE-SLOW-NODE": Entry(
        "One node computes more slowly than the others, also when it runs alone.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Find what makes {node} slower than the others",
        {
            "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER": "Compare with a fast node. Lower clocks or power limit: set them alike. A slowdown that is active: heat or power.",
            "cpupower frequency-info": "Another governor than performance: set it as on the other nodes.",
            "top -b -n 1 | head -n 20": "Another process with much CPU time: end or move it.",
        },
        "{node} alone is as fast as the other nodes.",
        "Compare clocks, power and thermal limits, CPU governor and other load with a healthy node.",
    ),
    "SCALE-THROTTLING": Entry(
        "Compute became slower while the job ran (or links did, if the clock cannot separate the two).",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Cool {nodes}",
        {
            "nvidia-smi --query-gpu=index,temperature.gpu,clocks.sm,power.draw --format=csv -l 5": "Temperature that rises while the clock falls: air flow, fans, coolant. A steady temperature: the power supply.",
            "nvidia-smi -q -d PERFORMANCE": "HW Thermal Slowdown: cooling. HW Power Brake: power supply.",
            "ipmitool sdr type fan": "A fan that stands still or is slow: replace it.",
        },
        "The last minutes of a run are as fast as the first.",
        "Check temperature, throttle reasons and fans of the named node over time. If links cannot be separated from compute, check its links too (FABRIC).",
    ),
    "SCALE-DATA": Entry(
        "The job waits for data, on one node or everywhere.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Speed up the data of {nodes}",
        {
            "findmnt -T {folder}": "Another file system or other options than on a fast node: mount it alike.",
            "vmstat 1 5": "High `wa`: the storage is slow. Low `id` and `wa`: give the loader more workers or CPUs.",
            "free -m": "Little buff/cache: the page cache is too small for the data.",
        },
        "Waiting for data takes no larger share than on one node.",
        "Check storage mounts, loader workers and page cache of the named node. If no node is named, check the shared storage.",
    ),
    "SCALE-CHECKPOINT": Entry(
        "Saves stop training for longer than agreed, or for longer than on one node.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Shorten the saves of {nodes}",
        {
            "findmnt -T {folder}": "Another file system or other options than on a fast node: mount it alike.",
            "df -h {folder}": "Above 90 %: many file systems are slower. Free space.",
            "nfsstat -m": "For NFS. Other options (rsize, wsize, nconnect) than on a fast node: mount it alike.",
        },
        "A save stops training for no longer than agreed.",
        "Measure the write rate of the shared file system, first from the named node. If it is as fast as agreed, save checkpoints asynchronously or less often.",
    ),
    "SCALE-JITTER": Entry(
        "Single steps are slow at random, and no single node is to blame.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Find what interrupts single steps",
        {
            "top -b -n 1 | head -n 20": "Daemons with CPU time: move them to other CPUs or stop them.",
            "vmstat 1 5": "Many interrupts or context switches (in, cs): look at /proc/interrupts.",
            "ps -eo pid,psr,pcpu,args --sort -pcpu | head -n 20": "Ranks on the same CPU (PSR): pin them to CPUs of their own.",
        },
        "Steps differ no more than on one node.",
        "Look for daemons, interrupts and garbage collection. Check CPU pinning.",
    ),
    "SCALE-LINK": Entry(
        "Links are slower than agreed or than other links, or steps wait longer for them than a replay of their collectives does.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Repair the links of {nodes}",
        {
            "ethtool {interface}": "Speed lower than on the other nodes: cable, transceiver or the switch port's setting.",
            'ethtool -S {interface} | grep -iE "err|drop|discard|crc"': "Errors that grow: replace cable and transceiver. None: see the result of FABRIC.",
        },
        "Steps wait for links no longer than a replay of their collectives does.",
        "Compare with FABRIC. Check the links of the named nodes; if none is named, those of the nodes added at that size.",
    ),
    "SCALE-NETWORK": Entry(
        "Collective traffic used another network than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Move the collectives of {nodes} to the agreed fabric",
        {
            RAY_ENVIRONMENT
            + '"NCCL|GLOO"': "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (NCCL_IB_HCA for RDMA) must name the fabric. Missing: export them before `ray start`.",
            "ip -br address": "The named interface is missing or has no address: correct it first.",
        },
        "The byte counters of the agreed fabric carry the collectives.",
        "Export NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (for RDMA also NCCL_IB_HCA) for the fabric before `ray start` on the named nodes. The row FABRIC of this report gives the network that each check saw.",
    ),
    "SCALE-COMMUNICATION": Entry(
        "Communication costs more than the limit allows. Without an agreed line rate, slow links cannot be separated from too few tokens.",
        Cause.UNKNOWN,
        Severity.DEGRADES,
        "Agree a line rate, then run again",
        {
            "ethtool {interface}": "The speed is the line rate of this link. Write it into the contract: line_rate_gbps.",
            'ibv_devinfo -v | grep -E "hca_id|active_width|active_speed"': "For RDMA: width times speed of each active port.",
        },
        "Slow links and too few tokens are separate causes in the report.",
        "Agree a line rate in the contract ([cluster] line_rate_gbps) and run again. Compare with FABRIC.",
    ),
    "SCALE-TOKENS": Entry(
        "The batch per GPU is too small: collectives run at their normal speed and still dominate.",
        Cause.APPLICATION,
        Severity.DEGRADES,
        "Raise the tokens per GPU",
        {
            "nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv": "Free memory: raise the batch. None: turn activation checkpointing on, or shard over fewer ranks.",
        },
        "The efficiency reaches its limit with the larger batch.",
        "Raise the tokens per GPU to the named number, or shard over fewer ranks.",
    ),
    "SCALE-UNEXPLAINED": Entry(
        "No known cause explains part of the lost time.",
        Cause.UNKNOWN,
        Severity.DEGRADES,
        "Trace the part of the step that is not explained",
        {
            "nvidia-smi dmon -s pucm -c 10": "GPU use that falls in the middle of steps: the CPU side. Steady use: the kernels.",
            "ray stack": "Run it during a step. The same function each time: this is where the time goes.",
        },
        "The report explains the lost time.",
        "See the named part of the step. Take a trace of a few steps.",
    ),
    "SCALE-RUNG-FAILED": Entry(
        "The job failed at one size of the ladder. The results of the other sizes stand.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Correct the error that stopped the job at this size",
        {
            'dmesg -T | grep -iE "xid|oom|killed process"': '"oom" or "killed process": memory of the node. An Xid: the GPU. Nothing: see the error in this finding.',
            'head$ ray list actors --filter "state=DEAD" --detail --limit 1000': "death_cause of the rank: out of memory, node lost, an exception.",
        },
        "The job ends without an error at this size.",
        "Read the error of the rank: out of memory, a collective that timed out, a process that died.",
    ),
    "SCALE-RANKS-DISAGREE": Entry(
        "The ranks of one run did not train the same model.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Make all ranks train one model",
        {
            'env | grep -E "RANK|WORLD_SIZE|MASTER_"': "Run it in each rank. WORLD_SIZE and MASTER_ADDR must be equal, each RANK must be there once.",
            "dcgmi diag -r 3": "A test that fails: replace the GPU. All pass: see the row FABRIC, a collective may return wrong numbers.",
        },
        "All ranks have the same loss and parameters.",
        "Check that WORLD_SIZE and MASTER_ADDR are equal on all ranks, and that each RANK is there once. If they are right, read the row FABRIC of this report: a collective may return wrong numbers.",
    ),
    "SCALE-NAN": Entry(
        "The loss became NaN or infinite.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Find why the loss became NaN",
        {
            "dcgmi diag -r 3": "A test that fails: replace the GPU. All pass: lower the learning rate, or see the row FABRIC.",
            "nvidia-smi -q -d ECC,ROW_REMAPPER": "Uncorrected errors: reset or replace the GPU.",
        },
        "All losses are finite at every size.",
        "Check at which size it began. Look for a wrong collective, a learning rate that is too high, or a bad accelerator (`dcgmi diag`).",
    ),
    "SCALE-EFFICIENCY": Entry(
        "Efficiency is below the limit, or close to it. The terms show where the time went.",
        Cause.UNKNOWN,
        Severity.DEGRADES,
        "Begin with the largest term of the loss",
        {
            "driver$ seatrial scaling report RUN_FOLDER": "The loss of each size by its terms. Begin with the largest, and compare it with the row FABRIC.",
        },
        "The efficiency reaches its limit.",
        "Begin with the largest term. Compare it with the result of FABRIC.",
    ),
}
