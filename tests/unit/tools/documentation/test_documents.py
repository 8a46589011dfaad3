"""The check of documents, and the documents by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation import documents

ROOT = Path(__file__).parents[4]
ALL = documents.all_documents(ROOT)


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert [f"{one.line}: {one.text}" for one in documents.dead_links(path)] == []


def test_every_page_is_in_the_navigation() -> None:
    assert list(documents.orphans(ROOT)) == []


def test_a_page_that_the_navigation_lacks_is_found(tmp_path: Path) -> None:
    for name in ("here", "gone"):
        (tmp_path / "docs" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / "a" / f"{name}.md").write_text("")
    (tmp_path / "mkdocs.yml").write_text("docs_dir: docs\nnav:\n  - A:\n      - Here: a/here.md\n")
    assert [one.path.name for one in documents.orphans(tmp_path)] == ["gone.md"]


def test_dead_links_are_found(tmp_path: Path) -> None:
    """Also those to a heading; those within code are none, and other sites are not asked."""
    (tmp_path / "other.md").write_text("# A `title`, with marks\n\n```sh\n# no heading\n```\n")
    path = tmp_path / "one.md"
    path.write_text(
        "[a](gone.md)\n[b](other.md#a-title-with-marks) [c](other.md#no-heading)\n"
        "[d](https://example.org/gone) [e](#none)\n```\n[f](gone.md)\n```\n"
    )
    assert [(one.line, one.text.partition(":")[0]) for one in documents.dead_links(path)] == [
        (1, "gone.md"),
        (2, "other.md#no-heading"),
        (3, "#none"),
    ]


def test_indented_code_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "one.md"
    path.write_text(
        "Before:\n\n    What a program says\n    [a](gone.md)\n\n# Heading\n\nWhat follows.\n"
    )
    assert list(documents.dead_links(path)) == []
    assert documents.anchors(path.read_text()) == {"heading"}
