"""Rebuild the museum: `python -m tests.recordings.generate`.  Look at `git diff` before keeping."""

from __future__ import annotations

from tests.recordings.generate import goldens
from tests.recordings.generate.cases import exhibits
from tests.recordings.load import write
from tests.support.paths import RECORDINGS


def main() -> None:
    """Write every exhibit beside this file, and what each renders to."""
    runs = [write(recording, RECORDINGS) for recording in exhibits()]
    goldens.write(sorted(runs))
    print(*runs, sep="\n")


if __name__ == "__main__":
    main()
