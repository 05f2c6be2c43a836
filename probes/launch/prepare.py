"""Prepares what LAUNCH's probes share: the guide, the user, and their removal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from probes.acceptance.cluster_terms import ClusterTerms
from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.dashboard import ignored_address
from probes.cluster.room.free_room import describe_busy
from probes.launch.controls import doctored_options, plain_options, planted_options
from probes.launch.job.own_network import JobBytes
from probes.launch.path.documented_path import LaunchPath
from probes.launch.path.guide import Guide, GuideError, own_guide, read_guide
from probes.launch.path.shell import Transcript
from probes.launch.path.user import User, make_user, remove_user

HOMES = "/tmp"


@contextmanager
def prepare_path(cluster: Cluster, terms: ClusterTerms, measure: Recorder) -> Iterator[LaunchPath]:
    """Yield the path to follow.  Remove its user afterwards.

    Fails the probe in one sentence where there is no dashboard, or no guide.
    """
    if not cluster.dashboard:
        pytest.fail("the cluster has no dashboard, so no job can be submitted", pytrace=False)
    if held := describe_busy(cluster):
        pytest.fail(f"a user's job would wait: {held}. Try --wait-for-room 30m", pytrace=False)
    if ignored := ignored_address(cluster.dashboard):
        measure.progress(f"launch: {ignored}")
        measure.covered(ignored)
    try:
        guide = _find_guide(terms, measure)
    except GuideError as error:
        pytest.fail(str(error), pytrace=False)
    user = make_user(cluster, HOMES, own_guide=guide.own)
    try:
        yield LaunchPath(cluster, terms, guide, user)
    except GuideError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        remove_user(cluster, user)


def _find_guide(terms: ClusterTerms, measure: Recorder) -> Guide:
    launch = terms.launch
    if launch.document is None:
        return own_guide()
    return read_guide(measure.contract.guide or launch.document, launch.section)


@dataclass(frozen=True)
class LaunchedJobs:
    """What came of a guide: transcripts of the user, of the job, and of the controls' jobs.

    `sent` and `astray` are the bytes that nodes sent during the job and the one with planted
    errors.  `uid` is the user's; None for the suite's own, and `why_same` tells why.
    """

    guide: Guide
    uid: int | None
    why_same: str
    identity: Transcript
    us: Transcript
    said: Transcript
    sent: JobBytes
    doctored: Transcript
    planted: Transcript
    astray: JobBytes

    @property
    def stop_error(self) -> str:
        """Why the dashboard refused to stop one of the jobs; "" if it did not."""
        return self.said.stop_error or self.doctored.stop_error or self.planted.stop_error

    def describe_user(self) -> str:
        """Return who followed the guide, for the coverage."""
        if self.uid is None:
            return f"the suite's own user followed it ({self.why_same})"
        return f"user id {self.uid}, without groups, followed it in an empty home"


def launch_jobs(cluster: Cluster, terms: ClusterTerms, measure: Recorder) -> LaunchedJobs:
    """Follow the guide, then twice more with errors for the controls."""
    fabric = terms.fabric or ""
    with prepare_path(cluster, terms, measure) as path:
        ours = LaunchPath(cluster, terms, path.guide, User(path.user.folder, homes=path.user.homes))
        identity, us = path.ask_identity(), ours.ask_identity()
        measure.progress("launch: the guide, typed in an empty home")
        plain = plain_options(path)
        said, sent = JobBytes.around(cluster, fabric, lambda: path.follow(plain))
        measure.progress("launch: the same with a missing variable")
        doctored = path.follow(doctored_options(cluster.size))
        measure.progress("launch: the same with planted errors")
        options = planted_options(path)
        planted, astray = JobBytes.around(cluster, fabric, lambda: path.follow(options))
    user = path.user
    return LaunchedJobs(
        path.guide,
        user.uid,
        user.why_same,
        identity,
        us,
        said,
        sent,
        doctored,
        planted,
        astray,
    )
