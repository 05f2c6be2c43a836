"""The training loop.  Needs only RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

Steps count from 1.  `step-N` is the state after step N; a run resumed from it begins with N+1.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from reference_trainer import rng
from reference_trainer.checkpoint import Checkpoints, Choice, Training
from reference_trainer.config import TrainConfig
from reference_trainer.data import Stream
from reference_trainer.flops import flops_per_token, peak_flops
from reference_trainer.journal import Journal
from reference_trainer.model import Transformer, count_parameters, next_token_loss
from reference_trainer.pace import Pace
from reference_trainer.spans import CudaClock, HostClock, Spans
from reference_trainer.stall import Stalls
from reference_trainer.world import World, join

log = logging.getLogger("reference_trainer")


def train(config: TrainConfig, mesh: Any = None) -> dict[str, Any]:
    """Train on all ranks of the job, or on those of `mesh` (1-D DeviceMesh); one rank's result.

    Keys: rank, world, host, device, params, tokens_per_step (all ranks), start_step (0: fresh),
    resumed_from, resume_note, skipped, rng_restored, steps (one dict each, see `_numbers`),
    spans, checkpoints, stalls_fired, digest, peak_memory_bytes (None on a CPU).
    Raises LaunchError (not started as a rank) or CheckpointError (on every rank alike).
    """
    with join(config, mesh) as world:
        run = Run(config, world)
        try:
            run.loop()
            return run.finish()
        finally:
            run.close()


class Run:
    """One rank's part in one run: what the loop needs, made or resumed."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.config, self.world = config, world
        self.model = build_model(config, world)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay
        )
        self.stream = Stream(
            seed=config.seed, seq=config.seq, vocab=config.vocab, batch=config.batch
        )
        self.journal = Journal(world.rank, config.out)
        clock = CudaClock() if world.device.type == "cuda" else HostClock()
        self.spans = Spans(clock, world.rank, config.out)
        self.stalls = Stalls(config.stalls, world.rank)
        self.steps: list[dict[str, Any]] = []
        self.saved: list[dict[str, Any]] = []
        self.checkpoints: Checkpoints | None = None
        if config.checkpoints is not None:
            self.checkpoints = Checkpoints(
                config.checkpoints, world, config.identity(), config.keep_last
            )
        self.rng_restored = False
        self.resumed = self._resume()  # last, for it restores the random state
        self._announce()

    def loop(self) -> None:
        """All steps that are left."""
        config, world, spans = self.config, self.world, self.spans
        self.model.train()
        for step in range(self.resumed.step + 1, config.steps + 1):
            spans.begin(step)
            self.journal.write("begin", step=step)
            self._close("other", step)

            batch = self.stream.take(world.rank, world.size)
            tokens = torch.from_numpy(batch.tokens).to(world.device)
            self._close("data", step)

            loss = next_token_loss(self.model(tokens[:, :-1]), tokens[:, 1:])
            self._close("forward", step)

            loss.backward()
            self._close("backward", step)

            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
            norm, mean = norm.full_tensor(), world.mean(loss)
            self._close("clip", step)

            self.optimizer.step()
            self.optimizer.zero_grad()
            self._close("optimizer", step)

            if self._save_is_due(step):
                self._save(step)
                self._close("checkpoint", step)

            numbers = {"loss": mean.item(), "local_loss": loss.item(), "norm": norm.item()}
            self._close("other", step)
            self._record(step, numbers, batch.ids, batch.crc32)
            if len(self.steps) == 1:
                # Connections are up and kernels loaded: from here on, slow means broken.
                world.set_timeout(config.timeout_s)

    def finish(self) -> dict[str, Any]:
        """The result, also written to `<out>/result.rank{r}.json`."""
        world, on_gpu = self.world, self.world.device.type == "cuda"
        result = {
            **_place(world),
            "params": count_parameters(self.model),
            "tokens_per_step": world.size * self.config.batch * self.config.seq,
            "start_step": self.resumed.step,
            "resumed_from": self.resumed.path,
            "resume_note": self.resumed.note,
            "skipped": self.resumed.skipped,
            "rng_restored": self.rng_restored,
            "steps": self.steps,
            "spans": self.spans.records,
            "checkpoints": self.saved,
            "stalls_fired": self.stalls.fired,
            "digest": digest(self.model) if self.config.digest else None,
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        }
        self.journal.write("end", digest=result["digest"], steps=len(self.steps))
        if self.config.out is not None:
            path = Path(self.config.out) / f"result.rank{world.rank}.json"
            path.write_text(json.dumps(result), encoding="ascii")
        return result

    def close(self) -> None:
        """Close the files."""
        self.journal.close()
        self.spans.close()

    def _resume(self) -> Choice:
        rng.seed_all(self.config.seed, self.world.rank)
        if self.checkpoints is None:
            note = "no checkpoint folder: starting from step 0"
            return Choice(step=0, path=None, saved_world=0, skipped=[], note=note)
        choice = self.checkpoints.open(self.config.resume)
        if choice.path is not None:
            training = Training(model=self.model, optimizer=self.optimizer)
            self.stream.position, state = self.checkpoints.load(choice, training)
            if state is not None and self.config.restore_rng:
                rng.restore(state)
                self.rng_restored = True
        return choice

    def _save_is_due(self, step: int) -> bool:
        every = self.config.save_every
        return every > 0 and (step % every == 0 or step == self.config.steps)

    def _save(self, step: int) -> None:
        assert self.checkpoints is not None  # TrainConfig: save_every needs a folder
        self.journal.write("saving", step=step)
        self.world.set_timeout(self.config.init_timeout_s)  # a file system may be slow
        training = Training(model=self.model, optimizer=self.optimizer)
        self.saved.append(self.checkpoints.save(step, self.stream.position, training))
        self.world.set_timeout(self.config.timeout_s)
        self.journal.write("saved", **self.saved[-1])

    def _close(self, segment: str, step: int) -> None:
        """End a segment of the step; a planted delay belongs to the segment that it delays."""
        self.stalls.wait(segment, step)
        self.spans.mark(segment)

    def _record(self, step: int, numbers: dict[str, float], ids: list[int], crc32: str) -> None:
        span = self.spans.end()
        record = {
            "step": step,
            **_numbers(numbers),
            "lr": self.optimizer.param_groups[0]["lr"],
            "seconds": span["seconds"],
            "tokens": self.config.batch * self.config.seq,
            "ids": ids,
            "data_crc32": crc32,
        }
        self.steps.append(record)
        self.journal.write("step", **record)
        if self.world.rank == 0:
            log.info("%s", self._line(record))

    def _announce(self) -> None:
        config, world, resumed = self.config, self.world, self.resumed
        self.journal.write(
            "start",
            **_place(world),
            pid=os.getpid(),
            config=config.as_dict(),
            start_step=resumed.step,
            resumed_from=resumed.path,
            skipped=resumed.skipped,
        )
        if world.rank != 0:
            return
        log.info("%d ranks on %s, %d parameters", world.size, world.device, self._parameters())
        for skipped in resumed.skipped:
            log.info("skipped %s: %s", skipped["name"], skipped["reason"])
        log.info("%s", resumed.note)
        if resumed.path is not None and not self.rng_restored:
            log.info("the random state was not restored: %s", self._why_not_restored())
        if config.pace_s > 0:
            log.info("emulated accelerator: compute padded to %g s a step", config.pace_s)
        for stall in config.stalls:
            log.info("planted delay: %s", stall)

    def _parameters(self) -> int:
        return count_parameters(self.model)

    def _why_not_restored(self) -> str:
        if not self.config.restore_rng:
            return "switched off"
        return f"saved by {self.resumed.saved_world} ranks, now {self.world.size}"

    def _line(self, record: dict[str, Any]) -> str:
        rate = self.world.size * record["tokens"] / record["seconds"]
        line = (
            f"step {record['step']}/{self.config.steps}  loss {record['loss']:.4f}"
            f"  norm {record['norm']:.4f}  lr {record['lr']:.1e}"
            f"  {record['seconds']:.3f} s  {rate:,.0f} tok/s"
        )
        if self.world.device.type == "cuda":
            peak = peak_flops(torch.cuda.get_device_name(self.world.device))
            if peak is not None:
                used = flops_per_token(self.config) * rate / self.world.size
                line += f"  mfu {used / peak:.1%}"
        return line


def build_model(config: TrainConfig, world: World) -> Any:
    """The model, the same on all ranks, sharded over them block by block (FSDP2).

    Every rank draws the whole of the weights on its own device and keeps its shard, so a model
    must fit on one device for a moment.
    """
    torch.manual_seed(config.seed)
    with world.device:
        model = Transformer(config)
    bf16 = config.dtype == "bf16" or (config.dtype == "auto" and world.device.type == "cuda")
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None, reduce_dtype=torch.float32
    )
    for block in model.blocks:
        fully_shard(block, mesh=world.mesh, mp_policy=policy)
    fully_shard(model, mesh=world.mesh, mp_policy=policy)
    if config.pace_s > 0:
        pace = Pace(config.pace_s, config.layers)
        for block in model.blocks:
            pace.attach(block)
    return model


def digest(model: Any) -> str:
    """sha256 of all parameters, whole, in order of name; all ranks call it and get the same."""
    whole = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        full = parameter.detach().full_tensor().float().cpu().contiguous()
        whole.update(name.encode())
        whole.update(full.numpy().tobytes())
    return whole.hexdigest()


def _place(world: World) -> dict[str, Any]:
    where = {"rank": world.rank, "world": world.size, "host": world.host}
    return {**where, "device": str(world.device)}


def _numbers(numbers: dict[str, float]) -> dict[str, Any]:
    """Each number, and its exact bits as text, for comparing two runs bit by bit."""
    return {**numbers, **{f"{name}_hex": value.hex() for name, value in numbers.items()}}
