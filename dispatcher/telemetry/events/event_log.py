"""The event log: the newest events in memory, and all that there is room for in the state directory.

    tell ──▶ memory, at once ──▶ queue ──▶ a thread of its own ──▶ audit.jsonl     what somebody asked for
                                                               └─▶ events.jsonl    everything else

A disk that is full, slow or damaged costs events of the files, never a moment of the event loop: memory has the newest
ones, `problem` says what is wrong, and an `events_lost` in the files says later that some are missing.

Serials of a daemon's life begin at the clock, in milliseconds: the files may lack the last events of the life before,
or all of them, and whoever has seen these must see higher ones.
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

#: The folder in the state directory.
FOLDER = "events"
#: Events that wait to be written; more are left out of the files.
_MOST_WAITING = 10_000
#: Events in memory of each model, and of the daemon itself: what was asked for, and all else; models that have any.
_ASKED_PER_MODEL, _PER_MODEL, _MODELS = 100, 300, 1000
#: What a stop waits for the disk.
_CLOSE_S = 2.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class _Recent:
    """The newest events of one model. A crash loop does not displace who registered it, and what failed."""

    def __init__(self) -> None:
        self._asked: deque[Event] = deque(maxlen=_ASKED_PER_MODEL)
        self._others: deque[Event] = deque(maxlen=_PER_MODEL)

    def add(self, event: Event) -> None:
        (self._asked if is_asked(event) else self._others).append(event)

    def all(self) -> list[Event]:
        """Return them, oldest first; for any thread."""
        return sorted([*self._asked, *self._others], key=lambda event: event.serial)


class EventLog:
    """Keeps events. `events` takes them.

    Args:
        state: the state directory
        size: bytes that the files may have; 0: nothing is written, and memory is all there is
        also: get every event, too
        after: the serial of the last event that a former version of this process has told

    Attributes:
        serial: of the last event.
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
        #: Events that are missing in the files, all of them.
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
        """A problem that an administrator should look at; None while all is well."""
        problem = self._problem
        if problem is None:
            return None
        return f"events cannot be kept in the state directory, only in memory: {problem}"

    def about(self, model: str) -> list[Event]:
        """Return the newest events of a model ("": of the daemon itself), oldest first."""
        recent = self._recent.get(model)
        return recent.all() if recent is not None else []

    def all(self) -> list[Event]:
        """Return every event that is known, oldest first. Reads files: not for the event loop."""
        found = {event.serial: event for event in self._read()}
        for recent in list(self._recent.values()):
            found.update((event.serial, event) for event in recent.all())
        return [found[serial] for serial in sorted(found)]

    def recent(self, count: int, *, asked: bool = False) -> list[Event]:
        """Return the newest events that are in memory, oldest first; `asked`: those alone that somebody asked for."""
        known = (event for recent in self._recent.values() for event in recent.all())
        wanted = (event for event in known if is_asked(event)) if asked else known
        return heapq.nlargest(count, wanted, key=lambda event: event.serial)[::-1]

    @property
    def waits(self) -> bool:
        """Whether something is not written yet."""
        with self._changed:
            return bool(self._waiting) or self._writing

    def close(self) -> None:
        """Write what waits, as far as the disk takes it in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    # ── what comes ───────────────────────────────────────────────────────────────────────────────

    def _take(self, event: Event) -> None:
        self.serial = event.serial
        self._remember(event)
        if not self._writes:
            return
        with self._changed:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting.append(event)
            else:
                self._lost += 1
                self.lost += 1
            if self._thread is None:
                thread = threading.Thread(target=self._write, name="event log", daemon=True)
                thread.start()  # if there can be no more threads now, the next event has it tried again
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
            told = Event(
                next(self._serials), time.time(), kinds.EVENTS_LOST.name, numbers={"events": lost}
            )
            events = [told, *events]
        problem = None
        for journal, asked in ((self._asked, True), (self._others, False)):
            some = [event for event in events if is_asked(event) is asked]
            try:
                if some:
                    journal.append(b"".join(_encode(event) + b"\n" for event in some))
            except Exception as error:
                # Whatever it is: without this thread, no event is written any more.
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
    """Yield the events in lines; what is none was cut off or damaged, or is of another version."""
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield _decode(line)


def is_asked(event: Event) -> bool:
    """Whether somebody has asked for what it tells."""
    kind = kinds.KINDS.get(event.kind)
    return kind is not None and kind.asked
