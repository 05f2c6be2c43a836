"""The command line."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import asdict

from click.testing import CliRunner

from reference_trainer.__main__ import main
from reference_trainer.config import TrainConfig, cli_options
from reference_trainer.rank_environment import LAUNCH_VARIABLES


def test_the_command_line_gives_every_knob_and_gives_it_back(monkeypatch):
    """Options are made from the fields; going there and back loses nothing."""
    from reference_trainer import train as module

    seen = []
    monkeypatch.setattr(module, "train", lambda config: seen.append(config) or {"left": False})
    for name, value in zip(LAUNCH_VARIABLES, ("0", "1", "0", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    wanted = TrainConfig(
        steps=3, batch=2, seq=8, vocab=99, dim=32, layers=1, heads=2, kv_heads=1, hidden=40,
        dropout=0.0, lr=0.5,
        weight_decay=0.2, clip=2.0, seed=5, dtype="bf16", device="cpu", deterministic=False,
        digest=False, digest_steps=True, out="o", checkpoints="c", save_every=1, keep_last=2,
        resume=False, warmup=2, decay=9, save_mode="async", save_failures=7, forget="rng",
        pace_s=0.5, stall="data:rank=0:seconds=1", timeout_s=5.0,
        init_timeout_s=6.0, data="d", shard=4, accumulate=2, compile=True,
            digest_start=True, validate=3, export="e", keep_export=False, show="A,B",
            plant="weights",
    )  # fmt: skip
    default = TrainConfig()
    same = {name for name, value in asdict(default).items() if getattr(wanted, name) == value}
    assert same == {"recompute"}  # which does not go with pace_s
    for config in (wanted, default):
        done = CliRunner().invoke(main, ["train", *cli_options(config)])
        assert done.exit_code == 0, done.output
    assert seen == [wanted, default]


def test_a_wrong_option_is_a_usage_error():
    done = CliRunner().invoke(main, ["train", "--dim", "65"])
    assert done.exit_code == 2
    assert "dim is 65, expected a multiple of 8, which is 2 x heads" in done.output


def test_a_file_is_no_folder_to_write_to(tmp_path):
    (tmp_path / "file").write_text("ours")
    done = CliRunner().invoke(main, ["train", "--out", str(tmp_path / "file")])
    assert done.exit_code == 2
    assert "--out must be a folder, but " in done.output


def test_help_is_instant_and_needs_no_torch():
    code = (
        "import sys\nsys.modules['torch'] = sys.modules['ray'] = None\n"
        "from reference_trainer.__main__ import main\nmain(sys.argv[1:])"
    )
    for words in (["--help"], ["train", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=20
        )
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "reference_trainer", "--help"], check=True, timeout=20,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    assert time.perf_counter() - begun < 2  # 0.1 s here; the bound leaves room for a busy machine
