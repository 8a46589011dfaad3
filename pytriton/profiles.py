"""Profiles of workers, as shares of time, as a flame graph, or as a file for speedscope.

A profile consists of samples: the stacks of all threads, which py-spy records at a fixed rate from another process.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

__all__ = ["IDLE", "KINDS", "Profile"]

#: Activities of the serving thread, among which its time is divided.
CALLABLE, LIBRARIES, OURS, IDLE = "callable", "libraries", "pytriton", "waiting for requests"
KINDS = (CALLABLE, LIBRARIES, OURS, IDLE)
_FRAME = re.compile(r"(?P<name>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)")
#: Files whose method `run` waits while the worker is idle.
_WAITS_IN_RUN = ("loop.py", "decoupled_loop.py")
#: The file in which the event loop of an asynchronous streaming callable waits when it is idle.
_EVENT_LOOP = "selectors.py"
#: The file of this package that is on the stack during each call of the callable.
_IN_CALL = "/pytriton/worker/model.py"
#: Names of folders in which packages are installed.
_PACKAGES = ("site-packages", "dist-packages")
_STDLIB = re.compile(r"python3\.\d+t?")

#: Contents of our package, to tell it from a user's folder that is also called pytriton.
_OUR_PARTS = frozenset(
    {"worker", "_protocol", "decorators", "proxy", "pb_utils", "openai", "calls.py", "buffers.py", "request_ids.py"}
)  # fmt: skip

_WIDTH, _ROW, _MIN_WIDTH = 1200, 17, 0.3
_COLOURS = {CALLABLE: "#e8833a", LIBRARIES: "#e8c15a", OURS: "#6fa8dc", IDLE: "#d0d0d0"}


class Frame(NamedTuple):
    """A function on a stack, with its file ("" if unknown) and the current line."""

    name: str
    file: str
    line: int


@dataclass(frozen=True)
class Profile:
    """The samples of one worker.

    Attributes:
        model, instance, worker, pid: the profiled worker
        seconds: duration of the profile
        rate: samples per second
        stacks: the samples in py-spy's "raw" format: each line has a stack, from its outermost function, and the
            number of samples with it
        left_out: number of samples whose stacks were too rare to be sent
    """

    model: str
    instance: int
    worker: str
    pid: int
    seconds: float
    rate: int
    stacks: str
    left_out: int = 0

    def shares(self) -> dict[str, float]:
        """Return the fraction of the serving thread's time that was spent on each activity in `KINDS`."""
        counts: Counter[str] = Counter()
        for frames, count in self._serving():
            counts[kind_of(frames)] += count
        total = sum(counts.values())
        return {kind: counts[kind] / total if total else 0.0 for kind in KINDS}

    def hottest(self, most: int = 5) -> list[tuple[str, float]]:
        """Return the lines that the serving thread executed most often, each with its share of the thread's time.

        Args:
            most: maximum number of lines
        """
        counts: Counter[str] = Counter()
        total = 0
        for frames, count in self._serving():
            total += count
            if kind_of(frames) != IDLE:
                counts[_shown(frames[-1])] += count
        return [(name, count / total) for name, count in counts.most_common(most)]

    def collapsed(self) -> str:
        """Return all samples in the "collapsed" format of flame graph tools."""
        return self.stacks

    def speedscope(self) -> str:
        """Return all samples as JSON for speedscope.app."""
        numbers: dict[str, int] = {}
        samples, weights = [], []
        for frames, count in self._all():
            names = [_shown(frame) for frame in frames]
            samples.append([numbers.setdefault(name, len(numbers)) for name in names])
            weights.append(count / self.rate)
        profile: dict[str, Any] = {
            "type": "sampled",
            "name": f"{self.model} instance {self.instance} (pid {self.pid})",
            "unit": "seconds",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": samples,
            "weights": weights,
        }
        return json.dumps(
            {
                "$schema": "https://www.speedscope.app/file-format-schema.json",
                "shared": {"frames": [{"name": name} for name in numbers]},
                "profiles": [profile],
            }
        )

    def svg(self) -> str:
        """Return a flame graph as an SVG document without scripts; hovering over a frame shows its share of time."""
        root = _Node("all threads", IDLE)
        for frames, count in self._all():
            root.count += count
            node = root
            for depth, frame in enumerate(frames, 1):
                node = node.children.setdefault(
                    frame, _Node(_shown(frame), kind_of(frames[:depth]))
                )
                node.count += count
        depth = root.depth()
        rows = list(root.drawn(0.0, 0, depth, root.count or 1))
        legend = "".join(
            f'<text x="{10 + place * 200}" y="40" fill="{_COLOURS[kind]}" stroke="#444" stroke-width="0.3">'
            f"■ {kind} {share:.1%}</text>"
            for place, (kind, share) in enumerate(self.shares().items())
        )
        title = html.escape(
            f"{self.model} instance {self.instance}, worker {self.worker} (pid {self.pid}), {self.seconds:g} s"
        )
        height = 60 + (depth + 1) * _ROW
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" font-family="monospace" font-size="12">'
            f'<rect width="100%" height="100%" fill="#fff"/><text x="10" y="20">{title}</text>{legend}'
            + "".join(rows)
            + "</svg>\n"
        )

    def _all(self) -> Iterator[tuple[Sequence[Frame], int]]:
        for line in self.stacks.split("\n"):
            stack, _, count = line.rpartition(" ")
            if stack and count.isdigit():
                yield [_frame(text) for text in stack.split(";")], int(count)

    def _serving(self) -> Iterator[tuple[Sequence[Frame], int]]:
        """Yield the samples of the serving thread, which has the worker's entry point on its stack."""
        for frames, count in self._all():
            if any(_is_ours(one) and one.file.endswith("/worker/process.py") for one in frames):
                yield frames, count


def kind_of(frames: Sequence[Frame]) -> str:
    """Return the activity that a stack belongs to, judging by its innermost function and that function's callers."""
    last = frames[-1]
    if _is_ours(last):
        # Python 3.11 and newer report the method with its class, `Loop.run`.
        is_run = last.name.rpartition(".")[2] == "run"
        return IDLE if is_run and PurePosixPath(last.file).name in _WAITS_IN_RUN else OURS
    users = [one for one in frames if one.file and not _is_ours(one) and not _is_library(one)]
    if last in users:
        return CALLABLE
    if not users and PurePosixPath(last.file).name == _EVENT_LOOP:
        # During a call, an asynchronous callable is awaiting something; otherwise, the event loop is idle.
        return CALLABLE if any(one.file.endswith(_IN_CALL) for one in frames) else IDLE
    return LIBRARIES if users or not any(_is_ours(one) for one in frames) else OURS


@dataclass
class _Node:
    name: str
    kind: str
    count: int = 0
    children: dict[Frame, _Node] = field(default_factory=dict)

    def depth(self) -> int:
        return 1 + max((child.depth() for child in self.children.values()), default=0)

    def drawn(self, x: float, level: int, depth: int, total: int) -> Iterator[str]:
        """Yield the SVG elements of this frame and its callees, except those too narrow to be visible."""
        width = _WIDTH * self.count / total
        if width < _MIN_WIDTH:
            return
        y = 50 + (depth - 1 - level) * _ROW
        text = html.escape(self.name)
        label = html.escape(_fitting(self.name, int(width / 7.3)))
        yield (
            f'<g><title>{text}: {self.count / total:.1%}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
            f'height="{_ROW - 1}" fill="{_COLOURS[self.kind]}" stroke="#fff" stroke-width="0.5"/>'
            f'<text x="{x + 2:.1f}" y="{y + 12}">{label}</text></g>'
        )
        for child in sorted(self.children.values(), key=lambda one: one.name):
            yield from child.drawn(x, level + 1, depth, total)
            x += _WIDTH * child.count / total


def _fitting(text: str, characters: int) -> str:
    if characters < 3:
        return ""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def _frame(text: str) -> Frame:
    match = _FRAME.fullmatch(text)
    if match is None:  # the name of a thread
        return Frame(text, "", 0)
    return Frame(match["name"], match["file"], int(match["line"] or 0))


def _shown(frame: Frame) -> str:
    if not frame.file:
        return frame.name
    folders = PurePosixPath(frame.file).parts[-3:]
    return f"{frame.name} ({'/'.join(folders)}:{frame.line})"


def _is_ours(frame: Frame) -> bool:
    _, found, inner = frame.file.rpartition("/pytriton/")
    return bool(found) and inner.split("/")[0] in _OUR_PARTS


def _is_library(frame: Frame) -> bool:
    parts = PurePosixPath(frame.file).parts
    return (
        any(part in _PACKAGES for part in parts)
        or any(_STDLIB.fullmatch(part) for part in parts[:-1])
        or frame.file.startswith("<frozen")
    )
