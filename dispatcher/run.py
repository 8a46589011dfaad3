"""Running a daemon in this process: lock its directories, find tritonserver, release all."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import structlog

from pytriton.dispatcher.base import last_exit, logs
from pytriton.dispatcher.base.owner import Owner
from pytriton.dispatcher.base.systemd import Notifier
from pytriton.dispatcher.daemon import Daemon, OnReady
from pytriton.dispatcher.events.webhook_settings import WebhookError
from pytriton.dispatcher.install.server_choice import choice_of
from pytriton.dispatcher.install.server_runtime import (
    ServerRuntime,
    ServerRuntimeError,
    find_or_install_server,
)
from pytriton.dispatcher.models.state_dir import Store, StoreError
from pytriton.dispatcher.settings.declarations import DaemonConfig
from pytriton.dispatcher.triton import admin_token
from pytriton.ipc.exit_codes import ExitCode
from pytriton.ipc.private_files import open_private
from pytriton.ipc.rundir import RuntimeDir, RuntimeDirError, share

_log = structlog.get_logger(__name__)

#: How often the runtime directory's lock is tried for, and the pause between.
_LOCK_ATTEMPTS, _LOCK_PAUSE_S = 5, 0.02


def run(config: DaemonConfig, on_ready: OnReady | None = None, owner: Owner | None = None) -> int:
    """Run a daemon in this process until it is told to stop; return its exit code (ipc/exit_codes.py).

    `on_ready` is called with the status once models can be registered. The daemon stops when its owner ends.
    """
    rundir = RuntimeDir(Path(config.runtime_dir))
    config = admin_token.with_token(config)
    notifier = Notifier.from_environment(os.environ)
    try:
        rundir.create(config.control_group)
        with _locked(rundir, config.control_group), admin_token.published(config, rundir):
            logs.configure(config, rundir.logs)
            with notifier.slow_start():
                runtime = find_or_install_server(choice_of(config), lambda line: _log.info(line))
            with _store(config) as store:
                return asyncio.run(_main(config, rundir, runtime, store, notifier, on_ready, owner))
    except (RuntimeDirError, StoreError, WebhookError) as error:
        print(f"pytriton-daemon: {error}", file=sys.stderr)
        return ExitCode.USAGE
    except AlreadyRunning as error:
        print(f"pytriton-daemon: {error}", file=sys.stderr)
        return ExitCode.ALREADY_RUNNING
    except ServerRuntimeError as error:
        _log.error("no tritonserver to run", reason=str(error))
        last_exit.write(rundir, ExitCode.NO_SERVER, str(error))
        return ExitCode.NO_SERVER
    except Exception as error:
        last_exit.write(rundir, ExitCode.FAULT, repr(error))
        raise


async def _main(
    config: DaemonConfig,
    rundir: RuntimeDir,
    runtime: ServerRuntime,
    store: Store,
    notifier: Notifier,
    on_ready: OnReady | None,
    owner: Owner | None,
) -> int:
    daemon = Daemon(config, rundir, runtime, store, notifier)
    if owner is not None:
        owner.then(daemon.ending.orphaned, asyncio.get_running_loop(), config.grace_period_s)
    return await daemon.main(on_ready)


@contextmanager
def _store(config: DaemonConfig) -> Iterator[Store]:
    """Hold the state directory for the block; one that is not kept begins empty."""
    if config.ephemeral and config.state_path.exists():
        shutil.rmtree(config.state_path)
    store = Store(config.state_path)
    try:
        yield store
    finally:
        store.close()


class AlreadyRunning(Exception):
    """Another daemon holds the runtime directory."""


@contextmanager
def _locked(rundir: RuntimeDir, group: str | None) -> Iterator[None]:
    """Hold the runtime directory; the kernel lets go of it however this process ends."""
    with open(rundir.lock_file, "a+", opener=open_private) as lock:
        share(rundir.lock_file, group)
        if not _take(lock):
            pid = rundir.running_pid()
            raise AlreadyRunning(
                f"a daemon already runs in {rundir.path} (pid {pid}). Stop it with `pytriton-daemon stop`, or give "
                "this one a directory of its own with --runtime-dir."
            )
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        rundir.clear()  # a daemon that was killed could not
        try:
            yield
        finally:
            rundir.control_socket.unlink(missing_ok=True)
            lock.truncate(0)


def _take(lock: IO[str]) -> bool:
    """Lock the file; False when a daemon holds it. `running_pid` holds it for a moment only."""
    for attempt in range(_LOCK_ATTEMPTS):
        if attempt:
            time.sleep(_LOCK_PAUSE_S)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False
