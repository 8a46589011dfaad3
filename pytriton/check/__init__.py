"""The command `pytriton check`: gathers facts about this machine, runs small examples, and writes a report for support.

Importing this module has no side effects.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line (console script `pytriton`, or `python -m pytriton`) and exit with its exit code."""
    import signal
    import sys

    from pytriton._clash import clashing_distribution

    clash = clashing_distribution()
    if clash is not None:
        sys.exit(f"pytriton: {clash}")
    try:
        import pytriton._linux_only  # noqa: F401
    except ImportError as error:
        sys.exit(f"pytriton: {error}")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may ignore it; see pytriton._cli.main
    from pytriton.check.app import app

    app(prog_name="pytriton")
