"""LAUNCH on a cluster that asks for a token."""

from __future__ import annotations

import pytest

from tests.faults.launchers.injected_faults import failed, findings
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.node import token_file
from tests.support.trial import acceptance, lab_of

SOAK = pytest.mark.soak(criterion="launch")
LAUNCH = ["probes/launch/test_launch.py", "probes/launch/test_failing_job.py"]


@SOAK
def test_a_user_of_a_cluster_with_a_token_has_it_in_the_own_home() -> None:
    with lab_of(2, "asks", auth="token") as lab:
        record, trial = acceptance(lab, "token", *LAUNCH)
        assert failed(record) == set(), trial.log.read_text()[-3000:]
        assert findings(record) == []
        assert [result.problems() for result in record.results] == [[], []]
        token = token_file(lab.home).read_bytes()
        files = [trial.log, *(path for path in trial.folder.rglob("*") if path.is_file())]
        assert [path.name for path in files if token in path.read_bytes()] == []
        nothing_left(lab)
