"""Runs DCGM's own diagnostics on a node (`dcgmi diag`), and reads what failed.

NVIDIA documents the levels and the output: docs.nvidia.com/datacenter/dcgm, "DCGM Diagnostics".
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

PROGRAM = "dcgmi"
# Seconds of each level, twice what NVIDIA's documents say: some seconds, 2 and 30 minutes.
LEVEL_SECONDS = {1: 120.0, 2: 480.0, 3: 3600.0}
SUMMARY = "test_summary"  # of DCGM 4: the worst of the results, which are listed too
LAST_CHARS = 300  # of an output that is no JSON
# The tests that each level adds (NVIDIA's table of levels), by their names in DCGM 3 and 4.  Others
# need a program of their own, or another GPU, and may be skipped.
LEVEL_TESTS = {
    1: {"software": r"software|nvml.library"},
    2: {"pcie": r"pcie", "memory": r"(gpu.)?memory"},
    3: {
        "diagnostic": r"diagnostic",
        "targeted_stress": r"targeted.stress",
        "targeted_power": r"targeted.power",
    },
}
PASSED, WARNED = "pass", "warn"


def find_unproven(results: list[dict[str, str]], level: int, gpus: int) -> list[str]:
    """Describe each test of the level that has no Pass or Warn on each of so many GPUs.

    A result that names no GPU is of all.
    """
    tests = {name: of for at in range(1, level + 1) for name, of in LEVEL_TESTS[at].items()}
    texts = []
    for name, pattern in tests.items():
        of = [one for one in results if re.fullmatch(pattern, one["test"].lower())]
        done = [one for one in of if one["status"].lower().startswith((PASSED, WARNED))]
        seen = {gpu for one in done for gpu in re.findall(r"\d+", one["where"])}
        on = gpus if any(not re.search(r"\d", one["where"]) for one in done) else len(seen)
        if on < max(gpus, 1):
            said = sorted({one["status"] for one in of if one not in done}) or ["no result"]
            texts.append(f"{name} passed on {on} of {gpus} GPUs ({', '.join(said)})")
    return texts


def run_diagnostics(level: int, gpus: str = "") -> dict[str, Any]:
    """Run `dcgmi diag -r LEVEL`; return {"error", "failed": [{"test", "where", "text"}]}.

    `error` is why it did not run to its end.  `gpus` limits it to GPUs, by index.  `results` are
    all results, with their `status`.
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
    failed = [one for one in results if one["status"].lower().startswith("fail")]
    error = f"exit code {code}, but no test failed" if code and not failed else ""
    if not results:
        error = error or f"{PROGRAM} returned no result"
    return {"error": error, "failed": failed, "results": results}


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
