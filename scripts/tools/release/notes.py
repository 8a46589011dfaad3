"""The text that goes out with a release: its changes, how to upgrade, the sums of its files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from release.artifacts import digest
from release.builder import Built
from release.tool_runner import ReleaseError

_PROTOCOL = re.compile(r"^PROTOCOL = (\d+)$", re.MULTILINE)
_STATE = re.compile(r"^_OWN_FORM = (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Formats:
    """The numbers that say what a version gets along with."""

    state: int  #: of the files in the state directory
    protocol: int  #: of messages between a daemon, its workers and its clients

    @property
    def row(self) -> str:
        """The beginning of its row in docs/operations/releases.md, after the version."""
        return f"| {self.state} | {self.protocol} |"


def formats(source: Path) -> Formats:
    """Return the numbers of exported files."""
    return Formats(
        _number(source / "dispatcher" / "models" / "persistence" / "state_dir.py", _STATE),
        _number(source / "pytriton" / "_protocol" / "messages" / "base.py", _PROTOCOL),
    )


def _number(file: Path, pattern: re.Pattern[str]) -> int:
    match = pattern.search(file.read_text("utf-8"))
    if match is None:
        raise ReleaseError(f"{file.name} does not say its number any more: {pattern.pattern}")
    return int(match[1])


def release_notes(version: str, changes: str, built: Built, source: Path) -> str:
    """Return the notes as Markdown."""
    numbers = formats(source)
    sums = "".join(f"{digest(file)}  {file.name}\n" for file in built.files)
    return f"""# pytriton-daemon {version}

{changes or "No changes are written down."}

## Upgrade

1. Install the new version into the daemon's environment: `pip install --upgrade FILE`.
2. `pytriton-daemon upgrade`: models stay loaded, no request is lost. Where it is refused: `pytriton-daemon restart`.
   Registrations come back.
3. Upgrade the environments of programs that register models: they speak protocol {numbers.protocol}.

State files have format {numbers.state}. docs/operations/releases.md says which versions read which format, and how
to go back.

## Files

```
{sums}```
"""


def undocumented(root: Path, version: str) -> list[str]:
    """Say so if docs/operations/releases.md has no row with a version's numbers, of its state files and protocol."""
    row = f"| {series(version)} {formats(root).row}"
    found = sorted((root / "docs").rglob("releases.md"))
    if any(row in file.read_text("utf-8") for file in found):
        return []
    return [
        f"docs/operations/releases.md has no row '{row}' in its table of what gets along with what"
    ]


def series(version: str) -> str:
    """Return the X.Y of a version X.Y.Z."""
    return ".".join(version.split(".")[:2])
