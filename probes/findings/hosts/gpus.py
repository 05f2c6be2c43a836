"""Findings of HOSTS: health and work of the GPUs."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause, Severity

GPUS: dict[str, Entry] = {
    "HOST-GPU-LOST": Entry(
        "A GPU fell off the bus: the driver cannot reach it any more (NVML error 15).",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Power-cycle {node}, and replace GPU {gpu} if it is lost again",
        {
            "dmesg -T | grep -i xid": "Xid 79 names the slot of the GPU. Drain the node, then switch its power off and on.",
            "nvidia-smi -L": "After the power cycle. The GPU is there: watch it. It is missing: reseat or replace it.",
        },
        "`nvidia-smi -L` lists all GPUs of {node}, also after a day of work.",
    ),
    "HOST-GPU-RECOVERY": Entry(
        "The driver asks for a recovery action: a GPU does not work as it should until then.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Do what the driver asks for GPU {gpu} of {node}",
        {
            "nvidia-smi -q -i {gpu} | grep -i recovery": "The action: reset, reboot or drain. None: it has been done.",
            "nvidia-smi -r -i {gpu}": "Resets the GPU: end its processes and drain the node first. An error: reboot the node.",
            "dmesg -T | grep -i xid": "The Xid behind it. If the driver asks again: replace the GPU.",
        },
        "The driver asks for no recovery action.",
    ),
    "HOST-ECC": Entry(
        "The memory of a GPU had errors that ECC could not correct.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Reset GPU {gpu} of {node}, and replace it if errors come back",
        {
            "nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu}": '"SRAM Threshold Exceeded: Yes", or a remap that failed: replace the GPU. Otherwise drain the node and go on.',
            "nvidia-smi -r -i {gpu}": "Resets the GPU and remaps its bad rows: end its processes first.",
            "dcgmi diag -r 3": "The memory test fails: replace the GPU. It passes: watch the GPU.",
        },
        "GPU {gpu} counts no uncorrected error during a run.",
    ),
    "HOST-ECC-OFF": Entry(
        "ECC is off on a GPU, so wrong bits in its memory go unnoticed.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Turn ECC on for GPU {gpu} of {node}",
        {
            "nvidia-smi -i {gpu} -e 1": "Changes the GPU after the next reboot of the node.",
            "nvidia-smi --query-gpu=index,ecc.mode.current,ecc.mode.pending --format=csv": "Enabled as pending: reboot the node. Enabled as current: done.",
        },
        "ECC is on for each GPU of {node}.",
    ),
    "HOST-ROW-REMAP": Entry(
        "A GPU has a memory row that waits to be remapped, or cannot be.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Reset GPU {gpu} of {node} to remap its memory row",
        {
            "nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT -i {gpu}": 'Pending: reset the GPU. "Remapping Failure Occurred: Yes": replace the GPU.',
            "nvidia-smi -r -i {gpu}": "Resets the GPU: drain the node and end its processes first.",
        },
        "No row of GPU {gpu} waits to be remapped.",
    ),
    "HOST-GPU-SLOWED": Entry(
        "The hardware or the driver slows the clocks of a GPU, for heat or for power.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Cool GPU {gpu} in slot {slot} of {node}, or give it its power",
        {
            "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu}": "Thermal slowdown: fans, air flow, coolant, heat sink. Power brake: power supply or the limit of the rack.",
            "ipmitool sdr type fan": "A fan that stands still or is slow: replace it.",
        },
        "The clocks of GPU {gpu} are not slowed under load.",
    ),
    "HOST-POWER-LIMIT": Entry(
        "The power limit of a GPU is below the default of its model.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Raise the power limit of GPU {gpu} of {node} to its default",
        {
            "nvidia-smi -q -d POWER -i {gpu}": '"Current Power Limit" below "Default Power Limit": set the default by `nvidia-smi -i UUID -pl WATTS`.',
            'systemctl list-units --type service | grep -iE "nvidia|power"': "A service that sets the limit at boot: correct it. None: look in the BMC.",
        },
        "The power limit of GPU {gpu} is the default of its model.",
        "Run `nvidia-smi -q -d POWER` on the named node. Set the default with `nvidia-smi -i UUID -pl WATTS`, or lift the limit in the BMC. If the lower limit was ordered, agree on it as HOSTS.power_limit.",
    ),
    "HOST-PCIE": Entry(
        "The PCIe link of a GPU has lost lanes or speed, or repeats packets.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Reseat GPU {gpu} in slot {slot} of {node}",
        {
            'nvidia-smi -q -i {gpu} | grep -A 20 "GPU Link Info"': "Width or generation below its maximum under load: reseat the board or its riser. At its maximum: look at replays.",
            'lspci -vv -s {slot} | grep -E "LnkCap|LnkSta"': 'LnkSta below LnkCap, or "downgraded": reseat, then check speed and bifurcation in the BIOS.',
        },
        "GPU {gpu} has all lanes at full speed, and repeats no packets.",
    ),
    "HOST-XID": Entry(
        "NVIDIA's driver reported an error (Xid) of a GPU while the suite ran.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Treat the Xid of GPU {gpu} of {node}",
        {
            "dmesg -T | grep -i xid": "48, 63, 64, 94, 95: reset the GPU. 79: power-cycle. 74: NVLink. 119, 120: reset, then update the driver.",
            "nvidia-smi -q -i {gpu}": "Errors, remapped rows and the recovery action of this GPU.",
            "dcgmi diag -r 3": "A test that fails: replace the GPU. If the Xid comes back: replace it too.",
        },
        "No Xid is reported during a run.",
        "Read the Xid in `dmesg -T | grep Xid` on the named node, and look it up in NVIDIA's Xid catalogue. 79: power-cycle the node. 48, 63, 64, 94, 95: drain the node and reset the GPU (`nvidia-smi -r -i UUID`). 74: check NVLink. 119, 120: reset the GPU, then update the driver. If it comes back, replace the GPU.",
    ),
    "HOST-DCGM": Entry(
        "DCGM's own diagnostics failed on a node, or did not run to their end.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Repair what DCGM found on {node}",
        {
            "dcgmi diag -r 3": 'Follow the advice that it prints. "Error: unable to connect": start nvidia-dcgm.',
            "systemctl status nvidia-dcgm": "Not active: start it. No such unit: install datacenter-gpu-manager.",
        },
        "`dcgmi diag` ends without a failed test.",
        "Run `dcgmi diag -r 3` on the named node and follow its advice. If dcgmi is missing, install datacenter-gpu-manager. If it does not connect, run `systemctl start nvidia-dcgm`. If no diagnostics were agreed, take dcgm_diag out of the contract.",
    ),
    "HOST-NVLINK": Entry(
        "NVLinks of a GPU are inactive, so traffic inside the node is slower or takes PCIe.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Bring the NVLinks of GPU {gpu} of {node} up",
        {
            "nvidia-smi nvlink -s -i {gpu}": "Links marked inactive. Reboot the node: inactive again means the board.",
            "dmesg -T | grep -i xid": "Xid 74 names the link.",
            "systemctl status nvidia-fabricmanager": "Not active: start it, then reboot the node.",
        },
        "All NVLinks of GPU {gpu} are active.",
    ),
    "HOST-NVSWITCH": Entry(
        "A GPU is not registered with its NVLink fabric, or the fabric reports a fault.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Register GPU {gpu} of {node} with its NVLink fabric",
        {
            "systemctl status nvidia-fabricmanager": "Not active: start it. Active: go on. With NVLink between nodes look at nvidia-imex too.",
            "journalctl -u nvidia-fabricmanager -b --no-pager -n 100": "A version that is not the driver's: install the same. A link error: reboot, then replace the board.",
        },
        "`nvidia-smi -q` shows the fabric as Completed and Success.",
    ),
    "HOST-COMPUTE-MODE": Entry(
        "The compute mode of a GPU lets no process use it.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Set the compute mode of GPU {gpu} of {node} to Default",
        {
            "nvidia-smi --query-gpu=index,compute_mode --format=csv": "Prohibited: no process can use this GPU.",
            "nvidia-smi -i {gpu} -c DEFAULT": "Changes the mode at once.",
        },
        "The compute mode of each GPU is Default or Exclusive_Process.",
    ),
    "HOST-GPU-CHANGED": Entry(
        "A GPU left its node, or was replaced, during the run.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Find why GPU {gpu} left {node}",
        {
            "nvidia-smi -L": "The GPU is missing: it fell off the bus. It is there: the driver was restarted.",
            'dmesg -T | grep -iE "xid|nvrm"': "Xid 79: power-cycle the node, then reseat or replace the GPU.",
        },
        "{node} has the same GPUs from start to end of a run.",
    ),
    "HOST-GPU-SETTINGS": Entry(
        "GPUs of one model are not set alike on all nodes, or not near to the same CPUs.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Set the GPUs of {nodes} as on the other nodes",
        {
            "nvidia-smi --query-gpu=index,persistence_mode,clocks.applications.graphics --format=csv": "Persistence differs: run nvidia-persistenced. Clocks differ: reset them by `nvidia-smi -rac`.",
            "nvidia-smi topo -m": "Other NUMA nodes than on other machines: another slot, or another BIOS setting (NPS, SNC).",
        },
        "GPUs of one model are set alike on all nodes.",
    ),
    "HOST-GPU-ERROR": Entry(
        "A GPU, or the worker on it, fails while it computes.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Repair GPU {gpu} of {node}",
        {
            "dmesg -T | grep -i xid": "An Xid: do what NVIDIA's catalogue has for it. None: go on.",
            "nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory,process_name --format=csv": "A process that uses the memory: end it.",
            "dcgmi diag -r 3": "A test that fails: replace the GPU. All pass: reset it by `nvidia-smi -r -i {gpu}`.",
        },
        "GPU {gpu} computes without an error.",
    ),
    "HOST-WRONG-SUM": Entry(
        "A GPU computes wrong results and reports no error (silent data corruption).",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Replace GPU {gpu} in slot {slot} of {node} if it is wrong again",
        {
            "dcgmi diag -r 4": "Drain the node first: it takes over an hour. A test that fails: replace the GPU.",
            "nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu}": "Uncorrected errors: replace the GPU. None: it is silent corruption, replace it if this probe fails again.",
        },
        "All results of GPU {gpu} are right in two runs.",
        "Drain the named node. Run `dcgmi diag -r 4` there, and this probe again. Replace the GPU if a result is wrong again. Do not use checkpoints of jobs that ran on it. On a rehearsal compare the builds of torch and the CPUs.",
    ),
    "HOST-GPU-SLOW": Entry(
        "A GPU is slower than others of its model, in two runs.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Find what slows GPU {gpu} in slot {slot} of {node}",
        {
            "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE -i {gpu}": "Run it under load. A slowdown that is active: heat or power. A low limit or clock: raise it. All normal: replace the GPU.",
            "nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu}": "Many remapped rows or errors: replace the GPU.",
            "ipmitool sdr type fan": "A fan that stands still or is slow: replace it.",
        },
        "GPU {gpu} is as fast as the others of its model.",
        "Run `nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE -i UUID` on the named node under load. Slow alone too: check power limit, clocks and ECC, then replace the GPU. Slow only with others: check cooling, power supplies and shared PCIe switches. The same slot on each node: check the cold plate, air duct and riser of that slot.",
    ),
    "HOST-GPU-RATE": Entry(
        "A GPU computes or copies slower than was agreed.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Bring GPU {gpu} of {node} to the agreed rate",
        {
            "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER -i {gpu}": "Run it under load. A low limit or clock: raise it. A slowdown that is active: heat or power.",
            'lspci -vv -s {slot} | grep -E "LnkCap|LnkSta"': "For copies from and to the host. LnkSta below LnkCap: reseat the board.",
            "nvidia-smi topo -m": "A far NUMA node, or an IOMMU that is on: correct binding or BIOS.",
        },
        "GPU {gpu} reaches the agreed rate.",
        "Compare `nvidia-smi -q -d CLOCK,POWER -i UUID` on the named node with the order. Copies from and to the host: check `nvidia-smi -q -i UUID | grep -A6 'Link Width'`, the NUMA node of the GPU and the IOMMU. All GPUs alike: check the driver, the power limit and the agreed figure.",
    ),
    "HOST-GPU-DRIFT": Entry(
        "A GPU becomes slower while it works.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Cool GPU {gpu} in slot {slot} of {node}",
        {
            "nvidia-smi -q -d TEMPERATURE,PERFORMANCE,POWER -l 5 -i {gpu}": "Run it under load, and stop it by Ctrl-C. Heat that rises: fans, air flow, coolant, heat sink. Steady heat: power supplies.",
            "ipmitool sdr type fan": "A fan that stands still or is slow: replace it.",
        },
        "GPU {gpu} is as fast at the end of the load as at its start.",
    ),
}
