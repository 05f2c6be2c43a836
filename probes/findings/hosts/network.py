"""Findings of HOSTS: names, ports and entrances."""

from __future__ import annotations

from probes.findings.entry import RAY_ENVIRONMENT, Entry
from reports.record import Cause, Severity

NETWORK: dict[str, Entry] = {
    "HOST-EGRESS": Entry(
        "A node does not reach an address outside the cluster that jobs download from.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Open {target} for {nodes}",
        {
            "curl -vI {target}": '"Could not resolve": DNS. A time-out: the firewall or a network policy. A certificate error: a proxy.',
            "env | grep -i proxy": "No proxy where one is needed: set HTTPS_PROXY before `ray start`.",
        },
        "{node} reaches {target}.",
        "Run `curl -vI URL` on the named node. Open the address in the firewall or the network policy, or set HTTPS_PROXY before `ray start`. If no job needs the address, take it out of the contract's egress.",
    ),
    "HOST-RAY-CLIENT": Entry(
        "A program outside the cluster cannot join it by ray://.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Open the port of Ray Client on the head",
        {
            "head$ ss -ltn | grep {port}": "No line: start the head with `--ray-client-server-port=10001`.",
            "outside$ nc -vz {address} {port}": "Refused or timed out: open the port to the users' machines. Open: compare versions of Ray and Python.",
        },
        "A program outside the cluster joins by ray://.",
        "Start the head with `ray start --head --ray-client-server-port=10001`, and open that port to the machines of users. Client and cluster need the same versions of Ray and Python. If no program joins so, take ray_client_port out of the contract.",
    ),
    "HOST-RDMA-CLOSED": Entry(
        "A worker cannot open the RDMA devices of its node, so NCCL takes TCP.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Let jobs open the RDMA devices of {nodes}",
        {
            "ls -l /dev/infiniband": "Missing on a machine: run `modprobe ib_uverbs`. Missing in a container: pass it in, or request the device plugin's resource.",
            "ibv_devinfo": "Run it as the job's user. An error: correct the mode of the device files.",
        },
        "A worker on {node} opens its RDMA devices.",
        "Run `ibv_devinfo` as the job's user on the named node. On a machine run `modprobe ib_uverbs`. In a container use `--device=/dev/infiniband`. On Kubernetes request the RDMA device plugin's resource for the pod.",
    ),
    "HOST-NCCL-INTERFACE": Entry(
        "NCCL starts over an interface that does not lead to the other nodes.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Point NCCL on {nodes} at the agreed network",
        {
            "ip -br address": "Find the interface with the address that other nodes reach. Name it in NCCL_SOCKET_IFNAME before `ray start`.",
            "ip link show dev {interface}": "A bridge of containers or a link-local address: remove it if nothing uses it.",
        },
        "NCCL starts over an interface that leads to all nodes.",
        "Set NCCL_SOCKET_IFNAME to the interface of the agreed network before `ray start` on all nodes. Or remove the address of the named interface, if nothing uses it.",
    ),
    "HOST-ADDRESS": Entry(
        "A node's address in Ray is not an address of that node that other nodes can reach.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Start Ray on {nodes} with an address that others reach",
        {
            "ip -br address": "Choose the address that other nodes reach.",
            "other$ ping -c 3 {ray_address}": "An answer of another machine, or none: it is not this node's address.",
        },
        "The address of {node} in Ray is its own, and other nodes reach it.",
        "Find an address of the named node that other nodes reach, with `ip -br address` there. Then start Ray there again with `ray start --node-ip-address=ADDRESS`.",
    ),
    "HOST-LOOPBACK-NAME": Entry(
        "A node's own name leads to the loopback, and no interface is chosen for gloo.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Give the own name of {nodes} its own address",
        {
            "getent ahosts {host}": "127.*: remove the name from that line of /etc/hosts, and add a line with the node's address.",
            "hostname": "This is the name. It must lead to an address of an interface.",
        },
        "The name of {node} leads to its own address.",
        "Give the named node's own name its own address in its /etc/hosts. Remove the name from lines of 127.*. Or set GLOO_SOCKET_IFNAME before `ray start`.",
    ),
    "HOST-NAMES": Entry(
        "A node's host name does not lead to that node on other nodes.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Make {host} lead to its node everywhere",
        {
            "getent ahosts {host}": "Run it on the node that asks. No answer, or another address: correct the DNS record or /etc/hosts.",
            "resolvectl status": "Another DNS server than on other nodes: correct it. No such command: read /etc/resolv.conf.",
        },
        "{host} leads to its node on all nodes.",
        "Run `getent ahosts NAME` on the node that asks. Change the DNS record, or the line of that name in /etc/hosts. If no job uses host names, remove host_names from the contract.",
    ),
    "HOST-PORT-CLOSED": Entry(
        "A port that Ray or a job uses between nodes cannot be reached.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Open port {port} from {peer} to {node}",
        {
            "ss -ltn": "Nothing listens at the port: Ray's process is dead, or uses another port. It listens: a filter.",
            "nft list ruleset": "A rule that drops the port: change it. None: look at security groups and network policies.",
            "peer$ nc -vz {address} {port}": "Refused: nothing listens. Timed out: a filter drops it. Open: done.",
        },
        "Each port that Ray uses can be reached from every node.",
        "Open the port on the named node: check `nft list ruleset`, `iptables -S`, security groups and network policies. Ray's ports can be fixed (`ray start --node-manager-port --object-manager-port --min-worker-port --max-worker-port`). Run `nc -vz ADDRESS PORT` from another node.",
    ),
    "HOST-AUTH-OPEN": Entry(
        "An entrance of Ray takes orders without the cluster's token, so anyone who reaches it runs code.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Turn token authentication on for Ray",
        {
            "head$ ray get-auth-token --generate": "Makes a token once, and prints it: it is a secret. Copy its file to every node and driver.",
            RAY_ENVIRONMENT
            + '"RAY_AUTH"': "RAY_AUTH_MODE=token is missing: export it before `ray start`.",
        },
        "Every entrance of Ray refuses a request without the token.",
        "Run `ray get-auth-token --generate` once. Copy its file to every node and driver. Export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH before `ray start` on every node, then restart Ray. If a proxy adds the token to requests, let it ask for a login of its own.",
    ),
    "HOST-AUTH-DIFFERS": Entry(
        "An entrance of Ray asks for a token that the cluster does not have, or refuses the cluster's own.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Set the same token of Ray on {nodes} as on the head",
        {
            RAY_ENVIRONMENT
            + '"RAY_AUTH"': "Another mode or path than on the head: set the same, then restart Ray.",
            "ray get-auth-token": "Another token than on the head: copy the head's file. It prints a secret.",
        },
        "Every entrance of Ray takes the cluster's token, and no other.",
        "Compare RAY_AUTH_MODE and the token (`ray get-auth-token`) on the named nodes with those of the head. Set the same on all nodes, then restart Ray there.",
    ),
    "HOST-PUBLIC": Entry(
        "Ray listens at a globally routable address, and asks for no token there.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Close the public entrances of Ray on {nodes}",
        {
            "outside$ seatrial reach {address}": "An entrance is reached: close its port in the firewall, or turn token authentication on.",
            "ss -ltn": "The addresses at which Ray listens. 0.0.0.0: all of them.",
        },
        "No entrance of Ray is reached from outside without a token.",
        "Try the named port from a machine outside: `seatrial reach ADDRESS`. If it is reached, close it in the firewall, or start Ray with token authentication. If the firewall is agreed, give HOSTS.public_entrances a limit in the contract.",
    ),
}
