"""Runs DCGM's own diagnostics on a node (`dcgmi diag`), and reads what failed.

NVIDIA documents the levels and the output: docs.nvidia.com/datacenter/dcgm, "DCGM Diagnostics".
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

PROGRAM = "dcgmi"
# Seconds of each level, twice what NVIDIA's documents say: some seconds, 2 and 30 minutes.
LEVEL_SECONDS = {1: 120.0, 2: 480.0, 3: 3600.0}
SUMMARY = "test_summary"  # of DCGM 4: the worst of the results, which are listed too
LAST_CHARS = 300  # of an output that is no JSON


def run_diagnostics(level: int, gpus: str = "") -> dict[str, Any]:
    """Run `dcgmi diag -r LEVEL`; return {"error", "failed": [{"test", "where", "text"}]}.

    `error` is why it did not run to its end.  `gpus` limits it to GPUs, by index.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        return {"error": f"{PROGRAM} is not installed", "failed": []}
    command = [program, "diag", "-r", str(level), "-j", *(["-i", gpus] if gpus else [])]
    seconds = LEVEL_SECONDS[level]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"{PROGRAM} did not end within {seconds:.0f} s", "failed": []}
    return parse_diagnostics(done.stdout, done.returncode, done.stderr)


def parse_diagnostics(output: str, code: int, errors: str = "") -> dict[str, Any]:
    """Parse the JSON of DCGM 3 and 4: every result in it has a `status`.

    A failed test ends dcgmi with a code other than 0, and so does a diagnostic that did not run.
    """
    try:
        results = list(_find_results(json.loads(output), ""))
    except ValueError:
        text = " ".join((errors.strip() or output.strip()).split())[-LAST_CHARS:]
        return {"error": text or f"exit code {code}", "failed": []}
    failed = [one for one in results if one.pop("status").lower().startswith("fail")]
    error = f"exit code {code}, but no test failed" if code and not failed else ""
    if not results:
        error = error or f"{PROGRAM} returned no result"
    return {"error": error, "failed": failed}


def _find_results(part: Any, test: str) -> Iterator[dict[str, str]]:
    """Find each entry with a status, with the name of its test."""
    if isinstance(part, list):
        for one in part:
            yield from _find_results(one, test)
    elif isinstance(part, dict):
        test = str(part.get("name", test))
        if isinstance(part.get("status"), str):
            where = part.get("gpu_id", part.get("gpu_ids", part.get("entity_id", "")))
            text = _find_text(part.get("warnings", part.get("warning", "")))
            yield {"test": test, "where": str(where), "status": part["status"], "text": text}
        for key, value in part.items():
            if key != SUMMARY:
                yield from _find_results(value, test)


def _find_text(warnings: Any) -> str:
    """Return the first warning of a result, which DCGM 3 gives as text and DCGM 4 in a list."""
    first = warnings[0] if isinstance(warnings, list) and warnings else warnings
    return str(first.get("warning", "") if isinstance(first, dict) else first or "")
