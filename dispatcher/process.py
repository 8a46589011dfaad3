"""The process of a daemon, from its settings on standard input to its exit code: `python -m pytriton.dispatcher`.

With `--owner PID` the daemon is private: it creates the folder given by `--workspace`, exits when its parent process PID
exits, and then removes that folder and its runtime directory. A daemon that is not private exits with the process in
$PYTRITON_DAEMON_OWNER, if that is set. With `--report FD` it writes its state as lines of JSON: `{"state": "ready"}`,
and at its end `{"state": "ended", "code": 5, "reason": "..."}`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from pytriton._host import exit_record
from pytriton._host.settings.declarations import ConfigError, DaemonConfig
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.log_lines import print_error
from pytriton.dispatcher.run import run
from pytriton.dispatcher.runtime.owner import Owner, OwnerError, owner_of
from pytriton.dispatcher.upgrade import snapshot, takeover
from pytriton.dispatcher.upgrade.takeover import Origin, TakeOver


def main() -> int:
    """Read the settings, run the daemon, and return its exit code."""
    arguments = _arguments()
    if arguments.can_take_over:
        takeover.write_report(takeover.check_compatibility(sys.stdin.buffer.read()))
        return ExitCode.OK
    if arguments.take_over is not None:
        return _take_over(arguments.take_over)
    # Blocked and ignored signals are inherited from the parent's thread, but a daemon must receive its stop signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    owner: Owner | None = None
    if arguments.owner:
        # SIGTERM raises an exception, so that the folders are also removed.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        owner = owner_of(arguments.owner, os.environ)
        config = DaemonConfig.from_json(sys.stdin.buffer.read())
        if owner is not None and arguments.owner:
            owner.adopt(arguments.workspace, config.rundir.path)
    except (ConfigError, OwnerError, OSError) as error:
        print_error(f"pytriton-daemon: {error}")
        _report(arguments.report, state="ended", code=ExitCode.USAGE, reason=str(error))
        return ExitCode.USAGE
    except KeyboardInterrupt:
        if owner is not None:
            owner.exit_now()
        return ExitCode.INTERRUPTED
    if owner is not None:
        return _run(config, owner, arguments.report, Origin(because=arguments.because))
    return run(config, origin=Origin(because=arguments.because))


def _take_over(descriptor: int) -> int:
    """Take over from the previous version of this process."""
    environ = dict(os.environ)  # a daemon removes some variables
    document = snapshot.read(descriptor)
    left: TakeOver | None = None
    try:
        left = takeover.read_state(document)
        config = DaemonConfig.from_json(left.state.config)
        code = run(config, owner=owner_of(None, os.environ), origin=Origin(left))
        why = f"it exited with code {code}"
    except Exception as error:
        if left is not None and left.done:
            raise
        why = f"{type(error).__name__}: {error}"
    if left is None or not left.done:
        takeover.start_fresh(snapshot.remains(document), why, environ)
    return code


def _run(config: DaemonConfig, owner: Owner, report: int | None, origin: Origin) -> int:
    """Run a daemon that exits when its owner does."""
    try:
        code = run(config, lambda status: _report(report, state="ready"), owner, origin)
        end = exit_record.read(config.rundir)
    except KeyboardInterrupt:  # before there was an event loop to stop
        owner.exit_now()
    finally:
        owner.remove_folders()
    _report(report, state="ended", code=code, reason=end.reason if end else "")
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pytriton.dispatcher", allow_abbrev=False)
    parser.add_argument("--config-json", choices=["-"], default="-", help="settings: on stdin")
    parser.add_argument("--owner", type=int, metavar="PID", help="exit when this process does")
    parser.add_argument(
        "--workspace", type=Path, metavar="DIR", help="folder to create, and to remove at exit"
    )
    parser.add_argument("--can-take-over", action="store_true", help="see takeover.py")
    parser.add_argument("--take-over", type=int, metavar="FD", help="see takeover.py")
    parser.add_argument("--because", default="", help="why this is a fresh start")
    parser.add_argument("--report", type=int, metavar="FD", help="descriptor for state reports")
    return parser.parse_args()


def _report(descriptor: int | None, **record: object) -> None:
    """Write one line of the report. If the reader has exited, do nothing, because `Owner` handles its exit."""
    if descriptor is None:
        return
    try:
        os.write(descriptor, json.dumps(record).encode() + b"\n")
    except BrokenPipeError:
        return
