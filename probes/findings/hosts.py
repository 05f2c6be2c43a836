"""Findings of HOSTS."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

HOSTS: dict[str, Entry] = {
    "HOST-MISSING": Entry(
        "Fewer nodes are alive than were ordered.",
        Cause.INFRASTRUCTURE,
        "Check power and the `ray start` log of the named nodes. Then run `ray start --address=...` there.",
    ),
    "HOST-EXTRA": Entry(
        "The cluster has more nodes than were ordered.",
        Cause.INFRASTRUCTURE,
        "Remove the extra node, or agree a new contract. Otherwise the results are not those of the ordered cluster.",
    ),
    "HOST-GPUS": Entry(
        "Ray, NVML, torch and the contract do not count the same number of GPUs on a node.",
        Cause.HARDWARE,
        "Find the wrong number. NVML: compare `nvidia-smi -L` on the named node with the contract, and look for Xid in `dmesg`. Ray: correct --num-gpus (on Kubernetes the pod's GPU limit) and restart Ray there. torch: check CUDA_VISIBLE_DEVICES, the build of torch, and Fabric Manager (`systemctl status nvidia-fabricmanager`).",
    ),
    "HOST-GPU-LOST": Entry(
        "A GPU fell off the bus: the driver cannot reach it any more (NVML error 15).",
        Cause.HARDWARE,
        "Drain the named node. Look for Xid 79 in `dmesg -T`. Power-cycle the node. If the GPU is lost again, reseat or replace it.",
    ),
    "HOST-NO-DRIVER": Entry(
        "The NVIDIA kernel module is not loaded on a node (NVML error 9).",
        Cause.INFRASTRUCTURE,
        "Run `modprobe nvidia` on the named node, and read `dmesg` if it fails. After a kernel update the driver must be built again (`dkms status`). Then restart Ray there.",
    ),
    "HOST-DRIVER-MISMATCH": Entry(
        "The driver was upgraded while its old kernel module stayed loaded (NVML error 18).",
        Cause.INFRASTRUCTURE,
        "Reboot the named node. (Or stop all GPU processes, `rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia`, `modprobe nvidia`.) Then turn unattended upgrades of the driver off.",
    ),
    "HOST-NVML-ERROR": Entry(
        "NVML, the driver's library, returns an error for a node or for one of its GPUs.",
        Cause.HARDWARE,
        "Run `nvidia-smi -q` on the named node and look for Xid in `dmesg`. The NVML manual explains the code at nvmlReturn_t. Reboot the node if the error stays.",
    ),
    "HOST-NO-NVML": Entry(
        "A node should have NVIDIA GPUs, but the driver's library libnvidia-ml is missing.",
        Cause.INFRASTRUCTURE,
        'Set NVIDIA_DRIVER_CAPABILITIES=compute,utility in a container. Install the driver on a machine. `nvidia-smi -L` must list the GPUs there. If the node is meant to have no GPU, write accelerators = "emulated" into the contract.',
    ),
    "HOST-GPU-RECOVERY": Entry(
        "The driver asks for a recovery action: a GPU does not work as it should until then.",
        Cause.HARDWARE,
        "Drain the named node. Look for the GPU's Xid in `dmesg -T`. Do what the driver asks for: `nvidia-smi -r -i UUID` resets a GPU. If it asks again, replace the GPU.",
    ),
    "HOST-ECC": Entry(
        "The memory of a GPU had errors that ECC could not correct.",
        Cause.HARDWARE,
        "Drain the named node. Run `nvidia-smi -q -d ECC,ROW_REMAPPER` there. Reset the GPU (`nvidia-smi -r -i UUID`), then run `dcgmi diag -r 3`. Replace the GPU if errors come back or the SRAM threshold is exceeded.",
    ),
    "HOST-ECC-OFF": Entry(
        "ECC is off on a GPU, so wrong bits in its memory go unnoticed.",
        Cause.INFRASTRUCTURE,
        "Run `nvidia-smi -i UUID -e 1` on the named node, then reboot it.",
    ),
    "HOST-ROW-REMAP": Entry(
        "A GPU has a memory row that waits to be remapped, or cannot be.",
        Cause.HARDWARE,
        "Run `nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT` on the named node. Pending: drain the node and reset the GPU (`nvidia-smi -r -i UUID`). Failed: replace the GPU.",
    ),
    "HOST-GPU-SLOWED": Entry(
        "The hardware or the driver slows the clocks of a GPU, for heat or for power.",
        Cause.HARDWARE,
        "Run `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER` on the named node. Thermal: check fans, air flow, coolant and the heat sink. Power brake: check power supplies and the rack's power limit.",
    ),
    "HOST-POWER-LIMIT": Entry(
        "The power limit of a GPU is below the default of its model.",
        Cause.INFRASTRUCTURE,
        "Run `nvidia-smi -q -d POWER` on the named node. Set the default with `nvidia-smi -i UUID -pl WATTS`, or lift the limit in the BMC. If the lower limit was ordered, agree on it as HOSTS.power_limit.",
    ),
    "HOST-PCIE": Entry(
        "The PCIe link of a GPU has lost lanes or speed, or repeats packets.",
        Cause.HARDWARE,
        "Run `nvidia-smi -q -i UUID | grep -A6 'Link Width'` and `lspci -vv -s SLOT` on the named node. Reseat the GPU or its riser. Check the link speed and bifurcation of the slot in the BIOS.",
    ),
    "HOST-XID": Entry(
        "NVIDIA's driver reported an error (Xid) of a GPU while the suite ran.",
        Cause.HARDWARE,
        "Read the Xid in `dmesg -T | grep Xid` on the named node, and look it up in NVIDIA's Xid catalogue. 79: power-cycle the node. 48, 63, 64, 94, 95: drain the node and reset the GPU (`nvidia-smi -r -i UUID`). 74: check NVLink. 119, 120: reset the GPU, then update the driver. If it comes back, replace the GPU.",
    ),
    "HOST-DCGM": Entry(
        "DCGM's own diagnostics failed on a node, or did not run to their end.",
        Cause.HARDWARE,
        "Run `dcgmi diag -r 3` on the named node and follow its advice. If dcgmi is missing, install datacenter-gpu-manager. If it does not connect, run `systemctl start nvidia-dcgm`. If no diagnostics were agreed, take dcgm_diag out of the contract.",
    ),
    "HOST-NVLINK": Entry(
        "NVLinks of a GPU are inactive, so traffic inside the node is slower or takes PCIe.",
        Cause.HARDWARE,
        "Run `nvidia-smi nvlink -s -i UUID` on the named node, and look for Xid 74 in `dmesg -T`. Check `systemctl status nvidia-fabricmanager`. Drain the node and reboot it. If links stay inactive, replace the board.",
    ),
    "HOST-NVSWITCH": Entry(
        "A GPU is not registered with its NVLink fabric, or the fabric reports a fault.",
        Cause.INFRASTRUCTURE,
        "Run `systemctl status nvidia-fabricmanager` on the named node (with NVLink across nodes: nvidia-imex and the NVLink management software). Read `journalctl -e -u nvidia-fabricmanager`. Its version must be the driver's.",
    ),
    "HOST-COMPUTE-MODE": Entry(
        "The compute mode of a GPU lets no process use it.",
        Cause.INFRASTRUCTURE,
        "Run `nvidia-smi -i UUID -c DEFAULT` on the named node.",
    ),
    "HOST-GPU-MODEL": Entry(
        "GPUs are not of the ordered model, or not all of the same model and memory.",
        Cause.HARDWARE,
        "Compare `nvidia-smi --query-gpu=index,name,memory.total,ecc.mode.current --format=csv` on the named node with the contract and with the other nodes. Replace what is wrong, or set ECC and MIG alike.",
    ),
    "HOST-GPU-TWICE": Entry(
        "Two nodes, or one node twice, count the same GPU (by its UUID).",
        Cause.INFRASTRUCTURE,
        "Give each GPU to one node. Look for two raylets on one machine, or two pods that skip the device plugin (NVIDIA_VISIBLE_DEVICES=all).",
    ),
    "HOST-SAME-MACHINE": Entry(
        "Several Ray nodes run on one machine (by its boot id).",
        Cause.INFRASTRUCTURE,
        "Start one Ray node per machine. On Kubernetes start one worker pod per host, by pod anti-affinity or by requesting all its GPUs.",
    ),
    "HOST-BELOW-ORDER": Entry(
        "A node has less memory, fewer CPUs or another version than was ordered.",
        Cause.INFRASTRUCTURE,
        "Compare the named node with the contract. In a container, check its CPU and memory limits too.",
    ),
    "HOST-VERSIONS": Entry(
        "Python, Ray, torch, CUDA or the driver is not the same on every node.",
        Cause.INFRASTRUCTURE,
        "Use one image on all nodes and for the driver program, then restart Ray.",
    ),
    "HOST-CHANGED": Entry(
        "A node restarted or left the cluster during the run.",
        Cause.INFRASTRUCTURE,
        "Run `last -x reboot` and `journalctl -b -1 -e` on the named node, and read raylet.out in Ray's log folder there. Look for power, Xid and out of memory.",
    ),
    "HOST-IMAGE": Entry(
        "Nodes do not have the same operating system or the same Python packages.",
        Cause.INFRASTRUCTURE,
        "Use one image on all nodes, by its digest and not by a tag such as latest. Compare `pip list` on the named nodes. If the difference was agreed, give HOSTS.image_differences another limit.",
    ),
    "HOST-EGRESS": Entry(
        "A node does not reach an address outside the cluster that jobs download from.",
        Cause.INFRASTRUCTURE,
        "Run `curl -vI URL` on the named node. Open the address in the firewall or the network policy, or set HTTPS_PROXY before `ray start`. If no job needs the address, take it out of the contract's egress.",
    ),
    "HOST-RAY-CLIENT": Entry(
        "A program outside the cluster cannot join it by ray://.",
        Cause.INFRASTRUCTURE,
        "Start the head with `ray start --head --ray-client-server-port=10001`, and open that port to the machines of users. Client and cluster need the same versions of Ray and Python. If no program joins so, take ray_client_port out of the contract.",
    ),
    "HOST-MODEL-FILES": Entry(
        "Files of a model are missing on a node, or are not the same as on the other nodes.",
        Cause.INFRASTRUCTURE,
        "Compare `sha256sum` of the named file on two nodes. Download the model again on the named node, or put it on the shared folder.",
    ),
    "HOST-RDMA-CLOSED": Entry(
        "A worker cannot open the RDMA devices of its node, so NCCL takes TCP.",
        Cause.INFRASTRUCTURE,
        "Run `ibv_devinfo` as the job's user on the named node. On a machine run `modprobe ib_uverbs`. In a container use `--device=/dev/infiniband`. On Kubernetes request the RDMA device plugin's resource for the pod.",
    ),
    "HOST-NCCL-INTERFACE": Entry(
        "NCCL starts over an interface that does not lead to the other nodes.",
        Cause.INFRASTRUCTURE,
        "Set NCCL_SOCKET_IFNAME to the interface of the agreed network before `ray start` on all nodes. Or remove the address of the named interface, if nothing uses it.",
    ),
    "HOST-KERNEL": Entry(
        "A node has another kernel or OFED than most nodes.",
        Cause.INFRASTRUCTURE,
        "Run `uname -r` and `ofed_info -s` on the named nodes. Install the same kernel and OFED, then reboot. If other versions were agreed, give HOSTS.system_differences another limit.",
    ),
    "HOST-GPU-CHANGED": Entry(
        "A GPU left its node, or was replaced, during the run.",
        Cause.HARDWARE,
        "Run `nvidia-smi -L` on the named node. Look for Xid 79 and a restart of the driver in `dmesg -T`. Drain the node until the cause is known.",
    ),
    "HOST-FIRMWARE": Entry(
        "GPUs or network cards of one kind do not have the same firmware.",
        Cause.INFRASTRUCTURE,
        "Compare `nvidia-smi --query-gpu=index,name,vbios_version --format=csv` and `ibv_devinfo | grep -E 'hca_id|fw_ver|board_id'` on the named nodes. Bring all to the version that was ordered.",
    ),
    "HOST-GPU-SETTINGS": Entry(
        "GPUs of one model are not set alike on all nodes, or not near to the same CPUs.",
        Cause.INFRASTRUCTURE,
        "Compare `nvidia-smi -q -d CLOCK` and `nvidia-smi topo -m` on the named nodes with another node. Set persistence with nvidia-persistenced, and clocks with `nvidia-smi -rac`. Other NUMA nodes come from other slots or another BIOS setting (NPS, SNC).",
    ),
    "HOST-SHARED": Entry(
        "A node cannot write to the shared folder, or does not see the files of the others there.",
        Cause.INFRASTRUCTURE,
        "Mount the shared file system on the named node at the agreed path, writable for jobs.",
    ),
    "HOST-STORAGE-LATE": Entry(
        "Files that one node wrote are seen on other nodes only after a long time.",
        Cause.INFRASTRUCTURE,
        "Run `findmnt -T FOLDER` on the named nodes and on another. NFS: remount without nocto, and with acdirmax of 60 or less. Object storage: shorten the cache of its lists.",
    ),
    "HOST-STORAGE-EXCL": Entry(
        "Two nodes created the same file in the shared folder, so lock files protect nothing.",
        Cause.INFRASTRUCTURE,
        "Run `findmnt -T FOLDER` on all nodes: kind, source and options must be the same. Object storage does not create files exclusively: keep lock files elsewhere, and agree on HOSTS.double_creations.",
    ),
    "HOST-STORAGE-RENAME": Entry(
        "While a file is replaced by rename, other nodes find no file or a part of one.",
        Cause.INFRASTRUCTURE,
        "Run `findmnt -T FOLDER` on the named nodes. Object storage copies and deletes in place of a rename: write checkpoints to a file system. Otherwise agree on HOSTS.rename_gaps.",
    ),
    "HOST-STORAGE-APPEND": Entry(
        "Lines were lost that several nodes appended to one file.",
        Cause.INFRASTRUCTURE,
        "Let each node write a file of its own. NFS does not append atomically: if jobs need it, use another file system.",
    ),
    "HOST-STORAGE-LOCK": Entry(
        "Two nodes held the same lock (flock) in the shared folder at once.",
        Cause.INFRASTRUCTURE,
        "Run `findmnt -T FOLDER` on all nodes. Lustre: mount with flock, not localflock. NFS: mount version 4, or version 3 without nolock.",
    ),
    "HOST-STORAGE-FULL": Entry(
        "The shared folder has too little room for checkpoints.",
        Cause.INFRASTRUCTURE,
        "Run `df -h FOLDER`, `df -i FOLDER` and `quota -s` (Lustre: `lfs quota -u USER FOLDER`) on the named nodes. Remove old checkpoints, or raise the quota.",
    ),
    "HOST-STORAGE-ERROR": Entry(
        "A node cannot write its shard of a checkpoint, or read one.",
        Cause.INFRASTRUCTURE,
        "Run `findmnt -T FOLDER` and `touch FOLDER/try` on the named nodes as the job's user. Read `dmesg -T` there for errors of the file system. Mount it writable.",
    ),
    "HOST-STORAGE-SLOW": Entry(
        "A node writes or reads the shared folder much slower than the others.",
        Cause.INFRASTRUCTURE,
        "Compare `findmnt -T FOLDER` (NFS: `nfsstat -m`) on the named node with another node. Run `ip route get SERVER` on both: storage traffic must take the same network. Read the interface's errors with `ip -s link`.",
    ),
    "HOST-STORAGE-RATE": Entry(
        "All nodes together write or read the shared folder slower than was agreed.",
        Cause.INFRASTRUCTURE,
        "Compare the speed of one node alone with all together, in the report. If one node alone is slow, check its network to the storage. Otherwise add servers, or spread files over them (Lustre: `lfs setstripe`).",
    ),
    "HOST-STORAGE-LOST": Entry(
        "The shared folder of a node went away, or became read-only, during the run.",
        Cause.INFRASTRUCTURE,
        "Run `findmnt -T FOLDER` and `dmesg -T` on the named node. Look for a server that did not answer, and for units of systemd that unmount. Mount the folder again.",
    ),
    "HOST-OPEN-FILES": Entry(
        "A worker may open too few files and connections at once.",
        Cause.INFRASTRUCTURE,
        "Run `ulimit -n 65536` before `ray start` on the named nodes. In a systemd unit set LimitNOFILE=65536. In a container use `--ulimit nofile=65536:65536`. Slurm passes on the limits of the shell that submits.",
    ),
    "HOST-LOCKED-MEMORY": Entry(
        "A worker may lock too little memory, so RDMA cannot register its buffers.",
        Cause.INFRASTRUCTURE,
        "Write `* - memlock unlimited` into /etc/security/limits.d/rdma.conf on the named nodes. In a systemd unit set LimitMEMLOCK=infinity. In a container use `--ulimit memlock=-1`, on Kubernetes the capability IPC_LOCK. Then restart Ray there.",
    ),
    "HOST-STACK": Entry(
        "The stack of a worker may be too small, so threads of NCCL and torch crash.",
        Cause.INFRASTRUCTURE,
        "Run `ulimit -s 65536` before `ray start` on the named nodes. In a systemd unit set LimitSTACK=64M. In a container use `--ulimit stack=67108864`.",
    ),
    "HOST-SHARED-MEMORY": Entry(
        "The shared memory (/dev/shm) of a node is too small for NCCL and loaders of data.",
        Cause.INFRASTRUCTURE,
        "Start the container with `--shm-size=16g` or `--ipc=host`. On Kubernetes mount an emptyDir of medium Memory at /dev/shm. On a machine run `mount -o remount,size=50% /dev/shm`.",
    ),
    "HOST-PROCESSES": Entry(
        "A user may start too few processes and threads for the ranks of a node.",
        Cause.INFRASTRUCTURE,
        "Raise the named bound. RLIMIT_NPROC: `ulimit -u unlimited` before `ray start`, and nproc in /etc/security/limits.d. pids.max: `--pids-limit=-1` in a container, podPidsLimit of the kubelet, TasksMax in systemd. kernel.pid_max and kernel.threads-max: sysctl.",
    ),
    "HOST-TEMP-FULL": Entry(
        "The disk of temporary files or of Ray's session is full, so Ray cannot store objects.",
        Cause.INFRASTRUCTURE,
        "Run `df -h` and `df -i` on the named nodes for the named folder. Remove old sessions of Ray (session_*) and core dumps. Or start Ray with `--temp-dir` on a larger disk.",
    ),
    "HOST-STRAY-RAYLET": Entry(
        "A raylet of another Ray cluster runs on a node, and gives its GPUs to other jobs.",
        Cause.INFRASTRUCTURE,
        "Compare `ps -C raylet -o pid,user,lstart,args` on the named nodes with this cluster's session. End the stray one with `kill PID`. If another cluster may use the node too, agree on HOSTS.stray_raylets.",
    ),
    "HOST-CLOCK": Entry(
        "The clocks of two nodes differ, so their logs and events cannot be put in order.",
        Cause.INFRASTRUCTURE,
        "Run `chronyc tracking` or `timedatectl timesync-status` on the named nodes. Start chronyd or systemd-timesyncd there, with the same time servers on all nodes. Run `chronyc makestep` once.",
    ),
    "HOST-ADDRESS": Entry(
        "A node's address in Ray is not an address of that node that other nodes can reach.",
        Cause.INFRASTRUCTURE,
        "Find an address of the named node that other nodes reach, with `ip -br address` there. Then start Ray there again with `ray start --node-ip-address=ADDRESS`.",
    ),
    "HOST-LOOPBACK-NAME": Entry(
        "A node's own name leads to the loopback, and no interface is chosen for gloo.",
        Cause.INFRASTRUCTURE,
        "Give the named node's own name its own address in its /etc/hosts. Remove the name from lines of 127.*. Or set GLOO_SOCKET_IFNAME before `ray start`.",
    ),
    "HOST-NAMES": Entry(
        "A node's host name does not lead to that node on other nodes.",
        Cause.INFRASTRUCTURE,
        "Run `getent ahosts NAME` on the node that asks. Change the DNS record, or the line of that name in /etc/hosts. If no job uses host names, remove host_names from the contract.",
    ),
    "HOST-PORT-CLOSED": Entry(
        "A port that Ray or a job uses between nodes cannot be reached.",
        Cause.INFRASTRUCTURE,
        "Open the port on the named node: check `nft list ruleset`, `iptables -S`, security groups and network policies. Ray's ports can be fixed (`ray start --node-manager-port --object-manager-port --min-worker-port --max-worker-port`). Run `nc -vz ADDRESS PORT` from another node.",
    ),
    "HOST-GPU-ERROR": Entry(
        "A GPU, or the worker on it, fails while it computes.",
        Cause.HARDWARE,
        "Look for Xid in `dmesg -T` on the named node, and run `nvidia-smi -q -i UUID`. Out of memory: end the process that `nvidia-smi` lists. Otherwise drain the node, reset the GPU (`nvidia-smi -r -i UUID`) and run `dcgmi diag -r 3`.",
    ),
    "HOST-WRONG-SUM": Entry(
        "A GPU computes wrong results and reports no error (silent data corruption).",
        Cause.HARDWARE,
        "Drain the named node. Run `dcgmi diag -r 4` there, and this probe again. Replace the GPU if a result is wrong again. Do not use checkpoints of jobs that ran on it. On a rehearsal compare the builds of torch and the CPUs.",
    ),
    "HOST-GPU-SLOW": Entry(
        "A GPU is slower than others of its model, in two runs.",
        Cause.HARDWARE,
        "Run `nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE -i UUID` on the named node under load. Slow alone too: check power limit, clocks and ECC, then replace the GPU. Slow only with others: check cooling, power supplies and shared PCIe switches. The same slot on each node: check the cold plate, air duct and riser of that slot.",
    ),
    "HOST-GPU-RATE": Entry(
        "A GPU computes or copies slower than was agreed.",
        Cause.HARDWARE,
        "Compare `nvidia-smi -q -d CLOCK,POWER -i UUID` on the named node with the order. Copies from and to the host: check `nvidia-smi -q -i UUID | grep -A6 'Link Width'`, the NUMA node of the GPU and the IOMMU. All GPUs alike: check the driver, the power limit and the agreed figure.",
    ),
    "HOST-GPU-DRIFT": Entry(
        "A GPU becomes slower while it works.",
        Cause.HARDWARE,
        "Run `nvidia-smi -q -d TEMPERATURE,PERFORMANCE,POWER -l 5 -i UUID` on the named node under load. Check fans, air flow, coolant and the heat sink. Check that power supplies carry all GPUs at once.",
    ),
    "HOST-AUTH-OPEN": Entry(
        "An entrance of Ray takes orders without the cluster's token, so anyone who reaches it runs code.",
        Cause.INFRASTRUCTURE,
        "Run `ray get-auth-token --generate` once. Copy its file to every node and driver. Export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH before `ray start` on every node, then restart Ray. If a proxy adds the token to requests, let it ask for a login of its own.",
    ),
    "HOST-AUTH-DIFFERS": Entry(
        "An entrance of Ray asks for a token that the cluster does not have, or refuses the cluster's own.",
        Cause.INFRASTRUCTURE,
        "Compare RAY_AUTH_MODE and the token (`ray get-auth-token`) on the named nodes with those of the head. Set the same on all nodes, then restart Ray there.",
    ),
    "HOST-PUBLIC": Entry(
        "Ray listens at a globally routable address, and asks for no token there.",
        Cause.INFRASTRUCTURE,
        "Try the named port from a machine outside: `seatrial reach ADDRESS`. If it is reached, close it in the firewall, or start Ray with token authentication. If the firewall is agreed, give HOSTS.public_entrances a limit in the contract.",
    ),
    "HOST-HEAD": Entry(
        "Ray's head stopped answering during the probes. Ray ends every driver that waits for it.",
        Cause.INFRASTRUCTURE,
        "Read gcs_server.out and `dmesg` (out of memory?) on the head node, then run everything again.",
    ),
    "HOST-NO-ANSWER": Entry(
        "Ray counts a node as alive, but no worker answers there.",
        Cause.INFRASTRUCTURE,
        "Read the logs of the raylet and of the runtime environment agent on the named node.",
    ),
}
