"""Draw plots as SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _GAP, _TOP = 900, 150, 60, 46, 34
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


class Line(NamedTuple):
    """One quantity over time. With `steps`, each value holds until the next one."""

    label: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


class Panel(NamedTuple):
    """Lines that share a vertical axis."""

    title: str
    lines: Sequence[Line]


def svg(title: str, panels: Sequence[Panel]) -> str:
    """Return a picture of the panels, one below the other, with a common time axis."""
    height = _TOP + len(panels) * (_HEIGHT + _GAP)
    points = [point for panel in panels for line in panel.lines for point in line.points]
    end = max((at for at, _ in points), default=1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _TOP + number * (_HEIGHT + _GAP), end)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, top: float, end: float) -> list[str]:
    bottom, right = top + _HEIGHT, _WIDTH - 20
    highest = max((value for line in panel.lines for _, value in line.points), default=0.0) or 1.0
    parts = [
        f'<text x="{_LEFT}" y="{top + 12}" fill="#444">{escape(panel.title)}</text>',
        f'<path d="M{_LEFT} {top + 18}V{bottom}H{right}" fill="none" stroke="#888"/>',
        f'<text x="{_LEFT - 6}" y="{top + 24}" text-anchor="end">{highest:.4g}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{right}" y="{bottom + 15}" text-anchor="end">{end:.0f} s</text>',
    ]
    for number, line in enumerate(panel.lines):
        color = _COLORS[number % len(_COLORS)]
        path = []
        before = None
        for at, value in line.points:
            x = _LEFT + (right - _LEFT) * at / end
            y = bottom - (_HEIGHT - 18) * value / highest
            if line.steps and before is not None:
                path.append(f"{x:.1f} {before:.1f}")
            path.append(f"{x:.1f} {y:.1f}")
            before = y
        if path:
            parts.append(f'<path d="M{"L".join(path)}" fill="none" stroke="{color}"/>')
        x_label = right - 170 * (len(panel.lines) - number - 1)
        parts.append(
            f'<text x="{x_label}" y="{top + 12}" fill="{color}" text-anchor="end">'
            f"{escape(line.label)}</text>"
        )
    return parts
