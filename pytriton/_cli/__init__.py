"""`pytriton-daemon …`: parses arguments, calls the daemon, prints results.

This package launches the daemon, and is therefore the only public one that imports
`pytriton.dispatcher`: its settings, its checks, and, for `start` in the foreground, the daemon
itself. Everything else here talks to the running daemon through `pytriton._protocol`. Each command imports
the modules that it needs.
"""

from __future__ import annotations


def end_at_once(number: int, frame: object) -> None:
    """Exit when interrupted while modules are still being imported, before the command has begun."""
    import os

    os.write(2, b"pytriton-daemon: interrupted\n")
    os._exit(130)  # ExitCode.INTERRUPTED, which is not imported yet


def leave_deleted_directory() -> None:
    """Change to / if the working directory has been deleted: most commands need none."""
    import os

    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir("/")
        os.write(
            2,
            b"pytriton-daemon: the working directory has been deleted; relative paths start at /\n",
        )


def main() -> None:
    """Run the command line (console script `pytriton-daemon`) and exit with its code."""
    import gc
    import signal
    import sys

    gc.disable()  # while modules are imported, which are never freed
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    if sys.argv[1:] in (["version"], ["--version"]):
        from pytriton._cli.version import print_version

        sys.exit(print_version())
    try:
        import pytriton._linux_only  # noqa: F401
    except ImportError as error:
        sys.exit(f"pytriton-daemon: {error}")
    from pytriton._cli.command_table import parser

    leave_deleted_directory()
    app = parser(sys.argv[1:])
    gc.freeze()
    gc.enable()
    app(prog_name="pytriton-daemon")
