"""`pytriton-daemon …`: parse, call, print.

The launcher of the daemon, and therefore the one public package that imports
`pytriton.dispatcher`: its settings, its checks, and, for `start` in the foreground, the daemon
itself. Everything else here asks the running daemon through `pytriton.ipc`. Modules are imported by
the command that needs them.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line (console script `pytriton-daemon`) and exit with its code."""
    import sys

    if sys.argv[1:] in (["version"], ["--version"]):
        from pytriton.cli.version import print_version

        sys.exit(print_version())
    try:
        import pytriton._linux_only  # noqa: F401
    except ImportError as error:
        sys.exit(f"pytriton-daemon: {error}")
    from pytriton.cli.app import app

    app(prog_name="pytriton-daemon")
