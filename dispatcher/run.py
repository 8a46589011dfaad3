"""Run a daemon in this process: lock its directories, find tritonserver, serve, and clean up."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import structlog

from pytriton._host import exit_record
from pytriton._host.install.server_runtime import (
    ServerRuntime,
    ServerRuntimeError,
    choice_of,
    find_or_install_server,
)
from pytriton._host.service_manager import socket_activation
from pytriton._host.service_manager.socket_activation import SocketActivationError
from pytriton._host.service_manager.systemd import Notifier
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.private_files import open_private
from pytriton._protocol.files.rundir import RuntimeDir, share
from pytriton._protocol.log_lines import print_error
from pytriton.dispatcher.daemon import Daemon, OnReady
from pytriton.dispatcher.file_checks import FileErrors
from pytriton.dispatcher.models.persistence.state_dir import Store
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.owner import Owner
from pytriton.dispatcher.runtime.runtime_dir_guard import RuntimeDirGuard
from pytriton.dispatcher.runtime.tasks import started_executor
from pytriton.dispatcher.server import admin_token
from pytriton.dispatcher.upgrade.takeover import BY_ITSELF, Origin

_log = structlog.get_logger(__name__)

#: Attempts to lock the runtime directory, and the pause between them.
_LOCK_ATTEMPTS, _LOCK_PAUSE_S = 5, 0.02


def take_activated_sockets(config: DaemonConfig, environ: MutableMapping[str, str]) -> None:
    """Adopt the sockets that a service manager has opened for the daemon (socket activation).

    Raises:
        SocketActivationError: a socket's address differs from the settings, or its port matches no setting, so that its
            connections would wait forever.
    """
    socket_activation.take(environ)
    named = {
        name: getattr(config, f"{name}_port")
        for name in ("http", "grpc", "metrics")
        if getattr(config, f"allow_{name}")
    }
    named["openai"] = config.openai_port
    named["management_address"] = int((config.management_address or ":0").rpartition(":")[2])
    sockets = socket_activation.addresses()
    for address, port in sockets:
        if port not in named.values():
            ports = ", ".join(f"{name} {number}" for name, number in named.items() if number)
            raise SocketActivationError(
                f"the service manager listens on port {port} of {address} for the daemon, but the daemon's settings name other "
                f"ports ({ports}): change ListenStream= in its socket unit, or the settings"
            )
    for name, port in named.items():
        listens = [address for address, number in sockets if number == port]
        setting, wanted = _address_of(name, config)
        if listens and not any(socket_activation.is_same_address(one, wanted) for one in listens):
            raise SocketActivationError(
                f"the service manager listens on the daemon's behalf on {', '.join(listens)} (port {port}), but the setting "
                f"{setting} says {wanted}: change ListenStream= in its socket unit, or the setting"
            )


def _address_of(name: str, config: DaemonConfig) -> tuple[str, str]:
    """Return the name and value of the setting that determines a listener's address."""
    if name == "management_address":
        return name, (config.management_address or "").rpartition(":")[0].strip("[]")
    return f"{name}_address", str(getattr(config, f"{name}_address"))


def run(
    config: DaemonConfig,
    on_ready: OnReady | None = None,
    owner: Owner | None = None,
    origin: Origin = BY_ITSELF,
) -> int:
    """Run a daemon in this process until it stops. Return its exit code (_protocol/exit_codes.py).

    Args:
        config: its settings
        on_ready: called with the status once models can be registered
        owner: the process whose exit ends the daemon
        origin: why it starts, and the state that it takes over

    Raises:
        Exception: an internal error. `TakeOver.done` is True if it happened after the takeover.
    """
    # A parent that ignores SIGCHLD passes that on. Processes that ignore it cannot wait for their children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    locks = None if origin.takeover is None else origin.takeover.state.locks
    rundir = RuntimeDir(Path(config.runtime_dir))
    config = admin_token.with_token(config)
    notifier = Notifier.from_environment(os.environ)
    try:
        take_activated_sockets(config, os.environ)
        rundir.create(config.control_group)
        with (
            _locked(rundir, config.control_group, locks) as lock,
            admin_token.published(config, rundir),
        ):
            logs.configure(config, rundir.logs)
            with notifier.slow_start():
                runtime = find_or_install_server(choice_of(config), lambda line: _log.info(line))
            with _store(config, locks) as store:
                return asyncio.run(
                    _serve(config, rundir, runtime, store, notifier, lock, on_ready, owner, origin)
                )
    except (*FileErrors, SocketActivationError) as error:
        print_error(f"pytriton-daemon: {error}")
        return ExitCode.USAGE
    except AlreadyRunning as error:
        print_error(f"pytriton-daemon: {error}")
        return ExitCode.ALREADY_RUNNING
    except ServerRuntimeError as error:
        _log.error("tritonserver not found", reason=str(error))
        exit_record.write(rundir, ExitCode.SERVER_FAILED, str(error))
        return ExitCode.SERVER_FAILED
    except Exception as error:
        exit_record.write(rundir, ExitCode.ERROR, repr(error))
        raise


async def _serve(
    config: DaemonConfig,
    rundir: RuntimeDir,
    runtime: ServerRuntime,
    store: Store,
    notifier: Notifier,
    lock: int,
    on_ready: OnReady | None,
    owner: Owner | None,
    origin: Origin,
) -> int:
    daemon = Daemon(
        config,
        rundir,
        runtime,
        store,
        notifier,
        lock=lock,
        is_private=owner is not None and owner.private,
        origin=origin,
    )
    loop = asyncio.get_running_loop()
    loop.set_default_executor(started_executor())
    shutdown = daemon.services.shutdown
    if owner is not None:
        owner.on_exit(shutdown.orphaned, loop, config.grace_period_s)
    guard_task = asyncio.create_task(
        RuntimeDirGuard(rundir, lock).watch(
            deleted=lambda why: shutdown.request(why, ExitCode.ERROR), taken=shutdown.dispossessed
        )
    )
    try:
        return await daemon.main(on_ready)
    finally:
        guard_task.cancel()


@contextmanager
def _store(config: DaemonConfig, locks: tuple[int, int] | None) -> Iterator[Store]:
    """Yield the locked state directory. An ephemeral daemon gets an empty, temporary one."""
    if config.ephemeral and locks is None and config.state_path.exists():
        shutil.rmtree(config.state_path)
    store = Store(config.state_path, None if locks is None else locks[1])
    try:
        yield store
    finally:
        store.close()


class AlreadyRunning(Exception):
    """Another daemon is using the runtime directory."""


@contextmanager
def _locked(rundir: RuntimeDir, group: str | None, locks: tuple[int, int] | None) -> Iterator[int]:
    """Lock the runtime directory until the end of the block, and yield the lock's descriptor. If this process exits,
    the kernel unlocks it.
    """
    opened = rundir.lock_file if locks is None else locks[0]
    with open(opened, "a+", opener=open_private if locks is None else None) as lock:
        share(rundir.lock_file, group)
        if not _take(lock):
            pid = rundir.running_pid()
            raise AlreadyRunning(
                f"a daemon is already running in {rundir.path} (pid {pid}). Stop it with `pytriton-daemon stop`, or choose "
                "another directory with --runtime-dir."
            )
        # After an upgrade the file already contains this pid. If it were empty for a moment, clients would think that
        # the daemon had exited.
        if locks is None:
            lock.seek(0)
            lock.truncate()
            lock.write(str(os.getpid()))
            lock.flush()
            rundir.clear()  # a killed daemon leaves its files behind
        try:
            yield lock.fileno()
        finally:
            if RuntimeDirGuard(rundir, lock.fileno()).exists:
                rundir.control_socket.unlink(missing_ok=True)
            lock.truncate(0)


def _take(lock: IO[str]) -> bool:
    """Lock the file. Return False if a daemon holds the lock. Retry briefly, since `running_pid` also takes the lock."""
    for attempt in range(_LOCK_ATTEMPTS):
        if attempt:
            time.sleep(_LOCK_PAUSE_S)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False
