"""Write the generated files, or check that they are up to date. See scripts/generate."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from generators import (
    chart_schema,
    datatype_table,
    declarations,
    diagrams,
    grpc_messages,
    http_statuses,
    pages,
    protocol,
    wire,
)


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/generate", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a file is outdated"
    )
    parser.add_argument(
        "--compatible",
        metavar="WHY",
        help="keep PROTOCOL although messages have changed, because every process with that number understands them",
    )
    parser.add_argument(
        "--raise-protocol",
        action="store_true",
        help="raise PROTOCOL by one, because messages have changed, and write the files",
    )
    arguments = parser.parse_args()
    if arguments.raise_protocol:
        wire.raise_protocol(arguments.root)
        # Only a new process imports the new number.
        os.execv(sys.executable, [sys.executable, "-m", "generators", "--root", arguments.root])
    try:
        shapes = wire.text(_read(arguments.root / wire.PATH), arguments.compatible)
    except wire.ChangedWire as changed:
        prefix = "" if arguments.check else "scripts/generate wrote nothing: "
        print(f"{prefix}{changed}", file=sys.stderr)
        return 1
    texts: dict[Path, str] = {
        protocol.PATH: protocol.header(),
        datatype_table.PATH: datatype_table.header(),
        http_statuses.PATH: http_statuses.header(),
        declarations.PATH: declarations.source(),
        wire.PATH: shapes,
        chart_schema.PATH: chart_schema.schema(),
        **grpc_messages.files(),
        **diagrams.files(),
        **pages.files(arguments.root),
    }
    stale = [path for path, text in texts.items() if _read(arguments.root / path) != text]
    for path in stale:
        if arguments.check:
            print(f"{path} is outdated: run scripts/generate", file=sys.stderr)
        else:
            (arguments.root / path).write_text(texts[path], encoding="utf-8")
            print(f"wrote {path}")
    if not stale:
        print("the generated files are up to date")
    return int(bool(stale) and arguments.check)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
