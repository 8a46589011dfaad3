"""Starts a daemon, in this process or in a separate one. The command line uses this module, so importing it must be
cheap.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import IO

import msgspec

from pytriton._host.service_manager.systemd import VARIABLES
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.log_lines import print_error
from pytriton.dispatcher.runtime.init_process import run_with_init
from pytriton.dispatcher.server import admin_token


def run_here(config: DaemonConfig, on_ready: Callable[[messages.Status], None]) -> int:
    """Run the daemon in this process, or in a child if this is a container's first process. Return its exit code."""
    return run_with_init(lambda: _run_daemon(config, on_ready))


def spawn(config: DaemonConfig, output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a daemon in a separate session, so that it outlives this process.

    Args:
        config: its settings
        output: file that receives its output until it has log files
    """
    # The daemon outlives this process: do not pass it the notification socket and the watchdog of a service manager
    # that started this process.
    process = subprocess.Popen(
        [sys.executable, "-m", "pytriton.dispatcher", "--config-json", "-"],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if name not in VARIABLES},
        start_new_session=True,
        cwd="/",  # not a folder that may be unmounted, or that contains a pytriton/
    )
    assert process.stdin is not None  # a pipe, see above
    with process.stdin:
        process.stdin.write(msgspec.structs.replace(config, log_format="none").to_json())
    return process


def hide_token(config: DaemonConfig) -> None:
    """Remove an access token from this process's arguments, since all users can read them."""
    admin_token.blank_out(os.getpid(), config.access_token)


def _run_daemon(config: DaemonConfig, on_ready: Callable[[messages.Status], None]) -> int:
    # Imported here to keep the first process of a container small.
    from pytriton.dispatcher.run import run
    from pytriton.dispatcher.runtime.owner import OwnerError, owner_of

    try:  # in the process that runs the daemon: it starts a thread
        owner = owner_of(None, os.environ)
    except OwnerError as error:
        print_error(f"pytriton-daemon: {error}")
        return ExitCode.USAGE
    return run(config, on_ready, owner)
