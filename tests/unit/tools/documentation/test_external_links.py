"""The links to other sites: found wherever a document has them, and of the right form."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation.external_links import Link, links

ROOT = Path(__file__).parents[4]


def test_the_documents_link_in_the_right_form() -> None:
    assert [
        f"{one.path}:{one.line}: {one.url}: {one.fault}" for one in links(ROOT) if one.fault
    ] == []


def test_links_are_found_but_those_in_code_and_to_examples(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "[a](https://a.dev/x).\n\n```sh\ncurl https://b.dev\n```\n\nOr `https://c.dev`, <https://d.dev/y>,\n"
        "https://hooks.example.com/z, http://127.0.0.1:8000/ and https://e.dev.\n"
    )
    assert [(one.url, one.line) for one in links(tmp_path)] == [
        ("https://a.dev/x", 1),
        ("https://d.dev/y", 7),
        ("https://e.dev", 8),
    ]


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("https://semver.org/spec/v2.0.0.html", ""),
        ("http://semver.org", "say https"),
        ("https://semver", "that is no name of a host"),
        ("https://me:secret@semver.org", "it tells who has followed it"),
        ("https://semver.org/?utm_source=x", "it tells who has followed it"),
    ],
)
def test_the_form_of_a_link(url: str, fault: str) -> None:
    assert Link(url, Path("a.md"), 1).fault == fault
