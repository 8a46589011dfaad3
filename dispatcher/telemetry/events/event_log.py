"""The event log. It keeps the newest events in memory, and a limited number in files of the state directory.

    emit ──▶ memory, at once ──▶ queue ──▶ writer thread ──▶ audit.jsonl     events requested by an actor
                                                         └─▶ events.jsonl    all others

If the disk is full, slow or damaged, events may be missing from the files, but the event loop is never blocked. The
newest events are still in memory, `problem` reports the error, and an `events_lost` event in the files later says how
many are missing.

Serial numbers start at the current time in milliseconds, so that they are higher than all numbers of earlier runs, even
if the files that contained those are gone.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from pytriton._protocol.files.private_files import open_private
from pytriton._protocol.messages.client import Event
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events, Sink

#: Subdirectory of the state directory.
FOLDER = "events"
#: Maximum number of events that wait to be written. Beyond it, events are missing from the files.
_MAX_PENDING = 10_000
#: Number of events to keep in memory for each model (and for the daemon itself): audit events, and others. And maximum
#: number of models with events in memory.
_AUDIT_PER_MODEL, _PER_MODEL, _MAX_MODELS = 100, 300, 1000
#: How long `close` waits for the disk, in seconds.
_CLOSE_TIMEOUT_S = 2.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class _Recent:
    """The newest events of a model. Audit events are stored separately, so that a crash loop does not displace them."""

    def __init__(self) -> None:
        self._audit: deque[Event] = deque(maxlen=_AUDIT_PER_MODEL)
        self._others: deque[Event] = deque(maxlen=_PER_MODEL)

    def add(self, event: Event) -> None:
        (self._audit if _is_audit(event) else self._others).append(event)

    def all(self) -> list[Event]:
        """Return the events, oldest first. Thread-safe."""
        return sorted([*self._audit, *self._others], key=lambda event: event.serial)


class EventLog:
    """Stores events; its attribute `events` emits them.

    Args:
        state: state directory
        size: maximum size of the files together, in bytes; 0 keeps events in memory only
        also: further sinks for every event
        after: serial number of the last event before an upgrade; 0 without one

    Attributes:
        serial: serial number of the last event
    """

    def __init__(
        self, state: Path, size: int, also: Sequence[Sink] = (), *, after: int = 0
    ) -> None:
        folder = state / FOLDER
        self._audit = Journal(folder, "audit", size // 2)
        self._others = Journal(folder, "events", size // 2)
        self._writes = size > 0
        self._recent: OrderedDict[str, _Recent] = OrderedDict()
        self._pending: deque[Event] = deque()
        self._unreported_losses = 0
        #: Number of events that are missing from the files.
        self.lost = 0
        self._problem: str | None = None
        self._changed = threading.Condition()
        self._closing = self._writing = False
        self._thread: threading.Thread | None = None
        stored = self._read()
        for event in stored:
            self._remember(event)
        now_ms = int(time.time() * 1000)
        self.serial = max([after, now_ms, *(event.serial for event in stored)])
        self._serials = itertools.count(self.serial + 1)
        self.events = Events([self._record, *also], self._serials)

    @property
    def problem(self) -> str | None:
        """A problem that an administrator should fix, as shown by `status`; None if there is none."""
        problem = self._problem
        if problem is None:
            return None
        return f"cannot store events in the state directory, only in memory: {problem}"

    def about(self, model: str) -> list[Event]:
        """Return the newest events of a model ("" for the daemon itself) in memory, oldest first."""
        recent = self._recent.get(model)
        return recent.all() if recent is not None else []

    def all(self) -> list[Event]:
        """Return all events in memory and in the files, oldest first. Blocks, so do not call it in the event loop."""
        found = {event.serial: event for event in self._read()}
        for recent in list(self._recent.values()):
            found.update((event.serial, event) for event in recent.all())
        return [found[serial] for serial in sorted(found)]

    def recent(self, count: int, *, audit_only: bool = False) -> list[Event]:
        """Return the newest events in memory, oldest first; with `audit_only`, only those that an actor requested."""
        known = (event for recent in self._recent.values() for event in recent.all())
        chosen = (event for event in known if _is_audit(event)) if audit_only else known
        return heapq.nlargest(count, chosen, key=lambda event: event.serial)[::-1]

    @property
    def has_pending(self) -> bool:
        """Whether events are waiting to be written."""
        with self._changed:
            return bool(self._pending) or self._writing

    def close(self) -> None:
        """Write the pending events, waiting only a limited time for the disk."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)

    # ── recording ────────────────────────────────────────────────────────────────────────────────

    def _record(self, event: Event) -> None:
        self.serial = event.serial
        self._remember(event)
        if not self._writes:
            return
        with self._changed:
            if len(self._pending) < _MAX_PENDING:
                self._pending.append(event)
            else:
                self._unreported_losses += 1
                self.lost += 1
            if self._thread is None:
                thread = threading.Thread(target=self._write, name="event log", daemon=True)
                thread.start()  # raises if no thread can be started now; the next event retries
                self._thread = thread
            self._changed.notify()

    def _remember(self, event: Event) -> None:
        recent = self._recent.setdefault(event.model, _Recent())
        self._recent.move_to_end(event.model)
        recent.add(event)
        if len(self._recent) > _MAX_MODELS:
            self._recent.popitem(last=False)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._closing:
                    self._changed.wait()
                events = list(self._pending)
                self._pending.clear()
                self._writing = bool(events)
                if not events:
                    break
            self._write_all(events)
            with self._changed:
                self._writing = False
        for journal in (self._audit, self._others):
            journal.close()

    def _write_all(self, events: Sequence[Event]) -> None:
        with self._changed:
            lost, self._unreported_losses = self._unreported_losses, 0
        if lost:
            loss = Event(
                next(self._serials), time.time(), kinds.EVENTS_LOST.name, numbers={"events": lost}
            )
            events = [loss, *events]
        problem = None
        for journal, audit in ((self._audit, True), (self._others, False)):
            some = [event for event in events if _is_audit(event) is audit]
            try:
                if some:
                    journal.append(b"".join(_encode(event) + b"\n" for event in some))
            except Exception as error:
                # Any error: if this thread ended, no event would be written any more.
                problem = getattr(error, "strerror", None) or str(error)
                missing = len(some) - (
                    0 if audit or not lost else 1
                )  # do not count the events_lost event itself
                with self._changed:
                    self._unreported_losses += missing + (0 if audit else lost)
                    self.lost += missing
        self._problem = problem

    def _read(self) -> list[Event]:
        events = [*_decoded(self._audit.read()), *_decoded(self._others.read())]
        return sorted(events, key=lambda event: event.serial)


def _decoded(lines: Iterable[bytes]) -> Iterable[Event]:
    """Decode the events in lines. Skip lines that are truncated, damaged or in another version's format."""
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield _decode(line)


def _is_audit(event: Event) -> bool:
    """Return whether this is an audit event, which reports something that an actor requested."""
    kind = kinds.KINDS.get(event.kind)
    return kind is not None and kind.is_audit


# ── the files ────────────────────────────────────────────────────────────────────────────────────


class Journal:
    """Append-only file of lines, NAME.jsonl, which is rotated to NAME.1.jsonl.

    If a crash has truncated the last line, the next one starts on a new line, and readers skip the truncated one.

    Args:
        folder: directory of the files, created with the first line, private to this user
        name: base name of the files
        size: maximum size of both files together, in bytes
    """

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self._path = folder / f"{name}.jsonl"
        self._previous = folder / f"{name}.1.jsonl"
        self._size = size // 2
        self._file = -1
        self._written = 0

    def append(self, lines: bytes) -> None:
        """Append complete lines, and sync them to disk.

        Raises:
            OSError: writing failed; the next call reopens the file
        """
        try:
            if self._file < 0:
                self._open()
            start = 0
            while start < len(lines):
                end = self._end_of_fitting(lines, start)
                if end == start:
                    self._rotate()
                else:
                    self._write(memoryview(lines)[start:end])
                    start = end
            os.fsync(self._file)
        except OSError:
            self.close()
            raise

    def read(self) -> Iterator[bytes]:
        """Yield the lines of both files, oldest first. Skip files that cannot be read."""
        for path in (self._previous, self._path):
            try:
                with open(path, "rb", opener=open_private) as file:
                    data = file.read(2 * self._size + 1)
            except OSError:  # missing or unreadable: treat it as empty
                continue
            yield from data.split(b"\n")

    def close(self) -> None:
        """Close the file. The next `append` reopens it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        file = open_private(str(self._path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._file = file
        self._written = os.fstat(file).st_size
        if self._written and not _ends_a_line(self._path):
            self._written += os.write(file, b"\n")

    def _end_of_fitting(self, lines: bytes, start: int) -> int:
        """Return the position after the last line that still fits into the file. The lines begin at `start`.

        A single line of any length fits into an empty file.
        """
        room = self._size - self._written
        if len(lines) - start <= room:
            return len(lines)
        end = lines.rfind(b"\n", start, start + max(room, 0)) + 1
        if end == 0 and self._written == 0:
            end = lines.find(b"\n", start) + 1 or len(lines)
        return end or start

    def _write(self, data: memoryview) -> None:
        while data:
            count = os.write(self._file, data)
            self._written += count
            data = data[count:]

    def _rotate(self) -> None:
        os.fsync(self._file)
        os.replace(self._path, self._previous)
        self.close()
        self._open()


def _ends_a_line(path: Path) -> bool:
    with open(path, "rb", opener=open_private) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
