"""Writes the generated files, or checks them; see scripts/generate."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from generating import protocol


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/generate", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="write nothing, tell what differs")
    arguments = parser.parse_args()
    path: Path = arguments.root / protocol.PATH
    wanted = protocol.header()
    if path.is_file() and path.read_text(encoding="utf-8") == wanted:
        print(f"{protocol.PATH} is up to date")
        return 0
    if arguments.check:
        print(f"{protocol.PATH} is not what scripts/generate writes", file=sys.stderr)
        return 1
    path.write_text(wanted, encoding="utf-8")
    print(f"{protocol.PATH} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
