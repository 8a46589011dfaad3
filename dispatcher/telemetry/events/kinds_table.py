"""Renders the table of event kinds in docs/operations/explain.md."""

from __future__ import annotations

from pytriton.dispatcher.telemetry.events.kinds import KINDS

_HEAD = "| kind | meaning | numbers |"


def table() -> str:
    """Return the table of kinds in Markdown."""
    rows = [_HEAD, "|---|---|---|"]
    for kind in KINDS.values():
        numbers = "; ".join(f"`{name}`: {meaning}" for name, meaning in kind.numbers.items())
        who = " Includes the actor." if kind.asked else ""
        rows.append(f"| `{kind.name}` | {kind.meaning}{who} | {numbers} |")
    return "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """Return a page that ends with the table, with the table brought up to date."""
    return page[: page.index(_HEAD)] + table()
