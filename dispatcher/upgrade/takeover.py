"""The next version's part of an upgrade: it checks whether it can take over, and then takes over.

    --can-take-over    in a separate process, before anything has changed: reads the snapshot and reports whether it can
    --take-over FD     in the daemon's process, after execve: adopts the snapshot, or starts fresh

If the snapshot cannot be adopted after execve, all children are killed and the daemon starts fresh: it serves the
registrations in the state directory again, with new workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec
import structlog

from pytriton._host.service_manager import socket_activation
from pytriton._host.settings.declarations import ConfigError, DaemonConfig
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.files.private_files import remove
from pytriton.dispatcher import file_checks
from pytriton.dispatcher.upgrade import snapshot
from pytriton.dispatcher.upgrade.snapshot import (
    HandOver,
    ListenerState,
    Remains,
    UnusableHandOver,
)

if TYPE_CHECKING:
    from pytriton._host.install.server_runtime import ServerRuntime

_log = structlog.get_logger(__name__)

#: Signals that are blocked during execve, when neither version has handlers for them.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Time for the next version to report, in seconds. It may have to compile its frontend and its proxy.
_REPORT_TIMEOUT_S = 300.0
#: Time for killed children to exit, in seconds.
_KILL_TIMEOUT_S = 10.0
#: Endpoints that keep their port in a fresh start, even if the settings let the system choose one.
_PORTS = ("http", "grpc", "metrics")


class CompatibilityReport(msgspec.Struct, frozen=True):
    """The next version's report: whether it can take over, and if not, why."""

    can: bool
    version: str
    why: str = ""


class TakeOver:
    """A takeover of the previous version's state. `done` is True once this version has adopted that state."""

    def __init__(self, state: HandOver) -> None:
        self.state = state
        self.done = False


class Origin(NamedTuple):
    """How a daemon started: normally, by a takeover, or normally after a takeover that failed with the error
    `because`.
    """

    takeover: TakeOver | None = None
    because: str = ""


BY_ITSELF = Origin()


def check_compatibility(document: bytes) -> CompatibilityReport:
    """Check whether this version can take over from the daemon that sent this snapshot."""
    from importlib.metadata import (
        version,  # takes 20 ms, which a normal start does not need
    )

    own = version("pytriton-daemon")
    try:
        state = snapshot.decode(document)
        config = DaemonConfig.from_json(state.config)
        # Check everything that a takeover needs: imports, programs, and files to read and write.
        from pytriton._host.install.server_runtime import (
            ServerRuntimeError,
            choice_of,
            find_or_install_server,
        )

        try:
            runtime = find_or_install_server(choice_of(config), lambda line: None)
        except ServerRuntimeError as error:
            return CompatibilityReport(False, own, str(error))
        if runtime.frontend is None or runtime.native is None:
            return CompatibilityReport(
                False, own, "its native frontend or its compiled proxy cannot be used here"
            )
        try:
            models = [one.spec.name for one in state.registrations if one.kept]
            file_checks.check_files(config, models)
            _try_to_lay_out(runtime, Path(config.runtime_dir))
        except file_checks.FileErrors as error:
            return CompatibilityReport(False, own, str(error))
        except (OSError, ServerRuntimeError) as error:
            return CompatibilityReport(
                False, own, f"it cannot write to the runtime directory: {error}"
            )
    except (UnusableHandOver, ConfigError) as error:
        return CompatibilityReport(False, own, str(error))
    return CompatibilityReport(True, own)


async def ask_next_version(python: str, document: bytes) -> CompatibilityReport:
    """Run the next version in a separate process to check its compatibility; return its report.

    Args:
        python: interpreter of the next version
        document: encoded snapshot

    Raises:
        RemoteFailure: the next version does not run, or does not report in time
    """
    try:
        process = await asyncio.create_subprocess_exec(
            python,
            *arguments_of("--can-take-over"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        text = f"the next version cannot be run: {python}: {error.strerror}"
        raise RemoteFailure(ErrorKind.INVALID, text) from error
    try:
        output, errors = await asyncio.wait_for(process.communicate(document), _REPORT_TIMEOUT_S)
    except asyncio.TimeoutError:
        text = f"the next version has not reported within {_REPORT_TIMEOUT_S:g} s whether it can take over"
        raise RemoteFailure(ErrorKind.UNAVAILABLE, text) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    try:
        return msgspec.json.decode(output.strip().rpartition(b"\n")[2], type=CompatibilityReport)
    except (msgspec.DecodeError, UnicodeDecodeError):
        last = errors.decode(errors="replace").strip()[-2000:]
        text = f"the next version of pytriton-daemon ({python}) does not run, or does not support upgrades. Its output:\n{last}"
        raise RemoteFailure(ErrorKind.INVALID, text) from None


def arguments_of(*more: str) -> list[str]:
    """Return the arguments with which Python starts a daemon's process."""
    return ["-m", "pytriton.dispatcher", *more]


def _try_to_lay_out(runtime: ServerRuntime, rundir: Path) -> None:
    """Check that the runtime directory has room for the files of another start.

    Otherwise the takeover would fail and lose all running processes.

    Raises:
        ServerRuntimeError, OSError: the files cannot be written
    """
    from pytriton._host.install.server_runtime import lay_out_backends

    trial = rundir / "trial"
    try:
        lay_out_backends(runtime, trial)
    finally:
        remove(trial)


def write_report(report: CompatibilityReport) -> None:
    """Write a report to standard output, which the daemon reads."""
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def read_state(document: bytes) -> TakeOver:
    """Decode the snapshot of the previous version of this process.

    Raises:
        UnusableHandOver: the snapshot differs from the one that was checked, and cannot be used
        OSError: one of its descriptors is not open
    """
    state = snapshot.decode(document)
    snapshot.keep_from_children(snapshot.descriptors(state))
    return TakeOver(state)


def start_fresh(left: Remains, why: str, environ: Mapping[str, str]) -> NoReturn:
    """Kill all children of the previous version of this process, and replace this process with a daemon that starts
    fresh.

    Args:
        left: usable part of the snapshot
        why: why the state could not be adopted
        environ: environment inherited from the previous version
    """
    import psutil  # takes 10 ms, and is rarely needed

    _log.error("could not adopt the running state, starting fresh", reason=why)
    config = _with_ports(DaemonConfig.from_json(left.config), left.listeners)
    helper, pipe = left.helper
    with contextlib.suppress(OSError):
        os.close(pipe)  # this makes the helper kill processes that the children have started
    children = psutil.Process().children()
    psutil.wait_procs([one for one in children if one.pid == helper], timeout=_KILL_TIMEOUT_S)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=_KILL_TIMEOUT_S)
    settings = snapshot.in_memory(config.to_json())
    os.lseek(settings, 0, os.SEEK_SET)
    os.dup2(settings, 0)
    _close_at_execve(socket_activation.numbers(environ))
    arguments = [sys.executable, "-m", "pytriton.dispatcher", "--because", why[:1000]]
    os.execve(sys.executable, arguments, dict(environ))


def _close_at_execve(but: Sequence[int]) -> None:
    """Mark all descriptors above 2 except these as close-on-exec."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor used for the listing is closed already
            if int(name) > 2:
                os.set_inheritable(int(name), int(name) in but)


def _with_ports(config: DaemonConfig, listeners: Sequence[ListenerState]) -> DaemonConfig:
    """Return the settings with the ports that the daemon has been using."""
    ports = {}
    for one in listeners:
        if one.path is None and one.protocol in _PORTS:
            # A socket may be closed, which may be why the takeover failed.
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=os.dup(one.descriptor)) as listener,
            ):
                ports[f"{one.protocol}_port"] = int(listener.getsockname()[1])
    return msgspec.structs.replace(config, **ports)
