"""Makes a wheel of a distribution that is installed here: no test needs a registry."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path


def wheel_of(name: str, folder: Path) -> Path:
    """Pack an installed, pure Python distribution into a wheel in `folder`."""
    found = metadata.distribution(name)
    plain = name.replace("-", "_").lower()
    path = folder / f"{plain}-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in found.files or ():
            own = ".." not in file.parts and file.suffix != ".pyc"
            if own and file.name not in ("INSTALLER", "REQUESTED", "direct_url.json"):
                wheel.write(str(file.locate()), file.as_posix())
    return path
