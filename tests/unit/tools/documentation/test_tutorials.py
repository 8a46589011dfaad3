"""Check that tutorials show the files in their folders, and that commands are found in a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation import tutorials

ROOT = Path(__file__).parents[4]
PAGES = tutorials.pages(ROOT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_all_files_unchanged(page: Path) -> None:
    folder = ROOT / tutorials.EXAMPLES / page.stem
    shown = tutorials.shown_files(page.read_text(encoding="utf-8"))
    files = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert shown == files, "scripts/docs --write copies the files into the pages"


def test_every_tutorial_has_a_folder() -> None:
    stems = {path.stem for path in (ROOT / tutorials.PAGES).glob("*.md")}
    assert stems == ({page.stem for page in PAGES} | {"index"}) - {"five-minutes"}


def test_commands_are_found_with_their_output() -> None:
    """Commands may continue after a backslash or within quotes. Blocks marked as not run are skipped."""
    text = (
        "```console\n$ one \\\n    two\nprinted\nmore\n$ say 'a\nb'\n```\n"
        "<!-- not run: it needs a cluster -->\n```console\n$ never\n```\n"
        "```console\n$ three\n```\n"
        "<!-- in a terminal of its own -->\n```console\n$ four\nready\n```\n"
    )
    assert list(tutorials.commands(text)) == [
        tutorials.Command("one \\\n    two", "printed\nmore\n"),
        tutorials.Command("say 'a\nb'", ""),
        tutorials.Command("three", ""),
        tutorials.Command("four", "ready\n", stays=True),
    ]
    assert tutorials.Command("four", "ready\n", stays=True).prints("ready\nmore")


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        ("a\n", "a", True),
        ("a\n", "a\nb", False),
        ("", "", True),
        ("", "a warning", False),
        ("{…1…}", '{"x": 1, "y": 2}', True),
        ("…\nend", "any\nlines\nend\n", True),
        ("a.c", "abc", False),
    ],
)
def test_outputs_are_compared(shown: str, output: str, same: bool) -> None:
    assert tutorials.Command("x", shown).prints(output) is same


def test_files_are_copied_into_a_page(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("new = 1\n")
    text = 'Before.\n\n```python title="a.py"\nold\n```\n\nAfter.\n'
    assert tutorials.with_files(text, tmp_path) == text.replace("old", "new = 1")
