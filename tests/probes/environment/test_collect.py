"""What a node tells NCCL, as it is collected: conf files, who wins, libraries, secrets."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.environment import collect as collecting
from probes.environment.collect import (
    effective_values,
    find_libraries,
    mapped_paths,
    missing_files,
    parse_conf,
    read_nccl_conf_files,
    read_settings,
    redact_value,
    version_of,
)
from probes.environment.lint import lint
from reports.sanitize import one_line
from tests.probes.environment.test_lint import DEVICES, node

# Conf files.


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is home, with the system's conf file in it as system.conf; no NCCL_ set."""
    for name in [name for name in os.environ if collecting._is_relevant(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(collecting, "home_dir", lambda: str(tmp_path))
    monkeypatch.setattr(collecting, "SYSTEM_CONF", str(tmp_path / "system.conf"))
    return tmp_path


def test_parse_conf_takes_nothing_away() -> None:
    text = "# NCCL_A=1\nNCCL_B = 2 \nNCCL_C==eth0\n\nNCCL_D\nNCCL_B = 3\n=4\nNCCL_E=\n #F=1"
    assert parse_conf(text) == {"NCCL_B ": " 2 ", "NCCL_C": "=eth0", "NCCL_E": "", " #F": "1"}


@given(st.text())
def test_parse_conf_never_raises(text: str) -> None:
    for name, value in parse_conf(text).items():
        assert name
        assert "=" not in name
        assert "\n" not in name + value
        assert max(len(name), len(value)) <= 1023


def test_who_wins(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (places / "system.conf").write_text("NCCL_NET=Socket\nNCCL_DEBUG=INFO\nNCCL_PROTO=LL\n")
    (places / ".nccl.conf").write_text("NCCL_NET=IB\nNCCL_NET=Socket\nNCCL_DEBUG=TRACE\n")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    seen = read_settings()
    system, own = str(places / "system.conf"), str(places / ".nccl.conf")
    assert list(seen["files"]) == [own, system]
    assert seen["effective"]["NCCL_DEBUG"] == {"value": "WARN", "where": "environment"}
    assert seen["effective"]["NCCL_NET"] == {"value": "IB", "where": own}
    assert seen["effective"]["NCCL_PROTO"] == {"value": "LL", "where": system}
    (flag,) = lint({"n0": seen | {"rdma": DEVICES}}, "rdma")
    assert (flag.variable, flag.where) == ("NCCL_PROTO", system)
    assert f"NCCL_PROTO=LL on n0 ({system}): " in flag.statement

    other = places / "other.conf"
    other.write_text("NCCL_NET=Socket\nGLOO_SOCKET_IFNAME=lo\nexport NCCL_ALGO=Ring\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(other))
    seen = read_settings()
    assert list(seen["files"]) == [str(other), system], "~/.nccl.conf is not read then"
    flags = {flag.variable: flag for flag in lint({"n0": seen}, "rdma")}
    assert flags["NCCL_NET"].severity == "fail"
    assert "only NCCL reads this file" in flags["GLOO_SOCKET_IFNAME"].why
    assert "the name contains spaces" in flags["export NCCL_ALGO"].why

    monkeypatch.setenv("NCCL_CONF_FILE", "/nowhere/nccl.conf")
    seen = read_settings()
    assert seen["missing_files"] == {"NCCL_CONF_FILE": ["/nowhere/nccl.conf"]}
    assert list(seen["files"]) == [system]


def test_unreadable_files(places: Path) -> None:
    own, system = places / ".nccl.conf", places / "system.conf"
    cases = {
        b"NCCL_NET=\xff\xfe\n": "is not UTF-8",
        b"\x00\x01NCCL_NET=Socket\n": "contains NUL bytes",
        b"NCCL_NET=IB\n" + b"# long\n" * 20_000: "is longer than 64 KiB",
    }
    for content, said in cases.items():
        own.write_bytes(content)
        _, trouble = read_nccl_conf_files({})
        assert said in trouble[str(own)]
    own.unlink()
    own.mkdir()
    os.mkfifo(system)  # a reader that opens it would wait for ever
    seen = read_settings()
    assert set(seen["trouble"].values()) == {"is not a regular file"}
    flags = lint({"n0": seen}, None)
    assert [(f.code, f.where) for f in flags] == [
        ("ENV-DOUBTFUL", str(own)),
        ("ENV-DOUBTFUL", str(system)),
    ]
    assert read_nccl_conf_files({"NCCL_CONF_FILE": "a\0b"})[1]["a\0b"].startswith("cannot be read")


def test_settings_and_lint_stand_hostile_values(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_NET", "\x1b[31mSocket\x07\u202e\nFAKE on n9: fine")
    monkeypatch.setenv("NCCL_ALGO", "a" * 100_000)
    monkeypatch.setitem(os.environb, b"NCCL_PROTO", b"\xff\xfe")
    monkeypatch.setitem(os.environb, b"NCCL_\xff\x1b[2J", b"1")
    (places / ".nccl.conf").write_text("NCCL_DEBUG_FILE=" + "x" * 5000)
    start = time.monotonic()
    seen = read_settings()
    flags = lint({"n0": seen, "n1\x1b[2J\nn2": node()}, "fab0")
    assert time.monotonic() - start < 5
    assert len(json.dumps(seen)) < 100_000
    json.dumps(seen, ensure_ascii=False).encode()
    assert {"NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG_FILE"} <= {flag.variable for flag in flags}
    for flag in flags:
        assert flag.statement == one_line(flag.statement)
        assert len(flag.statement) < 600


def test_secrets_are_never_shown(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "s3cr3t-of-thirty-two-characters-x"
    monkeypatch.setenv("NCCL_PSK", key)
    monkeypatch.setenv("NCCL_API_KEY", key)
    monkeypatch.setenv("NCCL_KENNWORT", key)
    monkeypatch.setenv("NCCL_HINTS", json.dumps({"password": key}))
    monkeypatch.setenv("NCCL_COMM_ID", f"http://user:{key}@host:1")
    monkeypatch.setenv("NCCL_ALGO", "hf_" + key.replace("-", ""))
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/tmp/" + "x" * 1000 + f"http://user:{key * 3}@host")
    lines = f"NCCL_PSKS={key}\nNCCL_TOKEN={key}\nNCCL_X=token={key}\nNCCL_X_DB_PW={key}\n"
    (places / ".nccl.conf").write_text(lines)
    own = str(places / ".nccl.conf")
    seen = read_settings()
    flags = lint({"n0": seen, "n1": node()}, "rdma")
    words = json.dumps(seen) + "".join(flag.statement for flag in flags)
    assert "s3cr3t" not in words
    assert "NCCL_PSK" in seen["environment"], "that it is set may be known"
    assert seen["environment"]["NCCL_KENNWORT"] == seen["files"][own]["NCCL_X_DB_PW"] == "set"
    assert seen["effective"]["NCCL_X_DB_PW"] == {"value": "set", "where": own}
    never = {"NCCL_COMM_ID": f"http://user:{key}@host", "NCCL_ALGO": "hf_" + "a" * 30}
    raw = lint({"n0": node(never), "n1": node({"NCCL_PSK": key})}, None)
    assert "s3cr3t" not in str(raw)
    assert "hf_a" not in str(raw)
    assert "<redacted>" in str(raw)


def test_what_a_node_says_here(places: Path) -> None:
    seen = read_settings()
    assert seen["environment"] == seen["files"] == seen["trouble"] == seen["effective"] == {}
    assert "lo" in seen["interfaces"]
    assert seen["host"]["boot_id"]
    assert effective_values({"NCCL_A": "1"}, {"/f": {"NCCL_A": "2", "NCCL_B": "3"}}) == {
        "NCCL_A": ("1", "environment"),
        "NCCL_B": ("3", "/f"),
    }
    assert redact_value("NCCL_NET", "IB") == "IB"


def test_missing_files() -> None:
    assert missing_files({"NCCL_TOPO_FILE": "/nowhere/a b.xml", "NCCL_NET_PLUGIN": "spcx"}) == {
        "NCCL_TOPO_FILE": ["/nowhere/a b.xml"]
    }
    assert missing_files({"LD_PRELOAD": "libfoo.so:/nowhere/x.so"}) == {
        "LD_PRELOAD": ["/nowhere/x.so"]
    }


# libnccl.


def test_a_version_from_name_and_from_bytes(tmp_path: Path) -> None:
    plain = tmp_path / "libnccl.so.2"
    plain.write_bytes(b"\x7fELF" + bytes(4 * 2**20 - 20) + b"NCCL version 2.27.5+cuda12.9\0")
    assert version_of(str(plain)) == "2.27.5", "the banner lies across two chunks"
    (tmp_path / "libnccl.so").symlink_to(plain)
    new = tmp_path / "new"
    new.mkdir()
    (new / "libnccl.so.2.28.9").write_bytes(b"")
    (new / "libnccl.so.2").symlink_to("libnccl.so.2.28.9")
    environment = {"LD_LIBRARY_PATH": f"{tmp_path}:{new}:", "LD_PRELOAD": f"{new}/libnccl.so.2"}
    found = [x for x in find_libraries(environment) if x["path"].startswith(str(tmp_path))]
    assert [(x["version"], x["found"]) for x in found] == [
        ("2.28.9", "LD_PRELOAD"),
        ("2.27.5", "LD_LIBRARY_PATH"),
    ]
    assert version_of(str(tmp_path)) == version_of(str(tmp_path / "nosuch")) == ""


def test_mapped_libraries() -> None:
    maps = """7f00-7f01 r--p 00000000 08:01 42    /a b/nvidia/nccl/lib/libnccl.so.2
7f01-7f02 r-xp 00000000 08:01 42    /a b/nvidia/nccl/lib/libnccl.so.2
7f02-7f03 r-xp 00000000 08:01 43    /opt/libnccl-net.so
7f03-7f04 r-xp 00000000 08:01 44    /old/libnccl.so.2.18.3 (deleted)
7f04-7f05 rw-p 00000000 00:00 0     [heap]
7f05-7f06 rw-p 00000000 00:00 0
"""
    assert mapped_paths(maps) == ["/a b/nvidia/nccl/lib/libnccl.so.2", "/old/libnccl.so.2.18.3"]
