"""The event log across restarts, crashes, full disks and damaged files; its problems never reach the emitter."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.real_daemon import eventually

from pytriton._protocol.messages.client import Event
from pytriton.dispatcher.telemetry.events import event_log, kinds
from pytriton.dispatcher.telemetry.events.event_log import EventLog, Journal


@pytest.fixture(autouse=True)
def _disk(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing here must survive a crash of the machine.
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr(event_log, "_CLOSE_TIMEOUT_S", 120.0)  # a stop gives up a slow disk sooner


@contextmanager
def opened(state: Path, size: int = 1_000_000) -> Iterator[EventLog]:
    log = EventLog(state, size)
    try:
        yield log
    finally:
        log.close()


def _kinds(log: EventLog) -> list[str]:
    return [event.kind for event in log.all()]


def test_events_and_serials_survive_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.events.emit(kinds.REGISTERED, model="m", who="user 7", numbers={"instances": 2})
        log.events.emit(kinds.CRASHED, model="m", instance=1, reason="killed")
    with opened(tmp_path) as log:
        log.events.emit(kinds.READY, model="m")
        first, second, third = log.about("m")
        assert [event.serial for event in log.all()] == [first.serial, second.serial, third.serial]
        assert first.serial < second.serial < third.serial
        assert (first.kind, first.who, first.numbers) == ("registered", "user 7", {"instances": 2})
        assert (second.instance, second.reason) == (1, "killed")
        assert log.about("other") == []


def test_serials_continue_after_an_upgrade(tmp_path: Path) -> None:
    """Even if the clock was changed."""
    after = 1 << 52
    following = EventLog(tmp_path, 0, after=after)
    following.events.emit(kinds.UPGRADED)
    assert [event.serial for event in following.all()] == [after + 1]
    assert following.serial == after + 1


@pytest.mark.parametrize("size", [0, 1_000_000])
def test_serials_of_unwritten_events_are_not_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Of a daemon that writes no events, and of one that was killed before writing them."""
    now = [1_700_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    former = EventLog(tmp_path, 0)
    for _ in range(5):
        former.events.emit(kinds.CRASHED, model="m")
    now[0] += 1.0
    with opened(tmp_path, size) as log:
        log.events.emit(kinds.STARTED)
        (started,) = log.about("")
    assert started.serial > former.serial


def test_serials_grow_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        log.events.emit(kinds.STARTED)
    monkeypatch.setattr("time.time", lambda: 5.0)
    with opened(tmp_path) as log:
        log.events.emit(kinds.STARTED)
        first, second = log.about("")
    assert second.serial == first.serial + 1


def test_the_files_are_private(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.events.emit(kinds.REGISTERED, model="m")
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "events").rglob("*")}
    assert modes == {0}


def test_truncated_and_damaged_lines_are_skipped(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.events.emit(kinds.CRASHED, model="m")
    path = tmp_path / "events" / "events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"\x00\xff{[\n" + b"[" * 5000 + b"\n" + whole + whole[:20])
    with opened(tmp_path) as log:
        log.events.emit(kinds.READY, model="m")
    with opened(tmp_path) as log:
        assert _kinds(log) == ["crashed", "ready"]


def test_the_files_are_bounded_and_audit_events_are_not_displaced(tmp_path: Path) -> None:
    size = 40_000
    with opened(tmp_path, size) as log:
        log.events.emit(kinds.REGISTERED, model="quiet", who="user 7")
        for number in range(1000):
            log.events.emit(kinds.CRASHED, model="loud", reason=f"{number} " + "x" * 100)
    files = list((tmp_path / "events").iterdir())
    assert sum(path.stat().st_size for path in files) <= size
    with opened(tmp_path, size) as log:
        assert [event.who for event in log.about("quiet")] == ["user 7"]
        assert log.about("loud")[-1].reason.startswith("999 ")


def test_a_journal_rotates_into_one_previous_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "j", 200)
    for number in range(100):
        journal.append(b"%03d456789\n" % number)
    journal.close()
    lines = [line for line in journal.read() if line]
    assert lines[-1] == b"099456789"
    assert lines == sorted(lines)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 200


def test_a_large_append_is_rotated_to_the_size(tmp_path: Path) -> None:
    lines = [b"%03d456789\n" % number for number in range(100)]
    journal = Journal(tmp_path, "j", 200)
    journal.append(b"".join(lines))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 200
    journal.append(b"x" * 300 + b"\n" + b"last\n")  # one line exceeds the total limit
    journal.close()
    assert [line for line in journal.read() if line][-1] == b"last"
    journal = Journal(tmp_path, "another", 200)
    journal.append(b"".join(lines))
    journal.close()
    kept = [line + b"\n" for line in journal.read() if line]
    assert kept == lines[-len(kept) :]
    assert len(kept) == 20


def test_a_full_disk_drops_file_events_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, tried = threading.Event(), threading.Event()
    write = os.write

    def refuse(file: int, data: bytes) -> int:
        if full.is_set():
            tried.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr("pytriton.dispatcher.telemetry.events.event_log.os.write", refuse)
    with opened(tmp_path) as log:
        full.set()
        log.events.emit(kinds.CRASHED, model="m", reason="first")
        assert tried.wait(30)
        log.close()  # the thread has ended, and recorded the error
        assert "No space left" in (log.problem or "")
        assert [event.reason for event in log.about("m")] == ["first"]
        assert _kinds(log) == ["crashed"]  # it is in memory
        assert log.lost == 1
        log._write_all(log.about("m"))
        assert log.lost == 2
        full.clear()
        log._write_all(log.about("m"))
        assert log.problem is None
    with opened(tmp_path) as log:
        lost = [event.numbers for event in log.all() if event.kind == "events_lost"]
        assert lost == [{"events": 2}]


def test_a_slow_disk_does_not_delay_emitters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(
        "pytriton.dispatcher.telemetry.events.event_log.os.fsync", lambda file: go_on.wait(30)
    )
    monkeypatch.setattr(event_log, "_MAX_PENDING", 10)
    with opened(tmp_path) as log:
        for _ in range(100):
            log.events.emit(kinds.CRASHED, model="m")
        assert len(log.about("m")) == 100
        go_on.set()
    assert log._unreported_losses >= 80 or "events_lost" in _kinds(log)


def test_without_a_size_nothing_is_written(tmp_path: Path) -> None:
    with opened(tmp_path, 0) as log:
        log.events.emit(kinds.CRASHED, model="m")
        assert len(log.about("m")) == 1
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_MAX_MODELS", 3)
    with opened(tmp_path, 0) as log:
        for number in range(10):
            log.events.emit(kinds.REGISTRATION_FAILED, model=f"m{number}")
        for _ in range(1000):
            log.events.emit(kinds.CRASHED, model="m9")
        assert log.about("m1") == []
        assert len(log.about("m9")) == 301
        for _ in range(1000):
            log.events.emit(kinds.SCALED, model="m9")
        assert len(log.about("m9")) == 400


def test_a_crash_loop_does_not_displace_audit_events_in_memory(tmp_path: Path) -> None:
    with opened(tmp_path, 0) as log:
        log.events.emit(kinds.REGISTERED, model="m")
        log.events.emit(kinds.CRASHED, model="m")
        log.events.emit(kinds.REPLACE_FAILED, model="m")
        for _ in range(1000):
            log.events.emit(kinds.CRASHED, model="m")
        reported = log.about("m")
        assert [one.kind for one in reported[:3]] == ["registered", "replace_failed", "crashed"]
        assert [one.serial for one in reported] == sorted(one.serial for one in reported)


def test_an_event_that_cannot_be_encoded_does_not_end_the_thread(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log._record(Event(log.serial + 1, 1.0, kinds.CRASHED.name, "m", reason="\udcff"))
        eventually(lambda: log.problem, "what is wrong is said")
        assert log.lost == 1
        log.events.emit(kinds.READY, model="m")
    with opened(tmp_path) as log:
        assert sorted(_kinds(log)) == ["events_lost", "ready"]


def test_a_failed_thread_start_is_retried_with_the_next_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    log = EventLog(tmp_path, 1_000_000)
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        log.events.emit(kinds.READY, model="m")  # whatever its outcome
    log.close()
    log = EventLog(tmp_path, 1_000_000)
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        log.events.emit(kinds.READY, model="m")
    log.events.emit(kinds.CRASHED, model="m")
    log.close()
    with opened(tmp_path) as log:
        assert _kinds(log) == ["ready", "crashed"]
