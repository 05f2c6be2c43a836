"""The probe of docs/develop/own-probe.md runs as the page says."""

from __future__ import annotations

import re

import pytest

from reports.acceptance import load_summary
from tests.support.paths import REPO
from tests.support.stand_in import STAND_IN, agreed_for

pytest_plugins = ["pytester"]
PAGE = REPO / "docs" / "develop" / "own-probe.md"
FACTS = '"gpus": [{"uuid": "GPU-1"}, {"uuid": "GPU-2"}], "rdma"'


@pytest.mark.parametrize(
    ("gpus", "verdict"), [(FACTS, "PASS"), (FACTS.replace("-2", "-1"), "FAIL")]
)
def test_the_example_measures_what_it_says(
    pytester: pytest.Pytester, gpus: str, verdict: str
) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    pytester.makeconftest(STAND_IN.replace('"rdma"', gpus, 1))
    (pytester.path / "test_mine.py").write_text(text)
    (pytester.path / "agreed.toml").write_text(agreed_for("HOSTS"))
    options = ["--cluster", "auto", "--run-dir", "run", "--contract", "agreed.toml"]
    pytester.runpytest_subprocess(*options, "-p", "no:cacheprovider")
    results = load_summary(pytester.path / "run").record.results
    (mine,) = [result for result in results if result.state == "finished"]
    assert mine.criterion == "HOSTS"
    assert mine.claim == "No two nodes count the same GPU."
    (measured,) = mine.measurements
    assert (measured.name, measured.verdict.name) == ("duplicate_gpus", verdict)
