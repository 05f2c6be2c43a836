"""Draws the picture of README: the first screen of a real run's page.

`python -m tests.project.picture RUN`, or `make docs RUN=runs/...`. A run takes minutes, so no
other target makes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reports.acceptance import load_summary
from reports.page.render import render
from tests.support.browser import open_chromium
from tests.support.paths import REPO

PICTURE = REPO / "docs" / "use" / "report.png"
SIZE = {"width": 1280, "height": 1000}


def draw(run: Path) -> None:
    """Write the first screen of the run's page."""
    with open_chromium() as browser:
        page = browser.new_page(viewport=SIZE)
        page.set_content(render(load_summary(run), run))
        page.screenshot(path=PICTURE)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
