"""Why a daemon stops, and its exit code: the first of several requests decides."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytriton._host import exit_record
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.daemon_status import DaemonStatus
from pytriton.dispatcher.shutdown import ShutdownController
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.kinds import EventKind


class End:
    """A daemon's shutdown and its outcome."""

    def __init__(self, folder: Path) -> None:
        self.reported: list[str] = []
        self.killed = 0
        self.busy = False
        self.disk_is_full = False
        self.rundir = RuntimeDir(folder / "run")
        self.rundir.create()
        self.rundir.access_token_file.write_text("a token")
        self.status = SimpleNamespace(why_stopped="")
        self.shutdown = ShutdownController(
            cast(DaemonStatus, self.status),
            self._parts(),
            self.rundir,
            self._parts(),
            self._parts(),
        )

    def _parts(self) -> Any:
        return self

    def emit(self, kind: EventKind, **said: object) -> None:
        self.reported.append(kind.name)

    def kill(self) -> None:
        self.killed += 1
        if self.disk_is_full:
            raise OSError("/dev/shm cannot be read")

    def do(self, step: str) -> None:
        """Request a shutdown, or report something."""
        if step in ("SIGTERM", "SIGINT"):
            self.shutdown.signalled(step)
        elif step == "tritonserver does not stay up":
            self.shutdown.request(step, ExitCode.SERVER_FAILED)
        elif step == "a worker ends so":
            self.shutdown.on_unrecoverable_exit("m")
        elif step.startswith("m says"):
            self.shutdown.unrecoverable("m", step[len("m says ") :])
        else:
            self.shutdown.request(step)

    def said(self) -> tuple[int, str]:
        return int(self.shutdown.code), self.status.why_stopped


@pytest.fixture
def end(tmp_path: Path) -> End:
    return End(tmp_path)


_ENDED_SO = (
    "unrecoverable error in model m: its worker's exit code reports it; for the reason, see: "
)


@pytest.mark.parametrize(
    ("steps", "code", "why"),
    [
        (["SIGTERM"], 0, "SIGTERM"),
        (["a client asks", "another client asks"], 0, "a client asks"),
        (["m says no GPU"], 70, "unrecoverable error in model m: no GPU"),
        (["m says no GPU", "m says no memory"], 70, "unrecoverable error in model m: no GPU"),
        (["m says no GPU", "a worker ends so"], 70, "unrecoverable error in model m: no GPU"),
        (["a worker ends so"], 70, _ENDED_SO + "pytriton-daemon logs m"),
        (["SIGTERM", "a worker ends so", "m says no GPU"], 0, "SIGTERM"),
        # A daemon that was told to stop does not request a fresh start from its service manager.
        (["SIGTERM", "m says no GPU"], 0, "SIGTERM"),
        (["it was drained", "a worker ends so"], 0, "it was drained"),
        (["a client asks", "tritonserver does not stay up"], 0, "a client asks"),
        (["m says no GPU", "a client asks"], 70, "unrecoverable error in model m: no GPU"),
    ],
)
def test_the_first_shutdown_request_sets_the_reason_and_exit_code(
    end: End, steps: list[str], code: int, why: str
) -> None:
    for step in steps:
        end.do(step)
        assert end.shutdown.requested.is_set()
    assert end.said() == (code, why)
    end.shutdown.write_record()
    kept = exit_record.read(end.rundir)
    assert kept is not None
    assert (kept.exit_code, kept.reason) == end.said()
    assert end.reported[-1] == kinds.STOPPED.name


def test_a_workers_exit_does_not_repeat_its_report(end: End) -> None:
    for step in ("SIGTERM", "m says no GPU", "a worker ends so"):
        end.do(step)
    assert end.reported == [kinds.STOPPING.name, kinds.UNRECOVERABLE.name]


def test_a_tritonserver_that_did_not_start_has_its_own_exit_code(end: End) -> None:
    end.shutdown.server_failed("its port is taken", ExitCode.PORT_IN_USE)
    assert end.said() == (ExitCode.PORT_IN_USE, "its port is taken")
    assert not end.shutdown.requested.is_set()


class Exited(BaseException):
    """Raised instead of an immediate exit of the process."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_at_once(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr(os, "_exit", exit_at_once)


@pytest.mark.usefixtures("exits")
@pytest.mark.parametrize(
    ("first", "code"), [("m says no GPU", 70), ("it was drained", 0), ("a client asks", 0)]
)
def test_the_first_sigterm_does_not_shorten_a_shutdown(end: End, first: str, code: int) -> None:
    end.do(first)
    said = end.said()
    end.do("SIGTERM")
    assert end.said() == said
    assert said[0] == code
    assert end.killed == 0
    with pytest.raises(Exited):
        end.do("SIGTERM")
    assert end.killed == 1


@pytest.mark.usefixtures("exits")
@pytest.mark.parametrize("first", ["a client asks", "it was drained", "m says no GPU", "SIGTERM"])
def test_sigint_ends_a_running_shutdown_immediately(end: End, first: str) -> None:
    """`stop` advises that when it has waited too long."""
    end.do(first)
    with pytest.raises(Exited):
        end.do("SIGINT")
    assert end.killed == 1


def test_the_first_sigint_stops_gracefully(end: End) -> None:
    end.do("SIGINT")
    assert end.said() == (0, "SIGINT")
    assert end.killed == 0


@pytest.mark.usefixtures("exits")
@pytest.mark.parametrize("disk_is_full", [False, True])
def test_a_second_signal_always_ends_the_daemon(end: End, disk_is_full: bool) -> None:
    end.disk_is_full = disk_is_full
    end.do("SIGTERM")
    with pytest.raises(Exited) as exited:
        end.do("SIGTERM")
    assert exited.value.args == (ExitCode.INTERRUPTED,)
    assert end.killed == 1
    if not disk_is_full:
        assert not end.rundir.access_token_file.exists()
        kept = exit_record.read(end.rundir)
        assert kept is not None
        assert kept.reason == "second stop signal"


@pytest.mark.usefixtures("exits")
@pytest.mark.parametrize("disk_is_full", [False, True])
def test_a_daemon_whose_directory_was_deleted_leaves_the_new_one_alone(
    end: End, disk_is_full: bool
) -> None:
    end.disk_is_full = disk_is_full
    with pytest.raises(Exited) as exited:
        end.shutdown.dispossessed("pid 4242 has it")
    assert exited.value.args == (ExitCode.ALREADY_RUNNING,)
    assert end.killed == 1
    assert end.rundir.access_token_file.exists()
    assert exit_record.read(end.rundir) is None


@pytest.mark.parametrize("busy", [False, True])
def test_the_exit_of_its_owner_waits_for_requests_in_flight(end: End, busy: bool) -> None:
    end.busy = busy
    owner: Any = SimpleNamespace(pid=4242, exit_now=lambda: end.reported.append("all ended"))
    end.shutdown.orphaned(owner)
    assert end.shutdown.requested.is_set() is busy
    assert (end.killed, end.reported) == ((0, ["stopping"]) if busy else (1, ["all ended"]))
    assert end.rundir.access_token_file.exists() is busy
    if busy:
        assert "4242" in end.said()[1]
    else:
        kept = exit_record.read(end.rundir)
        assert kept is not None
        assert (kept.exit_code, kept.reason) == (130, "its owner, process 4242, has exited")
