"""Benchmarks with targets: a target that is missed is no success."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import fabric, harness, trainer
from reference_trainer.config import TrainConfig
from reference_trainer.telemetry.step_timer import HostClock, time_fsdp_waits
from reference_trainer.train import Trainer


class Lab:
    """Stands in for one: nothing is measured here."""

    def __init__(self, _: str) -> None: ...

    def up(self, nodes: int) -> None: ...

    def down(self) -> None: ...


@pytest.mark.parametrize(("alarms", "code"), [(0, 0), (1, harness.TARGET_MISSED)])
def test_the_fabric_table_fails_where_a_target_is_not_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], alarms: int, code: int
) -> None:
    def scans(_: Any, nodes: int, __: int) -> None:
        fabric.line("alarms", "0", str(alarms), nodes != 4 or not alarms)

    monkeypatch.setattr(fabric, "Lab", Lab)
    monkeypatch.setattr(harness, "MISSED", [])
    monkeypatch.setattr(fabric, "scans", scans)
    monkeypatch.setattr(fabric, "plateau", lambda *_: fabric.line("a figure", "", "3"))
    monkeypatch.setattr(fabric, "row", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        fabric.main(1)
    assert ended.value.code == code
    assert capsys.readouterr().out.count("NOT met") == alarms


def test_a_step_without_the_clock_reads_it_not_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it waits for a collective, as on a GPU: there the clock is read most often."""
    build, record, stamp = Trainer.__init__, Trainer._record, HostClock.stamp
    stamps, read = dict[int, int](), [0]

    def watched(self: Trainer, *given: Any) -> None:
        build(self, *given)
        assert time_fsdp_waits(self.model, self.timer)

    def stamped(self: HostClock) -> int:
        read[0] += 1
        return stamp(self)

    def recorded(self: Trainer, step: int, *told: Any) -> None:
        record(self, step, *told)
        stamps[step], read[0] = read[0], 0

    monkeypatch.setattr(Trainer, "__init__", watched)
    monkeypatch.setattr(Trainer, "_record", recorded)
    monkeypatch.setattr(HostClock, "stamp", stamped)
    config = TrainConfig(steps=2 * trainer.WARM_UP + 4, digest=False, device="cpu")
    assert trainer.price(config) > 0
    assert {at for at, count in stamps.items() if not count} == {*range(1, config.steps + 1, 2)}
    segments = 9  # with the one that begins the step
    assert min(count for count in stamps.values() if count) > segments
