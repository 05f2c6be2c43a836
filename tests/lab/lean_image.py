"""Makes a Python that lacks some distributions, as an image does that was built for Ray alone."""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path


def make_image(folder: Path, without: Iterable[str]) -> None:
    """Make an environment in `folder` that has each distribution of this one but these.

    It also has no seatrial.  The folder may be mounted elsewhere.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    (own,) = folder.glob("lib/python*/site-packages")
    lacking = set()
    for name in (*without, "seatrial"):
        lacking |= {file.parts[0] for file in metadata.distribution(name).files or ()}
        lacking.add(Path(str(metadata.distribution(name)._path)).name)  # type: ignore[attr-defined]
    (site,) = Path(sys.prefix).glob("lib/python*/site-packages")
    for path in site.iterdir():
        ours = path.name.startswith("__editable__") and "seatrial" in path.name
        if path.name not in lacking and not ours:
            (own / path.name).symlink_to(path)
