"""Checks that the packages of seatrial are its own."""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("probes", "reference_trainer", "reports", "scaling")
AGAIN = "Install seatrial again from its checkout or wheel, with pip's --force-reinstall"


def find_foreign() -> str:
    """Return one sentence if a package of seatrial is missing, or is another project's; else "".

    PyPI has other packages named `reports` and `scaling`.  pip installs them over ours.
    """
    for name in PACKAGES:
        ours = ROOT / name / "__init__.py"
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):  # a module without a spec has this name
            spec = None
        found = Path(spec.origin).resolve() if spec and spec.origin else None
        if found == ours and b"seatrial" in ours.read_bytes()[:200]:
            continue
        if found is None or not found.is_file():
            return f"seatrial's package {name} is missing at {ours}. {AGAIN}"
        owners = metadata.packages_distributions().get(name, [])
        others = sorted({one for one in owners if one != "seatrial"})
        remove = f"{sys.executable} -m pip uninstall {' '.join(others)}" if others else ""
        return (
            f"the Python package {name} at {found} is not seatrial's, but of another project. "
            f"Remove it{f' ({remove})' if remove else ' from the path of Python'}. {AGAIN}, "
            f"or use a separate environment: {sys.executable} -m venv FOLDER"
        )
    return ""
