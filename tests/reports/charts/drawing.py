"""Reads what a reader sees of a drawn SVG: its words, and the outlines of each paint."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree import ElementTree

from reports.charts import Figure, draw_figures
from reports.charts.canvas import FONT_SIZE, VARIABLES, text_width

SVG = "{http://www.w3.org/2000/svg}"


class Box(NamedTuple):
    """A rectangle in units, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    def overlaps(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


class Word(NamedTuple):
    """A text, and the room that it takes."""

    text: str
    box: Box
    size: float


def draw(name: str, values: object) -> Figure:
    (figure,) = draw_figures({name: values})
    return figure


def root(figure: Figure) -> ElementTree.Element:
    return ElementTree.fromstring(figure.svg)


def words(figure: Figure) -> list[str]:
    return [word.text for word in placed(figure)]


def placed(figure: Figure) -> list[Word]:
    """The texts of a figure, with an estimate of their room on the high side."""
    found = []
    for node in root(figure).iter(f"{SVG}text"):
        x, y, size = (float(node.get(key, FONT_SIZE)) for key in ("x", "y", "font-size"))
        text = node.text or ""
        width = text_width(text, size)
        share = {"start": 0.0, "middle": 0.5, "end": 1.0}[node.get("text-anchor", "start")]
        box = Box(x - share * width, y - 0.75 * size, x + (1 - share) * width, y + 0.2 * size)
        if "rotate(-90" in node.get("transform", ""):
            box = Box(x - 0.75 * size, y - width, x + 0.2 * size, y)
        found.append(Word(text, box, size))
    return found


def outlines(figure: Figure, **paint: str) -> list[Box]:
    """The boxes around the parts of the paths that have all these attributes (`_` for `-`)."""
    found = []
    for node in root(figure).iter(f"{SVG}path"):
        has = {key: node.get(key.replace("_", "-"), "none") for key in paint}
        if all(has[key] in (value, VARIABLES.get(value)) for key, value in paint.items()):
            for part in node.get("d", "").split("M")[1:]:
                numbers = [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", part)]
                xs, ys = numbers[::2], numbers[1::2]
                found.append(Box(min(xs), min(ys), max(xs), max(ys)))
    return found


def dots(figure: Figure, color: str) -> list[tuple[float, float]]:
    found = []
    for node in root(figure).iter(f"{SVG}path"):
        if node.get("stroke-linecap") == "round" and color in node.get("stroke", ""):
            places = re.findall(r"M([\d.]+) ([\d.]+)h", node.get("d", ""))
            found += [(float(x), float(y)) for x, y in places]
    return found
