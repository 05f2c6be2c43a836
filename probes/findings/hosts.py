"""Findings of HOSTS."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

HOSTS: dict[str, Entry] = {
    "HOST-MISSING": Entry(
        "Fewer nodes are alive than were ordered.",
        Cause.INFRASTRUCTURE,
        "look at the named nodes' power and `ray start` log; then run `ray start --address=...` there",
    ),
    "HOST-EXTRA": Entry(
        "More nodes are in the cluster than were ordered.",
        Cause.INFRASTRUCTURE,
        "remove the extra node, or agree a new contract: results would not be of the ordered cluster",
    ),
    "HOST-GPUS": Entry(
        "Ray, NVML, torch and the order do not count the same GPUs on a node.",
        Cause.HARDWARE,
        "find the number that is wrong. NVML: compare `nvidia-smi -L` on the named node with the order and look for Xid in `dmesg`. Ray: correct --num-gpus (on Kubernetes the pod's GPU limit) and restart Ray there. torch: check CUDA_VISIBLE_DEVICES, the build of torch, and Fabric Manager (`systemctl status nvidia-fabricmanager`)",
    ),
    "HOST-GPU-LOST": Entry(
        "A GPU fell off the bus: the driver does not reach it any more (NVML error 15).",
        Cause.HARDWARE,
        "drain the named node; look for Xid 79 in `dmesg -T`; power-cycle the node; if the GPU is lost again, reseat or replace it",
    ),
    "HOST-NO-DRIVER": Entry(
        "The NVIDIA kernel module is not loaded on a node (NVML error 9).",
        Cause.INFRASTRUCTURE,
        "run `modprobe nvidia` on the named node and read `dmesg` if it fails: after a kernel update the driver must be built again (`dkms status`); then restart Ray there",
    ),
    "HOST-DRIVER-MISMATCH": Entry(
        "The driver was upgraded while its old kernel module stayed loaded (NVML error 18).",
        Cause.INFRASTRUCTURE,
        "reboot the named node (or stop all GPU processes, `rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia`, `modprobe nvidia`); then switch unattended upgrades of the driver off",
    ),
    "HOST-NVML-ERROR": Entry(
        "NVML, the driver's library, answers with an error for a node or for one of its GPUs.",
        Cause.HARDWARE,
        "run `nvidia-smi -q` on the named node and look for Xid in `dmesg`; the code is explained at nvmlReturn_t in NVML's manual; reboot the node if the error stays",
    ),
    "HOST-NO-NVML": Entry(
        "A node should have NVIDIA GPUs, and the driver's library libnvidia-ml is not there.",
        Cause.INFRASTRUCTURE,
        'in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility; on a machine install the driver; `nvidia-smi -L` must list the GPUs there. If no GPU is meant to be there, the contract must say accelerators = "emulated"',
    ),
    "HOST-GPU-MODEL": Entry(
        "GPUs are not of the model that was ordered, or not all of one model and memory.",
        Cause.HARDWARE,
        "compare `nvidia-smi --query-gpu=index,name,memory.total,ecc.mode.current --format=csv` on the named node with the order and with the others; replace what is wrong, or set ECC and MIG alike",
    ),
    "HOST-GPU-TWICE": Entry(
        "One GPU, by its UUID, is counted by two nodes or twice by one.",
        Cause.INFRASTRUCTURE,
        "give each GPU to one node: look for two raylets, or two pods that skip the device plugin (NVIDIA_VISIBLE_DEVICES=all), on one machine",
    ),
    "HOST-SAME-MACHINE": Entry(
        "Several nodes of Ray run on one machine, by its boot id.",
        Cause.INFRASTRUCTURE,
        "start one Ray node for each machine (on Kubernetes one worker pod for each host, by pod anti-affinity or by requesting all its GPUs)",
    ),
    "HOST-BELOW-ORDER": Entry(
        "A node has less memory, fewer CPUs or another version than was ordered.",
        Cause.INFRASTRUCTURE,
        "compare the named node with the order; in a container also its CPU and memory limits",
    ),
    "HOST-VERSIONS": Entry(
        "Python, Ray, torch or the driver is not the same everywhere.",
        Cause.INFRASTRUCTURE,
        "use one image on all nodes and for the driver, then restart Ray",
    ),
    "HOST-SHARED": Entry(
        "A node does not write and see files in the shared folder as the others do.",
        Cause.INFRASTRUCTURE,
        "mount the shared file system on the named node at the agreed path, writable for jobs",
    ),
    "HOST-HEAD": Entry(
        "Ray's head stopped answering while probes ran; Ray ends every driver that waits for it.",
        Cause.INFRASTRUCTURE,
        "look at gcs_server.out and `dmesg` (out of memory?) on the head node, then run it all again",
    ),
    "HOST-NO-ANSWER": Entry(
        "Ray counts a node as alive, but no worker answers there.",
        Cause.INFRASTRUCTURE,
        "look at the raylet's and the runtime environment agent's log on the named node",
    ),
}
