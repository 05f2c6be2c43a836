"""Runs the training loop. Needs only RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

Steps count from 1. `step-N` is the state after step N; a run resumed from it begins with N+1.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from reference_trainer.checkpoint import checkpointer as rng
from reference_trainer.checkpoint.checkpointer import Checkpointer, TrainState
from reference_trainer.checkpoint.select import Selection
from reference_trainer.closing import close_job
from reference_trainer.config import TrainConfig, lr_factor
from reference_trainer.data.shard_assignment import open_stream
from reference_trainer.distributed import World, identify_gpu, join_job, start_reading
from reference_trainer.manifest import CheckpointError
from reference_trainer.model import transformer
from reference_trainer.model.size import flops_per_token, peak_flops, require_memory
from reference_trainer.model.transformer import count_parameters, next_token_loss, parameter_digest
from reference_trainer.rank_environment import PlantedErrors, connect_master, read_rings
from reference_trainer.telemetry import event_log
from reference_trainer.telemetry.event_log import PROGRESS, DelayInjector, EventLog, process_age
from reference_trainer.telemetry.step_timer import CudaClock, HostClock, StepTimer, time_fsdp_waits

log = logging.getLogger("reference_trainer")


def train(config: TrainConfig, mesh: Any = None) -> dict[str, Any]:
    """Train on all ranks of the job, or those of `mesh` (1-D DeviceMesh); return a rank's result.

    Keys: rank, world, host, device, gpu (its UUID; None on a CPU), params, tokens_per_step (all
    ranks), start_step (0: fresh), resumed_from, resume_note, skipped, rng_restored, load_seconds,
    load_bytes, steps (one dict each, see `_record`), spans, checkpoints (committed), unsaved (saves
    that failed), left (True: left on SIGTERM before the last step), rings (NCCL's through this
    rank, see rank_environment.py; None if it logged none, and on a CPU), stalls_fired, master
    (address of rank 0's store as this rank reaches it), start_digest (of this rank's own weights
    before the first step; "" unless asked), digest, peak_memory_bytes (of all steps but the first),
    and peak_flops (both None on a CPU, the latter also where flops.peak_flops does not know it),
    device_name, and those of closing.close_job.

    Raises LaunchError (not started as a rank), and on every rank alike MemoryShortage (before the
    first step), CheckpointError or DataError.
    """
    PROGRESS.update("starting")
    try:
        return _run(config, mesh)
    finally:
        PROGRESS.update("ended")
        PROGRESS.stop_requested.clear()  # for this run only; the process may run another
        free_memory()


def _run(config: TrainConfig, mesh: Any) -> dict[str, Any]:
    with join_job(config, mesh) as world, closing(Trainer(config, world)) as trainer:
        trainer.loop()
        return trainer.finish()


def free_memory() -> None:
    """Free what a run that has ended held: the next run in this process needs the memory.

    FSDP's modules are in reference cycles, which only the garbage collector breaks. A model of 1B
    holds 13.7 GB, and a process trains ten times.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class Trainer:
    """One rank's part in one run: all that the loop needs, made or resumed."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.config, self.world = config, world
        require_memory(config, world)
        self.errors = PlantedErrors(config.plant, world.rank, world.size)
        self.master, self.start_digest = connect_master(), ""  # rank 0's store is up by now
        odd = self.errors.here("weights")
        self.model = transformer.build_model(config, world, self._note_start, odd)
        # The compiled loss makes no copies of the logits, which are the largest tensors of all.
        self.loss = torch.compile(next_token_loss) if config.compile else next_token_loss
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: self.errors.sign * lr_factor(step, config.warmup, config.decay),
        )
        self.stream = open_stream(config, world)
        self.state = TrainState(self.model, self.optimizer, self.schedule, self.stream)
        self.events = EventLog(config.out, f"metrics.rank{world.rank}.jsonl")
        on_gpu = world.device.type == "cuda"
        self.timer = StepTimer(CudaClock() if on_gpu else HostClock(), world.rank, config.out)
        self.device_name = "CPU"
        self.peak_flops: float | None = None  # this rank's GPU; None if unknown
        if on_gpu:
            time_fsdp_waits(self.model, self.timer)
            self.device_name = torch.cuda.get_device_name(world.device)
            self.peak_flops = peak_flops(self.device_name, config.dtype)
        self.delays = DelayInjector(config.delays, world.rank)
        self.steps: list[dict[str, Any]] = []
        self.saved: list[dict[str, Any]] = []
        self.failed_saves: list[dict[str, Any]] = []
        self.rings: list[str] | None = None
        self.failure_streak = 0  # saves that failed in a row
        self.checkpointer: Checkpointer | None = None
        if config.checkpoints is not None:
            self.checkpointer = Checkpointer(config, world, self.state, self.delays, self.events)
        self.rng_restored, self.stopped_early, self.load_seconds = False, False, 0.0
        self.resumed = self._resume()  # last, because it restores the random state
        self._log_start()

    def _note_start(self, model: Any) -> None:
        if self.config.digest_start:
            self.start_digest = parameter_digest(model, sharded=False)

    def loop(self) -> None:
        """Take all steps that are left, or until SIGTERM on any rank."""
        world = self.world
        self.model.train()
        for step in range(self.resumed.step + 1, self.config.steps + 1):
            self._take_step(step)
            if len(self.steps) == 1:
                # Connections are up and kernels loaded: later collectives get the short time-out.
                world.set_timeout(self.config.timeout_s)
                if world.device.type == "cuda":
                    self._note_rings()
                    # The initialisation held the complete model: do not count it in the peak.
                    torch.cuda.reset_peak_memory_stats(world.device)
            if self.stopped_early:
                break
        if self.checkpointer is not None:
            self._count_saves(self.checkpointer.wait())

    def _note_rings(self) -> None:
        """Record the rings, and with them the order of NCCL's sums, if the run is deterministic."""
        if self.config.deterministic:
            self.rings = read_rings(self.world.ring_log_start)
            self.events.write("rings", rings=self.rings)

    def _take_step(self, step: int) -> None:
        world = self.world
        self.timer.begin(step)
        PROGRESS.update("training" if self.steps else "starting", step)
        self.events.write("begin", step=step)
        self._end_segment("other", step)

        self.errors.strike(step)
        if self.errors.here("repeat"):
            self.stream.position = 0
        batch = self.stream.take(0 if self.errors.here("samples") else world.rank, world.size)
        tokens = torch.from_numpy(batch.tokens).to(world.device)
        # FSDP averages over ranks: a rank with a larger share of the step needs a larger weight.
        share = len(batch.ids) * world.size / self.stream.per_step
        self._end_segment("data", step)
        loss = self._forward_backward(tokens, share, step)
        metrics = self._update_model(loss, share, step)
        if self._save_is_due(step):
            self._save(step)
            self._end_segment("checkpoint", step)

        digests = {"digest": parameter_digest(self.model)} if self.config.digest_steps else {}
        self._end_segment("other", step)
        self._record(step, metrics, batch.ids, {"data_crc32": batch.crc32, **digests})

    def _forward_backward(self, tokens: Any, share: float, step: int) -> Any:
        """Run forward and backward, part by part; return the mean loss of this rank's sequences."""
        # The same number of parts on every rank, because each part is a round of collectives.
        min_samples = self.stream.min_samples(self.world.size)
        parts = tokens.tensor_split(min(self.config.accumulate, min_samples))
        total_loss = 0.0
        for number, part in enumerate(parts, 1):
            if len(parts) > 1:  # sum locally until the last: one reduce-scatter a step
                self.model.set_requires_gradient_sync(number == len(parts))
            loss = self.loss(self.model(part[:, :-1]), part[:, 1:])
            self._end_segment("forward", step)
            weight = share * (len(part) / len(tokens))
            (loss * weight if weight != 1 else loss).backward()
            total_loss = total_loss + loss.detach() * (len(part) / len(tokens))
            self._end_segment("backward", step)
        return total_loss

    def _update_model(self, loss: Any, share: float, step: int) -> dict[str, float]:
        """Clip the gradients, take the optimizer's step and return the step's metrics."""
        config, world = self.config, self.world
        gradients = transformer.local_gradients(self.parameters)
        flag = loss.new_full((), PROGRESS.stop_requested.is_set())  # new_tensor waits for the GPU
        own = torch.stack([loss * share, flag, transformer.square_sum(gradients)])
        mean, stop, total = world.mean(own)
        norm = (total * (config.shard or world.size)).sqrt()  # over one copy of the model
        transformer.clip_gradients(gradients, norm, config.clip)
        reported = mean * (world.size if self.errors.everywhere("metrics") else 1)
        numbers = start_reading(torch.stack([reported, loss, norm, stop]))
        self._end_segment("clip", step)

        self.optimizer.step()
        self.optimizer.zero_grad()
        (rate,) = self.schedule.get_last_lr()
        self.schedule.step()
        self._end_segment("optimizer", step)
        all_loss, own_loss, norm, stop = numbers()
        self.timer.read_waits()
        self.stopped_early = stop > 0 and step < config.steps
        return {"loss": all_loss, "local_loss": own_loss, "norm": norm, "lr": float(rate)}

    def finish(self) -> dict[str, Any]:
        """Return the result; also write it to `<out>/result.rank{r}.json`."""
        world, on_gpu = self.world, self.world.device.type == "cuda"
        result = {
            **_rank_location(world),
            "params": count_parameters(self.model),
            "tokens_per_step": world.size * self.config.batch * self.config.seq,
            "start_step": self.resumed.step,
            "resumed_from": self.resumed.path,
            "resume_note": self.resumed.note,
            "skipped": self.resumed.skipped,
            "rng_restored": self.rng_restored,
            "load_seconds": self.load_seconds,
            "load_bytes": self.resumed.size_bytes,
            "steps": self.steps,
            "spans": self.timer.records,
            "checkpoints": self.saved,
            "unsaved": self.failed_saves,
            "left": self.stopped_early,
            "rings": self.rings,
            "stalls_fired": self.delays.fired,
            "master": self.master,
            "start_digest": self.start_digest,
            "digest": parameter_digest(self.model) if self.config.digest else None,
            **close_job(self.model, self.config, world, self.errors),
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
            "device_name": self.device_name,
            "peak_flops": self.peak_flops,
        }
        self.events.write("end", digest=result["digest"], steps=len(self.steps))
        if self.config.out is not None:
            path = Path(self.config.out) / f"result.rank{world.rank}.json"
            path.write_text(json.dumps(result), encoding="ascii")
        return result

    def close(self) -> None:
        """Close the data stream and the files, after a moment for a save in the background."""
        if self.checkpointer is not None:
            self.checkpointer.abandon()
        self.stream.close()
        self.events.close()
        self.timer.close()

    def _resume(self) -> Selection:
        config, world, forget = self.config, self.world, self.config.forget
        rng.seed_all(config.seed, world.rank)
        if self.checkpointer is None:
            note = "no checkpoint folder is given: starting from step 0"
            return Selection(step=0, path=None, saved_world=0, skipped=[], note=note)
        start = time.perf_counter()
        choice = self.checkpointer.select(config.resume)  # reads all of it, to verify it
        if choice.path is None:
            return choice
        rng.seed_all(config.seed, world.rank, choice.step)
        rng_bytes = self.checkpointer.load(choice, forget)
        self.stream.position += forget == "data"
        if rng_bytes is not None and forget not in ("rng", "all"):
            rng.restore(rng_bytes)
            self.rng_restored = True
        self.load_seconds = time.perf_counter() - start
        return choice

    def _save_is_due(self, step: int) -> bool:
        if self.stopped_early:  # even if save_every is 0
            return self.checkpointer is not None
        every = self.config.save_every
        return every > 0 and (step % every == 0 or step == self.config.steps)

    def _save(self, step: int) -> None:
        assert self.checkpointer is not None  # TrainConfig: save_every needs a folder
        PROGRESS.update("saving", step)
        self.events.write("saving", step=step)
        self.world.set_timeout(self.config.init_timeout_s)  # a file system may be slow
        self._count_saves(self.checkpointer.wait())  # all ranks know it before the next
        self._count_saves(self.checkpointer.save(step))
        self.world.set_timeout(self.config.timeout_s)
        self.events.write("save-returned", step=step)

    def _count_saves(self, saves: list[dict[str, Any]]) -> None:
        """Count the saves that ended. Raises CheckpointError after too many failures in a row.

        All ranks get the same saves, so all raise or none.
        """
        for save in saves:
            self.failure_streak = self.failure_streak + 1 if "error" in save else 0
            (self.failed_saves if "error" in save else self.saved).append(save)
            if "untidy" in save and self.world.rank == 0:
                message = "step %d was saved, but updating LATEST or removing old steps failed: %s"
                log.warning(message, save["step"], save["untidy"])
            if "error" not in save:
                continue
            allowed, streak = self.config.save_failures, f"in a row: {self.failure_streak}"
            if self.failure_streak > allowed:
                raise CheckpointError(f"{save['error']} (failed saves {streak})")
            if self.world.rank == 0:
                message = "%s; training continues (failed saves %s, allowed: %d)"
                log.warning(message, save["error"], streak, allowed)

    def _end_segment(self, segment: str, step: int) -> None:
        """End a segment of the step; an injected delay belongs to the segment that it delays."""
        self.delays.inject(segment, step)
        self.timer.mark(segment)

    def _record(
        self, step: int, metrics: dict[str, float], ids: list[int], checksums: dict[str, str]
    ) -> None:
        span = self.timer.end()
        exact = {f"{name}_hex": value.hex() for name, value in metrics.items()}  # to compare bits
        record = {
            "step": step,
            **metrics,
            **exact,
            "seconds": span["seconds"],
            "tokens": len(ids) * self.config.seq,
            "ids": ids,
            **checksums,
        }
        self.steps.append(record)
        self.events.write("step", **record)
        if self.world.rank == 0:
            log.info("%s", self._step_line(record))

    def _log_start(self) -> None:
        config, world, resumed = self.config, self.world, self.resumed
        self.events.write(
            "start",
            **_rank_location(world),
            pid=os.getpid(),
            born=event_log.process_start_ticks(),
            up_s=process_age(),
            config=asdict(config),
            start_step=resumed.step,
            resumed_from=resumed.path,
            skipped=resumed.skipped,
        )
        if world.rank != 0:
            return
        parameters = count_parameters(self.model)
        log.info("%d ranks on %s, %d parameters", world.size, world.device, parameters)
        for skipped in resumed.skipped:
            log.info("skipped %s: %s", skipped["name"], skipped["reason"])
        log.info("%s", resumed.note)
        for message in config.changed_settings(resumed.settings):
            log.warning("%s", message)
        if resumed.path is not None and not self.rng_restored:
            log.info("the random state was not restored: %s", self._why_not_restored())
        if config.pace_s > 0:
            log.info("emulated accelerator: compute takes %g s a step", config.pace_s)
        for delay in config.delays:
            log.info("planted delay: %s", delay)
        if config.forget:
            log.info("planted error in a resume: --forget %s", config.forget)

    def _why_not_restored(self) -> str:
        saved = f"it was saved by {self.resumed.saved_world} ranks, now there are {self.world.size}"
        return f"--forget {self.config.forget} was given" if self.config.forget else saved

    def _step_line(self, record: dict[str, Any]) -> str:
        """Format a step: loss and norm of all ranks, and the tokens per second by rank 0's clock.

        Ranks meet in every step, so the other ranks' clocks give the same step time, but not the
        same segments.
        """
        rate = self.stream.per_step * self.config.seq / record["seconds"]
        line = (
            f"step {record['step']}/{self.config.steps}  loss {record['loss']:.4f}"
            f"  norm {record['norm']:.4f}  lr {record['lr']:.1e}"
            f"  {record['seconds']:.3f} s on rank 0  {rate:,.0f} tok/s"
        )
        if self.peak_flops is not None:
            achieved = flops_per_token(self.config) * rate / self.world.size
            line += f"  mfu {100 * achieved / self.peak_flops:.1f} %"
        return line


def _rank_location(world: World) -> dict[str, Any]:
    device, gpu = str(world.device), identify_gpu(world.device)
    place = {"rank": world.rank, "world": world.size, "host": world.host}
    return {**place, "device": device, "gpu": gpu}
