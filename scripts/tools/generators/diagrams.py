"""The pictures of docs/concepts: states and their changes from the table in code, the two ways, what dies."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytriton.dispatcher.runtime.states import CHANGES, InstanceState, ModelState

_FOLDER = Path("docs/pictures")
_INK, _LINE, _MUTED = "#1f2937", "#4b5563", "#6b7280"
#: Fills: ours, Triton's, what works, what waits, what is gone.
_OURS, _TRITON, _GOOD, _WAITS, _GONE = "#dbeafe", "#dcfce7", "#dcfce7", "#fef3c7", "#fee2e2"

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle with lines of text in it; x and y are its middle."""

    x: float
    y: float
    text: str
    fill: str = _OURS
    width: float = 110
    height: float = 36

    def svg(self, dashed: bool = False) -> str:
        """Return the box."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        lines = self.text.split("\n")
        top = self.y - 7.5 * (len(lines) - 1) + 4.5
        left, upper = self.x - self.width / 2, self.y - self.height / 2
        parts = [
            f'<rect x="{left:g}" y="{upper:g}" width="{self.width:g}" height="{self.height:g}" rx="6" '
            f'fill="{self.fill}" stroke="{_LINE}"{dash}/>'
        ]
        parts += [_text((self.x, top + 15 * row), line) for row, line in enumerate(lines)]
        return "\n".join(parts)

    def border(self, toward: Point) -> Point:
        """Return where a line from the middle toward a point leaves the box."""
        dx, dy = toward[0] - self.x, toward[1] - self.y
        scales = [
            half / abs(part) for half, part in ((self.width / 2, dx), (self.height / 2, dy)) if part
        ]
        scale = min(scales, default=0.0)
        return self.x + dx * scale, self.y + dy * scale


def files() -> dict[Path, str]:
    """Return the pictures by their path."""
    return {
        _FOLDER / "worker-life.svg": _worker_life(),
        _FOLDER / "model-life.svg": _model_life(),
        _FOLDER / "two-ways.svg": _two_ways(),
        _FOLDER / "what-dies.svg": _what_dies(),
    }


# ── states ───────────────────────────────────────────────────────────────────────────────────────


def _worker_life() -> str:
    state = InstanceState
    boxes = {
        state.STARTING: Box(90, 70, "starting", _WAITS),
        state.LOADING: Box(270, 70, "loading", _WAITS),
        state.READY: Box(450, 70, "ready", _GOOD),
        state.BACKOFF: Box(180, 190, "backoff", _WAITS),
        state.FAILED: Box(360, 190, "failed", _GONE),
        state.STOPPING: Box(620, 130, "stopping", _WAITS),
        state.STOPPED: Box(770, 130, "stopped", _GONE),
    }
    return _states(boxes, "The life of an instance's worker", 840, 260)


def _model_life() -> str:
    state = ModelState
    boxes = {
        state.STARTING: Box(90, 130, "starting", _WAITS),
        state.READY: Box(280, 130, "ready", _GOOD),
        state.NOT_READY: Box(450, 70, "not_ready", _WAITS),
        state.UNLOADED: Box(450, 190, "unloaded", _WAITS),
        state.STOPPING: Box(620, 130, "stopping", _WAITS),
        state.STOPPED: Box(770, 130, "stopped", _GONE),
    }
    return _states(boxes, "The life of a model", 840, 260)


def _states(boxes: Mapping[Any, Box], title: str, width: int, height: int) -> str:
    """Return the states with all changes of the table; those that all states share start at a frame around these."""
    kind: type[enum.Enum] = type(next(iter(boxes)))
    missing = [state.name for state in kind if state not in boxes]
    if missing:
        raise ValueError(f"{title}: give these states a place in the picture: {', '.join(missing)}")
    last = [state for state in boxes if not CHANGES[state]]
    before_last = {state for state in boxes if set(CHANGES[state]) & set(last)}
    lively = [state for state in boxes if state not in last and state not in before_last]
    shared = set.intersection(*(set(CHANGES[state]) for state in lively))
    inner = [boxes[state] for state in lively]
    frame = Box(
        (min(box.x for box in inner) + max(box.x for box in inner)) / 2,
        height / 2,
        "",
        "#ffffff",
        max(box.x for box in inner) - min(box.x for box in inner) + 150,
        height - 30,
    )
    parts = [frame.svg(dashed=True)]
    parts += [_arrow(frame, boxes[state]) for state in sorted(shared, key=lambda one: one.value)]
    for state, box in boxes.items():
        for after in CHANGES[state]:
            if state in lively and after in shared:
                continue
            parts.append(_arrow(box, boxes[after], bend=14 if state in lively else 0))
    parts += [box.svg() for box in boxes.values()]
    return _svg(title, width, height, parts)


# ── the two ways ─────────────────────────────────────────────────────────────────────────────────


def _two_ways() -> str:
    script = Box(100, 60, "your script", width=130)
    dispatcher = Box(360, 60, "dispatcher\nthe daemon's own process", width=190, height=52)
    client = Box(100, 222, "any client", "#f3f4f6", width=130)
    server = Box(360, 215, "", _TRITON, width=190, height=90)
    proxy = Box(360, 222, "proxy", "#ffffff", width=110, height=32)
    workers = [
        Box(650, y, f"worker {number}\nyour callable", width=130, height=52)
        for number, y in enumerate((190, 254))
    ]
    parts = [
        _arrow(script, dispatcher, label="register()"),
        _arrow(dispatcher, server, label="loads models", label_at=(308, 125)),
        _arrow(dispatcher, workers[0], label="starts, watches, replaces", label_at=(600, 105)),
        server.svg(),
        _text((360, 190), "tritonserver"),
        _arrow(client, proxy, label="HTTP, gRPC", label_at=(215, 214), bold=True, both=True),
        *(_arrow(proxy, worker, bold=True, both=True) for worker in workers),
        _text((515, 186), "shared memory", _MUTED),
        *(box.svg() for box in (script, dispatcher, client, proxy, *workers)),
        _text((100, 100), "control's way: thin", _MUTED),
        _text((100, 260), "data's way: thick", _MUTED),
    ]
    return _svg("Two ways through the system", 760, 300, parts)


# ── what dies ────────────────────────────────────────────────────────────────────────────────────

#: What dies: the frames, each with a title, the fills of dispatcher, tritonserver and worker, and what clients see.
_DEATHS = {
    "a worker": (
        ("it dies", _GOOD, _GOOD, _GONE, "its batch waits"),
        ("another one loads", _GOOD, _GOOD, _WAITS, "the batch runs again"),
        ("it serves", _GOOD, _GOOD, _GOOD, "no request has failed"),
    ),
    "tritonserver": (
        ("it dies", _GOOD, _GONE, _GOOD, "requests under way fail"),
        ("it is started again", _GOOD, _WAITS, _GOOD, "new connections wait"),
        ("it has all models", _GOOD, _GOOD, _GOOD, "workers kept their state"),
    ),
    "the dispatcher": (
        ("kill -9", _GONE, _GONE, _GONE, "requests under way fail"),
        ("started again", _GOOD, _WAITS, _WAITS, "models are restored"),
        ("all models serve", _GOOD, _GOOD, _GOOD, "no registration is lost"),
    ),
}
_PARTS = ("dispatcher", "tritonserver", "worker")


def _what_dies() -> str:
    parts = []
    for row, (name, frames) in enumerate(_DEATHS.items()):
        top = 30 + 150 * row
        parts.append(_text((70, top + 55), name, _INK, weight="bold"))
        for column, (title, *fills, seen) in enumerate(frames):
            left = 150 + 225 * column
            parts.append(_text((left + 100, top + 2), title))
            for place, (part, fill) in enumerate(zip(_PARTS, fills)):
                box = Box(left + 100, top + 28 + 30 * place, part, fill, 130, 24)
                parts.append(box.svg(dashed=fill == _GONE))
            parts.append(_text((left + 100, top + 124), seen, _MUTED))
            if column:
                here = Box(left + 100, top + 58, "", width=130, height=84)
                before = Box(left - 125, top + 58, "", width=130, height=84)
                parts.append(_arrow(before, here))
    legend = ((_GOOD, "works"), (_WAITS, "starts"), (_GONE, "gone"))
    for column, (fill, text) in enumerate(legend):
        parts.append(Box(250 + 225 * column, 492, text, fill, 80, 24).svg(dashed=fill == _GONE))
    return _svg("What happens when something dies", 840, 520, parts)


# ── SVG ──────────────────────────────────────────────────────────────────────────────────────────


def _arrow(
    start: Box,
    end: Box,
    *,
    label: str = "",
    label_at: Point | None = None,
    bend: float = 0,
    bold: bool = False,
    both: bool = False,
) -> str:
    """Return an arrow between two boxes; it bends to its right, so that one and its return are two."""
    dx, dy = end.x - start.x, end.y - start.y
    length = (dx * dx + dy * dy) ** 0.5
    if bend:
        # One along a row passes above the boxes between; longer ones bend more.
        by = bend * max(1.0, length / 150) if dy else -bend * (4 if length > 200 else 0)
        middle = (
            (start.x + end.x) / 2 - dy / length * by,
            (start.y + end.y) / 2 + dx / length * by,
        )
        (x1, y1), (x2, y2) = start.border(middle), end.border(middle)
    else:
        (x1, y1), (x2, y2) = start.border((end.x, end.y)), end.border((start.x, start.y))
        middle = ((x1 + x2) / 2, (y1 + y2) / 2)
    heads = 'marker-end="url(#head)"' + (' marker-start="url(#tail)"' if both else "")
    path = (
        f'<path d="M{x1:.1f},{y1:.1f} Q{middle[0]:.1f},{middle[1]:.1f} {x2:.1f},{y2:.1f}" fill="none" '
        f'stroke="{_LINE}" stroke-width="{2.4 if bold else 1.2}" {heads}/>'
    )
    if not label:
        return path
    return path + "\n" + _text(label_at or (middle[0], middle[1] - 8), label, _MUTED)


def _text(place: Point, text: str, fill: str = _INK, weight: str = "normal") -> str:
    return (
        f'<text x="{place[0]:g}" y="{place[1]:g}" text-anchor="middle" font-weight="{weight}" '
        f'fill="{fill}">{text}</text>'
    )


def _svg(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="13">'
    )
    marker = (
        '<marker id="{}" viewBox="0 0 10 10" refX="{}" refY="5" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="{}" fill="' + _LINE + '"/></marker>'
    )
    return "\n".join(
        [
            "<!-- Made by scripts/generate; see scripts/tools/generators/diagrams.py. -->",
            head,
            f"<title>{title}</title>",
            "<defs>",
            marker.format("head", 9, "M0,0 L10,5 L0,10 z"),
            marker.format("tail", 1, "M10,0 L0,5 L10,10 z"),
            "</defs>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )
