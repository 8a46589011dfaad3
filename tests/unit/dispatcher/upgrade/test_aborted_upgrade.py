"""An upgrade aborted at its last steps: the daemon continues with its control socket and signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
from fakes.upgrade_parts import Parts

from pytriton._protocol import messages
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.upgrade import snapshot
from pytriton.dispatcher.upgrade.coordinator import UpgradeCoordinator
from pytriton.dispatcher.upgrade.takeover import SIGNALS

NOW = messages.Upgrade(wait_s=0.0)


class Scene:
    """A daemon whose upgrade nothing prevents.

    Attributes:
        done: operations on its control socket, and the reason of the event, in order
        executed: whether the next version was executed
        on_suspend: called when the control socket is suspended
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.executed = False
        self.on_suspend: Callable[[], object] = lambda: None
        self.requested = asyncio.Event()
        self.released = asyncio.Event()
        self.parts = parts = Parts()
        self.status, self.prestarted = parts.status, parts.registry.prestarted
        self.status.control_tcp = ""
        self.status.for_service_manager = lambda: SimpleNamespace(text="")
        self.status.report_tcp_lost = lambda address, why: self.done.append(
            f"lost {address}: {why}"
        )
        parts.shutdown.requested = self.requested
        parts.control.suspend = self._suspend
        parts.control.bind = lambda: self.done.append("bind")
        parts.control.listen_tcp = self._listen_tcp
        parts.registry.background_changes.release = self._release
        parts.events.emit = self._emit
        parts.event_log = SimpleNamespace(has_pending=False)
        parts.requests = SimpleNamespace(has_pending=False)
        parts.notifier = SimpleNamespace(
            reloading=lambda: None, ready=lambda text: None, variables={}
        )
        self.upgrade = UpgradeCoordinator(
            self.parts,  # type: ignore[arg-type]
            locks=(-1, -1),
            execute=self._execute,
        )
        monkeypatch.setattr(self.upgrade, "_state", lambda: None)
        monkeypatch.setattr(snapshot, "encode", lambda state: b"")
        monkeypatch.setattr(snapshot, "descriptors", lambda state: [])

    async def _release(self) -> None:
        self.released.set()

    async def _suspend(self) -> None:
        self.done.append("suspend")
        self.on_suspend()

    def _listen_tcp(self, address: str) -> None:
        self.done.append(address)
        raise zmq.ZMQError(98, "Address already in use")

    def _emit(self, kind: kinds.EventKind, reason: str = "") -> None:
        assert kind is kinds.UPGRADE_FAILED
        self.done.append(reason)

    def _execute(self, *_: object) -> None:
        self.executed = True
        raise OSError(8, "Exec format error")

    async def go(self) -> None:
        """Start the upgrade, and wait for its end."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self.upgrade.begin(NOW)
        assert self.upgrade._task is not None
        await asyncio.wait([self.upgrade._task])
        self.upgrade._task.result()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
        await self.released.wait()
        assert before.isdisjoint(SIGNALS)


async def test_sockets_that_were_not_released_are_not_rebound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.parts.server.is_quiescent = False
    await scene.go()
    (why,) = scene.done
    assert "tritonserver is being started" in why


async def test_it_answers_again_although_its_tcp_address_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.status.control_tcp = "tcp://127.0.0.1:9"
    await scene.prestarted.hold()
    await scene.go()
    *first, lost, why = scene.done
    assert first == ["suspend", "bind", "127.0.0.1:9"]
    assert lost == "lost tcp://127.0.0.1:9: Address already in use"
    assert "Exec format error" in why
    assert scene.prestarted.room == 3


async def test_the_daemon_continues_without_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = Scene(monkeypatch)
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    await scene.go()
    assert scene.executed


async def test_a_signal_at_the_last_moment_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop has received it but not called its handler, so execve would lose it."""
    scene = Scene(monkeypatch)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, scene.requested.set)
    scene.on_suspend = lambda: os.kill(os.getpid(), signal.SIGTERM)
    try:
        await scene.go()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
    assert not scene.executed
    assert scene.done == ["suspend", "bind", "the daemon is stopping"]
