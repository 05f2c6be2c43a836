"""An install replaces no torch and no Ray, whoever built them; the source archive is complete."""

from __future__ import annotations

import subprocess
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.dist import tracked

pytestmark = pytest.mark.alone

VENDORS = {"torch": "2.6.0a0+df5bbc09d1.nv24.12", "ray": "2.40.0+vendor7"}
NEWER = {"torch": "99.0", "ray": "99.0"}


def stub(folder: Path, name: str, version: str) -> Path:
    """Write a wheel that holds nothing but its name and version."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    extra = "Provides-Extra: default\n" if name == "ray" else ""
    with zipfile.ZipFile(path, "w") as archive:
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}"
        archive.writestr(f"{info}/METADATA", text)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def stubs(folder: Path, built: Path) -> Iterator[Path]:
    """Yield wheels for all that seatrial requires; torch and Ray are a vendor's."""
    for line in metadata.requires("seatrial") or []:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = requirement.name.replace("-", "_")
        yield stub(folder, name, VENDORS.get(name) or metadata.version(requirement.name))


@pytest.mark.parametrize("upgrade", [[], ["--upgrade"]], ids=["install", "upgrade"])
def test_a_vendors_torch_and_ray_stay(built: Path, tmp_path: Path, upgrade: list[str]) -> None:
    """pip could take newer ones: they lie where it looks."""
    venv.EnvBuilder(symlinks=True, with_pip=True).create(tmp_path / "env")
    pip = [str(tmp_path / "env" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    (tmp_path / "here").mkdir()
    (tmp_path / "index").mkdir()
    here = [str(path) for path in stubs(tmp_path / "here", built)]
    subprocess.run([*pip, "install", "-q", "--no-deps", *here], check=True, timeout=120)
    for name, version in NEWER.items():
        stub(tmp_path / "index", name, version)
    wheel = str(next(built.glob("*.whl")))
    offline = ["--no-index", "--find-links", str(tmp_path / "index")]
    subprocess.run([*pip, "install", "-q", *upgrade, *offline, wheel], check=True, timeout=120)
    listed = subprocess.run(
        [*pip, "list", "--format=freeze"], check=True, capture_output=True, text=True
    )
    found = dict(line.split("==") for line in listed.stdout.split())
    assert {name: found[name] for name in VENDORS} == VENDORS
    assert "seatrial" in found


def test_the_source_archive_is_complete(built: Path) -> None:
    """Whoever gets it can run the two commands."""
    archive = next(built.glob("*.tar.gz"))
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    lacking = [name for name in tracked() if name not in names and name != ".gitignore"]
    assert not lacking, f"{len(lacking)} files, as {lacking[:3]}"
