"""Notifications to a service manager that does not read for a while."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton._host.service_manager.systemd import Notifier, ServiceState


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A service manager's socket whose queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    other.sendto(b"", str(tmp_path / "notify"))
        yield listening


def read_all(manager: socket.socket) -> list[str]:
    """Return the queued messages, except those that filled the queue."""
    said = []
    manager.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            said.append(manager.recv(4096).decode())
    manager.settimeout(60)
    return [one for one in said if one]


def test_delayed_notifications_arrive_in_order(manager: socket.socket) -> None:
    notifier = Notifier(manager.getsockname())
    notifier.ready("ready: no models")
    notifier.stopping("stopping: for fun")
    assert read_all(manager) == []

    async def go_on() -> tuple[str, str]:
        notify_task = asyncio.create_task(
            notifier.keep(lambda: ServiceState("stopping: for fun", healthy=True, busy=False))
        )
        try:
            first = await asyncio.to_thread(manager.recv, 4096)
            return first.decode(), (await asyncio.to_thread(manager.recv, 4096)).decode()
        finally:
            notify_task.cancel()

    first, second = asyncio.run(go_on())
    assert first == "READY=1\nSTATUS=ready: no models"
    assert second.startswith("STOPPING=1\nSTATUS=stopping: for fun\n")
    assert read_all(manager) == []


def test_an_unsent_status_is_sent_again(manager: socket.socket) -> None:
    notifier = Notifier(manager.getsockname())
    notifier.status("ready: 1 of 1 models ready")
    assert read_all(manager) == []
    for _ in range(2):
        notifier.status("ready: 1 of 1 models ready")
    assert read_all(manager) == ["STATUS=ready: 1 of 1 models ready"]
