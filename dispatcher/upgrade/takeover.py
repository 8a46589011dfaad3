"""The upgrade of a running daemon, on the side of the next version: it says whether it could, and takes over.

    --can-take-over    a process of its own, before anything has happened: reads the document, says yes or no
    --take-over FD     what the daemon's process executes: adopts what the document names, or starts afresh

What cannot be adopted after execve is ended, and the daemon starts as after any other end: the registrations that the
state directory keeps are served again, with workers of their own.
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
from pytriton.dispatcher.runtime import upgrade_snapshot
from pytriton.dispatcher.runtime.upgrade_snapshot import (
    HandOver,
    ListenerState,
    Remains,
    UnusableHandOver,
)

if TYPE_CHECKING:
    from pytriton._host.install.server_runtime import ServerRuntime

_log = structlog.get_logger(__name__)

#: They wait while one version becomes the next: neither has handlers for them then.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: What the next version gets to say whether it could take over: it may have to compile its front and its proxy.
_ASK_S = 300.0
#: What the children get to end in, after SIGKILL.
_END_S = 10.0
#: An address of the settings with a free port has that port again.
_PORTS = ("http", "grpc", "metrics")


class Verdict(msgspec.Struct, frozen=True):
    """The answer of the next version: whether it can take over, and why not."""

    can: bool
    version: str
    why: str = ""


class TakeOver:
    """The state that a former version of this process has left, and whether this one goes on with it by now."""

    def __init__(self, state: HandOver) -> None:
        self.state = state
        self.done = False


class Origin(NamedTuple):
    """The origin of a daemon: nothing, or what a former version of this process has left, or why not that."""

    handed: TakeOver | None = None
    because: str = ""


BY_ITSELF = Origin()


def judge(document: bytes) -> Verdict:
    """Return whether this version could take over from the daemon that has sent this."""
    from importlib.metadata import (
        version,  # takes 20 ms, and a daemon that just starts does not ask
    )

    own = version("pytriton-daemon")
    try:
        state = upgrade_snapshot.decode(document)
        config = DaemonConfig.from_json(state.config)
        # As it will be: all that the daemon imports, the programs that it starts, the files that it reads and writes.
        from pytriton._host.install.server_choice import choice_of
        from pytriton._host.install.server_runtime import (
            ServerRuntimeError,
            find_or_install_server,
        )
        from pytriton.dispatcher import run

        try:
            runtime = find_or_install_server(choice_of(config), lambda line: None)
        except ServerRuntimeError as error:
            return Verdict(False, own, str(error))
        if runtime.front is None or runtime.native is None:
            return Verdict(False, own, "its native front or its compiled proxy cannot be used here")
        try:
            kept = [one.spec.name for one in state.registrations if one.kept]
            run.check_files(config, kept)
            _try_to_lay_out(runtime, Path(config.runtime_dir))
        except run.FileErrors as error:
            return Verdict(False, own, str(error))
        except (OSError, ServerRuntimeError) as error:
            return Verdict(False, own, f"it needs room in the runtime directory: {error}")
    except (UnusableHandOver, ConfigError) as error:
        return Verdict(False, own, str(error))
    return Verdict(True, own)


async def ask(python: str, document: bytes) -> Verdict:
    """Have another version judge in a process of its own.

    Raises:
        RemoteFailure: it does not run, or says nothing in time.
    """
    try:
        asked = await asyncio.create_subprocess_exec(
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
        said, complained = await asyncio.wait_for(asked.communicate(document), _ASK_S)
    except asyncio.TimeoutError:
        text = f"the next version has not said within {_ASK_S:g} s whether it can take over"
        raise RemoteFailure(ErrorKind.UNAVAILABLE, text) from None
    finally:
        if asked.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(asked.pid, signal.SIGKILL)
            await asked.wait()
    try:
        return msgspec.json.decode(said.strip().rpartition(b"\n")[2], type=Verdict)
    except (msgspec.DecodeError, UnicodeDecodeError):
        last = complained.decode(errors="replace").strip()[-2000:]
        text = f"the next version of pytriton-daemon ({python}) does not run, or knows no upgrade. It said:\n{last}"
        raise RemoteFailure(ErrorKind.INVALID, text) from None


def arguments_of(*more: str) -> list[str]:
    """Return the arguments of an interpreter that is to be a daemon's process."""
    return ["-m", "pytriton.dispatcher", *more]


def _try_to_lay_out(runtime: ServerRuntime, rundir: Path) -> None:
    """See that the runtime directory takes what a start writes there, while it has that of the running version, too.

    Raises:
        ServerRuntimeError, OSError: it does not; what runs would be lost.
    """
    from pytriton._host.install.server_runtime import lay_out_backends

    trial = rundir / "trial"
    try:
        lay_out_backends(runtime, trial)
    finally:
        remove(trial)


def say(verdict: Verdict) -> None:
    """Write a verdict where the daemon reads it."""
    sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    sys.stdout.buffer.flush()


def taken_over(document: bytes) -> TakeOver:
    """Return what a former version of this process has left.

    Raises:
        UnusableHandOver: it has changed since it was judged.
        OSError: a descriptor of it is not open.
    """
    state = upgrade_snapshot.decode(document)
    upgrade_snapshot.keep_from_children(upgrade_snapshot.descriptors(state))
    return TakeOver(state)


def start_afresh(left: Remains, why: str, environ: Mapping[str, str]) -> NoReturn:
    """End all that a former version of this process has left, and become a daemon that has just been started.

    `environ` is what that gets: what the former version has had.
    """
    import psutil  # takes 10 ms, and daemons hardly ever come here

    _log.error("this version cannot go on with what runs: the daemon starts afresh", reason=why)
    config = _with_ports(DaemonConfig.from_json(left.config), left.listeners)
    helper, pipe = left.helper
    with contextlib.suppress(OSError):
        os.close(pipe)  # it ends what the children have started, too
    children = psutil.Process().children()
    psutil.wait_procs([one for one in children if one.pid == helper], timeout=_END_S)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=_END_S)
    settings = upgrade_snapshot.in_memory(config.to_json())
    os.lseek(settings, 0, os.SEEK_SET)
    os.dup2(settings, 0)
    _close_at_execve(socket_activation.numbers(environ))
    arguments = [sys.executable, "-m", "pytriton.dispatcher", "--because", why[:1000]]
    os.execve(sys.executable, arguments, dict(environ))


def _close_at_execve(but: Sequence[int]) -> None:
    """Have all other descriptors closed then but standard input and output: some are as they were handed over."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the folder itself
            if int(name) > 2:
                os.set_inheritable(int(name), int(name) in but)


def _with_ports(config: DaemonConfig, listeners: Sequence[ListenerState]) -> DaemonConfig:
    """Return settings that name the ports which the daemon has had until now."""
    ports = {}
    for one in listeners:
        if one.path is None and one.protocol in _PORTS:
            # One that is not open: perhaps that is why.
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=os.dup(one.descriptor)) as listener,
            ):
                ports[f"{one.protocol}_port"] = int(listener.getsockname()[1])
    return msgspec.structs.replace(config, **ports)
