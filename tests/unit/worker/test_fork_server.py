"""A fork server's answers to orders, of which it keeps nothing. These tests fork no process."""

from __future__ import annotations

import errno
import os
import socket
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytriton._protocol.fork_protocol import CannotFork, ForkAnswer, Order
from pytriton.worker import fork_server

_PARENT = 4242


class Forks:
    """A fork server without its forks, whose outcomes the test chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outcomes: list[Any] = []  #: of forks: a pid, 0 in the fork, or why there is none
        self.is_fresh = True
        self.began: list[tuple[str, int]] = []
        self.lives_for: list[int] = []
        self.frozen: list[bool] = []
        self.dispatcher, self._channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.dispatcher.settimeout(30)
        for name, value in {
            "linux": types.SimpleNamespace(die_with_parent=self.lives_for.append),
            "gc": types.SimpleNamespace(freeze=lambda: self.frozen.append(True)),
            "join_helpers": lambda: None,
            "Forker": self._forker,
            "installation": lambda: lambda: self.is_fresh,
            "_become_worker": self._begin,
        }.items():
            monkeypatch.setattr(fork_server, name, value)

    def _forker(self) -> Any:
        if self.outcomes == ["unfit"]:
            raise CannotFork("2 other threads are running")
        return types.SimpleNamespace(fork=self._fork)

    def _fork(self) -> int:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return int(outcome)

    def _begin(self, order: Order, parent_pid: int, output: int, connection: int) -> None:
        self.began.append((order.worker, parent_pid))
        os.close(output)
        os.close(connection)

    def order(self, worker: str, cwd: str | None = None) -> None:
        """Order a worker and send its three descriptors."""
        with open(os.devnull, "wb") as file:
            data = msgspec.msgpack.encode(Order(worker, cwd))
            socket.send_fds(self.dispatcher, [data], [file.fileno()] * 3)

    def serve(self) -> tuple[tuple[str, int] | None, list[ForkAnswer]]:
        """Serve all orders; return the result of `serve`, and the answers."""
        self.dispatcher.shutdown(socket.SHUT_WR)
        forked = fork_server.serve(_PARENT, self._channel.detach())
        answers = []
        while data := self.dispatcher.recv(1 << 15):
            answers.append(msgspec.msgpack.decode(data, type=ForkAnswer))
        return forked, answers


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forks]:
    here = os.getcwd()
    one = Forks(monkeypatch)
    yield one
    os.chdir(here)
    one.dispatcher.close()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_each_order_is_answered_and_leaks_nothing(forks: Forks, tmp_path: Path) -> None:
    """For successful and failed forks: a server forks thousands of workers."""
    before = open_descriptors()
    forks.outcomes = [501, OSError(errno.EAGAIN, "no more processes"), 502]
    gone = str(tmp_path / "gone")
    for number, cwd in enumerate([str(tmp_path), None, gone, None]):
        forks.order(f"w{number}", cwd)
    forked, answers = forks.serve()
    assert forked is None
    assert [(one.pid, one.error, one.refused[-17:]) for one in answers[1:]] == [
        (501, 0, ""),
        (0, 0, "no more processes"),
        (0, errno.ENOENT, ""),
        (502, 0, ""),
    ]
    assert answers[0] == ForkAnswer(pid=os.getpid())  # it takes orders
    # Its end of the channel is closed, too. So may be what earlier tests have left to the garbage collector.
    assert open_descriptors() < before
    assert forks.lives_for == [_PARENT]
    assert forks.frozen == [True]  # before the first fork, and without a collection


def test_a_changed_environment_prevents_forks(forks: Forks, tmp_path: Path) -> None:
    forks.is_fresh = False
    forks.order("w1", str(tmp_path))
    assert forks.serve()[1][1:] == [ForkAnswer(is_stale=True)]
    assert Path.cwd() != tmp_path


def test_the_fork_continues_as_the_worker_with_its_page(forks: Forks, tmp_path: Path) -> None:
    forks.outcomes = [0]
    forks.order("w7", str(tmp_path))
    forked, answers = forks.serve()
    assert forked is not None
    worker, page = forked
    os.close(page)  # it was open
    assert worker == "w7"
    assert forks.began == [("w7", _PARENT)]
    assert Path.cwd() == tmp_path
    assert len(answers) == 1  # that of the order is the server's own


def test_a_process_that_cannot_fork_reports_why_and_exits(forks: Forks) -> None:
    forks.outcomes = ["unfit"]
    assert forks.serve() == (None, [ForkAnswer(refused="2 other threads are running")])


@pytest.mark.parametrize(
    ("said", "is_wanted"), [(b"go", True), (b"", False), (b"no", False), (None, False)]
)
def test_a_fork_starts_only_if_it_is_still_wanted(said: bytes | None, is_wanted: bool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        if said:
            ours.send(said)
        if said is None:  # the start was cancelled before it began
            ours.close()
        else:
            ours.shutdown(socket.SHUT_WR)
        assert fork_server._is_wanted(theirs) is is_wanted
    if said is not None:
        assert ours.recv(100) == b"begun %d" % os.getpid()
        ours.close()


# ── whether the environment is as it was ─────────────────────────────────────────────────────────


def install_a_package(site: Path) -> None:
    (site / "other.dist-info").mkdir()


def exchange_a_module(site: Path) -> None:
    newer = site / "first.txt"
    newer.write_text("version = 2\n")
    newer.replace(site / "library.py")


def remove_a_module(site: Path) -> None:
    (site / "library.py").unlink()


def precede_a_module(site: Path) -> None:
    (site / "first").mkdir()
    (site / "first" / "late.py").touch()


@pytest.mark.parametrize(
    "change", [install_a_package, exchange_a_module, remove_a_module, precede_a_module]
)
def test_a_changed_environment_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    imported = types.ModuleType("library")
    imported.__file__ = str(tmp_path / "library.py")
    (tmp_path / "library.py").write_text("version = 1\n")
    monkeypatch.setattr(fork_server, "_WATCHED_MODULES", ("late",))
    monkeypatch.setattr(fork_server, "_site_folders", lambda: [str(tmp_path)])
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setitem(sys.modules, "library", imported)
    monkeypatch.syspath_prepend(tmp_path / "first")
    is_fresh = fork_server.installation()
    assert is_fresh()
    change(tmp_path)
    assert not is_fresh()


def test_forks_generate_different_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    current = types.SimpleNamespace(authkey=b"the server's")
    numpy = types.SimpleNamespace(seed=lambda: drawn.append("seeded"))
    monkeypatch.setitem(sys.modules, "numpy.random", numpy)
    multiprocessing = types.SimpleNamespace(current_process=lambda: current)
    monkeypatch.setitem(sys.modules, "multiprocessing.process", multiprocessing)
    fork_server._reseed()
    assert drawn == ["seeded"]
    assert current.authkey != b"the server's"
    monkeypatch.delitem(sys.modules, "numpy.random")
    monkeypatch.delitem(sys.modules, "multiprocessing.process")
    fork_server._reseed()  # a generator that was not imported was not used
    assert drawn == ["seeded"]
