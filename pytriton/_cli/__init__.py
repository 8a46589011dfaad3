"""`pytriton-daemon …`: parses arguments, calls the daemon, prints results.

This package launches the daemon, and is therefore the only public one that imports
`pytriton.dispatcher`: its settings, its checks, and, for `start` in the foreground, the daemon
itself. Everything else here talks to the running daemon through `pytriton._protocol`. Each command imports
the modules that it needs.
"""

from __future__ import annotations


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
    import sys

    from pytriton._cli.interrupt import exit_on_interrupt

    gc.disable()  # while modules are imported, which are never freed
    exit_on_interrupt()
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
