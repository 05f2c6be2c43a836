"""Fixtures of a probe: its recorder, the cluster, limits, terms, a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from probes.cluster.ask import make_unique_token
from probes.session.config import RECORDER, RUN


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Any:
    """Return the recorder of this probe (see probes/check/recorder.py)."""
    return request.node.stash[RECORDER]


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Any:
    """Return the cluster under test (see probes/cluster/cluster.py).

    Fails the probe where the driver could not join it, or where nodes were lost since the run
    began.
    """
    from probes.check.registry import CRITERIA

    run, recorder = request.config.stash[RUN], request.node.stash[RECORDER]
    goes_on = CRITERIA[recorder.criterion].reports_lost_nodes
    if run.cluster is None:
        from probes.cluster.node_facts import OWN_HOST
        from probes.findings import finding

        if goes_on:
            recorder("differences", 1, on=OWN_HOST)
            recorder.explain(finding("HOST-VERSIONS", run.join_error, [OWN_HOST]))
        pytest.fail(f"seatrial could not join the cluster: {run.join_error}", pytrace=False)
    if not goes_on and (missing := run.missing_nodes()):
        # Results of the remaining nodes prove nothing about the ordered cluster.
        pytest.fail(f"nodes were lost after the run began: {', '.join(missing)}", pytrace=False)
    if request.node.get_closest_marker("keeps_gang") is None:
        run.cluster.kept_gang.release()  # this probe needs free accelerators
    return run.cluster


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Return a function: `limits("busbw")` is the limit that applies, for probes that draw it."""
    recorder = request.node.stash[RECORDER]
    return lambda name: recorder.contract.limit(recorder.criterion, name)


@pytest.fixture
def terms(request: pytest.FixtureRequest) -> Any:
    """Return the contract's terms of the cluster: nodes, shared folder, fabric, pace."""
    return request.config.stash[RUN].terms


@pytest.fixture
def tier(request: pytest.FixtureRequest) -> str:
    """Return the tier of the run: quick, standard or soak."""
    return str(request.config.stash[RUN].tier)


@pytest.fixture
def workplace(request: pytest.FixtureRequest, cluster: Any) -> Iterator[Path | None]:
    """Yield a folder for driver and workers, removed afterwards (see shared_folder)."""
    with shared_folder(request.config.stash[RUN]) as folder:
        yield folder


@contextmanager
def shared_folder(run: Any) -> Iterator[Path | None]:
    """Yield a folder for driver and workers, removed afterwards; None where there is none.

    It is in the contract's shared folder; on an embedded cluster, in this host's /tmp.  Otherwise
    it is in the run folder, which nodes may not share: its user must check that (find_blind_nodes).
    """
    cleanup = run.cluster.cleanup
    run_folder = str(run.store.path.resolve())
    parent = "/tmp" if run.cluster.kind == "local" else run.terms.shared or run_folder
    if not Path(parent).is_dir():
        yield None
        return
    folder = Path(parent) / f".seatrial-{make_unique_token()}"
    cleanup.register("folder", str(folder))
    try:
        yield _make_subfolder(folder)
    finally:
        cleanup.remove_now(folder)


def _make_subfolder(folder: Path) -> Path | None:
    """Make `folder` and a folder in it, which is returned; None if it is read-only or full."""
    import tempfile

    try:
        folder.mkdir(mode=0o700)
        return Path(tempfile.mkdtemp(dir=folder))
    except OSError:
        return None
