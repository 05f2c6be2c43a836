"""An embedded cluster on a host that has GPUs: its ranks find none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from probes.cluster.embedded import LocalCluster

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
    finally:
        cluster.close()
    # Ray 2.40 hides all GPUs from a task that asks for none by an empty list.
    assert said.stdout.splitlines()[-1] in ("['-1', '-1']", "['-1', '']"), said.stderr
