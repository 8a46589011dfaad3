"""Writes the table of THIRD_PARTY.md: the licences of what an installation brings along.

`python -m release.licenses PYTHON`, where PYTHON belongs to an environment with pytriton-daemon and nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

from release.inventory import NAME, Package, installed


def table(packages: list[Package]) -> str:
    """Return the Markdown table."""
    rows = [f"| {one.name} | {one.licence} |" for one in packages if one.name != NAME]
    return "\n".join(["| package | license |", "|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    print(table(installed(Path(sys.argv[1]))), end="")
