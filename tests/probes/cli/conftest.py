"""Runs that the plugin made and both parties signed; a folder to submit from."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.submit import follow
from tests.support.signing import Signed, finished_run, make_key, public_key, sign


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    return {party: make_key(folder / party) for party in ("provider", "customer")}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("stranger") / "key")


def signed_copy(run: Path, folder: Path, keys: dict[str, Path]) -> Signed:
    """Copy a run that failed and let both parties sign it."""
    shutil.copytree(run, folder / "run")
    signers = folder / "signers"
    signers.write_text("".join(f"{party} {public_key(key)}\n" for party, key in keys.items()))
    conditions = ["--decision", "conditions", "--condition", "node 3 is repaired by May"]
    sign(folder / "run", "provider", keys["provider"], "--name", "Jane Doe", *conditions)
    sign(folder / "run", "customer", keys["customer"], "--decision", "refused")
    return Signed(folder / "run", keys, signers)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, Path]) -> Signed:
    return signed_copy(finished_run(passes=False), tmp_path_factory.mktemp("original"), keys)


@pytest.fixture
def signed(original: Signed, tmp_path: Path) -> Signed:
    shutil.copytree(original.run, tmp_path / "run")
    shutil.copy(original.signers, tmp_path / "signers")
    return Signed(tmp_path / "run", original.keys, tmp_path / "signers")


@pytest.fixture
def passed(tmp_path: Path) -> Path:
    """A run that ended with exit code 0, not signed."""
    shutil.copytree(finished_run(), tmp_path / "passed")
    return tmp_path / "passed"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to submit from; SIGTERM is handled as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setattr(follow, "POLL_S", 0.01)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
