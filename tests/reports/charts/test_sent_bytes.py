"""The chart of the bytes that each node sent."""

from __future__ import annotations

from tests.reports.charts.drawing import draw, words


def test_the_bytes_of_each_node_are_two_bars_and_the_worst_node_comes_first() -> None:
    sent = {"fabric": "fab0", "nodes": ["a", "b", "c"], "on_fabric": [1.0, 0.4, None],
            "elsewhere": [0.001, 0.6, None]}  # fmt: skip
    figure = draw("bytes", sent)
    assert [row[0] for row in figure.rows] == ["c", "b", "a"]
    assert figure.sentence == (
        "The bytes of 1 of 3 nodes were not counted; the least on fab0 was sent by b: 40.0 % of "
        "what it had to send; the most on other networks by b: 60.00 %."
    )
    assert words(figure).count("not counted") == 2
    many = {"fabric": "fab0", "nodes": [f"n{at}" for at in range(100)],
            "on_fabric": [1.0] * 99 + [0.9], "elsewhere": [0.0] * 100}  # fmt: skip
    assert [row[0] for row in draw("bytes", many).rows][:2] == ["n99", "n0"]
    assert len(draw("bytes", many).rows) == 8
    none = draw("bytes", {**sent, "on_fabric": [None] * 3, "elsewhere": [None] * 3})
    assert none.sentence == "The bytes of 3 of 3 nodes were not counted."
