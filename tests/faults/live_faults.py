"""The faults that are planted on labs, and what is near to them, by family.

`test_live_faults.py` runs each case. What needs more than this is in files of its own. Faults of
launchers and jobs are in `job_faults.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from probes.fabric.detect import WAY_TEXT
from probes.hosts.criterion import HEALTH
from reports.measurement import Verdict
from reports.record import RunRecord
from tests.faults.job_faults import JOB_FAMILIES
from tests.faults.launchers.injected_faults import (
    Case,
    Family,
    controls_are_caught,
    is_rejected,
    leaves_nothing,
)
from tests.lab import network
from tests.lab.image_faults import MODEL
from tests.lab.lab import Lab
from tests.support.paths import REPO
from tests.support.trial import Trial

HOSTS = "probes/hosts/test_hosts.py"
ORDERED = f"{HOSTS}::test_hosts_are_what_was_ordered"
REACHED = f"{HOSTS}::test_nodes_reach_each_other_by_name_and_port"
LIMITS = f"{HOSTS}::test_jobs_get_the_limits_they_need"
FOLDER = f"{HOSTS}::test_all_nodes_use_the_shared_folder_at_once"
TO_THE_END = f"{HOSTS}::test_hosts_stay_healthy_to_the_end"
FABRIC = ["probes/fabric/test_fabric.py"]
SHARED = 'shared = "/shared"'
AGREED = 'because = "jobs of the parties need it"'
GOOD_ENOUGH = (Verdict.PASS, Verdict.MARGINAL)  # a busy core may make the bandwidth marginal

# HOSTS: GPUs. The nodes have 8 each by Ray, by torch and by a stand-in NVML
# (tests/lab/nvml_standin.c).

GPU_LAB: dict[str, Any] = {"nodes": 3, "name": "gpus", "gpus": 8, "with_nvml": True}
EIGHT = {"gpus_per_node = 1": "gpus_per_node = 8"}
# Torch is asked as well; that takes longer, so most faults are tried without.
REAL = {
    **EIGHT,
    'accelerators = "emulated"': 'accelerators = "real"',
    "pace_seconds = 0.25": "",  # steps of real accelerators are not padded
}
H100 = "NVIDIA H100 80GB HBM3"


def notes_the_ports_and_the_proxy(lab: Lab, record: RunRecord, trial: Trial) -> None:
    """What sound clusters have, too, is noted on its node."""
    noted = [(one.name, str(one.value), one.subject) for one in record.results[0].measurements]
    assert any(name == "ephemeral-ports" and on == "node1" for name, _, on in noted), noted
    assert any(name == "same-name" for name, _, _ in noted), noted
    unlike = [(text, on) for name, text, on in noted if name == "unlike_conditions"]
    assert any("variable http_proxy" in text and on == "node2" for text, on in unlike), unlike


def its_other_facts_are_there(lab: Lab, record: RunRecord, trial: Trial) -> None:
    """One lost GPU must not take the rest of its node with it."""
    (path,) = trial.folder.glob("**/*hosts.json")
    facts = {fact["name"]: fact for fact in json.loads(path.read_text())}
    assert set(facts) == {"node0", "node1", "node2"}
    assert facts["node1"]["software"] == facts["node0"]["software"]
    assert [gpu["name"] for gpu in facts["node1"]["gpus"] if gpu.get("name")] == [H100] * 7


# One GPU of node1 reports this; by the code of its finding.
SICK = {
    "recovery=2": ("HOST-GPU-RECOVERY", "the driver asks for a reboot of the node"),
    "sram=1": ("HOST-ECC", "SRAM errors are above the threshold"),
    "remap_pending=1": ("HOST-ROW-REMAP", "a memory row waits to be remapped"),
    "remap_failed=1": ("HOST-ROW-REMAP", "a memory row could not be remapped"),
    "retired_pending=1": ("HOST-ROW-REMAP", "a memory row waits to be remapped"),
    "ecc=0": ("HOST-ECC-OFF", "ECC is off"),
    "slowdown=64": ("HOST-GPU-SLOWED", "clocks are slowed: hardware thermal"),
    "power_limit=500": ("HOST-POWER-LIMIT", "power limit is 71.4 % of the default"),
    "pcie_width=8": ("HOST-PCIE", "PCIe runs x8 of x16"),
    "nvlinks_down=18": ("HOST-NVLINK", "0 of 18 NVLinks are active"),
    "fabric_state=2": ("HOST-NVSWITCH", "registration with the NVLink fabric is in progress"),
    "fabric_health=1": ("HOST-NVSWITCH", "NVLink fabric: bandwidth is degraded"),
    "compute_mode=2": ("HOST-COMPUTE-MODE", "compute mode is Prohibited"),
    "ecc_errors=failed": ("HOST-NVML-ERROR", "NVML does not answer the query uncorrected_errors"),
}
# What sound GPUs report as well.
SOUND = (
    *("0 slowdown=7", "1 slowdown=8", "0 1.remapped=4", "1 3.lifetime_errors=3"),
    *("2 compute_mode=3", "2 retired_pending=0", "0 2.power_limit=720"),
    *(f"{node} persistence=0" for node in range(3)),
    *(f"{node} recovery=unsupported" for node in range(3)),
    *(f"{node} fabric_state=0" for node in range(3)),
)
GPUS = [
    Case("seven", {"HOST-GPUS"}, ["node1"],
         ["node1: 8 GPUs were ordered, Ray counts 8, NVML shows 7"], planted=["nvml 1 gpus=7"]),
    Case("lost", {"HOST-GPU-LOST", "HOST-GPUS"}, ["node1"],
         ["node1: NVML does not answer for GPU 3: error 15",
          "Ray counts 8, NVML shows 7, torch sees 8"],
         planted=["nvml 1 3.error=15"], terms=REAL, also=(is_rejected, its_other_facts_are_there)),
    Case("mismatch", {"HOST-DRIVER-MISMATCH"}, ["node2"],
         ["node2: NVML does not answer for the node's GPUs: error 18"],
         planted=["nvml 2 error=18"]),
    Case("another-model", {"HOST-GPU-MODEL"}, ["node1"],
         ["NVIDIA A100-SXM4-80GB on node1", f"{H100} on node0"],
         planted=["nvml 1 'name=NVIDIA A100-SXM4-80GB'"]),
    Case("one-machine", {"HOST-SAME-MACHINE"}, ["node1", "node2"],
         ["node2 run on the same machine"], planted=["same-machine 1 2"]),
    Case("no-library", {"HOST-NO-NVML"}, ["node2"], ["node2"], planted=["hide-nvml 2"]),
    Case("sick-gpus", {"HOST-ECC", "HOST-NVLINK", "HOST-GPU-SLOWED"}, ["node0", "node1", "node2"],
         ["3 uncorrected memory errors since the driver was loaded",
          "16 of 18 NVLinks are active", "and 4 more on node2: clocks are slowed: power brake"],
         planted=["nvml 0 2.ecc_errors=3", "nvml 1 5.nvlinks_down=2", "nvml 2 slowdown=136"]),
    Case("none", {"HOST-GPUS"}, ["node1"], ["Ray counts 8, NVML shows 0"],
         planted=["nvml 1 gpus=0"]),
    Case("no-driver", {"HOST-NO-DRIVER"}, ["node0"], ["node0", "error 9"],
         planted=["nvml 0 error=9"]),
    Case("unknown", {"HOST-NVML-ERROR"}, ["node0"], ["node0", "error 999"],
         planted=["nvml 0 error=999"]),
    Case("one-board", {"HOST-GPU-MODEL"}, ["node2"], ["NVIDIA H200 on node2"],
         planted=["nvml 2 '5.name=NVIDIA H200'"]),
    Case("half-memory", {"HOST-GPU-MODEL"}, ["node0"], ["40 GiB on node0"],
         planted=["nvml 0 2.memory_mib=40960"]),
    Case("twice", {"HOST-GPU-TWICE"}, ["node1", "node2"],
         ["GPU 0 (GPU-twice) on node1", "GPU 4 (GPU-twice) on node2"],
         planted=["nvml 1 0.uuid=GPU-twice", "nvml 2 4.uuid=GPU-twice"]),
    Case("mig", {"HOST-GPUS"}, ["node1"], ["Ray counts 8, NVML shows 10"],
         planted=["nvml 1 7.mig=3"]),
    Case("torch-sees-fewer", {"HOST-GPUS"}, ["node1"], ["NVML shows 8, torch sees 6"],
         planted=["nvml 1 torch=6"], terms=REAL),
    Case("vbios", {"HOST-FIRMWARE"}, ["node1"],
         [f"vBIOS of {H100}: 96.00.74.00.01 on node1; 96.00.89.00.01 on node0"],
         planted=["nvml 1 6.vbios=96.00.74.00.01"]),
    Case("clock", {"HOST-GPU-SETTINGS"}, ["node1"],
         [f"application clock of {H100}: 1410 MHz on node1; 1980 MHz on node0"],
         planted=["nvml 1 6.clock=1410"]),
    Case("one-more", {"HOST-GPUS"}, ["node0", "node1", "node2"],
         ["node1: 7 GPUs were ordered, Ray counts 8, NVML shows 8"], {"gpus"}, planted=[],
         terms={"gpus_per_node = 1": "gpus_per_node = 7"}, times=3,
         also=(is_rejected, controls_are_caught)),
    *(
        Case(what.partition("=")[0], {code}, ["node1"], [f"node1: {says}"],
             planted=[f"nvml 1 6.{what}"])
        for what, (code, says) in SICK.items()
    ),
    Case("sound-reports", planted=[f"nvml {report}" for report in SOUND],
         near=tuple(f"HOSTS.{name}" for name in HEALTH), also=()),
]  # fmt: skip

# HOSTS: what a job may use of a node's CPUs and memory.

MACHINE = {SHARED: f"{SHARED}\ncpus_per_node = 2\nram_gib = 4"}  # of the smallest host of a lab
PARTS = [
    Case("limit 1 cpus 1", {"HOST-BELOW-ORDER"}, ["node1"], ["1 CPU"], {"cpus"}, times=3),
    Case("limit 2 memory 2048", {"HOST-BELOW-ORDER"}, ["node2"], ["2 GiB"], {"ram"}, times=3),
    Case("just enough", planted=["limit 1 cpus 2", "limit 2 memory 4096"], times=3,
         near=("HOSTS.cpus", "HOSTS.ram")),
]  # fmt: skip

# HOSTS: limits, room, clocks, images and models that hinder a job.

RDMA = {
    'fabric = "fab0"': 'fabric = "rdma"\nrails = 1',
    'one_of = ["fab0"]': 'one_of = ["rdma"]',
}
# What users reported in public threads: `threads` of probes/hosts/conditions.toml has them.
BREAKING = {"breaking_conditions"}
CONDITIONS = [
    Case("noexec 2", {"HOST-FOLDER"}, ["node2"],
         ["node2: no program can run in the folder of temporary files"], BREAKING, times=3),
    Case("pin 2 1", {"HOST-CPUSET"}, ["node2"],
         ["node2: a worker can use 0.5 of the CPUs that Ray counts"], BREAKING, times=3),
    Case("limits", {"HOST-LIMIT"}, ["node1", "node2"],
         ["node1: a worker may use 12884901888 bytes of addresses",
          "node2: a worker may write files of 268435456 bytes"], BREAKING,
         planted=["limit 1 addresses 12288", "limit 2 fsize 256"], times=3),
    Case("drain 2", {"HOST-DRAINED"}, ["node2"], ["node2: being drained, takes no work"], {"nodes"},
         arguments=["probes/hosts"], times=3),
    Case("just enough", near=("HOSTS.breaking_conditions",), times=3,
         planted=["limit 1 addresses 67108864", "limit 1 fsize 1048576",
                  "setting 1 net/ipv4/ip_local_port_range '20000 60999'"]),
    Case("only noted", near=("HOSTS.breaking_conditions",), times=3,
         planted=["setting 1 net/ipv4/ip_local_port_range '10002 19999'",
                  "variable 2 http_proxy http://proxy.invalid:3128", "same-name 0 2"],
         also=(notes_the_ports_and_the_proxy,)),
]  # fmt: skip

# The dashboard of the head stands in for a server outside: the lab has no way out.
SERVER = f"http://{network.address('eth0', 0)}:8265/"
NEEDS = {SHARED: f'{SHARED}\nmodel_files = ["{MODEL}"]\negress = ["{SERVER}"]'}
# One of each kind, which test_system_faults.py plants all at once as well.
SEVERAL = [
    Case("limit 1 nofile 1024", {"HOST-OPEN-FILES"}, ["node1"],
         ["node1: a worker can open 1024 files"], {"open_files"}),
    Case("shm 2 64m", {"HOST-SHARED-MEMORY"}, ["node2"], ["node2: /dev/shm has 64 MiB"],
         {"shared_memory"}),
    Case("tmp-full 1", {"HOST-TEMP-FULL"}, ["node1"], ["(tmpfs at /tmp) has "], {"temp_room"}),
    Case("stray-raylet 2", {"HOST-STRAY-RAYLET"}, ["node2"],
         ["node2: raylets of another cluster are running: process "], {"stray_raylets"}),
    Case("version 1 pandas 0.1", {"HOST-IMAGE"}, ["node1"],
         ["node1: additional Python packages: pandas 0.1; missing Python packages: pandas "],
         {"image_differences"}),
    Case("model 2 torn", {"HOST-MODEL-FILES"}, ["node2"],
         [f"{MODEL} on node2: weights-2 has 1500000 bytes instead of 3000000"],
         {"model_differences"}, terms=NEEDS),
]  # fmt: skip
SYSTEM = [
    *SEVERAL,
    Case("model 1 missing", {"HOST-MODEL-FILES"}, ["node1"],
         [f"{MODEL} on node1: No such file or directory"], {"model_differences"}, terms=NEEDS),
    Case("model 0 changed", {"HOST-MODEL-FILES"}, ["node0"],
         [f"{MODEL} on node0: weights-1 has different content"], {"model_differences"},
         terms=NEEDS),
    Case("block-port 0 8265", {"HOST-EGRESS"}, ["node1", "node2"],
         [f"{SERVER} from node1, node2: timed out"], {"egress_closed"},
         planted=["model 1 sound", "block-port 0 8265"], terms=NEEDS),
    Case("limit 0 pids 200", {"HOST-PROCESSES"}, ["node0"],
         ["more threads for 1 rank (limit: pids.max of /sys/fs/cgroup)"], {"processes"}),
    Case("limit 2 memlock 64", {"HOST-LOCKED-MEMORY"}, ["node2"],
         ["node2: a worker can lock 64 KiB of memory"], {"locked_memory"}, terms=RDMA),
    Case("limit 1 stack 1024", {"HOST-STACK"}, ["node1"],
         ["node1: the stack size limit of a worker is 1024 KiB"], {"stack"}),
    Case("clock 1 +2s", {"HOST-CLOCK"}, ["node1"],
         ["against the median of 3 clocks, node1 is 2"], {"clock_offset"}),
]  # fmt: skip

# HOSTS: names, addresses and ports that are wrong.

NAMES_COUNT = {SHARED: f"{SHARED}\nhost_names = true"}
NAMES = [
    Case("loopback-name 1", {"HOST-LOOPBACK-NAME"}, ["node1"],
         ["The host name of node1 resolves to 127.0.1.1, and GLOO_SOCKET_IFNAME names no "]),
    Case("block-port 1 ephemeral", {"HOST-PORT-CLOSED"}, ["node1"],
         ["No other node connects to node1: port that the kernel picked for a job"]),
    Case("block-port 2 object-manager", {"HOST-PORT-CLOSED"}, ["node2"],
         ["No other node connects to node2: object manager port", "packets may be dropped"]),
    Case("loopback-names", {"HOST-LOOPBACK-NAME"}, ["node0", "node1", "node2"],
         ["The host name of node0, node1, node2 resolves to 127.0.1.1"]),
    Case("unknown-name 2", {"HOST-NAMES"}, ["node2"],
         ["The host name node2 does not resolve to node2 on other nodes"], terms=NAMES_COUNT),
    Case("lost-address 1", {"HOST-ADDRESS"}, ["node1"],
         ["node1: Ray's address 10.78.0.2 is on no interface of the node. The node has"]),
    Case("link-local-ib 2", {"HOST-NCCL-INTERFACE"}, ["node2"],
         ["NCCL starts over ib9 (169.254.9.1) on node2: its address is link-local"]),
    Case("unknown-name 2", near=("HOSTS.closed_ports",), also=()),
    Case("debian-name 1", near=("HOSTS.loopback_names", "HOSTS.names_unresolved"),
         terms=NAMES_COUNT, also=()),
    Case("second-address 1", near=("HOSTS.address_elsewhere",), also=()),
    Case("block-port 0 8265", near=("HOSTS.closed_ports", "HOSTS.closed_job_ports"), also=()),
    Case("sound", planted=[], terms=NAMES_COUNT, times=3, controls=6),
]  # fmt: skip

# HOSTS: a shared folder that is not one, is slow, read-only, full or away.

SAVES = {SHARED: f"{SHARED}\nsave_gb = 0.01"}
LOSSES = "\n".join(
    f'[HOSTS.{name}]\nat_most = 0\nunit = "{unit}"\n{AGREED}'
    for name, unit in (("lost_lines", "lines"), ("lost_updates", "updates"))
)
RATES = "\n".join(
    f'[HOSTS.{name}]\nat_least = 1000\nunit = "GB/s"\nbecause = "more than any disk has"'
    for name in ("write_rate", "read_rate")
)
SHARING = ("unseen_files", "seen_after", "double_creations", "rename_gaps", "failed_shards")
SPEEDS = ("shard_write", "shard_read", "random_read")


def keeps_shared_folder_clean(lab: Lab, record: RunRecord, trial: Trial) -> None:
    """Look for what the probe left in any view of the shared folder."""
    assert not [*lab.home.rglob(".seatrial-*")]


PRIVATE = Case(
    "shared 2 private", {"HOST-SHARED"}, ["node2"],
    ["node2 and the other nodes cannot read each other's files in /shared"], {"unseen_files"},
)  # fmt: skip
STORAGE = [
    Case("shared 2 slow", {"HOST-STORAGE-SLOW"}, ["node2"],
         ["node2 writes its shard in /shared at "], {*SPEEDS}),
    PRIVATE,
    replace(PRIVATE, name="shared 2 later", also=()),
    replace(PRIVATE, name="shared 2 unmounted"),
    Case("shared 2 readonly", {"HOST-STORAGE-ERROR"}, ["node2"],
         ["node2 cannot write or read files in /shared: Read-only file system"],
         {"failed_shards"}),
    Case("shared 2 full", {"HOST-STORAGE-FULL", "HOST-SHARED"}, ["node2"],
         ["node2 cannot write or read files in /shared: No space left on device"],
         {"failed_shards", "unseen_files", "checkpoint_room"}, terms=SAVES),
    Case("sound", planted=[], near=tuple(f"HOSTS.{name}" for name in (*SHARING, *SPEEDS)),
         controls=4),
    Case("sound as agreed", planted=[], terms=SAVES, more=LOSSES, times=3, controls=5,
         near=("HOSTS.lost_lines", "HOSTS.lost_updates", "HOSTS.checkpoint_room")),
]  # fmt: skip

# FABRIC: slow links of every size and way, by a lab of four.

SLOW = [
    *(
        Case(f"slow-link 2 {rate}" if way == "both" else f"slow-one-way 2 {rate} {way}",
             {"FAB-SLOW-LINK"}, ["node2"], [WAY_TEXT[way]])
        for way in ("both", "sends", "receives")
        for rate in ("700mbit", "500mbit", "100mbit")
    ),
    *(
        Case(f"slow-pair 1 3 {rate}", {"FAB-SLOW-LINK"}, ["node1", "node3"], ["node1 <-> node3"])
        for rate in ("700mbit", "100mbit")
    ),
    Case("half-duplex 2", {"FAB-SLOW-GROUP"}, ["node2"]),
    Case("slow-everywhere", {"FAB-SLOW"}, [f"node{at}" for at in range(4)],
         planted=[f"slow-link {at} 500mbit" for at in range(4)]),
    # The fourth shows what the others lack.
    Case("most", {"FAB-SLOW-LINK"}, ["node1", "node2", "node3"],
         ["most are slower than the best, 9 of 12 links (node1 sends, node2 sends, node3 sends)"],
         planted=[f"slow-one-way {at} 700mbit sends" for at in (1, 2, 3)], times=3),
    Case("most", planted=[f"slow-one-way {at} 950mbit sends" for at in (1, 2, 3)], times=3),
]  # fmt: skip

# FABRIC: links that lose, flap, take a detour or share an address. A soak sees each five times:
# a fault that comes and goes must be seen each time.

LINK_MEASURES = {
    *("lost_packets", "link_changes", "interface_errors", "longest_stall"),
    "links_on_other_networks",
}


def links_are_kept(lab: Lab, record: RunRecord, trial: Trial) -> None:
    """A busy core may make the bandwidth marginal, and no measure of a link."""
    judged = {
        (one.name, one.verdict)
        for result in record.results
        for one in result.measurements
        if one.name in LINK_MEASURES
    }
    assert judged == {(measure, Verdict.PASS) for measure in LINK_MEASURES}


SAME_ADDRESS = Case(
    "duplicate-address 1 2", {"FAB-DUPLICATE-ADDRESS"}, ["node1", "node2"], ["10.77.0.2"], times=5
)
NEAR_LINKS = ("lose-packets 1 sends 0.01", "lose-packets 2 receives 0.01", "slow-link 1 950mbit")
LINKS = [
    replace(SAME_ADDRESS, times=1, in_make_test=True),
    SAME_ADDRESS,
    Case("flap-link 2 1 6", {"FAB-LINK-FLAPS"}, ["node2"], ["fab0 of node2 changed"], times=5),
    Case("detour 1 2", {"FAB-DETOUR"}, ["node1"], ["leaves over eth0. Expected: fab0"], times=5),
    *(
        Case(f"lose-packets {node} {way} {share}", {"FAB-LOSS"}, [f"node{node}"],
             [f"of the packets that it {way}"], times=5)
        for node, way, share in (
            (1, "sends", 3), (2, "receives", 3), (2, "sends", 10), (1, "receives", 10)
        )
    ),
    *(
        Case(name, times=5, also=(links_are_kept,))
        for name in (*NEAR_LINKS, "blink-link 2")  # that one blinks before the run
    ),
]  # fmt: skip

# FABRIC: a node that loses packets in two of the six meetings. The median of all is sound.

MEETINGS = [
    Case("lose-to-two 1 2 3 5", {"FAB-LOSS"}, ["node1", "node2", "node3"],
         ["node1 -> node2: ", "node1 -> node3: "], times=3),
    Case("lose-to-two 1 2 3 0.01", times=3, also=(links_are_kept,)),
]  # fmt: skip

# FABRIC: bad rails, nodes that are slow inside and slow uplinks. What these labs answered is on
# tapes, which `make test` plays.

EIGHT_NODES = {
    "line_rate_gbps = 1.0": "line_rate_gbps = 0.4",
    "at_least = 0.090\nmarginal = 0.100": "at_least = 0.036\nmarginal = 0.040",
}
RAILS = [
    Case("slow-link 2:fab1 60mbit", {"FAB-SLOW-LINK"}, ["node2", "fab1 on node2"],
         ["the links of fab1 on node2 are slow"], times=3),
    Case("lose-packets 1:fab2 sends 3", {"FAB-LOSS"}, ["node1", "fab2 on node1"],
         ["of the packets that it sends"], times=3),
    Case("cut-node 3:fab3", {"FAB-LINK-DOWN"}, ["node3", "fab3 on node3"], ["fab3 is down"],
         times=3),
    Case("swap-rails 2 fab1 fab2", {"FAB-RAILS-SWAPPED"},
         ["node2", "fab1 on node2", "fab2 on node2"],
         ["fab1 is plugged into the switch of fab2"], times=3),
    Case("slow-inside 1 150mbit", {"FAB-SLOW-INSIDE"}, ["node1"], ["all-reduce inside node1: "]),
    Case("sound", planted=[], times=3),
    Case("slow-link 2:fab1 185mbit"),
    Case("lose-packets 1:fab2 sends 0.01"),
    Case("slow-inside 1 370mbit"),
]  # fmt: skip
EVERY = [f"node{at}" for at in range(8)]
LEAVES = [
    Case("slow-uplink 1 120mbit", {"FAB-SLOW-UPLINK"}, EVERY,
         ["links between groups of nodes are slow"]),
    Case("slow-uplink 1 800mbit", {"FAB-SLOW-UPLINK"}, EVERY,  # of four nodes with 400 Mbit/s each
         ["pairs of nodes are slow when they send at once"]),
    Case("sound", planted=[]),
]  # fmt: skip

# FABRIC: ranks that do not come together.


def every_rank_is_listed(lab: Lab, record: RunRecord, trial: Trial) -> None:
    evidence = next(trial.folder.glob("**/*init.json"))
    ranks = json.loads(evidence.read_text())["ranks"]
    assert set(ranks) == {f"rank {rank} on node{rank}" for rank in range(4)}


STARTS = [
    Case("never-comes", {"INIT-HANG"}, ["rank 2 on node2"], ["never_comes"], in_make_test=True),
    Case("falls-behind", {"INIT-HANG"}, ["rank 2 on node2"], ["falls_behind"]),
    Case("gives-up", {"FAB-NO-START"}, ["rank 2 on node2"], ["fab7"]),
]

FAMILIES: dict[str, tuple[Family, list[Case]]] = {
    "gpus": (
        Family("HOSTS", "hosts", [ORDERED], GPU_LAB, terms=EIGHT, also=(is_rejected,)),
        GPUS,
    ),
    "parts": (
        Family("HOSTS", "hosts", [ORDERED], {"nodes": 3, "name": "system"}, terms=MACHINE,
               one_finding=True, also=(controls_are_caught,)),
        PARTS,
    ),
    "conditions": (
        Family("HOSTS", "hosts", [LIMITS], {"nodes": 3, "name": "system"}),
        CONDITIONS,
    ),
    "system": (
        Family("HOSTS", "hosts", [LIMITS], {"nodes": 3, "name": "system"}, one_finding=True),
        SYSTEM,
    ),
    "names": (
        Family("HOSTS", "hosts", [REACHED], {"nodes": 3, "name": "names"}, one_finding=True,
               also=(controls_are_caught,)),
        NAMES,
    ),
    "storage": (
        Family("HOSTS", "hosts", [FOLDER], {"nodes": 3, "name": "storage"},
               also=(keeps_shared_folder_clean,)),
        STORAGE,
    ),
    "slow": (Family("FABRIC", "fabric", FABRIC, one_finding=True), SLOW),
    "links": (Family("FABRIC", "links", FABRIC, sound=GOOD_ENOUGH, one_finding=True), LINKS),
    "meetings": (Family("FABRIC", "links", FABRIC, sound=GOOD_ENOUGH), MEETINGS),
    "rails": (
        Family("FABRIC", "rails", FABRIC, {"nodes": 4, "name": "rails", "rails": 4},
               str(REPO / "tests" / "recordings" / "tapes" / "lab-rails.toml"),
               sound=GOOD_ENOUGH, one_finding=True),
        RAILS,
    ),
    # Two cores carry eight nodes at this rate with room to spare.
    "leaves": (
        Family("FABRIC", "rails", FABRIC,
               {"nodes": 8, "name": "leaves", "leaves": 2, "fabric": "400mbit"},
               terms=EIGHT_NODES, sound=GOOD_ENOUGH, one_finding=True),
        LEAVES,
    ),
    "starts": (
        Family("FABRIC", "fabric", FABRIC, plugin="faulty_start", red=Verdict.UNPROVEN,
               one_finding=True, also=(every_rank_is_listed, leaves_nothing)),
        STARTS,
    ),
    **JOB_FAMILIES,
}  # fmt: skip
