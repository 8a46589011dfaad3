"""Who may run a model in its own threads, and how that process's exit is noticed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.control.peers import Sender
from pytriton.dispatcher.workers.hosted_worker import Registrant


def peer(uid: int | None, pid: int | None) -> Peer:
    door: Any = None  # nothing is sent
    return Peer(door, b"", b"", Sender("somebody", uid, pid))


async def _refusal(sender: Peer) -> RemoteFailure:
    with pytest.raises(RemoteFailure) as caught:
        Registrant(sender, "m")
    return caught.value


def _ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("sender", "words"),
    [
        (lambda: peer(None, None), "cannot see the process of somebody.*another PID namespace"),
        (lambda: peer(os.geteuid(), None), "cannot see"),
        (
            lambda: peer(os.geteuid() + 1, os.getpid()),
            "daemon's own user.*this one belongs to user",
        ),
        (lambda: peer(os.geteuid(), _ended_pid()), "its process has exited"),
    ],
    ids=["over TCP", "another namespace", "another user", "ended"],
)
def test_processes_that_cannot_host_models_are_refused(sender: Any, words: str) -> None:
    failure = asyncio.run(_refusal(sender()))
    assert failure.kind is ErrorKind.INVALID
    assert failure.text.startswith('model m with isolation="thread"')
    with pytest.raises(RemoteFailure, match=words):
        raise failure


async def test_a_registrants_exit_is_noticed() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    registrant = Registrant(peer(os.geteuid(), process.pid), "m")
    assert not registrant.ended.done()
    process.kill()
    await asyncio.wait_for(registrant.ended, 60)
    process.communicate()
    await registrant.release("it is over")  # harmless: the process is gone


async def test_a_registrant_that_exits_while_it_is_released_is_closed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its descriptor's number may already belong to another file."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    registrant = Registrant(peer(os.geteuid(), process.pid), "m")
    closed: list[int] = []
    monkeypatch.setattr(os, "close", closed.append)

    async def send(message: object) -> None:
        process.kill()
        if not registrant.ended.done():  # it is watched still
            await registrant.ended

    monkeypatch.setattr(registrant, "send", send)
    await registrant.release("it is over")
    monkeypatch.undo()
    assert closed == [registrant._pidfd]
    os.close(registrant._pidfd)
    process.communicate()
