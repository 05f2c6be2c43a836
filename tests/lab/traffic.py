"""Runs traffic between nodes of the lab, inside their networks, for tests of the lab's faults."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable

from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.node import Node

RECEIVE_TCP = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    server.settimeout(20)
    peer, _ = server.accept()
    peer.settimeout(20)
    while peer.recv(1 << 20):
        pass
    peer.send(b"!")
"""
# At byte 100 of the kernel's tcp_info is tcpi_total_retrans.
SEND_TCP = """
import socket, struct, sys, time
own, other, port, size = *sys.argv[1:3], *map(int, sys.argv[3:])
deadline = time.monotonic() + 5
while True:
    try:
        peer = socket.create_connection((other, port), timeout=5)
        break
    except ConnectionRefusedError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.02)
assert peer.getsockname()[0] == own, "not from the fabric address"
peer.settimeout(20)
peer.sendall(bytes(size))
peer.shutdown(socket.SHUT_WR)
assert peer.recv(1) == b"!", "not all arrived"
info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
print(struct.unpack_from("I", info, 100)[0])
"""
SEND_UDP = """
import socket, sys, time
other, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end = time.monotonic() + seconds
while time.monotonic() < end:
    try:
        out.sendto(b"!", (other, port))
    except OSError:  # no carrier, or no answer to who has the address
        pass
    time.sleep(0.01)
"""
RECEIVE_UDP = """
import socket, sys, time
inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
inside.bind((sys.argv[1], int(sys.argv[2])))
inside.settimeout(10)
inside.recv(1)
print("first", flush=True)
inside.settimeout(0.01)
last, longest, end = time.monotonic(), 0.0, time.monotonic() + float(sys.argv[3])
while (now := time.monotonic()) < end:
    try:
        inside.recv(1)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    except TimeoutError:
        longest = max(longest, now - last)
print(longest)
"""
ASK = """
import socket, struct, sys, time
own, wanted = socket.inet_aton(sys.argv[1]), socket.inet_aton(sys.argv[2])
asker = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
asker.bind(("fab0", 0x0806))
mac = asker.getsockname()[4]
head = bytes([255] * 6) + mac + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1)
asker.send(head + mac + own + bytes(6) + wanted)
asker.settimeout(0.1)
answers, end = set(), time.monotonic() + 0.5
while time.monotonic() < end:
    try:
        frame = asker.recv(100)
    except TimeoutError:
        continue
    if frame[20:22] == bytes([0, 2]) and frame[28:32] == wanted:
        answers.add(frame[22:28].hex(":"))
print(*sorted(answers))
"""


PORTS = itertools.count(7001)  # one each: a receiver that waits in vain keeps its port for a while


def _words(script: str, *arguments: str | float) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", script, *map(str, arguments)]


def _begin(node: Node, script: str, *arguments: str | float) -> subprocess.Popen[str]:
    command = node.command(*_words(script, *arguments), cwd="/")
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def fabric(node: int) -> str:
    """Return a node's own address on the fabric."""
    return network.address("fab0", node)


def send(lab: Lab, source: int, target: int, size: int = 4 << 20) -> int:
    """Send `size` bytes by TCP between two fabric addresses; return how many segments went twice.

    Raises LabError when they do not arrive.
    """
    port = next(PORTS)
    receiver = _begin(lab.node(target), RECEIVE_TCP, fabric(target), port)
    words = _words(SEND_TCP, fabric(source), fabric(target), port, size)
    try:
        return int(lab.node(source).run(*words))
    finally:
        _end(receiver)


def watch(lab: Lab, source: int, target: int, seconds: float) -> Callable[[], float]:
    """Start a stream of a small packet each 10 ms; return once the first has arrived.

    The returned function waits for the end and returns the longest time (s) in which none arrived.
    """
    # The sender starts before the first packet arrives, so it runs longer.
    port, more = next(PORTS), 2
    receiver = _begin(lab.node(target), RECEIVE_UDP, fabric(target), port, seconds)
    sender = _begin(lab.node(source), SEND_UDP, fabric(target), port, seconds + more)
    assert receiver.stdout
    assert receiver.stdout.readline() == "first\n"

    def longest_gap() -> float:
        said, _ = receiver.communicate(timeout=seconds + 30)
        _end(sender)
        return float(said)

    return longest_gap


def owners(lab: Lab, asker: int, address: str) -> list[str]:
    """List hardware addresses that answer when a node asks on the fabric for this IPv4 address."""
    return lab.node(asker).run(*_words(ASK, fabric(asker), address)).split()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()  # the process on the node ends by its own limits
    process.communicate()
