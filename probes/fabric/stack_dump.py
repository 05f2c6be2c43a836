"""Reads where a hung rank is: its stack, and the collectives in torch's flight recorder."""

from __future__ import annotations

import json
import re
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from reference_trainer.launch import worker

# Functions in which ranks wait for each other, without the wrappers that only log these calls.
DISTRIBUTED_CALL = re.compile(r"torch/distributed/(?!c10d_logger)")
RECORDER_ENV = {"TORCH_FR_BUFFER_SIZE": "2000"}  # environment of the ranks: torch's flight recorder
MAX_ENTRIES = 5  # collectives that are listed one by one
RankState = dict[str, Any]


def read_rank_state() -> RankState:
    """Read where this process is, from another thread than the hung one.

    `at`: the function of torch.distributed that was called, else the innermost one, "" when none
    runs.  `stack`: `file:line function`, outermost first.  `group`: number of the newest process
    group of all ranks with a collective, or -1.  `begun`, `ended`: collectives of that group.
    `entries`: the last few.
    """
    frames = _rank_frames()
    stack = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]
    # The outermost call: deeper frames differ between ranks that wait for the same thing.
    calls = [f.name for f in frames if DISTRIBUTED_CALL.search(f.filename)]
    return {"at": (calls or stack[-1:] or [""])[0], "stack": stack, **_read_recorder()}


def _rank_frames() -> list[traceback.FrameSummary]:
    """Find the frames of the rank's call below Worker.run, in another thread than this one."""
    for thread, frame in sys._current_frames().items():
        frames = traceback.extract_stack(frame)
        is_run = [f.filename == worker.__file__ and f.name == "run" for f in frames]
        if any(is_run) and thread != threading.get_ident():
            return frames[is_run.index(True) + 1 :]
    return []


def _read_recorder() -> RankState:
    """Read torch.distributed's flight recorder, if this process has loaded it."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):  # the former in CUDA's build
        dump = getattr(c10d, name, None)
        state = summary(json.loads(dump(includeCollectives=True, onlyActive=False))) if dump else {}
        if state:
            return state
    return {"group": -1, "begun": 0, "ended": 0, "entries": []}


def summary(dump: dict[str, Any]) -> RankState:
    """Summarise the recorder's dump; {} without a collective.

    Format 2.10 of torch/csrc/distributed/c10d/FlightRecorder.hpp.
    """
    entries = [
        entry
        for entry in dump.get("entries", [])
        if not entry["is_p2p"] and entry["process_group"][-1] == "default_pg"
    ]
    if not entries:
        return {}
    newest = entries[-1]
    group = [entry for entry in entries if entry["pg_id"] == newest["pg_id"]]
    fields = ("collective_seq_id", "profiling_name", "input_sizes", "state", "retired")
    return {
        "group": newest["pg_id"],
        "begun": newest["collective_seq_id"],
        "ended": sum(bool(entry["retired"]) for entry in group),
        "entries": [{key: entry.get(key) for key in fields} for entry in entries[-MAX_ENTRIES:]],
    }
