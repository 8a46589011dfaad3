"""Builds the folder of `scripts/gpu-check`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpu_check.bundle import BundleError, build


def main(arguments: list[str] | None = None) -> int:
    """Build the folder that the arguments ask for, and say how to run it."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("build/gpu-check"), help="folder to build (%(default)s)"
    )
    parser.add_argument(
        "--python", default="3.12", help="Python version of the target machine (%(default)s)"
    )
    given = parser.parse_args(arguments)
    try:
        size = build(given.out, given.python)
    except BundleError as error:
        print(f"scripts/gpu-check: {error}", file=sys.stderr)
        return 1
    print(f"{given.out}: {size / 1e6:.1f} MB for Python {given.python} on x86-64")
    print(f"copy it to the machine with the GPU and run: ./{given.out.name}/run.sh --json FILE")
    return 0


if __name__ == "__main__":
    sys.exit(main())
