"""The table of kinds in docs/operations/explain.md: `python -m pytriton.dispatcher.events.rendering`."""

from __future__ import annotations

import sys

from pytriton.dispatcher.events.kinds import KINDS


def table() -> str:
    """Return the table of kinds in Markdown."""
    rows = ["| kind | what has happened | numbers |", "|---|---|---|"]
    for kind in KINDS.values():
        numbers = "; ".join(f"`{name}`: {meaning}" for name, meaning in kind.numbers.items())
        who = " Says who asked." if kind.asked else ""
        rows.append(f"| `{kind.name}` | {kind.meaning}{who} | {numbers} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
