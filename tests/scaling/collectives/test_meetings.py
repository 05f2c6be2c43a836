"""How two ranks meet, told by one of them: what it sends, waits for and counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import reference_trainer.process_group
from scaling.collectives import node_groups
from scaling.collectives.node_groups import BOTH_WAYS, ONE_WAY

PEER = 1


class Wire:
    """The other rank: it answers each receive with the next of what it has to say."""

    def __init__(self, answers: list[Any], rank: int = 0) -> None:
        self.answers, self.rank, self.log = answers, rank, list[str]()
        self.peer = PEER - rank

    def get_rank(self) -> int:
        return self.rank

    def get_backend(self) -> str:
        return "gloo"

    def barrier(self) -> None:
        self.log.append("barrier")

    def send(self, tensor: Any, peer: int, group: Any = None) -> None:
        assert (peer, group) == (self.peer, None)
        self.log.append(f"send {tensor.numel()}")

    def recv(self, tensor: Any, peer: int, group: Any = None) -> None:
        assert (peer, group) == (self.peer, None)
        tensor.copy_(self.answers.pop(0))
        self.log.append(f"recv {tensor.numel()}")

    isend, irecv = send, recv

    def P2POp(self, way: Any, *what: Any) -> Any:
        return way, what

    def batch_isend_irecv(self, parts: list[Any]) -> list[Any]:
        for way, what in parts:
            way(*what)
        self.log.append("together")
        return [SimpleNamespace(wait=lambda: None)] * len(parts)


WAY = (ONE_WAY,)


class LateWire(Wire):
    """The other rank over NCCL: what it sends is on its way until somebody waits for it."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__(answers)
        self.late: list[Any] = []

    def recv(self, tensor: Any, peer: int, group: Any = None) -> None:
        self.late.append((tensor, peer))

    def arrive(self) -> None:
        while self.late:
            super().recv(*self.late.pop(0))


class Clock:
    """Moves by the next of these seconds at each second look; notes who slept."""

    def __init__(self, *spans: float) -> None:
        self.spans, self.now, self.looks, self.slept = [*spans], 100.0, 0, list[float]()

    def perf_counter(self) -> float:
        self.looks += 1
        if not self.looks % 2:
            self.now += self.spans.pop(0)
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(wire: Wire, clock: Clock) -> None:
        @contextmanager
        def group() -> Iterator[torch.device]:
            yield torch.device("cpu")

        for module in (node_groups, reference_trainer.process_group):
            monkeypatch.setattr(module, "dist", wire)
        monkeypatch.setattr(node_groups, "time", clock)
        monkeypatch.setattr(node_groups, "process_group", group)

    return give


PAYLOAD = torch.tensor([1.0, 2.0, 3.0])
ONE = torch.ones(1)


def meeting() -> Any:
    """The pair of this rank and its peer, which are connected."""
    return node_groups._Pair((0, PEER), torch.device("cpu"), ())


def received(plant: Any, tries: list[torch.Tensor], *spans: float) -> tuple[Wire, Any]:
    wire, clock = Wire([part for data in tries for part in (ONE, data)]), Clock(*spans)
    plant(wire, clock)
    return wire, node_groups._time_receive(torch.empty(3), PAYLOAD, meeting(), 6)


def test_the_fastest_try_counts_and_each_wrong_element(plant: Any) -> None:
    broken = torch.tensor([1.0, 9.0, 9.0])
    tries = [PAYLOAD, broken, PAYLOAD, PAYLOAD, broken, PAYLOAD]
    wire, found = received(plant, tries, 0.5, 0.25, 0.75, 0.5, 0.5, 0.5)
    assert (min(found[0]), found[1]) == (0.25, 4)
    assert wire.log == ["send 1", "recv 1", "send 1", "recv 3"] * 6 + ["send 1"], "the last: end"


@pytest.mark.parametrize(("seconds", "tries"), [(2.0, 6), (2.125, 1)])
def test_a_slow_first_try_is_not_repeated(plant: Any, seconds: float, tries: int) -> None:
    wire, found = received(plant, [PAYLOAD] * 6, *[seconds] * 6)
    assert found == ([seconds] * tries, 0)
    assert wire.log.count("recv 3") == tries


def test_a_sender_reads_its_counters_before_and_after_each_send(plant: Any) -> None:
    wire, clock, readings = Wire([ONE, ONE, ONE, ONE, ONE * 0]), Clock(), iter("abc")
    plant(wire, clock)
    assert node_groups._send(PAYLOAD, meeting(), lambda: next(readings), 0.5) == ["a", "b", "c"]
    assert wire.log == ["recv 1", "send 1", "recv 1", "send 3"] * 2 + ["recv 1"]
    assert clock.slept == [0.5, 0.5]


def test_a_sender_reads_its_counters_when_the_data_is_there(
    plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's receive returns at once: the data comes later, at the latest when it is used."""
    wire, use = LateWire([ONE, ONE, ONE, ONE, ONE * 0]), torch.Tensor.item
    plant(wire, Clock())

    def wait(tensor: Any) -> Any:
        wire.arrive()
        return use(tensor)

    monkeypatch.setattr(torch.Tensor, "item", wait)
    found = node_groups._send(PAYLOAD, meeting(), lambda: len(wire.late))
    assert found == [0, 0, 0], "nothing is on its way"


def test_the_rate_is_the_bytes_by_the_time(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def receive(buffer: Any, payload: Any, pair: Any, repeats: int) -> tuple[float, int]:
        tries.append((payload.numel(), pair.peer, repeats))
        return [0.5], 3

    delays = []

    def send(buffer: Any, pair: Any, read: Any, delay_s: float) -> list[Any]:
        delays.append(delay_s)
        return [read()]

    wire = Wire([ONE] * 3)
    plant(wire, Clock())
    monkeypatch.setattr(node_groups, "_time_receive", receive)
    monkeypatch.setattr(node_groups, "_send", send)
    for slow in (None, (0, 0.25), (1, 0.25)):
        rounds = (0, PEER), None
        found = node_groups.pair_sweep(6, 4000, lambda: lambda: "counters", slow, WAY, rounds)
        assert found.received == {PEER: (8e-6, 3)}
        assert found.sent == {PEER: ["counters"]}
    assert tries == [(1000, PEER, 6)] * 3
    assert delays == [0.0, 0.25, 0.0]
    assert wire.log == ["send 1", "recv 1", *["barrier"] * 5] * 3, (
        "connected, then a barrier for each direction of each round, and one at the end"
    )


TOGETHER = ["recv 1", "send 1", "together"]


@pytest.mark.parametrize(
    ("rank", "ways", "log"),
    [
        (0, WAY, ["send 1", "recv 1"]),
        (1, WAY, ["recv 1", "send 1"]),
        (0, (BOTH_WAYS,), TOGETHER),
        (1, (ONE_WAY, BOTH_WAYS), ["recv 1", "send 1", *TOGETHER]),
    ],
)
def test_both_ends_of_a_pair_are_connected_before_any_try(
    plant: Any, rank: int, ways: tuple[str, ...], log: list[str]
) -> None:
    """NCCL connects two ranks with their first message, which would count as a part of a try."""
    wire = Wire([ONE] * len(ways), rank)
    plant(wire, Clock())
    node_groups._Pair((0, 1), torch.device("cpu"), ways)
    assert wire.log == log


def exchanged(plant: Any, tries: list[torch.Tensor], *spans: float, end: Any = ONE) -> Any:
    """Both send; the peer agrees to each try, and to another one unless `end` is 0."""
    answers = [part for data in tries for part in (ONE, data)] + [end]
    wire = Wire(answers)
    # The clock moves at each second look: at one for the agreement, then at both of the data.
    plant(wire, clock := Agreeing(*spans))
    found = node_groups._time_exchange(torch.empty(3), PAYLOAD, meeting(), 6)
    assert clock.spans == []
    return wire, found


class Agreeing(Clock):
    """Looks are: agreed, start, arrived; only the last one is later."""

    def perf_counter(self) -> float:
        self.looks += 1
        if not self.looks % 3:
            self.now += self.spans.pop(0)
        return self.now


def test_both_send_at_the_same_time_and_each_rank_times_what_it_receives(plant: Any) -> None:
    broken = torch.tensor([1.0, 9.0, 9.0])
    wire, found = exchanged(plant, [PAYLOAD, broken, *[PAYLOAD] * 4], 0.5, 0.25, 0.75, 1, 1, 1)
    assert found == (0.25, 2, 6)
    assert wire.log == [*TOGETHER, "recv 3", "send 3", "together"] * 6 + TOGETHER


@pytest.mark.parametrize(("seconds", "tries"), [(2.0, 6), (2.125, 1)])
def test_a_slow_first_exchange_is_not_repeated(plant: Any, seconds: float, tries: int) -> None:
    _, found = exchanged(plant, [PAYLOAD] * tries, *[seconds] * tries)
    assert found == (seconds, 0, tries)


def test_a_peer_whose_data_came_late_ends_the_tries_of_both(plant: Any) -> None:
    _, found = exchanged(plant, [PAYLOAD], 0.5, end=ONE * 0)
    assert found == (0.5, 0, 1)


@pytest.mark.parametrize(
    ("ways", "sent", "barriers"),
    [((BOTH_WAYS,), ["first", "last"], 5), ((ONE_WAY, BOTH_WAYS), ["one way"], 9)],
)
def test_counters_are_read_around_all_tries_where_both_send(
    plant: Any,
    monkeypatch: pytest.MonkeyPatch,
    ways: tuple[str, ...],
    sent: list[str],
    barriers: int,
) -> None:
    """A rank without a peer waits with the others: they read when nobody sends."""
    wire = Wire([ONE] * 9)
    plant(wire, Clock())
    log, readings = wire.log, iter(["first", "last", "idle"])
    monkeypatch.setattr(node_groups, "_send", lambda *_: ["one way"])
    monkeypatch.setattr(node_groups, "_time_receive", lambda *_: ([0.5], 0))

    def exchange(*_: Any) -> tuple[float, int, int]:
        log.append("tries")
        return 0.5, 3, 6

    def read() -> str:
        log.append("read")
        return next(readings)

    monkeypatch.setattr(node_groups, "_time_exchange", exchange)
    found = node_groups.pair_sweep(6, 4000, lambda: read, None, ways, [(0, PEER), None])
    assert found.exchanged == {PEER: (8e-6, 3, 24000)}
    assert found.sent == {PEER: sent}
    assert log.count("barrier") == barriers
    around = log[log.index("tries") - 2 : log.index("tries") + 3]
    assert around[:4] == ["read", "barrier", "tries", "barrier"]
    assert (around[4] == "read") is (ONE_WAY not in ways)


def test_a_pair_on_gpus_has_a_group_of_its_own_and_frees_it(plant: Any) -> None:
    """NCCL keeps the memory of a communicator until its group is destroyed."""
    wire: Any = Wire([])
    groups: list[Any] = []
    wire.destroy_process_group = groups.append
    plant(wire, Clock())
    pair = meeting()
    pair.leave()
    assert groups == [], "gloo's connections are those of all ranks"
    pair.group = "pair"
    pair.leave()
    assert groups == ["pair"]


class Groups(Wire):
    """Groups of which this is rank 1: the others add what they should, or one element is wrong."""

    ReduceOp = SimpleNamespace(MAX="max")

    def __init__(self, longest: float = 0.0, wrong: int = 0) -> None:
        super().__init__([], rank=1)
        self.longest, self.wrong, self.sums = longest, wrong, list[int]()

    def new_group(self, ranks: list[int], *, use_local_synchronization: bool) -> list[int]:
        assert use_local_synchronization, "else all ranks must create all groups"
        return ranks

    def get_rank(self, group: list[int] | None = None) -> int:
        return group.index(self.rank) if group else self.rank

    def all_reduce(self, tensor: Any, group: list[int], op: str = "sum") -> None:
        assert self.rank in group
        if op == "max":
            tensor.clamp_(min=self.longest)
            return
        self.sums.append(tensor.numel() * 4)
        self.log.append("all_reduce")
        if tensor.any():
            assert set(tensor.tolist()) == {self.get_rank(group) + 1.0}
            tensor.fill_(sum(range(1, len(group) + 1)))
            tensor[: self.wrong] += 1


FIRST, LAST = [9.0, 0.0625], [9.0]  # connections are opened, then calls are counted; values checked
CALLS = [2.0, 0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("longest", "wrong", "spans", "seconds"),
    [
        (0.0, 0, [*CALLS, *[0.75] * 4], 0.75),  # 0.0625 s each: 8 calls in half a second
        (0.125, 2, CALLS, 0.375),  # of the slowest rank: 4, and never fewer
        (8.0, 0, CALLS, 0.375),
    ],
)
def test_a_group_shows_its_median_and_each_wrong_element(
    plant: Any, longest: float, wrong: int, spans: list[float], seconds: float
) -> None:
    wire, clock = Groups(longest, wrong), Clock(*FIRST, *spans, *LAST)
    plant(wire, clock)
    found = node_groups.group_sweep(3000, None, (4, 2, 1))
    assert found == (pytest.approx(2 * 2 / 3 * 3000 / seconds / 1e9), wrong)
    assert wire.sums == [3000] * (len(spans) + 3)
    assert (clock.spans, set(clock.slept)) == ([], {0.0})
    calls = ["all_reduce"] * len(spans)
    start, end = ["all_reduce"] * 2, ["all_reduce", "barrier"]
    assert wire.log == [*start, "barrier", *calls, *end], "all groups start together"


@pytest.mark.parametrize(("late", "slept"), [(1, 0.25), (0, 0.0)])
def test_a_control_delays_each_call_of_one_rank(plant: Any, late: int, slept: float) -> None:
    wire, clock = Groups(), Clock(*[0.5] * 7)
    plant(wire, clock)
    assert node_groups.group_sweep(None, (late, 0.25), [0, 1])[1] == 0
    assert clock.slept == [slept] * 7
    assert set(wire.sums) == {4 << 20}


def test_each_rank_is_told_of_its_own_part_alone() -> None:
    parts = [[0, 3], [4, 2]]
    assert node_groups.own_parts(parts, 6) == [[0, 3], None, [4, 2], [0, 3], [4, 2], None]
    assert node_groups.own_parts([], 2) == [None, None]


def test_a_rank_of_no_group_waits_for_the_others(plant: Any) -> None:
    wire = Groups()
    plant(wire, Clock())
    assert node_groups.group_sweep(3000, None, None) == (0.0, 0)
    assert wire.log == ["barrier", "barrier"]


@pytest.mark.parametrize(
    ("times", "stall"),
    [([0.1, 0.1, 0.9, 0.1, 0.8, 0.1], 0.6), ([0.1, 0.1, 0.9, 0.1, 0.1, 0.1], 0.0), ([2.5], 0.0)],
)
def test_a_stall_counts_where_two_tries_have_it(times: list[float], stall: float) -> None:
    assert node_groups.repeated_stall(times) == pytest.approx(stall)
