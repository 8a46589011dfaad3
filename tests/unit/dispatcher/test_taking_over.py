"""A daemon's process that cannot go on with what it was handed: it ends that, and starts afresh as it was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import NoReturn

import msgspec
import psutil
import pytest

from pytriton.dispatcher import process, taking_over
from pytriton.dispatcher.base import handover
from pytriton.dispatcher.base.handover import Remains
from pytriton.dispatcher.settings.declarations import DaemonConfig


class Afresh(Exception):
    """A fresh start would have begun."""


def test_whatever_fails_begins_afresh_with_the_environment_that_there_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[tuple[Remains, str, Mapping[str, str]]] = []

    def start_afresh(left: Remains, why: str, environ: Mapping[str, str]) -> NoReturn:
        begun.append((left, why, environ))
        raise Afresh

    def unusable(document: bytes) -> NoReturn:
        del os.environ["NOTIFY_SOCKET"]
        raise handover.UnusableHandOver("it is of form 99")

    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setattr(taking_over, "start_afresh", start_afresh)
    monkeypatch.setattr(taking_over, "taken_over", unusable)
    left = msgspec.msgpack.encode({"config": b"{}", "helper": [60, 6]})
    with pytest.raises(Afresh):
        process._take_over(handover.in_memory(b"pytriton-hand-over 99\n" + left))
    ((remains, why, environ),) = begun
    assert (remains.config, remains.helper) == (b"{}", (60, 6))
    assert "it is of form 99" in why
    assert environ["NOTIFY_SOCKET"] == "/run/notify"


def test_the_helper_may_finish_and_all_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper ends what the children have started, too: so it is not killed among them."""
    reader, writer = os.pipe()
    waits = "import sys; sys.stdin.read(); sys.exit(7)"
    helper = subprocess.Popen([sys.executable, "-c", waits], stdin=reader)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.close(reader)
    own = [psutil.Process(helper.pid), psutil.Process(child.pid)]
    codes: dict[int, int | None] = {}
    waited = psutil.wait_procs

    def wait_procs(processes: list[psutil.Process], timeout: float) -> object:
        found = waited(processes, timeout=timeout)
        codes.update({one.pid: getattr(one, "returncode", None) for one in found[0]})
        return found

    executed: list[tuple[str, list[str], dict[str, str]]] = []
    left = Remains(DaemonConfig().to_json(), (helper.pid, writer))
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "wait_procs", wait_procs)
        patch.setattr(psutil.Process, "children", lambda process: own)
        patch.setattr(os, "dup2", lambda one, other: os.close(one))
        patch.setattr(taking_over, "_close_at_execve", lambda: None)
        patch.setattr(os, "execve", lambda *given: executed.append(given))
        taking_over.start_afresh(left, "a fault", {"A": "b"})
    helper.returncode = child.returncode = 0  # they have been waited for
    assert child.stdin is not None  # a pipe
    child.stdin.close()
    assert codes == {helper.pid: 7, child.pid: -signal.SIGKILL}
    ((_, arguments, environ),) = executed
    assert arguments[-2:] == ["--because", "a fault"]
    assert environ == {"A": "b"}
