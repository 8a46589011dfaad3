"""python -m pytriton.dispatcher: run a daemon whose settings are one JSON object on standard input."""

from __future__ import annotations

import sys

from pytriton.dispatcher.config import ConfigError, DaemonConfig
from pytriton.dispatcher.run import run
from pytriton.ipc.exit_codes import ExitCode


def main() -> int:
    """Read the settings, run the daemon, return its exit code."""
    try:
        config = DaemonConfig.from_json(sys.stdin.buffer.read())
    except ConfigError as error:
        print(f"pytriton-daemon: {error}", file=sys.stderr)
        return ExitCode.USAGE
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
