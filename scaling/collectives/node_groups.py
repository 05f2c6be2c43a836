"""Measures transfers between some of a gang's ranks: in pairs, one way or both, or in groups.

Runs on every rank like `sweep.sweep`, with the usual rendezvous variables set.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import Any

from reference_trainer.late import dist, torch
from reference_trainer.process_group import join_part, joins_alone
from scaling.collectives.fault_search import MIN_EFFECT, MeasureGroups, typical_speed, valid_speed
from scaling.collectives.operations import OPERATIONS
from scaling.collectives.sweep import longest_wait, process_group

# Bytes of one transfer by backend. It is long compared with the latency of the fabric (4 MiB take
# 34 ms at 1 Gbit/s, 256 MiB 5 ms at 400 Gbit/s) and short compared with the complete scan.
MESSAGE_BYTES = {"gloo": 4 << 20, "nccl": 256 << 20}
GROUP_SECONDS, MIN_CALLS = 0.5, 4  # duration of a group's calls, and their least number
SLOW_TRANSFER_S = 2.0  # a first transfer that takes longer is not repeated
PAYLOAD_PERIOD = 61  # elements; a prime, so the period matches no packet size
# What a pair does in a round: sends one way and then the other, or both ways at the same time.
ONE_WAY, BOTH_WAYS = "one way", "both ways"


def own_parts(parts: Iterable[Sequence[int]], size: int) -> list[Sequence[int] | None]:
    """Return for each of `size` ranks the part that it is in; None for a rank in none.

    Each rank gets its own part alone: all parts for all ranks would grow with their square.
    """
    own = {rank: part for part in parts for rank in part}
    return [own.get(rank) for rank in range(size)]


@joins_alone
def group_sweep(
    size: int | None, slow: tuple[int, float] | None, members: Sequence[int] | None
) -> tuple[float, int]:
    """Time all-reduce within disjoint groups of the job's ranks, all groups at the same time.

    `members` are the ranks of this rank's group; None for a rank in no group. Returns (GB/s of
    busbw, wrong elements) of the group; (0, 0) without one. `size` is bytes; None is that of
    MESSAGE_BYTES. All groups start together and run for about GROUP_SECONDS, so that they load
    shared links together. `slow` (rank, seconds) injects a fault: that rank begins each call so
    many seconds late.
    """
    with process_group() as device:
        if members is None:
            dist.barrier()
            dist.barrier()
            return 0.0, 0
        group = join_part(members)
        ranks = len(members)
        size = size or MESSAGE_BYTES[dist.get_backend()]
        buffer = torch.zeros(size // 4, device=device)
        delay_s = slow[1] if slow and slow[0] == dist.get_rank() else 0.0

        def call() -> float:
            start = time.perf_counter()
            time.sleep(delay_s)  # 0 but for a control's fault
            dist.all_reduce(buffer, group=group)
            if device.type == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - start

        call()  # opens the connections
        longest = torch.tensor([call()], dtype=torch.float64, device=device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
        calls = max(MIN_CALLS, int(GROUP_SECONDS / float(longest)))
        dist.barrier()
        seconds = statistics.median(call() for _ in range(calls))
        buffer.fill_(dist.get_rank(group) + 1)
        call()
        wrong = int((buffer != ranks * (ranks + 1) / 2).sum())
        dist.barrier()
        return OPERATIONS["all_reduce"].busbw(size, seconds, ranks), wrong


@dataclass(frozen=True)
class RankMeetings:
    """Measurements of one rank with its peers, by the peer's rank.

    `received` is (GB/s, wrong elements) of the data from the peer, one way. `sent` is the readings
    of this rank's counters: one before the first try, and one after each try. `exchanged` is
    (GB/s, wrong elements, bytes sent) where both sent at the same time. If they did only that,
    `sent` has two readings: before and after all ranks' tries of the round. `stalls` is by how many
    seconds two tries or more, one way, took longer than twice the median.
    """

    received: dict[int, tuple[float, int]] = field(default_factory=dict)
    sent: dict[int, list[Any]] = field(default_factory=dict)
    exchanged: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    stalls: dict[int, float] = field(default_factory=dict)


@joins_alone
def pair_sweep(
    repeats: int,
    size: int | None,
    make_reader: Callable[[], Callable[[], Any]],
    slow: tuple[int, float] | None,
    ways: Sequence[str],
    rounds: Sequence[Sequence[int] | None],
) -> RankMeetings:
    """Send `size` bytes between disjoint pairs of ranks, round by round, in each of these `ways`.

    `rounds` has the pair of this rank in each round; None where it has no peer. All ranks must
    call it with as many rounds. The fastest of `repeats` tries counts. A new connection that lost
    a packet early, or a busy core, is slow for a while; only a bad link stays slow. The sender
    reads its counters with the function that `make_reader` returned before the group was joined.
    `slow` (rank, seconds) injects a fault: that rank delays each send ONE_WAY by so many seconds.
    """
    results, read = RankMeetings(), make_reader()
    with process_group() as device:
        size = size or MESSAGE_BYTES[dist.get_backend()]
        payload = torch.arange(size // 4, device=device).remainder(PAYLOAD_PERIOD).add(1).float()
        buffer = torch.empty_like(payload)
        delay_s = slow[1] if slow and slow[0] == dist.get_rank() else 0.0
        for members in rounds:
            pair = _Pair(members, device, ways) if members else None
            for direction in (0, 1) if ONE_WAY in ways else ():
                dist.barrier()
                if pair and pair.sends(direction):
                    results.sent[pair.peer] = _send(payload, pair, read, delay_s)
                elif pair:
                    times, wrong = _time_receive(buffer, payload, pair, repeats)
                    results.received[pair.peer] = size / min(times) / 1e9, wrong
                    results.stalls[pair.peer] = repeated_stall(times)
            if BOTH_WAYS in ways:
                before = read()
                dist.barrier()
                if pair:
                    seconds, wrong, tries = _time_exchange(buffer, payload, pair, repeats)
                    results.exchanged[pair.peer] = size / seconds / 1e9, wrong, size * tries
                dist.barrier()
                if pair and ONE_WAY not in ways:  # else the readings of each way alone say more
                    results.sent[pair.peer] = [before, read()]
            if pair:
                pair.leave()
        dist.barrier()
    return results


class _Pair:
    """This rank and the peer of a round, connected before any of them sends data.

    With the first message of two ranks NCCL makes a communicator of them, which takes up to a
    second: longer than all tries. It belongs to a group of these two, and its memory (some 100 MB)
    is free when they leave. gloo has connected all ranks already.
    """

    def __init__(self, members: Sequence[int], device: Any, ways: Sequence[str]) -> None:
        self.members, self.group = members, None
        self.peer = members[1] if dist.get_rank() == members[0] else members[0]
        if dist.get_backend() == "nccl":
            # Its name counts the groups that a rank has: one, for each pair leaves before the next.
            # A pair meets once in a job: a second group of that name would find the first's keys.
            timeout = timedelta(seconds=longest_wait())
            self.group = dist.new_group([*members], use_local_synchronization=True, timeout=timeout)
        word, reply = torch.ones(1, device=device), torch.ones(1, device=device)
        for direction in (0, 1) if ONE_WAY in ways else ():
            (self.send if self.sends(direction) else self.receive)(word)
        if BOTH_WAYS in ways:  # another communicator
            self.exchange(word, reply)
        word.item()  # on a GPU only this waits

    def sends(self, direction: int) -> bool:
        """Return whether this rank sends in the first or the second direction."""
        return self.peer == self.members[1 - direction]

    def send(self, tensor: Any) -> None:
        """Send to the peer."""
        dist.send(tensor, self.peer, self.group)

    def receive(self, tensor: Any) -> None:
        """Receive from the peer; on a GPU the data comes later."""
        dist.recv(tensor, self.peer, self.group)

    def exchange(self, data: Any, into: Any) -> float:
        """Send and receive at the same time; return when (s) the peer's data was there.

        NCCL ends both directions together, so there the slower one counts for both.
        """
        parts = (dist.irecv, into), (dist.isend, data)
        ops = [dist.P2POp(way, tensor, self.peer, self.group) for way, tensor in parts]
        first, *others = dist.batch_isend_irecv(ops)
        first.wait()
        if into.is_cuda:
            torch.cuda.synchronize()
        arrived = time.perf_counter()
        for work in others:
            work.wait()
        return arrived

    def leave(self) -> None:
        """Free what NCCL holds for this pair."""
        if self.group is not None:
            dist.destroy_process_group(self.group)


def _time_exchange(buffer: Any, payload: Any, pair: _Pair, repeats: int) -> tuple[float, int, int]:
    """Return (least seconds to the last byte, wrong elements, tries) with both ranks sending.

    Each rank times what it receives. If a first transfer takes longer than SLOW_TRANSFER_S on
    either rank, it is not repeated.
    """
    best_s, wrong, tries = float("inf"), 0, 0
    goes_on, peers = torch.ones_like(buffer[:1]), torch.ones_like(buffer[:1])
    while True:
        buffer.zero_()
        pair.exchange(goes_on, peers)
        if not float(goes_on) * float(peers):
            return best_s, wrong, tries
        start = time.perf_counter()
        best_s, tries = min(best_s, pair.exchange(payload, buffer) - start), tries + 1
        wrong += int((buffer != payload).sum())
        goes_on.fill_(tries < repeats and best_s <= SLOW_TRANSFER_S)


def _send(buffer: Any, pair: _Pair, read: Callable[[], Any], delay_s: float = 0.0) -> list[Any]:
    """Send as often as the peer asks; return the readings of `read`, before and after each send.

    The peer asks again only when it has all the data. By then, lost packets have been sent
    again. It starts its clock when it hears that the counters have been read: a reading may take
    longer than the data.
    """
    ready, readings = torch.ones(1, device=buffer.device), []
    while True:
        pair.receive(ready)
        goes_on = bool(ready.item())  # on a GPU only this waits: what is counted then has arrived
        readings.append(read())
        if not goes_on:
            return readings
        pair.send(ready)
        pair.receive(ready)
        time.sleep(delay_s)
        pair.send(buffer)


def repeated_stall(times: Sequence[float]) -> float:
    """Return by how much the second longest of several tries exceeds twice their median, in s.

    The longest alone may be a busy core's.
    """
    return max(0.0, sorted(times)[-2:][0] - 2 * statistics.median(times))


def _time_receive(buffer: Any, payload: Any, pair: _Pair, repeats: int) -> tuple[list[float], int]:
    """Return (seconds from request to last byte of each try, wrong elements of all tries).

    If the first transfer takes longer than SLOW_TRANSFER_S, it is not repeated.
    """
    ready, times, wrong = torch.ones(1, device=buffer.device), list[float](), 0
    for _ in range(repeats):
        buffer.zero_()
        pair.send(ready)
        pair.receive(ready)
        ready.item()  # on a GPU it waits: the peer has read its counters
        start = time.perf_counter()
        pair.send(ready)
        pair.receive(buffer)
        if buffer.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        wrong += int((buffer != payload).sum())
        if min(times) > SLOW_TRANSFER_S:
            break
    pair.send(torch.zeros_like(ready))
    return times, wrong


def grid_groups(nodes: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """Split the nodes in two ways into groups of about sqrt(n) nodes.

    Any two nodes share at most one group. The groups are the rows and the columns of a grid.
    Its empty cells lie on a diagonal, so no row or column has two. With 4 nodes, and from 6
    nodes on, every group has two nodes or more.
    """
    column_count = math.ceil(math.sqrt(len(nodes)))
    row_count = math.ceil(len(nodes) / column_count) if column_count else 0
    holes = {
        (row_count - 1 - i, column_count - 1 - i)
        for i in range(row_count * column_count - len(nodes))
    }
    cells = ((row, column) for row in range(row_count) for column in range(column_count))
    grid = dict(zip((cell for cell in cells if cell not in holes), nodes, strict=True))
    across, down = (
        [[node for cell, node in grid.items() if cell[axis] == index] for index in range(count)]
        for axis, count in enumerate((row_count, column_count))
    )
    return across, down


def search_groups(
    nodes: Sequence[str], measure_groups: MeasureGroups, effect: float = MIN_EFFECT
) -> tuple[list[str], list[list[str]]]:
    """Find (nodes that make their groups slow, slow groups that no such node explains).

    `measure_groups` takes disjoint groups and runs all of them at once. It returns the GB/s of
    each group, in order. Every node is in two groups that share only this node. If both stay
    slow, the node is measured once more with proven good nodes only. So no other suspect slows
    its group. A group is slow by the rule of `search_faults`. Meant for 12 nodes or more: with
    fewer nodes some groups may be pairs.
    """
    slow, good, limit = _find_slow_groups(nodes, measure_groups, effect)
    suspects = [node for node in nodes if node not in good and any(node in g for g in slow)]
    guilty = []
    for batch in _suspect_batches(suspects, [node for node in nodes if node in good], len(nodes)):
        for group, speed in zip(batch, measure_groups(batch), strict=True):
            if valid_speed(speed) < limit:
                guilty.append(group[0])
    return guilty, [group for group in slow if not set(group) & set(guilty)]


def _find_slow_groups(
    nodes: Sequence[str], measure_groups: MeasureGroups, effect: float
) -> tuple[list[list[str]], set[str], float]:
    """Find (groups slow twice, nodes of a fast group, GB/s below which a group is slow)."""
    partitions = [[g for g in partition if len(g) > 1] for partition in grid_groups(nodes)]
    first_speeds = [
        [valid_speed(speed) for speed in measure_groups(partition)] if partition else []
        for partition in partitions
    ]
    limit = typical_speed(chain.from_iterable(first_speeds), effect)[1]
    slow, good = [], set[str]()
    for partition, speeds in zip(partitions, first_speeds, strict=True):
        doubtful = any(speed < limit for speed in speeds)
        # Repeat all groups together: the fault may appear only under this load.
        repeated = measure_groups(partition) if doubtful else speeds
        for group, *both in zip(partition, speeds, map(valid_speed, repeated), strict=True):
            if max(both) < limit:
                slow.append(group)
            else:
                good.update(group)
    return slow, good, limit


def _suspect_batches(suspects: list[str], good: list[str], nodes: int) -> Iterator[list[list[str]]]:
    """Yield batches of disjoint groups: one suspect and good nodes only.

    The groups are as large as the first ones if there are enough good nodes. `nodes` is the
    number of all nodes.
    """
    partners = min(len(good), math.ceil(math.sqrt(nodes)) - 1)
    batch_size = len(good) // partners if partners else 0
    for start in range(0, len(suspects) if batch_size else 0, batch_size or 1):
        batch = suspects[start : start + batch_size]
        yield [[node, *good[i * partners : (i + 1) * partners]] for i, node in enumerate(batch)]
