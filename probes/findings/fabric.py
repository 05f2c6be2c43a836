"""Findings of FABRIC: reachability, speed and data of the links."""

from __future__ import annotations

from probes.findings.entry import RAY_ENVIRONMENT, Entry
from reports.record import Cause, Severity

FABRIC: dict[str, Entry] = {
    "FAB-LINK-DOWN": Entry(
        "A node's fabric interface is down, has no address, or reaches no other node.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Repair the fabric link of {node} ({address}, {interface})",
        {
            "ip -s link show dev {interface}": "NO-CARRIER: cable, transceiver or switch port. DOWN: run `ip link set {interface} up`. Does not exist: the driver of the card is not loaded.",
            "ip -br address show dev {interface}": "No address: configure one. An address of another network: correct it.",
            "dmesg -T | grep {interface}": "Link down again and again: replace the cable, then the transceiver.",
        },
        "{node} reaches every other node over {interface} by TCP.",
        "Check cable, switch port and `ip link` of the fabric interface on the named node.",
    ),
    "FAB-DUPLICATE-ADDRESS": Entry(
        "Two machines have the same address on the fabric.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Give {node} a fabric address of its own",
        {
            "ip -br address show dev {interface}": "Run it on each named node. The same address twice: change one of them.",
            "other$ arping -I {interface} -c 3 {address}": "Answers from two hardware addresses: two machines have the address. No node has the second one: ask the network's owner which machine it is.",
        },
        "`arping` gets answers from one hardware address only.",
        "Give each node's fabric interface its own address (`ip addr` on the named nodes). If no node has the named hardware address, ask the network's owner which machine has it.",
    ),
    "FAB-PAIR-BLOCKED": Entry(
        "Two nodes cannot reach each other on the fabric, though both reach other nodes.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Open the fabric between {node} and {peer}",
        {
            "ip route get {peer_address}": "Another interface than {interface}: correct the route. The right one: go on.",
            "tracepath -n {peer_address}": "The last address that answers is next to the fault. Look there for a filter (ACL) or a missing route.",
            "nft list ruleset": "A rule that drops traffic of {peer}: remove it. Run it on {peer} too.",
        },
        "{node} and {peer} reach each other by TCP over the fabric.",
        "Check packet filters, routes and ACLs between the two named nodes.",
    ),
    "FAB-SLOW-LINK": Entry(
        "All links of one node, or one link between two nodes, are slow in the named direction.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Repair the fabric link of {node} ({address}, {interface})",
        {
            "ethtool {interface}": "Speed lower than on the other nodes: cable, transceiver or the switch port's setting.",
            'ethtool -S {interface} | grep -iE "err|drop|discard|crc"': "Errors that grow: clean or replace cable and transceiver. No errors: swap the transceiver, then the switch port.",
            "mlxlink -d {device} -m -c": "For NVIDIA cards. A high bit error rate or a low receive power: clean or replace cable and transceiver.",
        },
        "The links of {node} are as fast as those of the other nodes.",
        "Check rate, errors and cable of the named node's fabric link.",
    ),
    "FAB-SLOW-GROUP": Entry(
        "Some nodes are slow only in groups: every pair of them is fast.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Find what {nodes} share with other traffic",
        {
            "ethtool {interface}": "Half duplex, or another speed than on other nodes: correct the port.",
            'ethtool -S {interface} | grep -iE "pause|discard|ecn|cnp"': "Counts that grow while the group runs: the switch or its uplink is full. No growth: look at PCIe and memory of {node}.",
            "nvidia-smi topo -m": "GPU and network card connected by SYS or NODE: traffic crosses the CPU. Compare with a fast node.",
        },
        "A group with {node} is as fast as other groups of this size.",
        "Check what only bidirectional or many-node traffic loads: duplex and PCIe of the named node, the shared switch uplink, switch buffers.",
    ),
    "FAB-SLOW": Entry(
        "All-reduce is slower than agreed, and no single node or pair explains it.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Find what slows the whole fabric",
        {
            "ethtool {interface}": "Speed below the ordered one on every node: correct the switch ports or the cards.",
            'ethtool -S {interface} | grep -iE "pause|discard|ecn|cnp"': "Counts that grow: links between switches are full. Find other traffic, or the oversubscription.",
            "nvidia-smi topo -m": "No card within PIX or PXB of a GPU: traffic crosses the CPU on every node.",
        },
        "The bus bandwidth of all-reduce reaches its limit.",
        "Check rate and oversubscription of the fabric, and other traffic on it.",
    ),
    "FAB-WRONG-INTERFACE": Entry(
        "Gradient traffic used another interface than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Move the gradient traffic of {nodes} to the agreed fabric",
        {
            RAY_ENVIRONMENT
            + '"NCCL|GLOO"': "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (NCCL_IB_HCA for RDMA) must name the fabric. Missing: export them before `ray start`.",
            "ip -br address": "The named interface is missing or has no address: correct it first.",
        },
        "The byte counters of the agreed fabric carry the gradients of {node}.",
        "Export NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (or NCCL_IB_HCA) for the fabric before `ray start` on every node.",
    ),
    "FAB-LOSS": Entry(
        "A node, or a pair of nodes, loses packets in the named direction.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Stop the loss of packets on the fabric link of {nodes}",
        {
            'ethtool -S {interface} | grep -iE "err|drop|discard|crc"': "Errors (crc, symbol): cable or transceiver. Discards without errors: full buffers, here or in the switch.",
            "dcb pfc show dev {interface}": "For RoCE. All priorities off: turn on PFC, and ECN, here and on each switch port of the path.",
            "ip -s link show dev {interface}": "Run it twice. Dropped packets that grow only when all nodes send: the network is oversubscribed.",
        },
        "The share of lost packets of {node} stays below its limit.",
        "Read `ethtool -S` on the named node, and the error and discard counters of its switch port. Clean or replace transceiver and cable. With RoCE, check PFC and ECN on every switch port of the path.",
    ),
    "FAB-LINK-FLAPS": Entry(
        "A fabric link went down and came back during the test.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Replace the cable of {interface} on {node}",
        {
            "dmesg -T | grep {interface}": "The times of link down and up. The same times in the log of the switch port: the cable. Only here: the card.",
            "ethtool -m {interface}": "Receive power near its alarm threshold: clean or replace the transceiver. Normal power: replace the cable, then the port.",
        },
        "{interface} of {node} keeps its carrier during a whole run.",
        "Read `dmesg` of the named node and the log of its switch port. Replace transceiver or cable, then the port.",
    ),
    "FAB-LINK-ERRORS": Entry(
        "A fabric port counts errors.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Clean or replace cable and transceiver of {interface} on {node}",
        {
            'ethtool -S {interface} | grep -iE "err|crc|symbol|discard"': "Run it twice during traffic. A count that grows names the layer: crc and symbol are the cable, discards are buffers.",
            "mlxlink -d {device} -m -c": "For NVIDIA cards. A raw bit error rate far above that of the other nodes: replace the cable.",
        },
        "Errors per packet of {interface} stay below their limit.",
        "Read `ethtool -S` (RDMA: `perfquery`) of the named port. Clean or replace transceiver and cable.",
    ),
    "FAB-STALLS": Entry(
        "Single calls take far longer than others of the same size, and no link went down.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Find what stops single calls on the fabric",
        {
            'ethtool -S {interface} | grep -iE "pause|discard|timeout|retrans"': "Pause frames that grow by thousands: a pause storm, look for the port that sends them. Retransmissions: packets are lost.",
            "top -b -n 1 | head -n 20": "Another process with much CPU time: stop or move it.",
        },
        "No all-reduce takes far longer than others of its size.",
        "Check links between switches, pause storms, and other load on the named nodes.",
    ),
    "FAB-DETOUR": Entry(
        "A node sends to some other nodes over another network than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Remove the route of {node} that leaves the fabric",
        {
            "ip route get {peer_address}": "Another interface than {interface}: this route is the fault.",
            "ip route show": "A more specific route, or one with a lower metric: remove it. Then find what set it: netplan, NetworkManager, a CNI plugin.",
        },
        "`ip route get` names {interface} for each fabric address.",
        "Remove the named route (`ip route get` on the named node shows it). Find out what set it.",
    ),
    "FAB-MTU": Entry(
        "Full-size packets do not pass, or a node's MTU differs from the others.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Set one MTU on the fabric of all nodes and switches",
        {
            "ip link show dev {interface}": "Compare the mtu on {nodes} with the others. It differs: set the agreed one. This step only reads.",
            "ping -c 3 -M do -s {payload} {peer_address}": '"message too long": this node\'s MTU is smaller. No answer: a switch port between them has a smaller MTU.',
        },
        "Full-size packets pass between all pairs of nodes.",
        "Set one MTU on the fabric interface of every node and on every switch port between them.",
    ),
    "FAB-WRONG-DATA": Entry(
        "A collective returned wrong elements.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Take {nodes} out of service and test memory, GPU and link",
        {
            "dcgmi diag -r 3": "Failed memory or PCIe test: replace that part. Passed: go on.",
            "nvidia-smi -q -d ECC,ROW_REMAPPER": "Uncorrected errors, or a remap that failed: replace the GPU.",
            'ethtool -S {interface} | grep -iE "err|crc"': "Errors that grow: replace cable and card. None on a node that is wrong: test its memory.",
        },
        "All elements of each collective are right on {node}.",
        "Take the node of the named rank out of service. Test its memory, GPU and link.",
    ),
    "FAB-WRONG-LINK": Entry(
        "Data that one node sends or receives, or that one link carries, arrives changed.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Take {node} out of service and test its memory and network card",
        {
            "ethtool -k {interface} | grep checksum": "Offload on: the card computes checksums, so errors after it go unnoticed.",
            "ethtool -K {interface} rx off tx off": "Changes the card until the next reboot: TCP now checks in software. If retransmissions grow instead of wrong data, replace the card.",
            'dmesg -T | grep -iE "mce|edac|corrected"': "Memory errors: replace the memory module.",
        },
        "Data that {node} sends and receives arrives unchanged.",
        "Take the named node out of service. Test its memory and network card. Turn checksum offload off to see whether TCP detects the error.",
    ),
    "FAB-NO-START": Entry(
        "The process group could not be created.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Let the processes of all nodes reach each other at start",
        {
            "ip -br address": "The interface of NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME is missing on a node: name one that every node has.",
            "nft list ruleset": "A rule that drops traffic between nodes: open all ports between them.",
        },
        "The process group starts on all ranks.",
        "Read the error in this finding. Check that the interface names exist on every node, and that no firewall blocks traffic between the nodes.",
    ),
}
