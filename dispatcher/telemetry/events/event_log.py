"""The event log: the newest events in memory, and a bounded number of them in the state directory.

    emit ──▶ memory, at once ──▶ queue ──▶ writer thread ──▶ audit.jsonl     events requested by an actor
                                                         └─▶ events.jsonl    all others

A full, slow or damaged disk may cost events in the files but never blocks the event loop: memory has the newest events,
`problem` reports what is wrong, and an `events_lost` event in the files later records that some are missing.

Serial numbers start at the current time in milliseconds: the files may lack the last events of the previous run, or all
of them, and a reader who has seen those must get higher numbers.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from pytriton._protocol.messages.events import Event
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events, Sink
from pytriton.dispatcher.telemetry.events.journal import Journal

#: The directory within the state directory.
FOLDER = "events"
#: Maximum number of events waiting to be written; further ones are missing in the files.
_MAX_WAITING = 10_000
#: Events in memory per model and for the daemon itself: audit events, and all others; and maximum number of models.
_ASKED_PER_MODEL, _PER_MODEL, _MODELS = 100, 300, 1000
#: How long a stop waits for the disk.
_CLOSE_S = 2.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class _Recent:
    """The newest events of one model. A crash loop does not displace registrations and failed changes."""

    def __init__(self) -> None:
        self._asked: deque[Event] = deque(maxlen=_ASKED_PER_MODEL)
        self._others: deque[Event] = deque(maxlen=_PER_MODEL)

    def add(self, event: Event) -> None:
        (self._asked if is_asked(event) else self._others).append(event)

    def all(self) -> list[Event]:
        """Return the events, oldest first; thread-safe."""
        return sorted([*self._asked, *self._others], key=lambda event: event.serial)


class EventLog:
    """Stores events; `events` emits them.

    Args:
        state: the state directory
        size: maximum size of the files in bytes; 0 keeps events in memory only
        also: further sinks for every event
        after: serial number of the last event that the version before an upgrade emitted

    Attributes:
        serial: serial number of the last event.
    """

    def __init__(
        self, state: Path, size: int, also: Sequence[Sink] = (), *, after: int = 0
    ) -> None:
        folder = state / FOLDER
        self._asked = Journal(folder, "audit", size // 2)
        self._others = Journal(folder, "events", size // 2)
        self._writes = size > 0
        self._recent: OrderedDict[str, _Recent] = OrderedDict()
        self._waiting: deque[Event] = deque()
        self._lost = 0
        #: Total number of events missing in the files.
        self.lost = 0
        self._problem: str | None = None
        self._changed = threading.Condition()
        self._closing = self._writing = False
        self._thread: threading.Thread | None = None
        former = self._read()
        for event in former:
            self._remember(event)
        begin = int(time.time() * 1000)
        self.serial = max([after, begin, *(event.serial for event in former)])
        self._serials = itertools.count(self.serial + 1)
        self.events = Events([self._take, *also], self._serials)

    @property
    def problem(self) -> str | None:
        """A problem that needs an administrator's attention, or None."""
        problem = self._problem
        if problem is None:
            return None
        return f"cannot store events in the state directory, only in memory: {problem}"

    def about(self, model: str) -> list[Event]:
        """Return the newest events of a model ("" for the daemon itself), oldest first."""
        recent = self._recent.get(model)
        return recent.all() if recent is not None else []

    def all(self) -> list[Event]:
        """Return all known events, oldest first. Reads files, so do not call it on the event loop."""
        found = {event.serial: event for event in self._read()}
        for recent in list(self._recent.values()):
            found.update((event.serial, event) for event in recent.all())
        return [found[serial] for serial in sorted(found)]

    def recent(self, count: int, *, asked: bool = False) -> list[Event]:
        """Return the newest events in memory, oldest first; `asked`: only those requested by an actor."""
        known = (event for recent in self._recent.values() for event in recent.all())
        wanted = (event for event in known if is_asked(event)) if asked else known
        return heapq.nlargest(count, wanted, key=lambda event: event.serial)[::-1]

    @property
    def waits(self) -> bool:
        """Whether events are waiting to be written."""
        with self._changed:
            return bool(self._waiting) or self._writing

    def close(self) -> None:
        """Write the pending events, as far as the disk accepts them in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    # ── recording ────────────────────────────────────────────────────────────────────────────────

    def _take(self, event: Event) -> None:
        self.serial = event.serial
        self._remember(event)
        if not self._writes:
            return
        with self._changed:
            if len(self._waiting) < _MAX_WAITING:
                self._waiting.append(event)
            else:
                self._lost += 1
                self.lost += 1
            if self._thread is None:
                thread = threading.Thread(target=self._write, name="event log", daemon=True)
                thread.start()  # if no thread can be started now, the next event retries
                self._thread = thread
            self._changed.notify()

    def _remember(self, event: Event) -> None:
        recent = self._recent.setdefault(event.model, _Recent())
        self._recent.move_to_end(event.model)
        recent.add(event)
        if len(self._recent) > _MODELS:
            self._recent.popitem(last=False)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                events = list(self._waiting)
                self._waiting.clear()
                self._writing = bool(events)
                if not events:
                    break
            self._write_all(events)
            with self._changed:
                self._writing = False
        for journal in (self._asked, self._others):
            journal.close()

    def _write_all(self, events: Sequence[Event]) -> None:
        with self._changed:
            lost, self._lost = self._lost, 0
        if lost:
            loss = Event(
                next(self._serials), time.time(), kinds.EVENTS_LOST.name, numbers={"events": lost}
            )
            events = [loss, *events]
        problem = None
        for journal, asked in ((self._asked, True), (self._others, False)):
            some = [event for event in events if is_asked(event) is asked]
            try:
                if some:
                    journal.append(b"".join(_encode(event) + b"\n" for event in some))
            except Exception as error:
                # Any error: if this thread ended, no event would be written again.
                problem = getattr(error, "strerror", None) or str(error)
                missing = len(some) - (0 if asked or not lost else 1)
                with self._changed:
                    self._lost += missing + (0 if asked else lost)
                    self.lost += missing
        self._problem = problem

    # ── the files ────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> list[Event]:
        events = [*_decoded(self._asked.read()), *_decoded(self._others.read())]
        return sorted(events, key=lambda event: event.serial)


def _decoded(lines: Iterable[bytes]) -> Iterable[Event]:
    """Yield the events in lines. Skip lines that are truncated, damaged or of another version."""
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield _decode(line)


def is_asked(event: Event) -> bool:
    """Return whether an actor requested what the event reports."""
    kind = kinds.KINDS.get(event.kind)
    return kind is not None and kind.asked
