"""A driver's own counters: of this machine's interfaces, and of a made-up driver."""

from __future__ import annotations

import ctypes
import fcntl
import struct
from pathlib import Path

import pytest

from probes.fabric import link_counters
from probes.fabric.link_counters import read_driver_counters

# include/uapi/linux/ethtool.h
GSTRINGS, GSTATS, GSSET_INFO, SS_STATS = 0x1B, 0x1D, 0x37, 1
COUNTERS = {"rx_prio3_pause": 7, "rx_packets": 9, "link_down_events_phy": 2, "rx_crc_errors_phy": 0}


def answer(counters: dict[str, int], request: bytes) -> None:
    """Answer one ioctl as a driver does: write into the memory that the request points to."""
    name, pointer = struct.unpack("16sP16x", request)
    assert name.rstrip(b"\0") == b"eth7"
    command, which = struct.unpack("II", ctypes.string_at(pointer, 8))
    if command == GSSET_INFO:
        reply, offset = struct.pack("QI", 1 << SS_STATS, len(counters)), 8
    elif command == GSTRINGS:
        assert which == SS_STATS
        reply, offset = b"".join(key.encode().ljust(32, b"\0") for key in counters), 12
    else:
        assert command == GSTATS
        reply, offset = struct.pack(f"{len(counters)}Q", *counters.values()), 8
    ctypes.memmove(pointer + offset, reply, len(reply))


@pytest.mark.parametrize(
    ("counters", "told"),
    [
        (COUNTERS, {"rx_prio3_pause": 7, "link_down_events_phy": 2, "rx_crc_errors_phy": 0}),
        ({"rx_packets": 1}, {}),
        ({}, {}),
    ],
)
def test_what_tells_of_the_link_is_kept(
    monkeypatch: pytest.MonkeyPatch, counters: dict[str, int], told: dict[str, int]
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", lambda sock, code, request: answer(counters, request))
    assert read_driver_counters("eth7") == told


def test_a_driver_that_answers_with_no_sense_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ioctl(sock: object, code: int, request: bytes) -> None:
        _, pointer = struct.unpack("16sP16x", request)
        ctypes.memmove(pointer + 8, struct.pack("QI", 1 << SS_STATS, 2**31), 12)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert read_driver_counters("eth7") == {}


def test_real_interfaces_answer_or_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_counters, "TELLING", ("",))
    names = [path.name for path in Path("/sys/class/net").iterdir()]
    found = {name: read_driver_counters(name) for name in names}
    assert all(name and count >= 0 for one in found.values() for name, count in one.items())
    assert found["lo"] == {}
    assert read_driver_counters("no-such-one") == {}
