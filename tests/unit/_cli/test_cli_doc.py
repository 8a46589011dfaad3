"""docs/reference/cli.md has every command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.command_line import whole_command_line

ROOT = Path(__file__).parents[3]


def commands(group: Any, before: str = "") -> Iterator[str]:
    """Yield the commands of a group by their full names, such as "keys add"."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    table = page.partition("\n## Exit codes")[0]
    named = set(re.findall(r"`([a-z-]+(?: [a-z-]+)*)", table))
    there = set(commands(whole_command_line()))
    assert {"status", "keys add"} <= there
    assert sorted(there - named) == [], "give these a row in docs/reference/cli.md"
