"""The next version's side of an upgrade: it checks whether it can take over, and takes over.

    --can-take-over    a separate process, before anything has changed: reads the document and reports yes or no
    --take-over FD     executed by the daemon's process: adopts the state in the document, or starts fresh

If the state cannot be adopted after execve, all children are killed and the daemon starts fresh: the registrations in
the state directory are served again, with new workers.
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

#: Blocked during the switch of versions, when neither has handlers for them.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Time for the next version to report whether it can take over. It may have to compile its frontend and its proxy.
_REPORT_TIMEOUT_S = 300.0
#: Time for the children to exit after SIGKILL.
_KILL_TIMEOUT_S = 10.0
#: Servers that keep their port even if the settings let the system choose one.
_PORTS = ("http", "grpc", "metrics")


class CompatibilityReport(msgspec.Struct, frozen=True):
    """The next version's answer: whether it can take over, and if not, why."""

    can: bool
    version: str
    why: str = ""


class TakeOver:
    """The state left by the previous version of this process, and whether this version has adopted it."""

    def __init__(self, state: HandOver) -> None:
        self.state = state
        self.done = False


class Origin(NamedTuple):
    """How a daemon started: normally, from the state of a previous version, or fresh after a failed takeover."""

    takeover: TakeOver | None = None
    because: str = ""


BY_ITSELF = Origin()


def check_compatibility(document: bytes) -> CompatibilityReport:
    """Check whether this version could take over from the daemon that sent this document."""
    from importlib.metadata import (
        version,  # takes 20 ms, which a normal start does not need
    )

    own = version("pytriton-daemon")
    try:
        state = snapshot.decode(document)
        config = DaemonConfig.from_json(state.config)
        # Check what the takeover needs: all imports, the programs that it starts, the files that it reads and writes.
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
                False, own, f"it needs room in the runtime directory: {error}"
            )
    except (UnusableHandOver, ConfigError) as error:
        return CompatibilityReport(False, own, str(error))
    return CompatibilityReport(True, own)


async def ask_next_version(python: str, document: bytes) -> CompatibilityReport:
    """Run another version in a separate process, and return its report.

    Raises:
        RemoteFailure: it does not run, or does not answer in time.
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
        text = f"the next version of pytriton-daemon ({python}) does not run, or knows no upgrade. It said:\n{last}"
        raise RemoteFailure(ErrorKind.INVALID, text) from None


def arguments_of(*more: str) -> list[str]:
    """Return the interpreter arguments that start a daemon's process."""
    return ["-m", "pytriton.dispatcher", *more]


def _try_to_lay_out(runtime: ServerRuntime, rundir: Path) -> None:
    """Check that the runtime directory can hold the files of a start in addition to those of the running version.

    Raises:
        ServerRuntimeError, OSError: it cannot; a takeover would lose all running processes.
    """
    from pytriton._host.install.server_runtime import lay_out_backends

    trial = rundir / "trial"
    try:
        lay_out_backends(runtime, trial)
    finally:
        remove(trial)


def write_report(report: CompatibilityReport) -> None:
    """Write the report to where the daemon reads it."""
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def read_state(document: bytes) -> TakeOver:
    """Return the state that the previous version of this process left.

    Raises:
        UnusableHandOver: it has changed since it was checked.
        OSError: one of its descriptors is not open.
    """
    state = snapshot.decode(document)
    snapshot.keep_from_children(snapshot.descriptors(state))
    return TakeOver(state)


def start_fresh(left: Remains, why: str, environ: Mapping[str, str]) -> NoReturn:
    """End all children of the previous version of this process, and execute a freshly started daemon.

    `environ` is the daemon's environment, inherited from the previous version.
    """
    import psutil  # takes 10 ms, and is rarely needed

    _log.error("the running state cannot be adopted: the daemon starts fresh", reason=why)
    config = _with_ports(DaemonConfig.from_json(left.config), left.listeners)
    helper, pipe = left.helper
    with contextlib.suppress(OSError):
        os.close(pipe)  # it also kills the processes that the children have started
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
    """Mark all descriptors except these, standard input and output as close-on-exec; some were inherited."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if int(name) > 2:
                os.set_inheritable(int(name), int(name) in but)


def _with_ports(config: DaemonConfig, listeners: Sequence[ListenerState]) -> DaemonConfig:
    """Return the settings with the ports that the daemon has used so far."""
    ports = {}
    for one in listeners:
        if one.path is None and one.protocol in _PORTS:
            # One of them may be closed, which may be why the takeover failed.
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=os.dup(one.descriptor)) as listener,
            ):
                ports[f"{one.protocol}_port"] = int(listener.getsockname()[1])
    return msgspec.structs.replace(config, **ports)
