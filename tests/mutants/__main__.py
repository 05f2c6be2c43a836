"""`make mutants`: how many small changes to the judging code the fast tests notice.

python -m tests.mutants [--only probes/fabric/judge.py] [--total 3070] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from probes.toml_tables import read_tables
from tests.mutants.run import Module, Outcome
from tests.mutants.session import try_all
from tests.support.paths import REPO

HERE = Path(__file__).parent
MODULES, REASONS = HERE / "modules.toml", HERE / "harmless.toml"
LEAST_OVERALL, LEAST_EACH = 0.85, 0.70
LEAST_COUNT = 20  # mutants of a module: fewer say little of it


def read_modules(only: Sequence[str] = ()) -> list[Module]:
    """Read which modules are mutated, with their tests."""
    reasons = read_reasons()
    entries = read_tables(MODULES)["module"]
    modules = [Module(**entry, harmless=reasons.get(entry["path"], {})) for entry in entries]
    chosen = [one for one in modules if not only or any(part in one.path for part in only)]
    if not chosen:
        sys.exit(f"--only: expected a part of a path in {MODULES.name}, found {', '.join(only)}")
    return chosen


def share_out(modules: Sequence[Module], total: int) -> dict[str, int]:
    """Share out so many mutants by the lines of each module, at least LEAST_COUNT to each."""
    lines = {one.path: len((REPO / one.path).read_bytes().splitlines()) for one in modules}
    each = total / max(1, sum(lines.values()))
    return {path: max(LEAST_COUNT, round(count * each)) for path, count in lines.items()}


def read_reasons() -> dict[str, dict[str, str]]:
    """Read why survivors are harmless: module -> mutant -> reason."""
    return read_tables(REASONS) if REASONS.is_file() else {}


def score(outcomes: Iterable[Outcome]) -> float:
    """Share of the mutants that were killed; those that never came to an end are left out."""
    verdicts = [outcome.verdict for outcome in outcomes]
    ended = [verdict for verdict in verdicts if verdict != "timeout"]
    return ended.count("killed") / len(ended) if ended else 1.0


def describe_module(path: str, outcomes: Iterable[Outcome]) -> str:
    """` 95 %  19 of 20, 1 timeout  probes/fabric/judge.py`."""
    mine = [outcome for outcome in outcomes if outcome.module == path]
    verdicts = [outcome.verdict for outcome in mine]
    timeouts = verdicts.count("timeout")
    ended = f"{verdicts.count('killed')} of {len(mine) - timeouts}"
    return f"{score(mine):5.0%}  {ended}{f', {timeouts} by time' * bool(timeouts)}  {path}"


def show_module(path: str, seconds: float, outcomes: list[Outcome]) -> None:
    """Print a module's line as soon as it is known, and who survived there, and why that may be."""
    reasons = read_reasons().get(path, {})
    print(f"{describe_module(path, outcomes)}  {seconds:.0f} s")
    for outcome in survivors(outcomes):
        if outcome.module == path:
            why = reasons.get(outcome.mutant.name, "NO REASON")
            print(f"       {outcome.mutant.line}: {outcome.mutant.name}\n           {why}")
    sys.stdout.flush()


def survivors(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those that no test noticed."""
    return [outcome for outcome in outcomes if outcome.verdict == "survived"]


def count_unexplained(outcomes: Iterable[Outcome]) -> int:
    """How many survivors have no reason."""
    reasons = read_reasons()
    return sum(o.mutant.name not in reasons.get(o.module, {}) for o in survivors(outcomes))


def main() -> None:
    """Try mutants; print each module's score and survivors.

    Ends with 1 below the goals, and where a survivor has no reason.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="a part of a module's path")
    parser.add_argument("--total", type=int, default=3070, help="mutants of all modules together")
    parser.add_argument("--seed", type=int, default=1, help="which ones are drawn")
    options = parser.parse_args()
    started, shares = time.monotonic(), share_out(read_modules(), options.total)
    modules = read_modules(options.only)
    outcomes, errors = try_all(modules, shares, options.seed, show_module)
    unexplained = count_unexplained(outcomes)
    overall = score(outcomes)
    low = [
        one.path
        for one in modules
        if score(o for o in outcomes if o.module == one.path) < LEAST_EACH
    ]
    verdicts = [outcome.verdict for outcome in outcomes]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("killed", "survived", "timeout"))
    print(f"\n{overall:.1%} of {len(outcomes)} mutants: {counts}; {unexplained} without a reason")
    print(f"{len(modules)} modules in {(time.monotonic() - started) / 60:.0f} min")
    for error in errors:
        print(error)
    print("\n".join(f"below {LEAST_EACH:.0%}: {path}" for path in low))
    sys.exit(bool(errors or low or unexplained or overall < LEAST_OVERALL))


if __name__ == "__main__":
    main()
