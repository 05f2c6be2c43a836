"""Benchmarks with targets: a target that is missed is no success."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import fabric


class Lab:
    """Stands in for one: nothing is measured here."""

    def __init__(self, _: str) -> None: ...

    def up(self, nodes: int) -> None: ...

    def down(self) -> None: ...


@pytest.mark.parametrize(("alarms", "code"), [(0, 0), (1, 1)])
def test_the_fabric_table_fails_where_a_target_is_not_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], alarms: int, code: int
) -> None:
    def scans(_: Any, nodes: int, __: int) -> None:
        fabric.line("alarms", "0", str(alarms), nodes != 4 or not alarms)

    monkeypatch.setattr(fabric, "Lab", Lab)
    monkeypatch.setattr(fabric, "MISSED", [])
    monkeypatch.setattr(fabric, "scans", scans)
    monkeypatch.setattr(fabric, "plateau", lambda *_: fabric.line("a figure", "", "3"))
    monkeypatch.setattr(fabric, "row", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        fabric.main(1)
    assert ended.value.code == code
    assert capsys.readouterr().out.count("NOT met") == alarms
