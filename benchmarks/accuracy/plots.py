"""Plots of the accuracy run as SVG: lines, dots and words, so that the page needs no plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

GIB = 2**30
# Colours that people with the common kinds of colour blindness tell apart (Okabe and Ito), on light and dark pages.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a", "#b8860b")
GREY = "#808080"


class Drawing:
    """An SVG of a size in pixels. The origin is its upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="sans-serif" font-size="12" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = GREY, width: float = 1, dash: str = ""
    ) -> None:
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"'
            f' stroke-width="{width:g}"{dashed}/>'
        )

    def dot(self, x: float, y: float, colour: str, title: str, hollow: bool = False, radius: float = 4) -> None:
        fill = "none" if hollow else colour
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{colour}" stroke-width="1.5"'
            f' fill-opacity="0.75"><title>{escape(title)}</title></circle>'
        )

    def words(
        self, x: float, y: float, text: str, anchor: str = "start", turned: bool = False, colour: str = "#333333"
    ) -> None:
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{turn}>{escape(text)}</text>'
        )

    def text(self) -> str:
        return "\n".join((*self.parts, "</svg>")) + "\n"


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name, in the order of their first appearance."""
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(dict.fromkeys(names))}


def scatter(points: Sequence[tuple[str, str, float, float, bool]], title: str) -> str:
    """Predicted against measured, both axes logarithmic, in GiB; lines at equality and 20 % on either side.

    points  (name, group, measured bytes, predicted bytes, hollow)
    """
    drawing = Drawing(640, 560, title)
    left, right, top, bottom = 70, 500, 20, 500
    if not points:
        drawing.words(320, 280, "nothing was estimated", "middle")
        return drawing.text()
    values = [value / GIB for _, _, measured, predicted, _ in points for value in (measured, predicted)]
    low, high = math.log10(min(values) / 1.3), math.log10(max(values) * 1.3)

    def x(size: float) -> float:
        return left + (math.log10(size) - low) / (high - low) * (right - left)

    def y(size: float) -> float:
        return bottom - (math.log10(size) - low) / (high - low) * (bottom - top)

    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if low <= math.log10(step) <= high:
            drawing.line(x(step), top, x(step), bottom, "#e4e4e4")
            drawing.line(left, y(step), right, y(step), "#e4e4e4")
            drawing.words(x(step), bottom + 18, f"{step}", "middle")
            drawing.words(left - 8, y(step) + 4, f"{step}", "end")
    for factor, dash in ((1.0, ""), (1.2, "4 4"), (0.8, "4 4")):
        begin = max(10**low, 10**low / factor)
        end = min(10**high, 10**high / factor)
        drawing.line(x(begin), y(begin * factor), x(end), y(end * factor), GREY, 1, dash)
    drawing.line(left, bottom, right, bottom, "#333333")
    drawing.line(left, top, left, bottom, "#333333")
    drawing.words((left + right) / 2, bottom + 42, "measured, GiB", "middle")
    drawing.words(24, (top + bottom) / 2, "predicted, GiB", "middle", turned=True)
    chosen = colours([group for _, group, _, _, _ in points])
    for name, group, measured, predicted, hollow in points:
        label = f"{name}: {measured / GIB:.2f} GiB measured, {predicted / GIB:.2f} predicted"
        drawing.dot(x(measured / GIB), y(predicted / GIB), chosen[group], label, hollow)
    for row, (group, colour) in enumerate(chosen.items()):
        drawing.dot(right + 24, top + 20 + 20 * row, colour, group)
        drawing.words(right + 36, top + 24 + 20 * row, group)
    drawing.dot(right + 24, top + 30 + 20 * len(chosen), "#333333", "apart", True)
    drawing.words(right + 36, top + 34 + 20 * len(chosen), "reported apart")
    return drawing.text()


def strips(points: Sequence[tuple[str, str, float, bool]], title: str, bound: float = 0.6) -> str:
    """Signed errors, a row for each group. What lies beyond ``bound`` stands at the edge.

    points  (name, group, error as a share, hollow)
    """
    groups = list(dict.fromkeys(group for _, group, _, _ in points))
    row, left, right, top = 34, 90, 600, 20
    drawing = Drawing(640, top + row * max(1, len(groups)) + 60, title)
    bottom = top + row * len(groups)

    def x(error: float) -> float:
        return (left + right) / 2 + max(-bound, min(bound, error)) / bound * (right - left) / 2

    for step in (-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6):
        drawing.line(x(step), top, x(step), bottom, "#333333" if step == 0 else "#e4e4e4")
        drawing.words(x(step), bottom + 18, f"{100 * step:+.0f} %" if step else "0", "middle")
    chosen = colours(groups)
    for index, group in enumerate(groups):
        middle = top + row * index + row / 2
        drawing.words(left - 12, middle + 4, group, "end")
        drawing.line(left, middle, right, middle, "#f0f0f0")
        mine = [point for point in points if point[1] == group]
        for number, (name, _, error, hollow) in enumerate(mine):
            height = middle + (number % 5 - 2) * 4  # dots of equal errors side by side
            drawing.dot(x(error), height, chosen[group], f"{name}: {100 * error:+.1f} %", hollow)
    drawing.words((left + right) / 2, bottom + 42, "(predicted - measured) / measured", "middle")
    return drawing.text()


def coverage(points: Sequence[tuple[str, str, float, float, float]], title: str, bound: float = 0.6) -> str:
    """Stated intervals in units of what was measured, one line a case, in the order given; the line at 1 is the truth.

    points  (name, group, low, predicted, high), each divided by the measured size
    """
    row, left, right, top = 11, 110, 600, 20
    drawing = Drawing(640, top + row * max(1, len(points)) + 60, title)
    bottom = top + row * len(points)

    def x(ratio: float) -> float:
        return (left + right) / 2 + max(-bound, min(bound, ratio - 1)) / bound * (right - left) / 2

    for step in (0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6):
        drawing.line(x(step), top, x(step), bottom, "#333333" if step == 1 else "#e4e4e4")
        drawing.words(x(step), bottom + 18, f"{step:g}", "middle")
    chosen = colours([group for _, group, _, _, _ in points])
    for index, (name, group, low, predicted, high) in enumerate(points):
        middle = top + row * index + row / 2
        inside = low <= 1 <= high
        drawing.words(left - 10, middle + 4, name, "end", colour="#333333" if inside else "#c00000")
        drawing.line(x(low), middle, x(high), middle, chosen[group], 3)
        drawing.dot(x(predicted), middle, chosen[group], f"{name}: {low:.2f} to {high:.2f}", radius=3)
    drawing.words((left + right) / 2, bottom + 42, "interval and prediction / measured (red: outside)", "middle")
    return drawing.text()
