"""The command line, `pytriton-daemon`: parses arguments, sends requests to the daemon, prints results.

To start the daemon, this package imports `pytriton.dispatcher.start`. All other commands communicate with the
running daemon through `pytriton._protocol`. Each command imports only the modules that it needs.
"""

from __future__ import annotations


def leave_deleted_directory() -> None:
    """Change to / if the working directory has been deleted, since most commands do not depend on it."""
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

    from pytriton._host.interrupt import exit_on_interrupt

    gc.disable()  # while modules are imported, which are never freed
    exit_on_interrupt()
    if sys.argv[1:] in (["version"], ["--version"]):
        from pytriton._cli.version import print_version

        sys.exit(print_version())
    try:
        import pytriton._linux_only  # noqa: F401
    except ImportError as error:
        sys.exit(f"pytriton-daemon: {error}")
    # A parent that ignores SIGCHLD passes that on. Then each program that doctor runs would seem to succeed.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    from pytriton._cli.command_table import parser

    leave_deleted_directory()
    app = parser(sys.argv[1:])
    gc.freeze()
    gc.enable()
    try:
        app(prog_name="pytriton-daemon")
    finally:
        exit_on_interrupt()  # while the interpreter shuts down, it would only print a traceback
