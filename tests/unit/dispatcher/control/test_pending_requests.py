"""Requests in progress: cancelled once, if possible, when their client exits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from fakes.fake_processes import FakeProcesses
from fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.control.pending_requests import PendingRequests, when_exited

ME, OTHER = b"me", b"other"


class Asked:
    """Requests that last until they are answered; `undone` counts their cancellations."""

    def __init__(self) -> None:
        self.requests = PendingRequests()
        self.answers: dict[bytes, asyncio.Event] = {}
        self.undone: list[bytes] = []

    def begin(self, number: bytes, *, peer: bytes = ME, abandonable: bool = True) -> None:
        self.requests.check(peer, number)
        self.answers[number] = asyncio.Event()
        self.requests.begin(peer, number, self._answer(number), abandonable=abandonable)

    async def _answer(self, number: bytes) -> None:
        while not self.answers[number].is_set():
            try:
                await self.answers[number].wait()
            except asyncio.CancelledError:  # noqa: PERF203, it takes a while to undo things
                self.undone.append(number)


@pytest.fixture
def asked(loop: VirtualLoop) -> Iterator[Asked]:
    one = loop.ask(Asked)
    yield one
    for answer in one.answers.values():
        answer.set()
    loop.settle()
    assert one.requests._by_peer == {}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProcesses]:
    one = FakeProcesses()
    monkeypatch.setattr("pytriton._protocol.linux.pidfd_open", one.pidfd_open)
    yield one
    one.end_all()


def test_a_request_is_cancelled_once_by_its_own_client(loop: VirtualLoop, asked: Asked) -> None:
    """It may be busy rolling back; requests that cannot be cancelled continue."""
    loop.ask(lambda: asked.begin(b"1"))
    loop.ask(lambda: asked.begin(b"2", abandonable=False))
    for peer, number in [(OTHER, b"1"), (ME, b"3"), (ME, b"2"), (ME, b"1"), (ME, b"1")]:
        asked.requests.abandon(peer, number, "why")
        loop.settle()
    assert asked.undone == [b"1"]


def test_a_request_is_cancelled_when_its_client_exits(
    loop: VirtualLoop, asked: Asked, processes: FakeProcesses
) -> None:
    """Unless it has been answered by then."""
    pid, ended = processes.start(), processes.start()
    for number in (b"1", b"2"):
        loop.ask(lambda number=number: asked.begin(number))  # type: ignore[misc]
        loop.ask(lambda number=number: asked.requests.watch(ME, number, pid))  # type: ignore[misc]
    asked.answers[b"2"].set()
    loop.settle()
    processes.end(pid)
    loop.advance(1.0)
    assert asked.undone == [b"1"]
    processes.end(ended)
    loop.ask(lambda: asked.begin(b"3"))
    loop.ask(lambda: asked.requests.watch(ME, b"3", ended))  # it has ended before
    loop.settle()
    assert asked.undone == [b"1", b"3"]


def test_at_shutdown_all_are_cancelled_and_awaited(loop: VirtualLoop, asked: Asked) -> None:
    loop.ask(lambda: asked.begin(b"1", abandonable=False))
    loop.ask(lambda: asked.begin(b"2", peer=OTHER))
    ending = loop.create_task(asked.requests.end())
    loop.settle()
    assert sorted(asked.undone) == [b"1", b"2"]
    assert not ending.done()
    for answer in asked.answers.values():
        answer.set()
    loop.run(ending)


def test_a_stopped_watch_reports_nothing(loop: VirtualLoop, processes: FakeProcesses) -> None:
    pid = processes.start()
    reported: list[str] = []
    loop.ask(lambda: when_exited(pid, lambda: reported.append("stopped")))()
    loop.ask(lambda: when_exited(pid, lambda: reported.append("watching")))
    processes.end(pid)
    loop.advance(1.0)
    assert reported == ["watching"]


def test_without_process_watching_nothing_is_reported(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("pytriton._protocol.linux.pidfd_open", refuse)
    reported: list[str] = []
    stop = loop.ask(lambda: when_exited(1, lambda: reported.append("")))
    loop.advance(1.0)
    stop()
    assert reported == []
