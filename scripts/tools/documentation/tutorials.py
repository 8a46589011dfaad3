"""Read and update the tutorials: pages with complete files and commands. examples/tutorials has a folder with the same files for each.

A code block with a title shows a file of the folder: `scripts/docs --write` copies the files into the pages. A "console"
block contains commands and their output; "…" matches any text. A comment before a block says why the test
does not run it, or that its command keeps running in a separate terminal.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGES = Path("docs/tutorials")
EXAMPLES = Path("examples/tutorials")
#: Pages of folders that are not tutorials.
_OTHER_PAGES = {"five-minutes": Path("docs/start/five-minutes.md")}
#: A block that shows a file: its language, its name, its text.
_FILE = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.M | re.S)
_CONSOLE = re.compile(
    r"^(<!-- (?:not run: [^>]+|in a terminal of its own) -->\n)?```console\n(.*?)^```$", re.M | re.S
)


class Command(NamedTuple):
    """A command of a page, and its expected output.

    Attributes:
        text: the command
        shown: its output
        stays: the command keeps running after this output
    """

    text: str
    shown: str
    stays: bool = False

    def prints(self, output: str) -> bool:
        """Return whether the output matches the page, except for "…" and trailing spaces."""
        pattern = re.escape(_plain(self.shown)).replace("…", ".*") + (".*" if self.stays else "")
        return re.fullmatch(pattern, _plain(output), re.S) is not None


def pages(root: Path) -> list[Path]:
    """Return the pages that have a folder of examples."""
    folders = sorted(folder.name for folder in (root / EXAMPLES).iterdir())
    return [root / _OTHER_PAGES.get(name, PAGES / f"{name}.md") for name in folders]


def commands(text: str) -> Iterator[Command]:
    """Yield the commands of a page that a test can run, from top to bottom."""
    for comment, block in _CONSOLE.findall(text):
        if "not run" not in comment:
            for command in _commands_of(block):
                yield command._replace(stays=bool(comment))


def _commands_of(block: str) -> Iterator[Command]:
    """Yield the commands of a block. A command continues after a backslash or within quotes."""
    command, shown = "", ""
    for line in block.splitlines():
        if command and not _is_whole(command):
            command += "\n" + line
        elif line.startswith("$ "):
            if command:
                yield Command(command, shown)
            command, shown = line[2:], ""
        else:
            shown += line + "\n"
    if command:
        yield Command(command, shown)


def shown_files(text: str) -> dict[str, str]:
    """Return the files that a page shows, by name."""
    return {name: content for _, name, content in _FILE.findall(text)}


def with_files(text: str, folder: Path) -> str:
    """Return the text of a page with the current files of its folder.

    Raises:
        FileNotFoundError: the page shows a file that does not exist
    """

    def block(match: re.Match[str]) -> str:
        content = (folder / match[2]).read_text(encoding="utf-8")
        return f'```{match[1]} title="{match[2]}"\n{content}```'

    return _FILE.sub(block, text)


def write(root: Path) -> list[Path]:
    """Copy the files of all tutorials into their pages; return the pages that changed."""
    changed = []
    for page in pages(root):
        before = page.read_text(encoding="utf-8")
        after = with_files(before, root / EXAMPLES / page.stem)
        if after != before:
            page.write_text(after, encoding="utf-8")
            changed.append(page)
    return changed


def _is_whole(command: str) -> bool:
    """Return whether a shell would run this instead of waiting for more input."""
    if command.endswith("\\"):
        return False
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
