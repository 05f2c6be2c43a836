"""Findings of HOSTS: nodes, their drivers and versions."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause, Severity

NODES: dict[str, Entry] = {
    "HOST-MISSING": Entry(
        "Fewer nodes are alive than were ordered.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Bring {nodes} back into the cluster",
        {
            "systemctl status ray": "Not running, or no such unit: look at how Ray is started there. No login at all: check power and the BMC.",
            "ray start --address={head_address}:6379": "Starts Ray on the node, which joins the cluster. An error names the reason: version, port or address.",
            "head$ ray status": "The node must be listed as healthy.",
        },
        "As many nodes answer as were ordered.",
    ),
    "HOST-EXTRA": Entry(
        "The cluster has more nodes than were ordered.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Remove the node that was not ordered, or order it",
        {
            "head$ ray list nodes": "Compare with the order. A node too many: run `ray stop` there.",
        },
        "As many nodes answer as were ordered.",
        "Remove the extra node, or agree a new contract. Otherwise the results are not those of the ordered cluster.",
    ),
    "HOST-GPUS": Entry(
        "Ray, NVML, torch and the contract do not count the same number of GPUs on a node.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Correct the number of GPUs of {nodes}",
        {
            "nvidia-smi -L": "Fewer than ordered: look for Xid in `dmesg`, then reseat or replace the GPU. As ordered: Ray or torch counts wrong.",
            "head$ ray list nodes --detail --format yaml": "Another number than `nvidia-smi -L`: restart Ray there with the right --num-gpus.",
            "systemctl status nvidia-fabricmanager": "Not active on a board with NVSwitch: torch finds no GPU. Start it.",
        },
        "Ray, NVML, torch and the contract count the same GPUs on {node}.",
        "Find the wrong number. NVML: compare `nvidia-smi -L` on the named node with the contract, and look for Xid in `dmesg`. Ray: correct --num-gpus (on Kubernetes the pod's GPU limit) and restart Ray there. torch: check CUDA_VISIBLE_DEVICES, the build of torch, and Fabric Manager (`systemctl status nvidia-fabricmanager`).",
    ),
    "HOST-NO-DRIVER": Entry(
        "The NVIDIA kernel module is not loaded on a node (NVML error 9).",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Load the NVIDIA driver on {nodes}",
        {
            "modprobe nvidia": 'Loads the driver. No error: restart Ray there. "not found": the driver is not built for this kernel.',
            "dkms status": 'Not "installed" for the kernel of `uname -r`: build it again.',
            "dmesg -T | grep -i nvrm": "The reason why the driver does not start.",
        },
        "`nvidia-smi -L` lists the GPUs of {node}.",
    ),
    "HOST-DRIVER-MISMATCH": Entry(
        "The driver was upgraded while its old kernel module stayed loaded (NVML error 18).",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Reboot {nodes} to load the new driver",
        {
            "cat /proc/driver/nvidia/version": "The version of the loaded module.",
            "modinfo -F version nvidia": "The version on the disk. Another than the loaded one: reboot the node. Then turn unattended upgrades off.",
        },
        "`nvidia-smi` works on {node}.",
        "Reboot the named node. (Or stop all GPU processes, `rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia`, `modprobe nvidia`.) Then turn unattended upgrades of the driver off.",
    ),
    "HOST-NVML-ERROR": Entry(
        "NVML, the driver's library, returns an error for a node or for one of its GPUs.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Make the driver answer for all GPUs of {nodes}",
        {
            "nvidia-smi -q": '"Unknown Error" or a GPU that is missing: see the kernel\'s log. No error: it has passed, run the probe again.',
            'dmesg -T | grep -iE "xid|nvrm"': "An Xid: do what NVIDIA's catalogue has for it. Nothing: reboot the node if the error stays.",
        },
        "NVML answers for each GPU of {node}.",
    ),
    "HOST-NO-NVML": Entry(
        "A node should have NVIDIA GPUs, but the driver's library libnvidia-ml is missing.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Give {nodes} the library of the NVIDIA driver",
        {
            "ldconfig -p | grep libnvidia-ml": "No line on a machine: install the driver. No line in a container: set NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
            "nvidia-smi -L": "It must list the GPUs.",
        },
        "`nvidia-smi -L` lists the GPUs of {node}.",
        'Set NVIDIA_DRIVER_CAPABILITIES=compute,utility in a container. Install the driver on a machine. `nvidia-smi -L` must list the GPUs there. If the node is meant to have no GPU, write accelerators = "emulated" into the contract.',
    ),
    "HOST-GPU-MODEL": Entry(
        "GPUs are not of the ordered model, or not all of the same model and memory.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Replace what differs from the order in {nodes}",
        {
            "nvidia-smi --query-gpu=index,name,memory.total,ecc.mode.current,mig.mode.current --format=csv": "Another name: replace the board. Another memory with the same name: set ECC and MIG alike.",
            "nvidia-smi --query-gpu=index,uuid,serial,pci.bus_id --format=csv": "Serial and slot of the board that must be replaced.",
        },
        "All GPUs have the ordered model and memory.",
    ),
    "HOST-GPU-TWICE": Entry(
        "Two nodes, or one node twice, count the same GPU (by its UUID).",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Give GPU {gpu} to one node alone",
        {
            "nvidia-smi -L": "Run it on {nodes}. The same UUID twice: two containers see the same GPU.",
            "pgrep -a raylet": "Two raylets: stop one. One: look for pods with NVIDIA_VISIBLE_DEVICES=all.",
        },
        "Each GPU UUID is on one node.",
    ),
    "HOST-SAME-MACHINE": Entry(
        "Several Ray nodes run on one machine (by its boot id).",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Start one Ray node per machine for {nodes}",
        {
            "cat /proc/sys/kernel/random/boot_id": "Run it on the named nodes. The same id: they share one machine.",
            "pgrep -a raylet": "Two raylets: stop one. In Kubernetes spread the pods by anti-affinity.",
        },
        "Each node has a boot id of its own.",
        "Start one Ray node per machine. On Kubernetes start one worker pod per host, by pod anti-affinity or by requesting all its GPUs.",
    ),
    "HOST-BELOW-ORDER": Entry(
        "A node has less memory, fewer CPUs or another version than was ordered.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Bring {nodes} up to the order",
        {
            "lscpu": "Fewer CPUs than ordered: hyper-threading, or the wrong machine.",
            "free -g": "Less memory than ordered: a module failed or is missing.",
            "cat /sys/fs/cgroup/memory.max": "A number in a container: its limit of memory. Raise it.",
        },
        "{node} has the memory, CPUs and versions of the order.",
        "Compare the named node with the contract. In a container, check its CPU and memory limits too.",
    ),
    "HOST-VERSIONS": Entry(
        "Python, Ray, torch, CUDA or the driver is not the same on every node.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Use one image on all nodes and for the driver program",
        {
            "python3 -m torch.utils.collect_env": "Compare torch, CUDA, Python and the NVIDIA driver with another node.",
            "python3 -m pip show ray torch": "Another version than on the head: install the same, then restart Ray.",
        },
        "All nodes and the driver program have the same versions.",
    ),
    "HOST-CHANGED": Entry(
        "A node restarted or left the cluster during the run.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Find why {nodes} restarted or left",
        {
            "last -x reboot": "A reboot during the run: look for its reason. None: Ray alone ended.",
            "journalctl -b -1 -e --no-pager -n 100": "The last lines before the reboot: power, kernel panic, Xid, out of memory.",
            "head$ ray logs cluster raylet.out --tail 200 --node-ip {ray_address}": "Why the raylet ended.",
        },
        "{node} stays in the cluster during a whole run.",
    ),
    "HOST-IMAGE": Entry(
        "Nodes do not have the same operating system or the same Python packages.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Use one image on {nodes}",
        {
            "python3 -m pip list --format freeze": "Compare with another node. Packages differ: use the same image.",
            "cat /etc/os-release": "Another system than on the others: use the same image, by its digest.",
        },
        "All nodes have the same system and packages.",
        "Use one image on all nodes, by its digest and not by a tag such as latest. Compare `pip list` on the named nodes. If the difference was agreed, give HOSTS.image_differences another limit.",
    ),
    "HOST-KERNEL": Entry(
        "A node has another kernel or OFED than most nodes.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Install the same kernel and OFED on {nodes}",
        {
            "uname -r": "Another kernel than on most nodes: install theirs and reboot.",
            "ofed_info -s": "Another OFED than on most nodes: install theirs and reboot. No such command: the kernel's own drivers are in use.",
        },
        "All nodes have the same kernel and OFED.",
        "Run `uname -r` and `ofed_info -s` on the named nodes. Install the same kernel and OFED, then reboot. If other versions were agreed, give HOSTS.system_differences another limit.",
    ),
    "HOST-FIRMWARE": Entry(
        "GPUs or network cards of one kind do not have the same firmware.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Bring the firmware of {nodes} to the ordered version",
        {
            "nvidia-smi --query-gpu=index,name,vbios_version --format=csv": "Another vBIOS than on most nodes: ask the vendor for the update.",
            'ibv_devinfo | grep -E "hca_id|fw_ver|board_id"': "Another fw_ver for the same board_id: update the card.",
        },
        "Parts of one kind have the same firmware.",
    ),
    "HOST-HEAD": Entry(
        "Ray's head stopped answering during the probes. Ray ends every driver that waits for it.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Bring Ray's head back",
        {
            'dmesg -T | grep -iE "oom|killed process"': "A line about gcs_server or raylet: the head has too little memory. Give it more.",
            "tail -n 100 /tmp/ray/session_latest/logs/gcs_server.out": "The last lines before it stopped.",
            "top -b -n 1 | head -n 20": "A process that takes all CPUs of the head: move it away.",
        },
        "Ray's head answers during a whole run.",
    ),
    "HOST-NO-ANSWER": Entry(
        "Ray counts a node as alive, but no worker answers there.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Make workers start on {nodes}",
        {
            "head$ ray logs cluster raylet.out --tail 200 --node-ip {ray_address}": "Errors when a worker starts: memory, files, Python environment.",
            "tail -n 50 /tmp/ray/session_latest/logs/runtime_env_agent.log": "A runtime environment that cannot be made: network, disk or rights.",
            "df -h /tmp": "Full: remove old sessions of Ray.",
        },
        "A worker answers on {node}.",
    ),
}
