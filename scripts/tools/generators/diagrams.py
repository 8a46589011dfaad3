"""Draw the state diagrams in docs/concepts from the transitions in dispatcher/runtime/states.py."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pytriton.dispatcher.runtime.states import CHANGES, InstanceState, ModelState

_FOLDER = Path("docs/pictures")
_INK, _LINE = "#1f2937", "#4b5563"
#: Colors of boxes.
_READY, _WAITING, _GONE = "#dcfce7", "#fef3c7", "#fee2e2"

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle around a text. x and y are its center."""

    x: float
    y: float
    text: str
    fill: str
    width: float = 110
    height: float = 36

    def svg(self, dashed: bool = False) -> str:
        """Return the box as SVG."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        left, top = self.x - self.width / 2, self.y - self.height / 2
        return (
            f'<rect x="{left:g}" y="{top:g}" width="{self.width:g}" height="{self.height:g}" rx="6" '
            f'fill="{self.fill}" stroke="{_LINE}"{dash}/>\n'
            f'<text x="{self.x:g}" y="{self.y + 4.5:g}" text-anchor="middle" fill="{_INK}">{self.text}</text>'
        )

    def border(self, toward: Point) -> Point:
        """Return where a line from the center toward a point leaves the box."""
        dx, dy = toward[0] - self.x, toward[1] - self.y
        scales = [
            half / abs(part) for half, part in ((self.width / 2, dx), (self.height / 2, dy)) if part
        ]
        scale = min(scales, default=0.0)
        return self.x + dx * scale, self.y + dy * scale


_WORKER, _MODEL = InstanceState, ModelState
#: File -> its title, and the place of each state.
_DIAGRAMS: dict[str, tuple[str, dict[enum.Enum, Box]]] = {
    "worker-states.svg": (
        "States of a worker",
        {
            _WORKER.STARTING: Box(90, 70, "starting", _WAITING),
            _WORKER.LOADING: Box(270, 70, "loading", _WAITING),
            _WORKER.READY: Box(450, 70, "ready", _READY),
            _WORKER.BACKOFF: Box(180, 190, "backoff", _WAITING),
            _WORKER.FAILED: Box(360, 190, "failed", _GONE),
            _WORKER.STOPPING: Box(620, 130, "stopping", _WAITING),
            _WORKER.STOPPED: Box(770, 130, "stopped", _GONE),
        },
    ),
    "model-states.svg": (
        "States of a model",
        {
            _MODEL.STARTING: Box(90, 130, "starting", _WAITING),
            _MODEL.READY: Box(280, 130, "ready", _READY),
            _MODEL.NOT_READY: Box(450, 70, "not_ready", _WAITING),
            _MODEL.UNLOADED: Box(450, 190, "unloaded", _WAITING),
            _MODEL.STOPPING: Box(620, 130, "stopping", _WAITING),
            _MODEL.STOPPED: Box(770, 130, "stopped", _GONE),
        },
    ),
}
_WIDTH, _HEIGHT = 840, 260


def files() -> dict[Path, str]:
    """Return the diagrams by path."""
    return {_FOLDER / name: _diagram(boxes, title) for name, (title, boxes) in _DIAGRAMS.items()}


def _diagram(boxes: Mapping[enum.Enum, Box], title: str) -> str:
    """Return the states with all transitions. Transitions that most states share start at a frame around these."""
    kind: type[enum.Enum] = type(next(iter(boxes)))
    missing = [state.name for state in kind if state not in boxes]
    if missing:
        raise ValueError(f"{title}: place these states in the diagram: {', '.join(missing)}")
    final = [state for state in boxes if not CHANGES[state]]
    before_final = {state for state in boxes if set(CHANGES[state]) & set(final)}
    framed = [state for state in boxes if state not in final and state not in before_final]
    shared = set.intersection(*(set(CHANGES[state]) for state in framed))
    inner = [boxes[state] for state in framed]
    frame = Box(
        (min(box.x for box in inner) + max(box.x for box in inner)) / 2,
        _HEIGHT / 2,
        "",
        "#ffffff",
        max(box.x for box in inner) - min(box.x for box in inner) + 150,
        _HEIGHT - 30,
    )
    parts = [frame.svg(dashed=True)]
    parts += [_arrow(frame, boxes[state]) for state in sorted(shared, key=lambda one: one.value)]
    for state, box in boxes.items():
        for after in CHANGES[state]:
            if state in framed and after in shared:
                continue
            parts.append(_arrow(box, boxes[after], bend=14 if state in framed else 0))
    parts += [box.svg() for box in boxes.values()]
    return _svg(title, parts)


def _arrow(start: Box, end: Box, bend: float = 0) -> str:
    """Return an arrow between two boxes. It bends to its right, so that it does not cover the arrow back."""
    dx, dy = end.x - start.x, end.y - start.y
    length = (dx * dx + dy * dy) ** 0.5
    if bend:
        # An arrow along a row passes above the boxes between its ends. Longer arrows bend more.
        by = bend * max(1.0, length / 150) if dy else -bend * (4 if length > 200 else 0)
        middle = (
            (start.x + end.x) / 2 - dy / length * by,
            (start.y + end.y) / 2 + dx / length * by,
        )
        (x1, y1), (x2, y2) = start.border(middle), end.border(middle)
    else:
        (x1, y1), (x2, y2) = start.border((end.x, end.y)), end.border((start.x, start.y))
        middle = ((x1 + x2) / 2, (y1 + y2) / 2)
    return (
        f'<path d="M{x1:.1f},{y1:.1f} Q{middle[0]:.1f},{middle[1]:.1f} {x2:.1f},{y2:.1f}" fill="none" '
        f'stroke="{_LINE}" stroke-width="1.2" marker-end="url(#head)"/>'
    )


def _svg(title: str, parts: Iterable[str]) -> str:
    return "\n".join(
        [
            "<!-- Generated by scripts/generate; see scripts/tools/generators/diagrams.py. -->",
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
            f'height="{_HEIGHT}" role="img" font-family="sans-serif" font-size="13">',
            f"<title>{title}</title>",
            "<defs>",
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="{_LINE}"/></marker>',
            "</defs>",
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )
