"""Rebuild the museum: `python -m tests.recordings`; look at `git diff` before keeping it."""

from __future__ import annotations

from pathlib import Path

from tests.recordings import goldens
from tests.recordings.museum import exhibits
from tests.recordings.shelf import write


def main() -> None:
    """Write every exhibit beside this file, and what each renders to."""
    runs = [write(recording, Path(__file__).parent) for recording in exhibits()]
    goldens.write(sorted(runs))
    print(*runs, sep="\n")


if __name__ == "__main__":
    main()
