"""An embedded cluster: no rank finds a GPU of the host, and others know whose it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from probes.cluster.address import find_embedded, find_raylets
from probes.cluster.embedded import LocalCluster
from tests.support.paths import REPO

pytestmark = pytest.mark.alone

ASK = """
import os, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
look = ray.remote(lambda: os.environ.get("CUDA_VISIBLE_DEVICES"))
print(ray.get([look.options(num_gpus=1).remote(), look.options(num_gpus=0).remote()], timeout=60))
"""


def test_no_rank_of_emulated_gpus_finds_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # as whoever starts it may have it
    cluster = LocalCluster(1)
    try:
        ask = [sys.executable, "-c", ASK, cluster.info["address"]]
        said = subprocess.run(ask, capture_output=True, text=True, timeout=120)
        embedded, others = find_embedded(), find_raylets()
    finally:
        cluster.close()
    assert embedded[cluster.info["address"]].startswith(f"1 raylet of process {os.getpid()} of ")
    assert cluster.info["address"] not in others  # of other clusters
    # Ray 2.40 hides all GPUs from a task that asks for none by an empty list.
    assert said.stdout.splitlines()[-1] in ("['-1', '-1']", "['-1', '']"), said.stderr


HOLD = """
import json, sys, ray
from ray.experimental.internal_kv import _internal_kv_put
ray.init(sys.argv[1], log_to_driver=False)
@ray.remote(num_gpus=1)
class Holder:
    def ready(self): pass
holder = Holder.remote()
ray.get(holder.ready.remote(), timeout=60)
job = ray.get_runtime_context().get_job_id()
claim = json.dumps({"job": job, "host": "there", "started": "10:00"}).encode()
_internal_kv_put(b"trial", claim, namespace=b"seatrial")
print(job, flush=True)
sys.stdin.read()
"""
LOOK = """
import sys
from probes.cluster.cluster import connect
from probes.cluster.room import OtherTrial
cluster = connect("auto")
print(cluster.describe_busy(1))
try:
    cluster.claim("11:00", 0, print)
except OtherTrial as error:
    print(error)
cluster.end_claim(sys.argv[1])
cluster.claim("11:00", 0, print)
cluster.release()
print("claimed and released")
cluster.close()
"""


def test_who_holds_a_cluster_is_said_and_a_planted_claim_is_ended() -> None:
    cluster = LocalCluster(1)
    address = cluster.info["address"]
    variables = {**os.environ, "PYTHONPATH": str(REPO), "RAY_ADDRESS": address}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        job = holder.stdout.readline().strip()
        look = [sys.executable, "-c", LOOK, job]
        said = subprocess.run(look, capture_output=True, text=True, timeout=120, env=variables)
    finally:
        holder.communicate()
        cluster.close()
    held, refused, ended = said.stdout.splitlines()[-3:]
    assert re.fullmatch(
        rf"1 GPU on \S+ is held by actor Holder of job {job}, namespace \S+", held
    ), said  # fmt: skip
    begin = f"another run of seatrial uses this cluster, started on there at 10:00 (job {job}, "
    assert refused.startswith(f"{begin}process {holder.pid} on ")
    assert refused.endswith(f"remove its lock with `seatrial cleanup --unclaim {job}`")
    assert ended == "claimed and released"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "Failed to start the dashboard\\nThe last 20 lines of dashboard.log:\\nINFO Loaded 9",
            "Failed to start the dashboard",
        ),
        ("", "Exception"),
    ],
)
def test_why_it_did_not_start_is_one_line_without_rays_logs(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray ends such an error with lines of its logs.  Its package is a stub here."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/__init__.py").touch()
    stub = f'class Cluster:\n    def add_node(self, **_):\n        raise Exception("{text}")\n'
    stub += "    def shutdown(self):\n        pass\n    address = None\n"
    (tmp_path / "ray/cluster_utils.py").write_text(stub)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError) as raised:
        LocalCluster(2)
    assert str(raised.value) == f"the cluster of --cluster local:2 did not start: {why}"


def test_a_process_that_ends_at_once_leaves_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\necho no such module >&2\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(RuntimeError, match=r"did not start: no such module$"):
        LocalCluster(2)
