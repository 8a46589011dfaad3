"""The command `version`. It also works without the parser, which would take ten times as long to load."""

from __future__ import annotations

import platform
import sys

from pytriton._protocol.exit_codes import ExitCode


def print_version() -> ExitCode:
    """Print the versions of pytriton-daemon and Python. Warn about another distribution with the same import name."""
    import pytriton
    from pytriton._clash import clashing_distribution

    ours, python = pytriton.__version__, platform.python_version()
    sys.stdout.write(f"pytriton-daemon {ours} (Python {python}, {sys.executable})\n")
    clash = clashing_distribution()
    if clash is None:
        return ExitCode.OK
    sys.stderr.write(f"{clash}\n")
    return ExitCode.ERROR
