"""The event log: whole lines, at once."""

from __future__ import annotations

from reference_trainer.telemetry.event_log import JsonLines


def test_lines_are_seen_at_once_and_never_glued_to_half_a_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"b": ')
    lines = JsonLines(str(tmp_path), "x.jsonl")
    lines.append({"c": 3})
    assert path.read_text().splitlines() == ['{"a": 1}', '{"b": ', '{"c": 3}']
    lines.close()
