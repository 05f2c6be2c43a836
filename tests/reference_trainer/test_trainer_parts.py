"""The trainer's parts that need no process group: knobs, data, sizes, delays, manifests."""

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from reference_trainer import manifest
from reference_trainer.__main__ import main
from reference_trainer.config import PRESETS, TrainConfig
from reference_trainer.data.documents import DataError
from reference_trainer.data.synthetic import RING, Stream, sample
from reference_trainer.distributed import VARIABLES
from reference_trainer.model.flops import (
    block_parameters,
    flops_per_token,
    parameter_count,
    peak_flops,
)
from reference_trainer.options import arguments
from reference_trainer.telemetry.event_log import JsonLines
from reference_trainer.telemetry.injected_delay import Stall, Stalls, parse_stalls


def stream(position=0, per_step=12):
    made = Stream(seed=7, seq=16, vocab=64, per_step=per_step)
    made.position = position
    return made


def test_a_sample_depends_on_seed_and_index_only():
    tokens = sample(7, 11, 40, 256)
    assert (tokens == sample(7, 11, 40, 256)).all()
    assert (tokens != sample(7, 12, 40, 256)).any()
    assert (tokens != sample(8, 11, 40, 256)).any()
    assert tokens.min() >= 0
    assert tokens.max() < 256
    assert sample(7, 11, 40, 5).max() < 5


def test_most_tokens_follow_from_the_one_before():
    tokens = sample(7, 3, 4000, 256)
    followed = (tokens[1:] == (tokens[:-1] // 7 + 1) % RING * 7).mean()
    assert 0.85 < followed < 0.92  # 7/8, and a jump lands on the next one once in RING


@pytest.mark.parametrize("world", [1, 2, 4, 5, 12])
def test_the_order_of_the_data_does_not_depend_on_the_world_size(world):
    """However many ranks share a step's samples, together they see 0, 1, 2, ... once each."""
    seen, shares = [], []
    for rank in range(world):
        mine = stream()
        for step in range(2):
            batch = mine.take(rank, world)
            seen += [(step, rank, i) for i in batch.ids]
            shares.append(len(batch.ids))
    assert [i for _, _, i in sorted(seen)] == list(range(24))
    assert max(shares) - min(shares) <= 1


def test_a_position_resumes_the_data_at_another_world_size():
    first = stream()
    for _ in range(2):
        first.take(0, 4)
    resumed = [stream(first.position).take(rank, 2).ids for rank in range(2)]
    assert resumed == [list(range(24, 30)), list(range(30, 36))]


def test_more_ranks_than_samples_is_refused():
    with pytest.raises(DataError, match="a step has 12 samples, too few for 13 ranks"):
        stream().ids(0, 13)


def test_a_batch_is_its_samples_and_its_crc_tells_them_apart():
    one, same, other = (stream(per_step=6).take(rank, 2) for rank in (1, 1, 0))
    assert one.ids == [3, 4, 5]
    assert (one.tokens[2] == sample(7, 5, 17, 64)).all()
    assert one.crc32 == same.crc32 != other.crc32
    with pytest.raises(ValueError, match=r"rank is 2, expected 0\.\.1"):
        stream().ids(2, 2)


@pytest.mark.parametrize("more", [{}, {"kv_heads": 2}, {"hidden": 50}])
def test_the_count_of_parameters_is_that_of_the_real_model(more):
    from reference_trainer.model.transformer import Transformer, count_parameters

    config = TrainConfig(dim=48, layers=3, heads=4, vocab=100, seq=20, **more)
    model = Transformer(config)
    assert parameter_count(config) == count_parameters(model)
    assert block_parameters(config) == count_parameters(model.blocks[0])


@pytest.mark.parametrize(("name", "millions"), [("125M", 125), ("1B", 1138), ("8B", 8030)])
def test_presets_have_the_size_of_their_name(name, millions):
    assert parameter_count(TrainConfig(**PRESETS[name])) / 1e6 == pytest.approx(millions, rel=0.01)


def test_a_preset_is_a_shape_that_options_may_change():
    from reference_trainer.options import config_from, config_options

    @click.command()
    @config_options
    def show(**values):
        config = config_from(values)
        click.echo(f"{config.dim} {config.layers} {config.seq} {config.vocab}")

    assert CliRunner().invoke(show, []).output == "64 2 64 256\n"
    said = CliRunner().invoke(show, ["--layers", "3", "--preset", "1B", "--seq", "512"])
    assert said.output == "2048 3 512 32000\n"
    refused = CliRunner().invoke(show, ["--preset", "70B"])
    assert refused.exit_code == 2
    assert "'70B' is not one of" in refused.output


def test_positions_turn_by_what_is_between_them_alone():
    """Rotary positions: the product of two turned vectors depends on their distance only."""
    import torch

    from reference_trainer.model.transformer import Attention, turned

    turns = Attention(TrainConfig(dim=32, heads=2, seq=24)).turns
    q, k = torch.randn(2, 1, 1, 1, 16).expand(2, 1, 1, 24, 16)
    products = turned(q, turns)[0, 0] @ turned(k, turns)[0, 0].T
    for apart in range(24):
        along = products.diagonal(apart)
        assert torch.allclose(along, along[:1].expand_as(along), atol=1e-4)
    assert not torch.allclose(products[0, 1], products[0, 5], atol=1e-3)


def test_a_token_sees_none_that_come_after_it():
    import torch

    from reference_trainer.model.transformer import Transformer

    model = Transformer(TrainConfig(heads=4, kv_heads=2)).eval()
    tokens = torch.randint(256, (1, 20))
    other = tokens.clone()
    other[0, 12] = (other[0, 12] + 1) % 256
    same = (model(tokens) == model(other)).all(dim=-1)[0]
    assert same[:12].all()
    assert not same[12:].any()


def test_flops_follow_palm():
    config = TrainConfig(dim=48, layers=3, heads=4, vocab=100, seq=20)
    matmuls = parameter_count(config) - 100 * 48 - 7 * 48
    assert flops_per_token(config) == 6 * matmuls + 12 * 3 * 48 * 20


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", None),  # slower than the other, by how much is not in the source
        ("NVIDIA GB200", 2.5e15),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA A100-40C", None),  # vGPUs
        ("GRID A100D-8-80C", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("Some Future GPU", None),
    ],
)
def test_a_peak_is_that_of_just_this_device_in_bf16(name, peak):
    assert peak_flops(name, "auto") == peak_flops(name, "bf16") == peak
    assert peak_flops(name, "fp32") is None


def test_planted_delays_are_read_and_counted():
    plan = parse_stalls("data:rank=2:seconds=0.25, clip:rank=0:seconds=0:from=3:to=4")
    assert plan[0] == Stall(segment="data", rank=2, seconds=0.25)
    stalls = Stalls(plan, rank=0)
    for step in range(1, 7):
        stalls.wait("clip", step)
        stalls.wait("data", step)
    assert stalls.fired == 2
    begun = time.perf_counter()
    Stalls(plan, rank=2).wait("data", 1)
    assert time.perf_counter() - begun >= 0.25


@pytest.mark.parametrize(
    "text",
    ["data", "data:rank=x:seconds=1", "data:rank=1", "nap:rank=1:seconds=1",
     "data:rank=1:seconds=1:until=3", "data:rank=1:seconds=-1", "data:rank=1:seconds=nan"],
)  # fmt: skip
def test_a_delay_that_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match="expected SEGMENT:rank=R:seconds=S"):
        TrainConfig(stall=text)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"dim": 65}, "dim is 65, expected a multiple of 8, twice heads=4"),
     ({"steps": 0}, "steps is 0, expected at least 1"),
     ({"dropout": 1.0}, "dropout is 1.0"),
     ({"lr": float("nan")}, "lr is nan"),
     ({"dtype": "fp8"}, "dtype is fp8, expected one of auto, fp32, bf16"),
     ({"save_every": 2}, "save_every is 2, expected 0 when no checkpoints folder is given")],
)  # fmt: skip
def test_a_wrong_knob_is_refused_with_a_sentence(values, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**values)


def test_a_configuration_travels():
    config = TrainConfig(steps=3, checkpoints="/c", save_every=1, resume=False, lr=0.5)
    assert pickle.loads(pickle.dumps(config)) == config
    assert json.loads(json.dumps(config.as_dict())) == config.as_dict()


def test_the_command_line_gives_every_knob_and_gives_it_back(monkeypatch):
    """Options are made from the fields; going there and back loses nothing."""
    from reference_trainer import train as module

    seen = []
    monkeypatch.setattr(module, "train", lambda config: seen.append(config) or {"left": False})
    for name, value in zip(VARIABLES, ("0", "1", "0", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    wanted = TrainConfig(
        steps=3, batch=2, seq=8, vocab=99, dim=32, layers=1, heads=2, kv_heads=1, hidden=40,
        dropout=0.0, lr=0.5,
        weight_decay=0.2, clip=2.0, seed=5, dtype="bf16", device="cpu", deterministic=False,
        digest=False, digest_steps=True, out="o", checkpoints="c", save_every=1, keep_last=2,
        resume=False, warmup=2, decay=9, save_mode="async", save_failures=7, forget="rng",
        pace_s=0.5, stall="data:rank=0:seconds=1", timeout_s=5.0,
        init_timeout_s=6.0, data="d", shard=4, accumulate=2, compile=True,
    )  # fmt: skip
    default = TrainConfig()
    same = {name for name, value in default.as_dict().items() if getattr(wanted, name) == value}
    assert same == {"recompute"}  # which does not go with pace_s
    for config in (wanted, default):
        done = CliRunner().invoke(main, ["train", *arguments(config)])
        assert done.exit_code == 0, done.output
    assert seen == [wanted, default]


def test_a_wrong_option_is_a_usage_error():
    done = CliRunner().invoke(main, ["train", "--dim", "65"])
    assert done.exit_code == 2
    assert "dim is 65, expected a multiple of 8, twice heads=4" in done.output


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


def test_a_command_that_lives_elsewhere_is_imported_only_when_called(monkeypatch, tmp_path):
    from reference_trainer import __main__ as front

    (tmp_path / "distant.py").write_text("import click\n@click.command()\ndef launch(): print(1)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(front, "ELSEWHERE", {"launch": ("distant", "Far away.")})
    assert "Far away." in CliRunner().invoke(main, ["--help"]).output
    assert "distant" not in sys.modules
    assert CliRunner().invoke(main, ["launch"]).output == "1\n"
    monkeypatch.setattr(front, "ELSEWHERE", {"launch": ("nowhere_at_all", "Not there.")})
    assert "launch" not in CliRunner().invoke(main, ["--help"]).output
    assert CliRunner().invoke(main, ["launch"]).exit_code == 2


def test_lines_are_seen_at_once_and_never_glued_to_half_a_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"b": ')
    lines = JsonLines(str(tmp_path), "x.jsonl")
    lines.write({"c": 3})
    assert path.read_text().splitlines() == ['{"a": 1}', '{"b": ', '{"c": 3}']
    lines.close()


def folder_with_manifest(path: Path, **changes) -> Path:
    path.mkdir()
    files = {}
    for name in (".metadata", "__0_0.distcp"):
        (path / name).write_bytes(b"content of " + name.encode())
        files[name] = manifest.describe(path / name)
    content = {"step": 4, "world": 1, "identity": {"dim": 64}, "files": files, **changes}
    manifest.write(path, **content)
    return path


def test_a_whole_checkpoint_is_accepted(tmp_path):
    path = folder_with_manifest(tmp_path / "step-4")
    assert manifest.verify(path, 4, {"dim": 64}) is None
    assert manifest.committed_steps(tmp_path) == [4]


def test_a_manifest_that_lists_too_little_proves_nothing(tmp_path):
    path = folder_with_manifest(tmp_path / "step-4", files={})
    assert manifest.verify(path, 4, {"dim": 64}) == "manifest.json lists no .metadata"


def test_an_altered_manifest_is_noticed(tmp_path):
    path = folder_with_manifest(tmp_path / "step-4")
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"world": 1', '"world": 2'))
    assert "its own sha256 does not match" in manifest.verify(path, 4, {"dim": 64})


def test_a_renamed_checkpoint_is_noticed(tmp_path):
    path = folder_with_manifest(tmp_path / "step-9")
    assert "says step 4" in manifest.verify(path, 9, {"dim": 64})


def test_only_committed_names_count(tmp_path):
    for name in ("step-12", "step-3", "step-5.tmp-ab12", "step-6.rejected-1", "steps", "step-x"):
        (tmp_path / name).mkdir()
    assert manifest.committed_steps(tmp_path) == [12, 3]
    assert [path.name for path in manifest.unfinished(tmp_path)] == ["step-5.tmp-ab12"]
    assert manifest.committed_steps(tmp_path / "nothing") == []
