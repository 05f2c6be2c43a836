"""Writes the commit into what is built: a wheel and a source archive have no .git."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).resolve().parent))

from reports.version import COMMIT, find_checkout_commit


def write_commit(folder: str) -> None:
    """Write the commit into the copy of the package in `folder`, if it is known."""
    if commit := find_checkout_commit():
        target = Path(folder) / COMMIT
        target.unlink(missing_ok=True)  # it may be a hard link to the checkout's file
        target.write_text(f"{commit}\n")


class BuildWithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(self.build_lib)


class ArchiveWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(base_dir)


setup(cmdclass={"build_py": BuildWithCommit, "sdist": ArchiveWithCommit})
