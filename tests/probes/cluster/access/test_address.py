"""Where the address of a cluster comes from, and what is said where nothing answers."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import services

from probes.cluster import address
from probes.cluster.address import (
    CONNECT_SECONDS,
    OTHERWISE,
    ClusterUnreachable,
    check_spec,
    count_raylets,
    find_address,
    find_embedded,
    find_raylets,
    reaches_directly,
    read_size,
    shares_our_network,
)


def closed_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("spec", ["auto", "local", "local:1", "local:32", "ray://10.0.0.1:10001"])
def test_what_names_a_cluster(spec: str) -> None:
    check_spec(spec)
    assert count_raylets(spec) == {"local": 2, "local:1": 1, "local:32": 32}.get(spec, 0)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("atuo", "did you mean auto?"),
        ("lcoal:4", "did you mean local?"),
        ("10.0.0.1:6379", "found '10.0.0.1:6379'"),
        ("ray://host", "found 'ray://host'"),
        ("local:0", "expected 1 to 32 raylets, found 0"),
        ("local:33", "expected 1 to 32 raylets, found 33"),
        ("", "found ''"),
    ],
)
def test_what_names_no_cluster(spec: str, says: str) -> None:
    with pytest.raises(ClusterUnreachable) as caught:
        check_spec(spec)
    assert says in str(caught.value)
    assert ("did you mean" in str(caught.value)) is ("did you mean" in says)


def known(
    monkeypatch: pytest.MonkeyPatch,
    raylets: dict[str, bool],
    last: str | None,
    embedded: dict[str, str] | None = None,
) -> None:
    """What this machine knows of clusters: raylets, the last `ray start`, runs that embed one."""
    monkeypatch.setattr(address, "find_raylets", lambda: raylets)
    monkeypatch.setattr(address, "find_embedded", lambda: embedded or {})
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _: last)


@pytest.mark.parametrize(
    ("variable", "raylet", "origin"),
    [
        ("127.0.0.1:{port}", False, "from RAY_ADDRESS"),
        ("", True, "from a Ray process of this host"),
        ("", False, "from the last `ray start` of this host"),
    ],
)
def test_a_dead_address_is_said_with_its_origin(
    variable: str, raylet: bool, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = closed_port()
    found = f"127.0.0.1:{port}"
    monkeypatch.setenv("RAY_ADDRESS", variable.format(port=port))
    known(monkeypatch, {found: True} if raylet else {}, found)
    monkeypatch.setattr(services, "resolve_ip_for_localhost", lambda host: host)
    begun = time.monotonic()
    with pytest.raises(ClusterUnreachable) as caught:
        find_address("auto")
    assert time.monotonic() - begun < 2 * CONNECT_SECONDS
    assert str(caught.value).startswith(
        f"no Ray answers at {found} (address {origin}): Connection refused. Is the head up? Try"
    )


def test_a_client_address_in_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"ray://127.0.0.1:{closed_port()}")
    with pytest.raises(
        ClusterUnreachable, match=r"no Ray answers at ray://127.* \(address from RAY_ADDRESS\): "
    ):
        find_address("auto")
    monkeypatch.setenv("RAY_ADDRESS", "ray://nowhere")
    with pytest.raises(ClusterUnreachable, match="found 'ray://nowhere'"):
        find_address("auto")


def test_no_address_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    known(monkeypatch, {}, None)
    with pytest.raises(ClusterUnreachable, match="found no running Ray cluster: run seatrial on"):
        find_address("auto")


def test_a_cluster_of_another_network_namespace_is_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a lab that is up on this machine: packets for it would leave the machine."""
    known(monkeypatch, {"10.78.0.1:6379": False}, None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("sent"))
    with pytest.raises(
        ClusterUnreachable, match=r"found Ray at 10.78.0.1:6379 in another network names"
    ):
        find_address("auto")


def test_an_old_address_behind_a_router_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, {}, "198.51.100.7:6379")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("sent"))
    monkeypatch.setattr(address, "reaches_directly", lambda host: host != "198.51.100.7")
    with pytest.raises(ClusterUnreachable, match=r"not join 198.51.100.7:6379 \(from the last"):
        find_address("auto")


def test_of_several_clusters_the_last_that_was_started_is_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raylets = {"10.0.0.1:6379": True, "10.0.0.2:6379": True, "10.9.0.1:6379": False}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: StringIO())
    known(monkeypatch, raylets, "10.0.0.2:6379")
    assert find_address("auto") == "10.0.0.2:6379"
    known(monkeypatch, {"10.0.0.1:6379": True}, "10.0.0.2:6379")
    assert find_address("auto") == "10.0.0.1:6379", "the only one that runs here"
    known(monkeypatch, raylets, "10.9.0.1:6379")
    with pytest.raises(ClusterUnreachable, match=r"several clusters .10.0.0.1:6379, 10.0.0.2:6379"):
        find_address("auto")


ROUTES = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0
eth0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0
eth1 0000000A 010200C0 0003 0 0 0 000000FF 0 0 0
eth1 0000010A 00000000 0001 0 0 0 0000FFFF 0 0 0
"""
TUNNEL = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
tun0 00000000 00000000 0001 0 0 0 00000000 0 0 0
"""
# As a tunnel that leaves the default route in place: two halves of all addresses.
HALVES = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0
wg0 00000000 00000000 0001 0 0 0 00000080 0 0 0
wg0 00000080 00000000 0001 0 0 0 00000080 0 0 0
"""
FLAT = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 0000000A 00000000 0001 0 0 0 000000FF 0 0 0
"""


@pytest.mark.parametrize(
    ("host", "direct"),
    [
        ("192.0.2.9", True),
        ("10.1.2.3", True),  # the narrowest route decides
        ("10.2.2.3", False),
        ("203.0.113.1", False),
        ("127.0.0.1", True),
        ("::1", True),  # not known: the connection decides
    ],
)
def test_what_needs_no_router(
    host: str, direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "route").write_text(ROUTES)
    monkeypatch.setattr(address, "ROUTES", tmp_path / "route")
    assert reaches_directly(host) is direct
    (tmp_path / "route").write_text(TUNNEL)
    assert reaches_directly("203.0.113.1") is False, "a default route leads anywhere"
    (tmp_path / "route").write_text(HALVES)
    assert reaches_directly("203.0.113.1") is False
    assert reaches_directly("10.1.2.3") is False
    (tmp_path / "route").write_text(FLAT)
    assert reaches_directly("10.1.2.3") is True, "the largest network of private addresses"


@pytest.mark.parametrize("variable", ["auto", ""])
def test_auto_in_the_variable_is_no_way_round_the_checks(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", variable)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("sent"))
    known(monkeypatch, {"10.78.0.1:6379": False}, None)
    with pytest.raises(ClusterUnreachable, match=r"found Ray at 10.78.0.1:6379"):
        find_address("auto")
    known(monkeypatch, {}, None)
    with pytest.raises(ClusterUnreachable, match="found no running Ray cluster"):
        find_address("auto")


def test_local_in_the_variable_names_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(ClusterUnreachable, match="RAY_ADDRESS is 'local', expected host:port"):
        find_address("auto")


@pytest.mark.parametrize(
    ("own", "ours"), [("127.0.0.1", True), ("203.0.113.9", False), ("::1", None), ("", True)]
)
def test_a_namespace_that_is_not_shown_is_known_by_the_address(
    own: str, ours: bool | None, tmp_path: Path
) -> None:
    """An ordinary user cannot look into root's processes: this folder has no `ns`."""
    found = shares_our_network(tmp_path, own)
    assert found is ours or ours is None  # a machine may have no IPv6


@pytest.mark.parametrize("spec", ["auto", "http://me:s3cr3t0f@head:8265"])
def test_the_address_of_a_dashboard_is_for_submit(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who uses `ray job submit` has it set."""
    monkeypatch.setenv("RAY_ADDRESS", "http://me:s3cr3t0f@head:8265")
    with pytest.raises(ClusterUnreachable, match=r"head:8265, a dashboard.*seatrial submit") as why:
        check_spec(spec) or find_address(spec)
    assert "s3cr3t0f" not in str(why.value)


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head")
    with pytest.raises(ClusterUnreachable, match="RAY_ADDRESS is not an address"):
        find_address("auto")


def test_an_address_that_answers() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        spec = f"ray://127.0.0.1:{server.getsockname()[1]}"
        assert find_address(spec) == spec


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A cluster that answers; what was asked of Ray."""
    asked: list[Any] = []
    monkeypatch.setattr(address, "find_address", lambda spec: "10.0.0.1:6379")
    monkeypatch.setattr(address, "follow_auth_mode", asked.append)
    monkeypatch.setattr(ray, "init", lambda *_, **options: asked.append(options))
    monkeypatch.setattr(ray, "shutdown", lambda: asked.append("left"))
    return asked


@pytest.mark.parametrize(
    ("resources", "size"),
    [
        ([{"GPU": 8.0}, {"GPU": 8.0}, {"CPU": 4.0}], (2, 16)),
        ([{"CPU": 4.0}] * 3, (3, 0)),
        ([], (0, 0)),
    ],
)
def test_a_size_is_read_and_nothing_is_placed(
    joined: list[Any],
    resources: list[dict[str, float]],
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [{"Alive": True, "Resources": one} for one in resources]
    dead = {"Alive": False, "Resources": {"GPU": 8.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, dead])
    assert read_size("auto") == size
    # Quiet, and no runtime_env.
    options = {"configure_logging": False, "log_to_driver": False, "logging_level": "error"}
    assert joined == ["10.0.0.1:6379", options, "left"]


def test_a_cluster_that_refuses_is_left(joined: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConnectionError("not\nnow")

    monkeypatch.setattr(ray, "nodes", refuse)
    with pytest.raises(ClusterUnreachable, match=r"^10.0.0.1:6379 cannot be joined: not now$"):
        read_size("auto")
    assert joined[-1] == "left"


def test_raylets_are_found_by_their_flag_and_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in our network, one that does not share it, and a shell that only names the flag."""
    words = ["import time", "print(flush=True)", "time.sleep(60)"]
    command = [sys.executable, "-c", "; ".join(words)]
    fakes = [
        ([str(tmp_path / "raylet"), *command[1:], "--gcs-address=10.0.0.1:1",
          "--node_ip_address=10.0.0.9"], False),
        (["unshare", "-n", str(tmp_path / "raylet"), *command[1:], "--gcs-address=10.0.0.2:1"],
         os.geteuid() != 0),
        ([*command, "--gcs-address=10.0.0.3:1"], False),
    ]  # fmt: skip
    (tmp_path / "raylet").symlink_to(sys.executable)
    asked: list[str] = []

    def shares(process: Path, own: str) -> bool:
        asked.append(own)
        return shares_our_network(process, own)

    monkeypatch.setattr(address, "shares_our_network", shares)
    with ExitStack() as stack:
        for words, skipped in fakes:
            if not skipped:
                child = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
                stack.callback(child.kill)
                assert child.stdout is not None
                child.stdout.readline()  # it runs
        found = find_raylets()
    assert found["10.0.0.1:1"] is True
    assert found.get("10.0.0.2:1", False) is False
    assert "10.0.0.3:1" not in found
    assert "10.0.0.9" in asked, "its own address"


OTHERS = {"192.0.2.2:35503": "3 raylets of process 4321 of jane"}


def test_an_embedded_cluster_of_another_run_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("sent"))
    known(monkeypatch, {}, None, OTHERS)
    with pytest.raises(ClusterUnreachable) as caught:
        find_address("auto")
    assert str(caught.value) == (
        "--cluster auto does not join the cluster of another run (--cluster local). Found: "
        "192.0.2.2:35503 (3 raylets of process 4321 of jane). Wait until that run ends, "
        f"{OTHERWISE}. To use the found cluster, set RAY_ADDRESS=192.0.2.2:35503, and give "
        "--wait-for-room 30m"
    )


@pytest.mark.parametrize("last", [None, "10.0.0.1:6379"])
def test_a_cluster_beside_an_embedded_one_is_joined(
    last: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sound use: a node of a real cluster, on which a colleague rehearses."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: StringIO())
    known(monkeypatch, {"10.0.0.1:6379": True}, last, OTHERS)
    assert find_address("auto") == "10.0.0.1:6379"
    monkeypatch.setattr(address, "reaches_directly", lambda host: True)
    known(monkeypatch, {}, "10.0.0.1:6379", OTHERS)
    assert find_address("auto") == "10.0.0.1:6379"


def test_an_embedded_cluster_is_joined_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.2:35503")
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: StringIO())
    known(monkeypatch, {}, None, OTHERS)
    assert find_address("auto") == "192.0.2.2:35503"


def test_raylets_of_a_run_are_found_with_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two raylets of a run, one of a cluster with a folder of nearly that name, and one of none."""
    (tmp_path / "raylet").symlink_to(sys.executable)
    sleep = ["-c", "print(flush=True); import time; time.sleep(60)"]
    raylet = [str(tmp_path / "raylet"), *sleep]
    ours = "--temp_dir=/tmp/sea-ab0_9xyz/ray"
    start = (
        "import subprocess, sys;"
        "ends = [subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE) for _ in range(2)];"
        "[end.stdout.readline() for end in ends]; print(flush=True); sys.stdin.read();"
        "[end.kill() for end in ends]"
    )
    embedded = [sys.executable, "-c", start, *raylet, "--gcs-address=10.0.0.1:1", ours]
    others = [
        [*raylet, "--gcs-address=10.0.0.2:1", "--temp_dir=/tmp/sea-prod/ray"],
        [*raylet, "--gcs-address=10.0.0.3:1", "--temp-dir=/tmp/ray"],
    ]
    with ExitStack() as stack:
        run = subprocess.Popen(
            embedded, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        stack.callback(run.communicate)  # its input ends, and so does it
        children = [subprocess.Popen(words, stdout=subprocess.PIPE) for words in others]
        for child in children:
            stack.enter_context(child)
            stack.callback(child.kill)
        for child in (run, *children):
            assert child.stdout is not None
            child.stdout.readline()  # it runs
        clusters, runs = find_raylets(), find_embedded()
        monkeypatch.setattr(address, "shares_our_network", lambda *_: False)  # as in a container
        assert find_embedded() == {}
    assert "10.0.0.1:1" not in clusters
    assert clusters["10.0.0.2:1"] is clusters["10.0.0.3:1"] is True
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert runs["10.0.0.1:1"] == f"2 raylets of process {os.getpid()} of {user}"
    assert not {"10.0.0.2:1", "10.0.0.3:1"} & runs.keys()


def test_a_run_that_is_not_shown_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc may hide the processes of other users."""
    assert address._owner(Path("/proc/999999999")) == "an unknown process"

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as run:
        named = address._owner(Path("/proc") / str(run.pid))  # the tests' own leader may be hidden
    assert named == f"process {os.getpid()} of uid {os.geteuid()}"


def test_whether_an_address_is_ours_is_asked_with_any_free_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ordinary user may bind no port below 1024."""
    asked: list[Any] = []

    class Socket(socket.socket):
        def bind(self, place: Any) -> None:
            asked.append(place)
            super().bind(place)

    monkeypatch.setattr(socket, "socket", Socket)
    assert address.is_own_address("127.0.0.1")
    assert not address.is_own_address("192.0.2.7")
    assert asked == [("127.0.0.1", 0), ("192.0.2.7", 0)]
