"""No false alarm of HOSTS: 20 sound clusters of other sizes, heads, GPUs, users and access."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reports.measurement import Verdict
from reports.run_folder.integrity import load
from tests.faults.launchers.injected_faults import all_caught, findings, is_sound
from tests.support.paths import REPO
from tests.support.trial import acceptance, agreed, lab_of

pytestmark = pytest.mark.soak(criterion="hosts")
EIGHT = {"gpus_per_node = 1": "gpus_per_node = 8"}
BOARDS = {"gpus": 8, "with_nvml": True}
USER = 1000  # not root, and in no group
LABS: list[tuple[int, dict[str, Any]]] = [
    *((nodes, {}) for nodes in range(2, 9)),
    *((nodes, BOARDS) for nodes in (2, 3, 4)),
    *((nodes, {"idle_head": True}) for nodes in (3, 4, 5)),
    (3, {**BOARDS, "idle_head": True}),
    *((nodes, {"auth": "token"}) for nodes in (2, 3, 4)),
]


@pytest.mark.parametrize(("nodes", "options"), LABS)
def test_a_sound_lab_passes(nodes: int, options: dict[str, Any]) -> None:
    with lab_of(nodes, "sound", **options) as lab:
        contract, probes = "lab", ["probes/hosts"]
        if "gpus" in options:
            contract = agreed(lab, EIGHT)
            # So many emulated accelerators wait for two cores: no control slows one of them.
            probes += ["-k", "not computes_rightly and not slows_down"]
        record, trial = acceptance(lab, "sound", *probes, contract=contract)
        is_sound(record, trial)


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_an_embedded_cluster_of_an_ordinary_user_passes(nodes: int, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        tmp_path.chmod(0o777)
        for folder in [*tmp_path.parents][:3]:
            folder.chmod(folder.stat().st_mode | 0o755)
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    readable = [*user, "test", "-r", str(REPO / "pyproject.toml"), "-a", "-r", sys.executable]
    if subprocess.run(readable, check=False).returncode:
        pytest.skip("NOT RUN: an ordinary user cannot read this checkout")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "probes/hosts"]
    command += ["--cluster", f"local:{nodes}", "--contract", "local"]
    done = subprocess.run(
        [*user, *command, "--run-dir", str(tmp_path / "run")],
        cwd=REPO,
        env={**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        text=True,
        capture_output=True,
        timeout=400,
        check=False,
    )
    log = done.stdout + done.stderr
    assert (tmp_path / "run").is_dir(), log[-4000:]
    record = load(tmp_path / "run")
    assert record.verdict("HOSTS") is Verdict.PASS, log[-4000:]
    assert not findings(record)
    assert all_caught(record)
